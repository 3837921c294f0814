// Two hosts of two ranks each, on two levels: a rank is killed, or frozen, while they add numbers
// that reveal every contributor. No survivor takes a wrong sum for a right one, each returns with
// words for who is missing, whichever level that was of, and has its own numbers still.
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
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"

#define WORLD 4
#define COUNT 600000  // three chunks
#define SMALL_COUNT 240
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

// In flight together, in place. The last is small: all of it is there long before the one that it
// comes behind is done.
static const size_t counts[] = {SMALL_COUNT, COUNT, SMALL_COUNT};
#define NUM_SUMS 3

typedef struct summands {
    float *data[NUM_SUMS];
    uint64_t seed;  // of the first
    gs_work works[NUM_SUMS];
} summands;

static gs_status add_together(comm_rank *self, summands *own, double seconds) {
    gs_deadline deadline = gs_deadline_in_seconds(seconds);
    for (int k = 0; k < NUM_SUMS; k++)
        fill_pattern(own->data[k], GS_FP32, counts[k], own->seed + (uint64_t)k, self->rank, 0);
    memset(own->works, 0xff, sizeof own->works);  // none that was posted
    for (int k = 0; k < NUM_SUMS; k++) {
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = own->data[k],
                             .recv = own->data[k],
                             .count = counts[k],
                             .dtype = GS_FP32,
                             .step = (int64_t)own->seed,
                             .bucket = k};
        GS_TRY(gs_comm_post(self->comm, &own->works[k], &sum));
    }
    for (int k = 0; k < NUM_SUMS; k++) GS_TRY(gs_comm_wait(self->comm, own->works[k], deadline));
    return gs_ok();
}

// What is done is the sum of all, what is not is this rank's own. Nothing moves.
static gs_status check_sums(const comm_rank *self, const summands *own) {
    for (int k = 0; k < NUM_SUMS; k++) {
        bool is_done = gs_comm_done(self->comm, own->works[k]);
        int rank = is_done ? -1 : self->rank;
        gs_status status = check_pattern(own->data[k], GS_FP32, counts[k], own->seed + (uint64_t)k,
                                         rank, self->world_size, 0);
        GS_TRY(gs_status_prefix(status, "sum %d is %s", k, is_done ? "done" : "not done"));
    }
    return gs_ok();
}

static bool is_lost_by(const gs_rank_env *env, loss how) {
    return strstr(env->arg, losses[how]) != NULL;
}

// Who freezes amid a sum may have said shortly before that it is here; then the rank of the other
// host is named that waits for it.
static bool is_rightly_accused(const gs_rank_env *env, const gs_comm_failure *seen) {
    return gs_comm_failure_names(seen, victim_of(env)) &&
           (is_lost_by(env, FREEZES_AMID) || gs_comm_failure_num_accused(seen) == 1);
}

static gs_status add_until_it_fails(comm_rank *self, const gs_rank_env *env, summands *own) {
    double seconds = is_lost_by(env, DIES) ? FAR_SECONDS : FROZEN_SECONDS;
    bool stops = is_lost_by(env, FREEZES_BETWEEN_SUMS) && env->rank == victim_of(env);
    for (uint64_t i = 0; i < MOST_TURNS; i++) {
        own->seed = i * NUM_SUMS;
        if (i == 1 && stops) raise(SIGSTOP);
        int64_t began_ns = gs_now_ns();
        gs_status status = add_together(self, own, seconds);
        double took = gs_seconds_since(began_ns);
        if (i == 0) gs_rank_note(env, "adds");
        if (!status.code) {
            GS_TRY(check_sums(self, own));
            continue;
        }
        gs_comm_failure seen;
        gs_comm_explain(self->comm, &seen);
        gs_comm_let_go(self->comm, status.message);
        gs_rank_note(env, "over");
        GS_TRY(check_sums(self, own));
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
    for (int k = 0; k < NUM_SUMS; k++) own.data[k] = malloc(counts[k] * sizeof *own.data[k]);
    if (!status.code) status = add_until_it_fails(&self, env, &own);
    comm_rank_close(&self);
    for (int k = 0; k < NUM_SUMS; k++) free(own.data[k]);
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

static const gs_rank_body bodies[] = {{"add", add}, {"hold", hold}, {0}};

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
    lose_rank(1, FREEZES_AMID, 0);
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

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_kill_take_no_wrong_sum_and_keep_their_numbers),
        cmocka_unit_test(survivors_of_a_frozen_rank_name_it_at_their_deadline),
        cmocka_unit_test(a_wait_behind_an_abort_tells_what_still_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
