// Lanes: no lane waits for another, whoever is late, dies or lets go.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "tests/multiprocess/lane_ranks.h"
#include "tests/support/comm_rank.h"

#define ARENA_BYTES ((size_t)8 << 20)

// Rank 1 takes two collectives of lane 2 in the other order.
static gs_status run_swapped(comm_rank *self) {
    float data[2][8] = {{0}};
    gs_work works[2];
    for (int i = 0; i < 2; i++) {
        int which = self->rank == 1 ? 1 - i : i;
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data[which],
                             .recv = data[which],
                             .count = 3 + (size_t)which,
                             .dtype = GS_FP32,
                             .bucket = -1,
                             .lane = 2};
        GS_TRY(gs_comm_post(self->comm, &works[i], &sum));
    }
    return gs_comm_wait(self->comm, works[1], lane_ranks_soon());
}

static gs_status swap_in_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_failure cause = {0};
    gs_status status = comm_rank_open(&self, env, 0, &(gs_comm_options){.num_lanes = 3});
    if (!status.code) {
        status = run_swapped(&self);
        gs_comm_explain(self.comm, &cause);
    }
    comm_rank_close(&self);
    if (cause.kind != GS_COMM_FAILURE_MISMATCH || cause.lane != 2 ||
        !gs_comm_failure_names(&cause, 1))
        return gs_error(GS_INTERNAL, "told as %s in lane %d: %s",
                        gs_comm_failure_kind_name(cause.kind), cause.lane, status.message);
    return status;
}

static gs_status sum_in_lane(comm_rank *self, int lane, float *data, size_t count,
                             gs_deadline deadline) {
    for (size_t i = 0; i < count; i++) data[i] = (float)(self->rank + 1);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = count,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = lane};
    gs_work work;
    GS_TRY(gs_comm_post(self->comm, &work, &sum));
    return gs_comm_wait(self->comm, work, deadline);
}

static gs_status check_sum(const comm_rank *self, const float *data, size_t count) {
    float expected = (float)(self->world_size * (self->world_size + 1) / 2);
    for (size_t i = 0; i < count; i++) {
        if (data[i] != expected)
            return gs_error(GS_DATA_LOSS, "element %zu is %g", i, (double)data[i]);
    }
    return gs_ok();
}

// Rank 1 does not come to lane 1 until the lanes beside it have been through with everything, large
// and small.
#define LATE_COUNT 300000

static gs_status go_on_beside(comm_rank *self) {
    static float data[LATE_COUNT];
    for (int i = 0; i < 20; i++) {
        size_t count = i % 10 ? 50 : LATE_COUNT;
        GS_TRY(sum_in_lane(self, i % 3 ? 0 : 2, data, count, lane_ranks_soon()));
        GS_TRY(check_sum(self, data, count));
    }
    return gs_ok();
}

static gs_status expect_late(comm_rank *self, gs_work work) {
    gs_comm_failure cause;
    gs_status late = gs_comm_wait(self->comm, work, gs_deadline_in_ms(200));
    gs_comm_explain(self->comm, &cause);
    if (late.code != GS_DEADLINE_EXCEEDED ||
        !strstr(late.message, "collective 1 of lane 1, step 0: rank 1 did not arrive within "))
        return gs_error(GS_INTERNAL, "waited in vain: %s", late.message);
    if (cause.kind != GS_COMM_FAILURE_TIMEOUT || cause.lane != 1 || cause.sequence != 1 ||
        !gs_comm_failure_names(&cause, 1))
        return gs_error(GS_INTERNAL, "told as %s in lane %d", gs_comm_failure_kind_name(cause.kind),
                        cause.lane);
    return gs_ok();
}

// Nobody but rank 1 is to be missing when the first of the others asks.
static gs_status meet_without_rank_1(const gs_rank_env *env) {
    static const int ranks[] = {0, 2, 3};
    char note = 0, all[LANE_RANKS_MOST];
    return gs_rank_exchange(env->exchange, "in time", ranks, env->world_size - 1, &note, 1, all,
                            lane_ranks_soon());
}

static gs_status run_late(comm_rank *self, const gs_rank_env *env) {
    static float data[LATE_COUNT];
    for (size_t i = 0; i < LATE_COUNT; i++) data[i] = (float)(self->rank + 1);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = LATE_COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = 1};
    gs_work work;
    if (self->rank != 1) {
        GS_TRY(gs_comm_post(self->comm, &work, &sum));
        GS_TRY(meet_without_rank_1(env));
        GS_TRY(expect_late(self, work));
    }
    GS_TRY(go_on_beside(self));
    if (self->rank == 1) GS_TRY(gs_comm_post(self->comm, &work, &sum));
    // Half-way in all lanes now, and not at the same place on all ranks.
    GS_TRY(go_on_beside(self));
    GS_TRY(gs_comm_wait(self->comm, work, lane_ranks_soon()));
    return check_sum(self, data, LATE_COUNT);
}

static gs_status come_late_to_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {
        .helper = strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF, .num_lanes = 3};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = run_late(&self, env);
    comm_rank_close(&self);
    return status;
}

// Rank 1 dies when all is done, and the others begin one more in the lane that the test names.
static gs_status outlive(const gs_rank_env *env) {
    comm_rank self;
    float data[4];
    int lane = env->arg[0] - '0';
    gs_comm_options options = {.helper = env->arg[1] == 'h' ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = 3};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    for (int i = 0; i < 3 && !status.code; i++)
        status = sum_in_lane(&self, i, data, 4, lane_ranks_soon());
    if (env->rank == 1 && !status.code) raise(SIGKILL);
    if (!status.code) status = sum_in_lane(&self, lane, data, 4, lane_ranks_soon());
    comm_rank_close(&self);
    return status;
}

// Rank 0 fills lane 1 while rank 1 posts nothing there.
static gs_status run_full(comm_rank *self, const gs_rank_env *env) {
    float data[4];
    char note = 0, all[LANE_RANKS_MOST];
    gs_work work = {0};
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1, .lane = 1};
    for (int round = 0; round < 2; round++) {
        if (self->rank == 0) {
            for (int i = 0; i < 1024; i++) GS_TRY(gs_comm_post(self->comm, &work, &barrier));
            gs_work more;
            gs_status full = gs_comm_post(self->comm, &more, &barrier);
            if (full.code != GS_RESOURCE_EXHAUSTED)
                return gs_error(GS_INTERNAL, "collective 1025: %s", full.message);
        }
        GS_TRY(sum_in_lane(self, 0, data, 4, lane_ranks_soon()));
        GS_TRY(check_sum(self, data, 4));
        GS_TRY(gs_rank_exchange(env->exchange, "full", NULL, 0, &note, 1, all, lane_ranks_soon()));
        for (int i = 0; self->rank != 0 && i < 1024; i++)
            GS_TRY(gs_comm_post(self->comm, &work, &barrier));
        GS_TRY(gs_comm_wait(self->comm, work, lane_ranks_soon()));
        if (gs_comm_done(self->comm, (gs_work){work.sequence + 1, 1}))
            return gs_error(GS_INTERNAL, "what was refused is done");
    }
    return gs_ok();
}

static gs_status fill_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = comm_rank_open(&self, env, 0, &(gs_comm_options){.num_lanes = 2});
    if (!status.code) status = run_full(&self, env);
    comm_rank_close(&self);
    return status;
}

// Rank 0 lets go in the middle of pipelines, and nothing of them moves afterwards. The others wait
// in the last lane, where it has not come.
#define ABANDONED_LANES 4
#define ABANDONED_COUNT ((size_t)1000000)

static gs_status post_abandoned(comm_rank *self, float *data, int lane, gs_work *work) {
    float *own = data + (size_t)lane * ABANDONED_COUNT;
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = own,
                         .recv = own,
                         .count = ABANDONED_COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = lane};
    return gs_comm_post(self->comm, work, &sum);
}

static gs_status run_abandoned(comm_rank *self, float *data) {
    const size_t bytes = ABANDONED_LANES * ABANDONED_COUNT * sizeof *data;
    const int last = ABANDONED_LANES - 1;
    gs_work work;
    for (int lane = 0; lane < last; lane++) GS_TRY(post_abandoned(self, data, lane, &work));
    if (self->rank != 0) {
        GS_TRY(post_abandoned(self, data, last, &work));
        return gs_comm_wait(self->comm, work, lane_ranks_soon());
    }
    gs_comm_let_go(self->comm, "rank 0 has seen enough");
    uint64_t before = gs_hash64(data, bytes, 0);
    gs_sleep_ns(20 * GS_NS_PER_MS);
    if (gs_hash64(data, bytes, 0) != before)
        return gs_error(GS_INTERNAL, "buffers changed after let_go");
    return post_abandoned(self, data, last, &work);
}

static gs_status abandon_lanes(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.helper =
                                   strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = ABANDONED_LANES};
    float *data = calloc(ABANDONED_LANES * ABANDONED_COUNT, sizeof *data);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = run_abandoned(&self, data);
    comm_rank_close(&self);
    free(data);
    return status;
}

// The thread of rank 0 is held inside a move of lane 2, where alone there is anything: for HELD_MS
// from when the collective has started.
#ifdef GRADSYNC_FAILPOINTS
#define HELD_MS 400  // comm.slice sleeps as long

static gs_status run_held(comm_rank *self) {
    static float data[LATE_COUNT];
    gs_work work;
    gs_work_times times = {0};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = LATE_COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = 2};
    gs_deadline deadline = lane_ranks_soon();
    GS_TRY(gs_comm_post(self->comm, &work, &sum));
    if (self->rank != 0) return gs_comm_wait(self->comm, work, deadline);
    while (gs_comm_times(self->comm, work, &times) && !times.started_ns &&
           !gs_deadline_passed(deadline))
        gs_sleep_ns(GS_NS_PER_MS);
    gs_sleep_ns(HELD_MS / 4 * GS_NS_PER_MS);
    gs_comm_let_go(self->comm, "rank 0 has seen enough");
    if (!times.started_ns || gs_now_ns() - times.started_ns < HELD_MS * GS_NS_PER_MS)
        return gs_error(GS_INTERNAL, "let go while a thread was inside a move");
    return gs_comm_post(self->comm, &work, &sum);
}

static gs_status hold_in_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.helper = GS_HELPER_ON, .num_lanes = 3};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = run_held(&self);
    comm_rank_close(&self);
    return status;
}
#endif

static gs_status disagree_about_lanes(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.num_lanes = env->rank == 1 ? 3 : 0};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"swap", swap_in_a_lane},
                                      {"late", come_late_to_a_lane},
                                      {"outlive", outlive},
                                      {"full", fill_a_lane},
                                      {"abandon", abandon_lanes},
#ifdef GRADSYNC_FAILPOINTS
                                      {"held", hold_in_a_lane},
#endif
                                      {"disagree", disagree_about_lanes},
                                      {0}};

static void a_death_is_seen_in_every_lane(void **state) {
    (void)state;
    lane_ranks_expect_end("outlive", 2, "0o", 1, GS_ABORTED, "collective 2, step 0: rank 1 died");
    lane_ranks_expect_end("outlive", 2, "1h", 1, GS_ABORTED,
                          "collective 2 of lane 1, step 0: rank 1 died");
    lane_ranks_expect_end("outlive", 3, "2o", 1, GS_ABORTED,
                          "collective 2 of lane 2, step 0: rank 1 died");
}

static void another_order_within_a_lane_is_told_with_rank_and_lane(void **state) {
    (void)state;
    lane_ranks_expect_end("swap", 3, "", -1, GS_FAILED_PRECONDITION,
                          "collective 1 of lane 2: rank 1 posted all-reduce sum 4 x fp32");
}

static void who_comes_late_to_a_lane_holds_up_no_other(void **state) {
    (void)state;
    lane_ranks_expect_ok("late", 3, "owner");
    lane_ranks_expect_ok("late", 2, "helper");
}

static void a_full_lane_leaves_the_others_theirs(void **state) {
    (void)state;
    lane_ranks_expect_ok("full", 2, "");
}

static void who_lets_go_has_let_go_in_all_lanes(void **state) {
    (void)state;
    lane_ranks_expect_end("abandon", 3, "owner", -1, GS_ABORTED, "rank 0 has seen enough");
    lane_ranks_expect_end("abandon", 2, "helper", -1, GS_ABORTED, "rank 0 has seen enough");
}

static void letting_go_waits_for_a_move_in_any_lane(void **state) {
    (void)state;
#ifdef GRADSYNC_FAILPOINTS
    lane_ranks_expect_end("held", 2, "", 1, GS_ABORTED, "rank 0 has seen enough");
#else
    skip();
#endif
}

static void numbers_of_lanes_that_differ_are_named(void **state) {
    (void)state;
    lane_ranks_expect_end("disagree", 2, "", -1, GS_FAILED_PRECONDITION,
                          "rank 1 has 3 lanes, rank 0 has 1");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_seen_in_every_lane),
        cmocka_unit_test(another_order_within_a_lane_is_told_with_rank_and_lane),
        cmocka_unit_test(who_comes_late_to_a_lane_holds_up_no_other),
        cmocka_unit_test(a_full_lane_leaves_the_others_theirs),
        cmocka_unit_test(who_lets_go_has_let_go_in_all_lanes),
        cmocka_unit_test(letting_go_waits_for_a_move_in_any_lane),
        cmocka_unit_test(numbers_of_lanes_that_differ_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
