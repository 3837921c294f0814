// Ranks of four hosts are killed, or frozen, while they add numbers that reveal every contributor:
// no survivor takes a wrong sum for a right one, each returns with words for who is missing, and
// has its own numbers still.
// Row N12 of docs/faults.md.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
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
#define COUNT 320000  // each slice is a segment and a bit
#define MOST_TURNS 100000
#define FAR_SECONDS 60.0
#define NUM_KILLS 12
#define NUM_FREEZES 2
#define FROZEN_SECONDS 5.0
#define HELD_SECONDS 0.2
#define SHORT_NS (50 * GS_NS_PER_MS)

#ifdef GRADSYNC_FAILPOINTS
#define HAS_FAILPOINTS true
#else
#define HAS_FAILPOINTS false
#endif

typedef enum loss {
    DIES,            // at any moment
    DIES_GATHERING,  // some have its part of the sum and some have not
    DIES_DONE,       // it has the sum, whoever else has
    DIES_FROZEN,     // 50 ms after it froze
    FREEZES_BETWEEN_SUMS,
    FREEZES_AMID,
    NUM_LOSSES
} loss;
#define NUM_DEATHS FREEZES_BETWEEN_SUMS
static const char *const losses[NUM_LOSSES] = {"dies",       "gathers",       "is done",
                                               "was frozen", "stops between", "stops amid"};

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
    bool freezes = is_lost_by(env, FREEZES_BETWEEN_SUMS) || is_lost_by(env, FREEZES_AMID);
    double seconds = freezes ? FROZEN_SECONDS : FAR_SECONDS;
    bool is_victim = env->rank == victim_of(env);
    bool stops = is_lost_by(env, FREEZES_BETWEEN_SUMS) && is_victim;
    for (uint64_t i = 0; i < MOST_TURNS; i++) {
        own->seed = i * SUMMANDS;
        if (i == 1 && stops) raise(SIGSTOP);
        gs_status status = summands_add(own, self, seconds);
        if (is_victim && is_lost_by(env, DIES_DONE) && i == 20) raise(SIGKILL);
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
        return status;
    }
    return gs_error(GS_INTERNAL, "nobody has died");
}

static gs_status add(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "net"};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    summands own;
    summands_init(&own, COUNT);
    if (!status.code) status = add_until_it_fails(&self, env, &own);
    comm_rank_close(&self);
    summands_release(&own);
    return status;
}

// Rank 0's thread is held up in the first sum.
static gs_status hold(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "net"};
    GS_TRY(comm_rank_open(&self, env, 0, &options));
    float *data = calloc(COUNT, sizeof *data);
    gs_collective sum = {
        .kind = GS_ALLREDUCE, .send = data, .recv = data, .count = COUNT, .dtype = GS_FP32};
    gs_work work;
    GS_TRY(gs_comm_post(self.comm, &work, &sum));
    gs_status status =
        gs_comm_wait(self.comm, work, gs_deadline_in_seconds(env->rank ? 100 : HELD_SECONDS));
    if (status.code != GS_DEADLINE_EXCEEDED) return status;
    gs_comm_abort(self.comm, status.message);
    gs_rank_note(env, "aborted");
    gs_sleep_ns(600 * GS_NS_PER_SEC);
    return status;
}

// A part of the sum lies over the input of rank 1, which cannot send it.
static gs_status fail_to_send(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "net"};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    float *data = malloc(COUNT * sizeof *data);
    fill_pattern(data, GS_FP32, COUNT, 7, env->rank, 0);
    gs_collective sum = {
        .kind = GS_ALLREDUCE, .send = data, .recv = data, .count = COUNT, .dtype = GS_FP32};
    if (!status.code) status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(FAR_SECONDS));
    gs_status kept = check_pattern(data, GS_FP32, COUNT, 7, env->rank, env->world_size, 0);
    comm_rank_close(&self);
    free(data);
    return kept.code ? kept : status;
}

static const gs_rank_body bodies[] = {
    {"add", add}, {"hold", hold}, {"fail to send", fail_to_send}, {0}};

// Times that it is done: fewer than what is meant with every run of the long tests.
static int times_of(const char *name, int few) {
    const char *told = getenv(name);
    return told ? (int)strtol(told, NULL, 10) : few;
}

static void strike(gs_ranks *ranks, int victim, loss how) {
    if (how == DIES || how == DIES_FROZEN || how == FREEZES_AMID)
        gs_ranks_signal(ranks, victim, how == DIES ? SIGKILL : SIGSTOP);
    if (how != DIES_FROZEN) return;
    gs_sleep_ns(SHORT_NS);
    gs_ranks_signal(ranks, victim, SIGKILL);
}

// Survivors of a kill know at once: none waits for its deadline. A frozen rank is told by deadlines
// alone.
static void lose_rank(int victim, loss how, uint64_t dice) {
    bool freezes = how == FREEZES_BETWEEN_SUMS || how == FREEZES_AMID;
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    char arg[32], failpoint[64];
    const char *environment[] = {failpoint, NULL};
    snprintf(arg, sizeof arg, "%d %s", victim, losses[how]);
    snprintf(failpoint, sizeof failpoint, "GRADSYNC_FAILPOINTS=comm.gather#%d=kill@%d", victim,
             (int)(dice % 60) + 1);
    assert_ok(
        gs_ranks_start(&ranks, "add", WORLD, arg, how == DIES_GATHERING ? environment : NULL));
    if (how != DIES_GATHERING)
        assert_ok(gs_ranks_wait_note(ranks, victim, "adds", gs_deadline_in_seconds(FAR_SECONDS)));
    gs_sleep_ns((int64_t)(dice % 8000) * 1000);
    strike(ranks, victim, how);
    for (int rank = 0; freezes && rank < WORLD; rank++) {
        if (rank != victim)
            assert_ok(gs_ranks_wait_note(ranks, rank, "over", gs_deadline_in_seconds(FAR_SECONDS)));
    }
    if (freezes) gs_ranks_signal(ranks, victim, SIGKILL);
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(2 * FAR_SECONDS)));
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
    int num_kills = times_of("GRADSYNC_KILLS", NUM_KILLS);
    for (int i = 0; i < num_kills; i++) {
        uint64_t dice = gs_random_u64(drawn, (uint64_t)i);
        loss how = (loss)(i % NUM_DEATHS);
        if (how == DIES_GATHERING && !HAS_FAILPOINTS) how = DIES;
        lose_rank((int)(dice % WORLD), how, dice >> 8);
    }
}

// And nobody else, though all keep each other from their sums then.
static void survivors_of_a_frozen_rank_name_it_at_their_deadline(void **state) {
    (void)state;
    gs_random_key drawn = {.seed = sample_seed("freezes"), .stream = 2};
    int num_freezes = times_of("GRADSYNC_FREEZES", NUM_FREEZES);
    lose_rank(0, FREEZES_BETWEEN_SUMS, 0);
    for (int i = 0; i < num_freezes; i++) {
        uint64_t dice = gs_random_u64(drawn, (uint64_t)i);
        lose_rank((int)(dice % WORLD), FREEZES_AMID, dice >> 8);
    }
}

// The thread that moves bytes is held up where nothing can reach it: a long sum, a kernel that does
// not answer. Its owner is back at the deadline, and from an abort at once.
static void a_wait_is_over_at_its_deadline_whatever_holds_up_who_moves(void **state) {
    (void)state;
    if (!HAS_FAILPOINTS) skip();
    gs_ranks *ranks;
    gs_status statuses[2];
    const char *environment[] = {"GRADSYNC_FAILPOINTS=comm.slice#0=sleep:600000", NULL};
    assert_ok(gs_ranks_start(&ranks, "hold", 2, "", environment));
    assert_ok(gs_ranks_wait_note(ranks, 0, "aborted", gs_deadline_in_seconds(2 * FAR_SECONDS)));
    for (int rank = 0; rank < 2; rank++) gs_ranks_signal(ranks, rank, SIGKILL);
    (void)gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(FAR_SECONDS)).code;
    gs_ranks_destroy(ranks);
}

static void a_rank_that_cannot_send_its_part_has_its_numbers_still(void **state) {
    (void)state;
    if (!HAS_FAILPOINTS) skip();
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    const char *environment[] = {"GRADSYNC_FAILPOINTS=comm.gather#1=error", NULL};
    assert_ok(gs_ranks_start(&ranks, "fail to send", WORLD, "", environment));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(2 * FAR_SECONDS)));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank++) {
        if (!strstr(statuses[rank].message, "comm.gather"))
            print_error("rank %d: %s\n", rank, statuses[rank].message);
        assert_int_not_equal(statuses[rank].code, GS_OK);
        assert_non_null(strstr(statuses[rank].message, "comm.gather"));
    }
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_kill_take_no_wrong_sum_and_keep_their_numbers),
        cmocka_unit_test(survivors_of_a_frozen_rank_name_it_at_their_deadline),
        cmocka_unit_test(a_wait_is_over_at_its_deadline_whatever_holds_up_who_moves),
        cmocka_unit_test(a_rank_that_cannot_send_its_part_has_its_numbers_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
