// Two hosts of two ranks each, on two levels: a rank is killed, or frozen, while they add numbers
// that reveal every contributor. No survivor takes a wrong sum for a right one, each returns with
// words for who is missing, whichever level that was of, and has its own numbers still.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/fault/summands.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"

#define WORLD 4
#define COUNT 600000  // three chunks
#define MOST_TURNS 100000
#define FAR_SECONDS 60.0
#define NUM_KILLS 8
#define FROZEN_SECONDS 4.0  // far more than a sum takes on a busy machine

#ifdef GRADSYNC_FAILPOINTS
#define HAS_FAILPOINTS true
#else
#define HAS_FAILPOINTS false
#endif

typedef enum loss { DIES, FREEZES_BETWEEN_SUMS, FREEZES_AMID, NUM_LOSSES } loss;
static const char *const losses[NUM_LOSSES] = {"dies", "freezes between sums", "freezes amid"};

// The argument: the rank that goes, and how.
static int victim_of(const gs_rank_env *env) {
    return (int)strtol(env->arg, NULL, 10);
}

static bool is_lost_by(const gs_rank_env *env, loss how) {
    return strstr(env->arg, losses[how]) != NULL;
}

static bool is_rightly_accused(const gs_rank_env *env, const gs_comm_failure *seen) {
    return gs_comm_failure_names(seen, victim_of(env)) && gs_comm_failure_num_accused(seen) == 1;
}

static gs_status add_until_it_fails(comm_rank *self, const gs_rank_env *env, summands *own) {
    double seconds = is_lost_by(env, DIES) ? FAR_SECONDS : FROZEN_SECONDS;
    bool stops = is_lost_by(env, FREEZES_BETWEEN_SUMS) && env->rank == victim_of(env);
    for (uint64_t i = 0; i < MOST_TURNS; i++) {
        own->seed = i * SUMMANDS;
        if (i == 1 && stops) raise(SIGSTOP);
        int64_t began_ns = gs_now_ns();
        gs_status status = summands_add(own, self, seconds);
        double took = gs_seconds_since(began_ns);
        if (i == 0) gs_rank_note(env, "adds");
        if (!status.code) {
            GS_TRY(summands_check(own, self));
            continue;
        }
        gs_comm_failure seen;
        gs_comm_explain(self->comm, &seen);
        gs_comm_let_go(self->comm, status.message);
        gs_rank_note(env, "over");
        GS_TRY(summands_check(own, self));
        if (!is_rightly_accused(env, &seen))
            return gs_error(GS_INTERNAL, "not the one who is gone is accused: %s", status.message);
        if (status.code == GS_DEADLINE_EXCEEDED && took < seconds)
            return gs_error(GS_INTERNAL, "%.1f s before the deadline: %s", seconds - took, status.message);
        return status;
    }
    return gs_error(GS_INTERNAL, "nobody has died");
}

static gs_status add(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "hosts"};
    setenv("GRADSYNC_HOST", env->rank < 2 ? "a" : "b", 1);
    gs_status status = comm_rank_open(&self, env, 0, &options);
    summands own;
    summands_init(&own, COUNT);
    if (!status.code) status = add_until_it_fails(&self, env, &own);
    comm_rank_close(&self);
    summands_release(&own);
    return status;
}

// Rank 0 is held up where it adds what the net of all carries; it must not take its memory for its
// own behind an abort.
static gs_status hold(const gs_rank_env *env) {
    static const uint8_t merges[WORLD] = {0, 1, 0, 2};
    const int rank_of[] = {0, 1, 2, 3}, part_of[WORLD] = {0};
    gs_reduce_tree tree = {WORLD, rank_of, part_of, merges};
    comm_rank self;
    gs_comm_options options = {.backend = "hosts"};
    setenv("GRADSYNC_HOST", env->rank < 2 ? "a" : "b", 1);
    GS_TRY(comm_rank_open(&self, env, 0, &options));
    float *data = calloc(COUNT, sizeof *data);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = COUNT,
                         .dtype = GS_FP32,
                         .tree = &tree};
    gs_work work;
    GS_TRY(gs_comm_post(self.comm, &work, &sum));
    gs_status status = gs_comm_wait(self.comm, work, gs_deadline_in_seconds(env->rank ? 100 : 2));
    gs_comm_abort(self.comm, "enough");
    gs_status moves = gs_comm_wait(self.comm, work, gs_deadline_in_seconds(1));
    if (env->rank == 0)
        gs_rank_note(env, moves.code == GS_DEADLINE_EXCEEDED ? "moves" : "says that it is still");
    gs_sleep_ns(600 * GS_NS_PER_SEC);
    return status;
}

// The thread of this rank that moves is held up where it adds; its owner has not waited yet.
#ifdef GRADSYNC_FAILPOINTS
static atomic_bool holds, is_held;

gs_status __real_gs_failpoint_pass(const char *name);
gs_status __wrap_gs_failpoint_pass(const char *name);
gs_status __wrap_gs_failpoint_pass(const char *name) {
    if (atomic_load(&holds) && strcmp(name, "comm.slice") == 0) {
        atomic_store(&is_held, true);
        gs_sleep_ns(600 * GS_NS_PER_SEC);
    }
    return __real_gs_failpoint_pass(name);
}

static gs_status wait_while_held(comm_rank *self, gs_work work) {
    gs_comm_failure seen;
    gs_deadline soon_enough = gs_deadline_in_seconds(FAR_SECONDS);
    while (!atomic_load(&is_held) && !gs_deadline_passed(soon_enough)) gs_sleep_ns(GS_NS_PER_MS);
    if (!atomic_load(&is_held)) return gs_error(GS_INTERNAL, "nothing is held up");
    gs_status status = gs_comm_wait(self->comm, work, gs_deadline_in_seconds(1));
    gs_comm_explain(self->comm, &seen);
    bool names_itself = gs_comm_failure_num_accused(&seen) == 1 && gs_comm_failure_names(&seen, self->rank);
    if (status.code != GS_DEADLINE_EXCEEDED || !names_itself)
        return gs_error(GS_INTERNAL, "%d accused: %s", gs_comm_failure_num_accused(&seen), status.message);
    return gs_ok();
}

static gs_status held_up(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "hosts", .helper = GS_HELPER_ON};
    char here = 1, all[WORLD];
    gs_work work;
    setenv("GRADSYNC_HOST", env->rank < 2 ? "a" : "b", 1);
    GS_TRY(comm_rank_open(&self, env, 0, &options));
    float *data = calloc(COUNT, sizeof *data);
    const gs_collective sum = {.kind = GS_ALLREDUCE, .send = data, .recv = data, .count = COUNT, .dtype = GS_FP32};
    atomic_store(&holds, env->rank == 0);
    // Before any other: its owner finds nothing to add.
    if (env->rank == 0) GS_TRY(gs_comm_post(self.comm, &work, &sum));
    GS_TRY(gs_rank_exchange(env->exchange, "posted", NULL, 0, &here, 1, all, gs_deadline_in_seconds(FAR_SECONDS)));
    if (env->rank == 0) {
        gs_status status = wait_while_held(&self, work);
        gs_rank_note(env, status.code ? status.message : "returned");
    } else {
        GS_TRY(gs_comm_post(self.comm, &work, &sum));
        (void)gs_comm_wait(self.comm, work, gs_deadline_in_seconds(600)).code;
    }
    gs_sleep_ns(600 * GS_NS_PER_SEC);
    return gs_ok();
}
#else
static gs_status held_up(const gs_rank_env *env) { return (void)env, gs_ok(); }
#endif

static const gs_rank_body bodies[] = {{"add", add}, {"hold", hold}, {"held_up", held_up}, {0}};

// Survivors of a kill know at once: none waits for its deadline. A frozen rank is told by deadlines
// alone.
static void lose_rank(int victim, loss how, int64_t pause_ns) {
    bool freezes = how != DIES;
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    char arg[32];
    snprintf(arg, sizeof arg, "%d %s", victim, losses[how]);
    assert_ok(gs_ranks_start(&ranks, "add", WORLD, arg, NULL));
    assert_ok(gs_ranks_wait_note(ranks, victim, "adds", gs_deadline_in_seconds(FAR_SECONDS)));
    gs_sleep_ns(pause_ns);
    if (how != FREEZES_BETWEEN_SUMS)
        gs_ranks_signal(ranks, victim, how == DIES ? SIGKILL : SIGSTOP);
    for (int rank = 0; freezes && rank < WORLD; rank++) {
        if (rank != victim)
            assert_ok(gs_ranks_wait_note(ranks, rank, "over", gs_deadline_in_seconds(FAR_SECONDS)));
    }
    if (freezes) gs_ranks_signal(ranks, victim, SIGKILL);
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(FAR_SECONDS)));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank++) {
        bool knows = statuses[rank].code == GS_ABORTED ||
                     (freezes && statuses[rank].code == GS_DEADLINE_EXCEEDED);
        if (!knows)
            print_error("rank %d, where %d %s: %s\n", rank, victim, losses[how],
                        statuses[rank].message);
        assert_true(knows);
    }
}

static void survivors_of_a_kill_take_no_wrong_sum_and_keep_their_numbers(void **state) {
    (void)state;
    gs_random_key drawn = {.seed = sample_seed("kills"), .stream = 1};
    for (uint64_t i = 0; i < NUM_KILLS; i++) {
        uint64_t dice = gs_random_u64(drawn, i);
        lose_rank((int)(dice % WORLD), DIES, (int64_t)((dice >> 8) % 8000) * 1000);
    }
}

static void survivors_of_a_frozen_rank_name_it_at_their_deadline(void **state) {
    (void)state;
    lose_rank(0, FREEZES_BETWEEN_SUMS, 0);
    lose_rank(3, FREEZES_BETWEEN_SUMS, 0);
    gs_random_key drawn = {.seed = sample_seed("freezes"), .stream = 2};
    const char *told = getenv("GRADSYNC_FREEZES");
    uint64_t num_freezes = told ? strtoull(told, NULL, 10) : 1;
    for (uint64_t i = 0; i < num_freezes; i++) {
        uint64_t dice = gs_random_u64(drawn, i);
        lose_rank((int)(dice % WORLD), FREEZES_AMID, (int64_t)((dice >> 8) % 8000) * 1000);
    }
}

static void a_wait_behind_an_abort_tells_what_still_moves(void **state) {
    (void)state;
    if (!HAS_FAILPOINTS) skip();
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    const char *environment[] = {"GRADSYNC_FAILPOINTS=comm.slice#0=sleep:600000", NULL};
    assert_ok(gs_ranks_start(&ranks, "hold", WORLD, "", environment));
    assert_ok(gs_ranks_wait_note(ranks, 0, "moves", gs_deadline_in_seconds(FAR_SECONDS)));
    for (int rank = 0; rank < WORLD; rank++) gs_ranks_signal(ranks, rank, SIGKILL);
    (void)gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(FAR_SECONDS)).code;
    gs_ranks_destroy(ranks);
}

static void a_wait_ends_at_its_deadline_while_who_moves_is_held_up(void **state) {
    (void)state;
    if (!HAS_FAILPOINTS) skip();
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_start(&ranks, "held_up", WORLD, "", NULL));
    gs_status status = gs_ranks_wait_note(ranks, 0, "returned", gs_deadline_in_seconds(FAR_SECONDS));
    for (int rank = 0; rank < WORLD; rank++) gs_ranks_signal(ranks, rank, SIGKILL);
    (void)gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(FAR_SECONDS)).code;
    gs_ranks_destroy(ranks);
    assert_ok(status);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_kill_take_no_wrong_sum_and_keep_their_numbers),
        cmocka_unit_test(survivors_of_a_frozen_rank_name_it_at_their_deadline),
        cmocka_unit_test(a_wait_behind_an_abort_tells_what_still_moves),
        cmocka_unit_test(a_wait_ends_at_its_deadline_while_who_moves_is_held_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
