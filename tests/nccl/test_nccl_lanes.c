// Lanes of NCCL, each a communicator and a stream of its own: posted in other orders on other
// ranks, their kernels stand beside each other on the device, and all of them are left together.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/nccl/nccl_rank.h"

#define NUM_LANES 4
#define NUM_ROUNDS 6
#define COUNT 30000  // elements of the arena that a lane has
#define MAX_WORLD 3
#define ARENA_BYTES (NUM_LANES * COUNT * sizeof(float))
#define RUN_SECONDS 40.0

static gs_deadline soon_enough(void) {
    return gs_deadline_in_seconds(RUN_SECONDS);
}

static float *data_of(const comm_rank *self, int lane) {
    return (float *)gs_arena_data(self->arena) + (size_t)lane * COUNT;
}

static gs_status fill(comm_rank *self, float *host, int lane, int round) {
    for (size_t i = 0; i < COUNT; i++) host[i] = (float)(self->rank + 1 + lane + round);
    return gs_device_upload(self->device, data_of(self, lane), host, COUNT * sizeof *host);
}

static gs_status check(comm_rank *self, float *host, int lane, int round) {
    int world_size = self->world_size;
    float expected = (float)(world_size * (world_size + 1) / 2 + world_size * (lane + round));
    GS_TRY(gs_device_download(self->device, host, data_of(self, lane), COUNT * sizeof *host));
    for (size_t i = 0; i < COUNT; i++) {
        if (host[i] != expected)
            return gs_error(GS_DATA_LOSS, "lane %d, round %d: element %zu is %g instead of %g",
                            lane, round, i, (double)host[i], (double)expected);
    }
    return gs_ok();
}

static gs_status post_sum(comm_rank *self, int lane, gs_work *work) {
    float *data = data_of(self, lane);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = lane};
    return gs_comm_post(self->comm, work, &sum);
}

// Rank 0 begins with the first lane, rank 1 with the last.
static int lane_at(const comm_rank *self, int turn) {
    return self->rank % 2 ? NUM_LANES - 1 - turn : (turn + self->rank) % NUM_LANES;
}

// Something small of the host's, too, which goes through the lane's own staging memory.
static gs_status run_round(comm_rank *self, float *host, int round) {
    static float small[NUM_LANES][8];
    gs_work sums[NUM_LANES], smalls[NUM_LANES];
    gs_work_times times;
    for (int lane = 0; lane < NUM_LANES; lane++) GS_TRY(fill(self, host, lane, round));
    for (int turn = 0; turn < NUM_LANES; turn++) {
        int lane = lane_at(self, turn);
        small[lane][0] = (float)lane;
        gs_collective host_sum = {.kind = GS_ALLREDUCE,
                                  .send = small[lane],
                                  .recv = small[lane],
                                  .count = 1,
                                  .dtype = GS_FP32,
                                  .bucket = -1,
                                  .lane = lane};
        GS_TRY(post_sum(self, lane, &sums[lane]));
        GS_TRY(gs_comm_post(self->comm, &smalls[lane], &host_sum));
        if (sums[lane].lane != lane || sums[lane].sequence != 2 * (uint64_t)round + 1)
            return gs_error(GS_INTERNAL, "a work of another lane");
    }
    for (int turn = 0; turn < NUM_LANES; turn++) {
        int lane = lane_at(self, turn);
        GS_TRY(gs_comm_wait(self->comm, smalls[lane], soon_enough()));
        if (!gs_comm_done(self->comm, sums[lane]) ||
            small[lane][0] != (float)(self->world_size * lane))
            return gs_error(GS_INTERNAL, "lane %d is not in order", lane);
        GS_TRY(check(self, host, lane, round));
        if (!gs_comm_times(self->comm, sums[lane], &times) || times.posted_ns > times.started_ns ||
            times.started_ns > times.finished_ns)
            return gs_error(GS_INTERNAL, "times of lane %d are out of order", lane);
    }
    return gs_ok();
}

static gs_status run_orders(const gs_rank_env *env) {
    static float host[COUNT];
    comm_rank self;
    gs_status status =
        nccl_rank_open(&self, env, ARENA_BYTES, &(gs_comm_options){.num_lanes = NUM_LANES});
    for (int round = 0; round < NUM_ROUNDS && !status.code; round++)
        status = run_round(&self, host, round);
    comm_rank_close(&self);
    return status;
}

// Rank 1 does not come to lane 2, and to no other after that; rank 0 leaves all of them and begins
// anew.
static gs_status run_alone(comm_rank *self, const gs_rank_env *env) {
    gs_work works[NUM_LANES];
    gs_comm_failure cause;
    char note = 0, all[MAX_WORLD];
    if (self->rank == 0) {
        for (int lane = 0; lane < NUM_LANES; lane++) GS_TRY(post_sum(self, lane, &works[lane]));
        gs_status late = gs_comm_wait(self->comm, works[2], gs_deadline_in_ms(300));
        gs_comm_explain(self->comm, &cause);
        if (late.code != GS_DEADLINE_EXCEEDED ||
            !strstr(late.message, "collective 1 of lane 2, step 0: not finished within") ||
            cause.kind != GS_COMM_FAILURE_TIMEOUT || cause.lane != 2 || cause.sequence != 1)
            return gs_error(GS_INTERNAL, "lane %d: %s", cause.lane, late.message);
        int64_t began_ns = gs_now_ns();
        gs_comm_let_go(self->comm, "rank 0 is alone");
        if (gs_now_ns() - began_ns > 30 * GS_NS_PER_SEC)
            return gs_error(GS_INTERNAL, "letting go took long");
        if (gs_comm_wait(self->comm, works[3], soon_enough()).code != GS_ABORTED)
            return gs_error(GS_INTERNAL, "lane 3 was not let go");
        GS_TRY(gs_comm_wait_ended(self->comm, soon_enough()));
    }
    GS_TRY(gs_rank_exchange(env->exchange, "alone", NULL, 0, &note, 1, all, soon_enough()));
    gs_comm_destroy(self->comm);
    self->comm = NULL;
    GS_TRY(nccl_rank_connect(self, env, &(gs_comm_options){.generation = 2, .num_lanes = NUM_LANES},
                             soon_enough()));
    static float host[COUNT];
    return run_round(self, host, 0);
}

static gs_status leave_alone(const gs_rank_env *env) {
    comm_rank self;
    gs_status status =
        nccl_rank_open(&self, env, ARENA_BYTES, &(gs_comm_options){.num_lanes = NUM_LANES});
    if (!status.code) status = run_alone(&self, env);
    comm_rank_close(&self);
    return status;
}

// Rank 1 dies when some lanes of the others are in flight and some are not.
static gs_status die_between(const gs_rank_env *env) {
    comm_rank self;
    gs_work works[NUM_LANES];
    gs_status status =
        nccl_rank_open(&self, env, ARENA_BYTES, &(gs_comm_options){.num_lanes = NUM_LANES});
    for (int lane = 0; lane < NUM_LANES && !status.code; lane++) {
        if (self.rank == 1 && lane == 2) raise(SIGKILL);
        status = post_sum(&self, lane, &works[lane]);
    }
    if (!status.code) status = gs_comm_wait(self.comm, works[3], soon_enough());
    comm_rank_close(&self);
    return status;
}

static gs_status connect(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = nccl_rank_open_device(&self, env, 0);
    if (!status.code)
        status = nccl_rank_connect(&self, env, &(gs_comm_options){.num_lanes = 2}, soon_enough());
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"orders", run_orders},
                                      {"alone", leave_alone},
                                      {"die", die_between},
                                      {"connect", connect},
                                      {0}};

static void run_all(const char *name, int world_size, const char *orders, gs_status *statuses) {
    gs_ranks *ranks;
    char variable[96];
    snprintf(variable, sizeof variable, "NCCL_SIM_ORDERS=%s", orders);
    const char *environment[] = {variable, NULL};
    assert_int_equal(gs_ranks_start(&ranks, name, world_size, "", environment).code, GS_OK);
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(3 * RUN_SECONDS));
    gs_ranks_destroy(ranks);
    assert_string_equal(status.message, "");
}

static void expect_ok(const char *name, int world_size, const char *orders) {
    gs_status statuses[MAX_WORLD];
    run_all(name, world_size, orders, statuses);
    for (int r = 0; r < world_size; r++) assert_string_equal(statuses[r].message, "");
}

static void expect_error(const gs_status *status, gs_code code, const char *text) {
    if (status->code != code || !strstr(status->message, text))
        print_error("%s\n", status->message);
    assert_int_equal(status->code, code);
    assert_non_null(strstr(status->message, text));
}

static void other_orders_on_other_ranks_find_a_place_beside_each_other(void **state) {
    (void)state;
    expect_ok("orders", 1, "");
    expect_ok("orders", 2, "windows");
    expect_ok("orders", 3, "settle=2");
}

static void a_rank_that_is_alone_leaves_all_lanes_and_begins_anew(void **state) {
    (void)state;
    expect_ok("alone", 2, "");
}

static void a_death_ends_the_lanes_of_the_others(void **state) {
    (void)state;
    gs_status statuses[MAX_WORLD];
    run_all("die", 2, "", statuses);
    expect_error(&statuses[0], GS_ABORTED, "rank 0: NCCL: remote process exited");
}

static void a_split_that_fails_is_named(void **state) {
    (void)state;
#ifdef GRADSYNC_CUDA_SIM
    gs_status statuses[MAX_WORLD];
    run_all("connect", 2, "fail.ncclCommSplit#0@1=3", statuses);
    for (int r = 0; r < 2; r++)
        expect_error(&statuses[r], GS_INTERNAL, "rank 0: lane 1: ncclCommSplit: internal error");
#else
    skip();
#endif
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    nccl_skip_without_gpu();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_orders_on_other_ranks_find_a_place_beside_each_other),
        cmocka_unit_test(a_rank_that_is_alone_leaves_all_lanes_and_begins_anew),
        cmocka_unit_test(a_death_ends_the_lanes_of_the_others),
        cmocka_unit_test(a_split_that_fails_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
