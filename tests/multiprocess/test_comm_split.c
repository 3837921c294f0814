// Parts of a communicator, made through itself: who is in which, all made or none, and one end for
// all of them.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/comm.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define MOST_RANKS 8
#define COUNT ((size_t)20000)  // far beyond what goes through slots
#define ARENA_BYTES (2 * COUNT * sizeof(float))

static gs_collective sum_of(float *data, size_t count) {
    return (gs_collective){.kind = GS_ALLREDUCE,
                           .send = data,
                           .recv = data,
                           .count = count,
                           .dtype = GS_FP32,
                           .op = GS_OP_SUM};
}

static gs_status check_all(const float *data, double wanted, const char *what) {
    for (size_t i = 0; i < COUNT; i++) {
        if ((double)data[i] != wanted)
            return gs_error(GS_DATA_LOSS, "%s: element %zu is %g, not %g", what, i, (double)data[i],
                            wanted);
    }
    return gs_ok();
}

static gs_status expect(gs_status status, gs_code code, const char *words) {
    if (status.code == code && strstr(status.message, words)) return gs_ok();
    return gs_error(GS_INTERNAL, "expected \"%s\", got: %s", words, status.message);
}

// Sums in the part and in the whole at the same time, both in place in the one arena.
static gs_status sum_both(const comm_rank *self, gs_comm *part, int color) {
    float *own = gs_arena_data(self->arena), *all = own + COUNT;
    double part_sum = 0, whole_sum = 0;
    for (int r = 0; r < self->world_size; r++) {
        whole_sum += r + 1;
        if (r % 2 == color) part_sum += r + 1;
    }
    for (size_t i = 0; i < COUNT; i++) own[i] = all[i] = (float)(self->rank + 1);
    const gs_collective in_part = sum_of(own, COUNT), in_whole = sum_of(all, COUNT);
    gs_work part_work, whole_work;
    GS_TRY(gs_comm_post(self->comm, &whole_work, &in_whole));
    GS_TRY(gs_comm_post(part, &part_work, &in_part));
    GS_TRY(gs_comm_wait(part, part_work, soon()));
    GS_TRY(gs_comm_wait(self->comm, whole_work, soon()));
    if (strcmp(gs_comm_backend_name(part), "shm") == 0 &&
        strcmp(gs_comm_algorithm(part, &in_part), "direct") != 0)
        return gs_error(GS_INTERNAL, "the part copies what lies in the arena");
    GS_TRY(check_all(own, part_sum, "part"));
    return check_all(all, whole_sum, "whole");
}

static gs_status check_part(const comm_rank *self, gs_comm *part, int color) {
    int size = 0;
    for (int r = 0; r < self->world_size; r++) {
        if (r % 2 != color) continue;
        if (gs_comm_world_rank(part, size) != r)
            return gs_error(GS_INTERNAL, "rank %d of the part is world rank %d, not %d", size,
                            gs_comm_world_rank(part, size), r);
        size++;
    }
    if (gs_comm_world_size(part) == size && gs_comm_rank(part) == self->rank / 2) return gs_ok();
    return gs_error(GS_INTERNAL, "rank %d of %d", gs_comm_rank(part), gs_comm_world_size(part));
}

// Outside of all communicators.
static gs_status meet(const gs_rank_env *env, const char *tag) {
    char mine = 0, all[MOST_RANKS];
    return gs_rank_exchange(env->exchange, tag, NULL, 0, &mine, 1, all, soon());
}

// Even and odd ranks; then nobody but rank 0; then all, by their host. The arena serves the next
// communicator.
static gs_status split_often(const gs_rank_env *env) {
    comm_rank self;
    gs_comm *part = NULL, *alone = NULL, *host = NULL, *next = NULL;
    int color = env->rank % 2;
    gs_status status = comm_rank_open(&self, env, ARENA_BYTES, NULL);
    if (!status.code)
        status = gs_comm_split(&part, self.comm, &(gs_comm_split_options){.color = color}, soon());
    if (!status.code) status = check_part(&self, part, color);
    for (int i = 0; i < 3 && !status.code; i++) status = sum_both(&self, part, color);
    int only = env->rank ? GS_COMM_NO_COLOR : 7;
    if (!status.code)
        status = gs_comm_split(&alone, self.comm, &(gs_comm_split_options){.color = only}, soon());
    if (!status.code && (alone != NULL) != (env->rank == 0))
        status = gs_error(GS_INTERNAL, "no colour, but a part");
    if (!status.code)
        status = gs_comm_split(&host, self.comm,
                               &(gs_comm_split_options){.by_host = true, .name = "host"}, soon());
    if (!status.code && gs_comm_world_size(host) != env->world_size)
        status = gs_error(GS_INTERNAL, "a host of %d ranks", gs_comm_world_size(host));
    gs_comm_destroy(alone);
    // What is in flight in a part disturbs the arena, and the whole answers for it.
    if (!status.code) status = meet(env, "split");
    gs_work work;
    float *data = gs_arena_data(self.arena);
    const gs_collective sum = sum_of(data, COUNT);
    if (!status.code && env->rank == 0) status = gs_comm_post(host, &work, &sum);
    if (!status.code) status = gs_comm_wait_ended(self.comm, soon());
    const gs_comm_options options = {.rank = env->rank,
                                     .world_size = env->world_size,
                                     .generation = 2,
                                     .exchange = gs_rank_exchange,
                                     .exchange_ctx = env->exchange,
                                     .arena = self.arena,
                                     .device = self.device};
    if (!status.code) status = gs_comm_create(&next, &options, soon());
    gs_comm_destroy(next);
    gs_comm_destroy(host);
    gs_comm_destroy(self.comm);
    self.comm = NULL;
    gs_comm_destroy(part);  // behind the whole
    comm_rank_close(&self);
    return status;
}

// Rank 2 asks for what there is not: nobody gets a part, of the other colour neither, and the whole
// goes on.
static gs_status fail_one(const gs_rank_env *env) {
    comm_rank self;
    gs_comm *part = NULL;
    gs_status status = comm_rank_open(&self, env, ARENA_BYTES, NULL);
    const gs_comm_split_options options = {.color = env->rank % 2,
                                           .num_lanes = env->rank == 2 ? 99 : 0};
    if (!status.code)
        status = expect(gs_comm_split(&part, self.comm, &options, soon()), GS_INVALID_ARGUMENT,
                        "lanes, not 99");
    if (!status.code && part) status = gs_error(GS_INTERNAL, "a part in spite of all");
    float one = 1;
    const gs_collective sum = sum_of(&one, 1);
    if (!status.code) status = gs_comm_run(self.comm, &sum, soon());
    comm_rank_close(&self);
    return status;
}

typedef struct aborter {
    gs_comm *comm;
} aborter;

static void *abort_soon(void *ctx) {
    const aborter *self = ctx;
    gs_sleep_ns(20 * GS_NS_PER_MS);
    gs_comm_abort(self->comm, "told so");
    return NULL;
}

static gs_status watch(gs_comm *comm) {
    gs_status status = gs_ok();
    while (!status.code) status = gs_comm_wait_moved(&comm, 1, soon());
    return status;
}

// "PART": rank 0's abort comes to its part; else to the whole. It and rank 2 are in a part and wait
// there for what nobody posts, 1 and 3 in the whole.
static gs_status abort_one(const gs_rank_env *env) {
    comm_rank self;
    gs_comm *part = NULL;
    bool aborts_part = strcmp(env->arg, "part") == 0;
    GS_TRY(comm_rank_open(&self, env, ARENA_BYTES, NULL));
    GS_TRY(
        gs_comm_split(&part, self.comm, &(gs_comm_split_options){.color = env->rank % 2}, soon()));
    float data = 1;
    const gs_collective sum = sum_of(&data, 1);
    aborter told = {.comm = aborts_part ? part : self.comm};
    pthread_t thread;
    gs_status status = gs_ok();
    bool is_first = env->rank == 0;
    if (is_first && pthread_create(&thread, NULL, abort_soon, &told))
        status = gs_error(GS_INTERNAL, "no thread");
    // Ranks 0 and 1 alone: what they wait for does not come.
    if (!status.code && env->rank < 2)
        status =
            expect(gs_comm_run(env->rank ? self.comm : part, &sum, soon()), GS_ABORTED, "told so");
    else if (!status.code)
        status = expect(watch(env->rank == 2 ? part : self.comm), GS_ABORTED, "told so");
    if (is_first) pthread_join(thread, NULL);
    // Whoever was not asked has ended, too.
    if (!status.code) status = expect(gs_comm_run(self.comm, &sum, soon()), GS_ABORTED, "told so");
    gs_status ended = meet(env, "ended");
    gs_comm_destroy(part);
    comm_rank_close(&self);
    return status.code ? status : ended;
}

static const gs_rank_body bodies[] = {
    {"split", split_often}, {"fail", fail_one}, {"abort", abort_one}, {NULL, NULL}};

static void run(const char *body, int world_size, const char *arg) {
    gs_ranks *ranks;
    gs_status statuses[MOST_RANKS];
    bool failed = false;
    assert_ok(gs_ranks_start(&ranks, body, world_size, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_ranks_destroy(ranks);
    for (int i = 0; i < world_size; i++) {
        failed |= statuses[i].code != GS_OK;
        if (statuses[i].code)
            print_error("%s, rank %d of %d: %s\n", body, i, world_size, statuses[i].message);
    }
    assert_false(failed);
}

static void ranks_of_a_colour_sum_beside_the_whole(void **state) {
    (void)state;
    run("split", 2, "");
    run("split", 5, "");
}

static void one_that_fails_fails_on_all(void **state) {
    (void)state;
    run("fail", 4, "");
}

static void an_abort_ends_whole_and_parts(void **state) {
    (void)state;
    run("abort", 4, "whole");
    run("abort", 4, "part");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_colour_sum_beside_the_whole),
        cmocka_unit_test(one_that_fails_fails_on_all),
        cmocka_unit_test(an_abort_ends_whole_and_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
