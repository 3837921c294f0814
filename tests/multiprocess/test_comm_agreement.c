// Ranks that do not run the same program find out before a byte is touched, and say who.
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define MAX_WORLD 4
#define RUN_SECONDS 30.0
#define COUNT 4096

static gs_collective make_sum(comm_rank *self) {
    float *data = gs_arena_data(self->arena);
    return (gs_collective){.kind = GS_ALLREDUCE,
                           .send = data,
                           .recv = data,
                           .count = COUNT,
                           .dtype = GS_FP32,
                           .step = 5,
                           .bucket = 3};
}

static void make_different(gs_collective *sum, const char *what) {
    if (strcmp(what, "count") == 0) sum->count -= 1;
    if (strcmp(what, "kind") == 0) sum->kind = GS_REDUCE;
    if (strcmp(what, "step") == 0) sum->step = 6;
    if (strcmp(what, "bucket") == 0) sum->bucket = 4;
    if (strcmp(what, "dtype") == 0) sum->dtype = GS_I32;
    if (strcmp(what, "op") == 0) sum->op = GS_OP_MAX;
    if (strcmp(what, "scale") == 0) sum->scale = 0.5;
    if (strncmp(what, "wire", 4) == 0) sum->wire_dtype = GS_BF16;
    if (strcmp(what, "wire scale") == 0) sum->wire_scale = 0.25f;
    if (strcmp(what, "wire scale after") == 0) sum->wire_scale_after = true;
    if (strcmp(what, "barrier") == 0) *sum = (gs_collective){.kind = GS_BARRIER, .step = 5};
}

// Rank 1 does something else in its fourth collective: what, is the argument.
static gs_status run_mismatch(comm_rank *self, const char *what) {
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    for (int i = 0; i < 6; i++) {
        gs_collective sum = make_sum(self);
        if (i == 3 && self->rank == 1) make_different(&sum, what);
        GS_TRY(gs_comm_run(self->comm, &sum, deadline));
    }
    return gs_ok();
}

static gs_status mismatch(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), NULL);
    if (!status.code) status = run_mismatch(&self, env->arg);
    comm_rank_close(&self);
    return status;
}

// On two levels a host compares among itself, a column across the hosts, and the net of all what
// two levels do not carry: wherever rank 1 is, each of the ranks gets to know. `scatter` carries
// over a column what the sum of the others does.
static const char *const differences[] = {"count", "kind", "root", "step", "bucket", "dtype", "op",
                                          "scale", "wire", "wire scale after", "scatter", "barrier"};

static gs_status differ_between_hosts(const gs_rank_env *env, const char *what, size_t count,
                                      uint32_t generation) {
    comm_rank self;
    gs_comm_options options = {.backend = "hosts", .generation = generation};
    GS_TRY(comm_rank_open(&self, env, count * sizeof(float), &options));
    gs_collective sum = make_sum(&self);
    sum.count = count;
    if (strcmp(what, "root") == 0) sum.kind = GS_REDUCE;
    if (self.rank == 1) make_different(&sum, what);
    if (self.rank == 1 && strcmp(what, "root") == 0) sum.root = 2;
    if (self.rank == 1 && strcmp(what, "scatter") == 0) {
        sum.kind = GS_REDUCE_SCATTER;
        sum.count = count / (size_t)self.world_size;
        sum.recv = (float *)sum.recv + sum.count;
    }
    gs_status status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(RUN_SECONDS));
    comm_rank_close(&self);
    bool is_told = status.code == GS_FAILED_PRECONDITION && strstr(status.message, "collective 1: rank 1 posted");
    return is_told ? gs_ok()
                   : gs_error(GS_INTERNAL, "another %s of %zu: %s, %s", what, count, gs_code_name(status.code), status.message);
}

// The argument: each rank's host.
static gs_status differ_on_hosts(const gs_rank_env *env) {
    const char host[2] = {env->arg[env->rank], '\0'};
    const size_t sizes[] = {COUNT, 64 * COUNT};
    uint32_t generation = 0;
    setenv("GRADSYNC_HOST", host, 1);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < sizeof differences / sizeof *differences; k++)
            GS_TRY(differ_between_hosts(env, differences[k], sizes[i], ++generation));
    return gs_ok();
}

// Rank 1 asks for what no backend would begin; the others have begun. Nobody leaves before all know.
static gs_status ask_wrongly(const gs_rank_env *env) {
    comm_rank self;
    char note = 0, all[MAX_WORLD];
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), NULL), met = gs_ok();
    if (!status.code) {
        gs_collective sum = make_sum(&self);
        if (self.rank == 1) sum.recv = NULL;
        status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(RUN_SECONDS / 3));
        met = gs_rank_exchange(env->exchange, "asked", NULL, 0, &note, sizeof note, all,
                               gs_deadline_in_seconds(RUN_SECONDS));
    }
    comm_rank_close(&self);
    return met.code ? met : status;
}

static void *destroy_comm(void *ctx) {
    gs_comm_destroy(ctx);
    return NULL;
}

// Rank 1 ends its communicator in another thread than began it, and lives on until the others know.
static gs_status leave_by_another_thread(const gs_rank_env *env) {
    comm_rank self;
    char note = 0, all[MAX_WORLD];
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), NULL);
    if (!status.code && env->rank == 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, destroy_comm, self.comm)) abort();
        pthread_join(thread, NULL);
        self.comm = NULL;
    } else if (!status.code) {
        gs_collective sum = make_sum(&self);
        status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(RUN_SECONDS / 3));
    }
    gs_status met = gs_rank_exchange(env->exchange, "known", NULL, 0, &note, sizeof note, all,
                                     gs_deadline_in_seconds(RUN_SECONDS));
    comm_rank_close(&self);
    return met.code ? met : status;
}

// Rank 1 leaves one collective out and goes home.
static gs_status run_fewer(comm_rank *self) {
    for (int i = 0; i < 5 - (self->rank == 1); i++) {
        gs_collective sum = make_sum(self);
        GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    }
    return gs_ok();
}

static gs_status fewer(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), NULL);
    if (!status.code) status = run_fewer(&self);
    comm_rank_close(&self);
    return status;
}

// Ranks 1 and 2 do not come before the deadline of the others, who then let them come. These two wait for each other
// first: neither is to miss more ranks than those.
static gs_status run_late(comm_rank *self, const gs_rank_env *env) {
    gs_collective sum = make_sum(self);
    gs_work work;
    char note[1] = {0}, all[MAX_WORLD];
    static const int in_time[] = {0, 3};
    gs_status status = gs_ok();
    bool late = self->rank == 1 || self->rank == 2;
    if (!late) {
        GS_TRY(gs_comm_post(self->comm, &work, &sum));
        GS_TRY(gs_rank_exchange(env->exchange, "in time", in_time, 2, note, sizeof note, all,
                                gs_deadline_in_seconds(RUN_SECONDS)));
        status = gs_comm_wait(self->comm, work, gs_deadline_in_ms(400));
    }
    GS_TRY(gs_rank_exchange(env->exchange, "late", NULL, 0, note, sizeof note, all,
                            gs_deadline_in_seconds(RUN_SECONDS)));
    if (late) GS_TRY(gs_comm_post(self->comm, &work, &sum));
    GS_TRY(gs_comm_wait(self->comm, work, gs_deadline_in_seconds(RUN_SECONDS)));
    return status;
}

static gs_status late(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.helper =
                                   strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF};
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), &options);
    if (!status.code) status = run_late(&self, env);
    comm_rank_close(&self);
    return status;
}

// Rank 2 aborts from another thread, at any moment of the others' work.
static void *abort_comm(void *ctx) {
    gs_comm_abort(ctx, "told so");
    gs_comm_abort(ctx, "too late");
    return NULL;
}

static gs_status run_until_abort(comm_rank *self, bool waits) {
    pthread_t thread;
    bool aborts = self->rank == 2 && !pthread_create(&thread, NULL, abort_comm, self->comm);
    gs_status status = gs_ok();
    // Where the aborting rank does not come, the others sleep when the abort arrives.
    while (!status.code && (waits || !aborts)) {
        gs_collective sum = make_sum(self);
        status = gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS));
    }
    if (aborts) pthread_join(thread, NULL);
    gs_collective barrier = {.kind = GS_BARRIER};
    return gs_comm_run(self->comm, &barrier, gs_deadline_in_seconds(RUN_SECONDS));
}

static gs_status aborted(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.helper = strstr(env->arg, "helper") ? GS_HELPER_ON : GS_HELPER_OFF};
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), &options);
    if (!status.code) status = run_until_abort(&self, strstr(env->arg, "busy") != NULL);
    comm_rank_close(&self);
    return status;
}

static int count_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

static gs_status live_one_generation(const gs_rank_env *env, uint32_t generation, bool aborts) {
    comm_rank self;
    gs_comm_options options = {.generation = generation,
                               .helper = generation % 2 ? GS_HELPER_OFF : GS_HELPER_ON};
    gs_status status = comm_rank_open(&self, env, 1 << 20, &options);
    for (int i = 0; i < 3 && !status.code; i++) {
        gs_collective sum = make_sum(&self);
        status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(RUN_SECONDS));
    }
    if (!status.code && aborts) gs_comm_abort(self.comm, "next generation");
    comm_rank_close(&self);
    return status;
}

static gs_status many_generations(const gs_rank_env *env) {
    GS_TRY(live_one_generation(env, 1, false));
    int before = count_fds();
    for (uint32_t generation = 2; generation < 8; generation++) {
        // An abort in peace: the others may or may not have got through their last collective.
        gs_status status = live_one_generation(env, generation, generation % 3 == 0);
        if (status.code && status.code != GS_ABORTED) return status;
    }
    int after = count_fds();
    if (before != after) return gs_error(GS_INTERNAL, "%d descriptors, then %d", before, after);
    return gs_ok();
}

static gs_status other_generation(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.generation = env->rank == 1 ? 8 : 7};
    gs_status status = comm_rank_open(&self, env, 4096, &options);
    comm_rank_close(&self);
    return status;
}

static gs_status no_backend(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = env->arg};
    gs_status status = comm_rank_open(&self, env, 4096, &options);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"mismatch", mismatch},
                                      {"differ on hosts", differ_on_hosts},
                                      {"ask wrongly", ask_wrongly},
                                      {"leave by another thread", leave_by_another_thread},
                                      {"fewer", fewer},
                                      {"late", late},
                                      {"aborted", aborted},
                                      {"generations", many_generations},
                                      {"other generation", other_generation},
                                      {"backend", no_backend},
                                      {0}};

static void run_ranks(gs_status *statuses, const char *body, int world_size, const char *arg) {
    gs_ranks *ranks;
    assert_int_equal(gs_ranks_start(&ranks, body, world_size, arg, NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    gs_ranks_destroy(ranks);
}

static void expect(const gs_status *status, gs_code code, const char *text) {
    if (status->code != code || !strstr(status->message, text))
        print_error("%s: %s\n", gs_code_name(status->code), status->message);
    assert_int_equal(status->code, code);
    assert_non_null(strstr(status->message, text));
}

static void another_collective_is_named_on_every_rank(void **state) {
    (void)state;
    static const struct {
        const char *what, *theirs, *ours;
    } cases[] = {{"count", "sum 4095 x fp32", "sum 4096 x fp32"},
                 {"kind", "posted reduce sum", "rank 0 all-reduce sum"},
                 {"step", "step 6", "step 5"},
                 {"bucket", "bucket 4", "bucket 3"},
                 {"dtype", "i32", "fp32"},
                 {"op", "max", "sum"},
                 {"scale", "scale 0.5", "all-reduce"},
                 {"wire", "fp32 root 0 sent as bf16 x 1 of bucket 3", "fp32 root 0 of bucket 3"},
                 {"wire scale", "sent as bf16 x 0.25", "fp32 root 0 of bucket 3"},
                 {"wire scale after", "sent as bf16 x 1 after it", "fp32 root 0 of bucket 3"},
                 {"barrier", "posted barrier", "all-reduce"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_status statuses[3];
        run_ranks(statuses, "mismatch", 3, cases[i].what);
        for (int rank = 0; rank < 3; rank++) {
            expect(&statuses[rank], GS_FAILED_PRECONDITION, "collective 4: rank 1 posted");
            expect(&statuses[rank], GS_FAILED_PRECONDITION, cases[i].theirs);
            expect(&statuses[rank], GS_FAILED_PRECONDITION, cases[i].ours);
        }
    }
}

static void another_collective_is_found_out_on_two_levels(void **state) {
    (void)state;
    static const char *const shapes[] = {"aabb", "aaab", "abaa"};
    for (int i = 0; i < 3; i++) {
        gs_status statuses[4];
        run_ranks(statuses, "differ on hosts", 4, shapes[i]);
        for (int rank = 0; rank < 4; rank++) expect(&statuses[rank], GS_OK, "");
    }
}

static void a_wrong_argument_of_one_ends_the_others_with_its_words(void **state) {
    (void)state;
    gs_status statuses[3];
    run_ranks(statuses, "ask wrongly", 3, "");
    expect(&statuses[0], GS_ABORTED, "receive buffer is missing");
    expect(&statuses[1], GS_INVALID_ARGUMENT, "receive buffer is missing");
    expect(&statuses[2], GS_ABORTED, "receive buffer is missing");
}

static void a_rank_that_leaves_early_is_named(void **state) {
    (void)state;
    gs_status statuses[3];
    run_ranks(statuses, "fewer", 3, "");
    expect(&statuses[0], GS_ABORTED, "bucket 3, step 5: rank 1 left");
    expect(&statuses[1], GS_OK, "");
    expect(&statuses[2], GS_ABORTED, "bucket 3, step 5: rank 1 left");
}

static void a_rank_that_another_thread_ended_has_left(void **state) {
    (void)state;
    gs_status statuses[3];
    run_ranks(statuses, "leave by another thread", 3, "");
    expect(&statuses[0], GS_ABORTED, "bucket 3, step 5: rank 1 left");
    expect(&statuses[1], GS_OK, "");
    expect(&statuses[2], GS_ABORTED, "bucket 3, step 5: rank 1 left");
}

static void a_deadline_names_all_missing_ranks_and_the_collective_can_still_finish(void **state) {
    (void)state;
    static const char *const args[] = {"", "helper"};
    for (int i = 0; i < 2; i++) {
        gs_status statuses[4];
        run_ranks(statuses, "late", 4, args[i]);
        expect(&statuses[0], GS_DEADLINE_EXCEEDED,
               "bucket 3, step 5: ranks 1 and 2 did not arrive within ");
        expect(&statuses[1], GS_OK, "");
        expect(&statuses[2], GS_OK, "");
        expect(&statuses[3], GS_DEADLINE_EXCEEDED, "ranks 1 and 2 did not arrive");
    }
}

static void an_abort_ends_every_wait_with_the_first_reason(void **state) {
    (void)state;
    static const char *const args[] = {"busy", "sleeping", "busy helper", "sleeping helper"};
    for (int i = 0; i < 4; i++) {
        gs_status statuses[3];
        run_ranks(statuses, "aborted", 3, args[i]);
        for (int rank = 0; rank < 3; rank++) expect(&statuses[rank], GS_ABORTED, "told so");
    }
}

static void generations_follow_each_other_and_leave_nothing_behind(void **state) {
    (void)state;
    gs_status statuses[3];
    run_ranks(statuses, "generations", 3, "");
    for (int rank = 0; rank < 3; rank++) expect(&statuses[rank], GS_OK, "");
}

static void another_generation_is_refused_on_every_rank(void **state) {
    (void)state;
    gs_status statuses[3];
    run_ranks(statuses, "other generation", 3, "");
    for (int rank = 0; rank < 3; rank++)
        expect(&statuses[rank], GS_FAILED_PRECONDITION, "rank 1 has generation 8, rank 0 has 7");
}

static void a_backend_that_does_not_fit_is_refused(void **state) {
    (void)state;
    gs_status statuses[2];
    run_ranks(statuses, "backend", 2, "smoke-signals");
    for (int rank = 0; rank < 2; rank++)
        expect(&statuses[rank], GS_INVALID_ARGUMENT, "none of auto, self, shm, net");
    run_ranks(statuses, "backend", 2, "self");
    for (int rank = 0; rank < 2; rank++)
        expect(&statuses[rank], GS_UNAVAILABLE, "serves one rank, not 2");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_collective_is_named_on_every_rank),
        cmocka_unit_test(another_collective_is_found_out_on_two_levels),
        cmocka_unit_test(a_wrong_argument_of_one_ends_the_others_with_its_words),
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(a_rank_that_another_thread_ended_has_left),
        cmocka_unit_test(a_deadline_names_all_missing_ranks_and_the_collective_can_still_finish),
        cmocka_unit_test(an_abort_ends_every_wait_with_the_first_reason),
        cmocka_unit_test(generations_follow_each_other_and_leave_nothing_behind),
        cmocka_unit_test(another_generation_is_refused_on_every_rank),
        cmocka_unit_test(a_backend_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
