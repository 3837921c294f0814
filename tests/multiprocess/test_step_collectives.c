// What surrounds the buckets of a step, between real processes: commit, buffers, coalesced
// broadcast.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/buffers.h"
#include "gradsync/coalesce.h"
#include "gradsync/commit.h"
#include "tests/support/ranks.h"

#define MAX_WORLD 5

static gs_deadline soon(void) {
    return gs_deadline_in_seconds(20);
}

static void assert_ok(gs_status status) {
    assert_string_equal(status.message, "");
}

typedef struct rank_side {
    gs_device *device;
    gs_comm *comm;
} rank_side;

static gs_status open_side_with(rank_side *side, const gs_rank_env *env, gs_helper_thread helper) {
    GS_TRY(gs_device_open(&side->device, "cpu", &(gs_device_options){0}));
    return gs_comm_create(&side->comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 3,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .device = side->device,
                                             .helper = helper},
                          soon());
}

static gs_status open_side(rank_side *side, const gs_rank_env *env) {
    return open_side_with(side, env, GS_HELPER_AUTO);
}

static void close_side(rank_side *side) {
    gs_comm_destroy(side->comm);
    gs_device_close(side->device);
}

static gs_status check_commit(const gs_commit_result *result, int world_size) {
    double loss = 0;
    for (int r = 0; r < world_size; r++) loss += 2 * (1.5 + r);
    if (fabs(result->loss - loss / (2 * world_size)) > 1e-6)
        return gs_error(GS_INTERNAL, "loss %g", result->loss);
    if (result->samples != 10 * world_size || result->drain_ranks != 1 ||
        result->checkpoint_ranks != world_size || result->nonfinite_ranks != 0)
        return gs_error(GS_INTERNAL, "counts are wrong");
    return gs_ok();
}

static gs_status body_commit(const gs_rank_env *env) {
    rank_side side;
    GS_TRY(open_side(&side, env));
    gs_commit_vote vote = {.step = 7,
                           .generation = 3,
                           .plan_digest = 0xfeedfacecafebeef,
                           .params_digest = 0x123456789abcdef0,
                           .wants_drain = env->rank == 1,
                           .wants_checkpoint = true,
                           .loss_sum = 2 * (1.5 + env->rank),
                           .num_losses = 2,
                           .samples = 10};
    gs_commit_result result;
    GS_TRY(gs_commit_run(&result, side.comm, &vote, soon()));
    GS_TRY(check_commit(&result, env->world_size));
    if (result.params_differ) return gs_error(GS_INTERNAL, "equal parameters differ");

    vote.step++;
    // A difference of 2^32 cancels in sums of squares of two ranks.
    if (env->rank == 1) vote.params_digest += UINT64_C(1) << 32;
    GS_TRY(gs_commit_run(&result, side.comm, &vote, soon()));
    if (!result.params_differ) return gs_error(GS_INTERNAL, "other parameters are not seen");

    vote.step++;
    if (env->rank == 1) vote.loss_sum = NAN;
    GS_TRY(gs_commit_run(&result, side.comm, &vote, soon()));
    if (!isnan(result.loss)) return gs_error(GS_INTERNAL, "the loss is %g", result.loss);
    close_side(&side);
    return gs_ok();
}

static gs_status body_commit_differs(const gs_rank_env *env) {
    rank_side side;
    GS_TRY(open_side(&side, env));
    gs_commit_vote vote = {.step = 7, .generation = 3, .plan_digest = 17};
    if (env->rank == 1) {
        if (strcmp(env->arg, "step") == 0) vote.step = 8;
        if (strcmp(env->arg, "generation") == 0) vote.generation = 4;
        if (strcmp(env->arg, "plan") == 0) vote.plan_digest = 18;
    }
    gs_commit_result result;
    gs_status status = gs_commit_run(&result, side.comm, &vote, soon());
    close_side(&side);
    return status;
}

static void commit_counts_votes_of_all_ranks(void **state) {
    (void)state;
    for (int world = 2; world <= MAX_WORLD; world++)
        assert_ok(gs_ranks_run("commit", world, "", soon()));
}

static void commit_names_rank_and_field_that_differ(void **state) {
    (void)state;
    const char *fields[] = {"step", "generation", "plan"};
    for (int f = 0; f < 3; f++) {
        for (int world = 2; world <= 3; world++) {
            gs_ranks *ranks;
            gs_status statuses[MAX_WORLD];
            assert_ok(gs_ranks_start(&ranks, "commit_differs", world, fields[f], NULL));
            assert_ok(gs_ranks_wait(ranks, statuses, soon()));
            gs_ranks_destroy(ranks);
            for (int r = 0; r < world; r++) {
                assert_int_equal(statuses[r].code, GS_FAILED_PRECONDITION);
                assert_non_null(strstr(statuses[r].message, "rank 1"));
                assert_non_null(strstr(statuses[r].message, fields[f]));
            }
        }
    }
}

// One pass on each rank that adds rank + 1; share or not; then what is committed.
static gs_status body_buffers(const gs_rank_env *env) {
    bool exact = strstr(env->arg, "exact"), shares = strstr(env->arg, "share");
    rank_side side;
    GS_TRY(open_side(&side, env));
    gs_param_spec spec = gs_param_spec_make(GS_FP32, 5, 0, "bn.running_var");
    gs_buffers *buffers;
    GS_TRY(gs_buffers_create(&buffers, &spec, 1, GS_BUFFERS_BROADCAST, exact, side.device));
    float *committed = gs_buffers_committed(buffers)[0];
    committed[4] = (float)(10 * env->rank + 100);
    for (int step = 0; step < 3; step++) {
        const void *const *from;
        void *const *to;
        GS_TRY(gs_buffers_begin(buffers, side.comm, soon()));
        gs_buffers_pass(buffers, env->rank, true, &from, &to);
        float seen = ((const float *)from[0])[4];
        // Rank 0 adds 1 in each step.
        if (seen != (float)(100 + step))
            return gs_error(GS_INTERNAL, "step %d: saw %g", step, (double)seen);
        ((float *)to[0])[4] = seen + (float)(env->rank + 1);
        gs_buffers_end_pass(buffers);
        if (shares) GS_TRY(gs_buffers_share(buffers, side.comm, soon()));
        gs_buffers_adopt(buffers);
        float expected = seen + (shares ? 1 : exact ? env->rank == 0 : (float)(env->rank + 1));
        if (committed[4] != expected)
            return gs_error(GS_INTERNAL, "step %d: committed %g, expected %g", step,
                            (double)committed[4], (double)expected);
    }
    gs_buffers_destroy(buffers);
    close_side(&side);
    return gs_ok();
}

static void buffers_come_from_rank_0_at_each_step(void **state) {
    (void)state;
    const char *args[] = {"", "share", "exact", "exact share"};
    for (size_t i = 0; i < 4; i++) assert_ok(gs_ranks_run("buffers", 3, args[i], soon()));
}

// Tensors of random sizes, some in one run of memory, some apart, differently on each rank.
static gs_status body_broadcast(const gs_rank_env *env) {
    enum { NUM_TENSORS = 60 };
    static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_I64, GS_U8};
    int seed, root;
    sscanf(env->arg, "%d %d", &seed, &root);
    gs_random_key key = {.seed = (uint64_t)seed, .stream = 4};
    rank_side side;
    GS_TRY(open_side(&side, env));
    gs_tensor_view views[NUM_TENSORS];
    size_t total_bytes = 0, offset = 0;
    for (size_t i = 0; i < NUM_TENSORS; i++) {
        uint64_t draw = gs_random_u64(key, i);
        views[i].dtype = dtypes[draw % 4];
        views[i].count = draw % 31 == 0 ? 400000 : draw % 7 == 0 ? 0 : draw % 900;
        total_bytes += views[i].count * gs_dtype_bytes(views[i].dtype) + 64;
    }
    unsigned char *memory = calloc(1, total_bytes);
    bool one_run = seed % 3 == 0 || env->rank == 1;
    for (size_t i = 0; i < NUM_TENSORS; i++) {
        size_t bytes = views[i].count * gs_dtype_bytes(views[i].dtype);
        views[i].data = memory + offset;
        offset += one_run ? bytes : bytes + 1 + i % 17;
        if (env->rank == root) memset(views[i].data, (int)(i + 1), bytes);
    }
    GS_TRY(
        gs_coalesced_broadcast(side.comm, views, NUM_TENSORS, root, seed % 2 ? 3000 : 0, soon()));
    for (size_t i = 0; i < NUM_TENSORS; i++) {
        const unsigned char *data = views[i].data;
        for (size_t b = 0; b < views[i].count * gs_dtype_bytes(views[i].dtype); b++) {
            if (data[b] != i + 1)
                return gs_error(GS_INTERNAL, "tensor %zu: byte %zu is %d", i, b, data[b]);
        }
    }
    free(memory);
    close_side(&side);
    return gs_ok();
}

static void coalesced_broadcast_brings_the_roots_tensors(void **state) {
    (void)state;
    for (int seed = 0; seed < 6; seed++) {
        char arg[32];
        int world = 2 + seed % 3;
        snprintf(arg, sizeof arg, "%d %d", seed, seed % world);
        assert_ok(gs_ranks_run("broadcast", world, arg, soon()));
    }
}

// Rank 0 gives up before rank 1 comes, and takes its memory back.
static gs_status body_late(const gs_rank_env *env) {
    enum { COUNT = 32 };
    rank_side side;
    GS_TRY(open_side_with(&side, env, env->arg[0] ? GS_HELPER_ON : GS_HELPER_OFF));
    int64_t mine[COUNT] = {0}, sums[COUNT], all[2];
    for (int i = 0; i < COUNT; i++) sums[i] = -7;
    gs_collective collective = {
        .kind = GS_ALLREDUCE, .send = mine, .recv = sums, .count = COUNT, .dtype = GS_I64};
    gs_status status = gs_ok();
    if (env->rank == 0) {
        status = gs_comm_run(side.comm, &collective, gs_deadline_in_seconds(0.05));
        if (status.code != GS_DEADLINE_EXCEEDED)
            return gs_error(GS_INTERNAL, "rank 1 has not come, but: %s", status.message);
    }
    GS_TRY(gs_rank_exchange(env->exchange, "late/go", mine, sizeof mine[0], all, soon()));
    if (env->rank == 1) {
        status = gs_comm_run(side.comm, &collective, gs_deadline_in_seconds(0.5));
        if (!status.code) return gs_error(GS_INTERNAL, "rank 0 had gone, but the sum is done");
    }
    GS_TRY(gs_rank_exchange(env->exchange, "late/gone", mine, sizeof mine[0], all, soon()));
    status = gs_comm_progress(side.comm);
    for (int i = 0; i < COUNT && env->rank == 0; i++) {
        if (sums[i] != -7) return gs_error(GS_INTERNAL, "word %d was written afterwards", i);
    }
    close_side(&side);
    return gs_ok();
}

static void memory_of_a_collective_that_timed_out_is_left_alone(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("late", 2, "", soon()));
    assert_ok(gs_ranks_run("late", 2, "helper", soon()));
}

// A broadcast of many small tensors that ends in the middle: its staging memory is freed then.
static gs_status body_broken_broadcast(const gs_rank_env *env) {
    enum { NUM_TENSORS = 400, BYTES = 200 << 10 };
    rank_side side;
    GS_TRY(open_side_with(&side, env, GS_HELPER_ON));
    gs_tensor_view views[NUM_TENSORS];
    char *memory = calloc(NUM_TENSORS, BYTES + 64);
    for (size_t i = 0; i < NUM_TENSORS; i++)
        views[i] = (gs_tensor_view){memory + i * (BYTES + 64), BYTES, GS_U8};
    GS_TRY(gs_comm_run(side.comm, &(gs_collective){.kind = GS_BARRIER}, soon()));
    gs_status status = gs_coalesced_broadcast(
        side.comm, views, NUM_TENSORS, 0, 0,
        gs_deadline_in_ns(env->rank ? 20 * GS_NS_PER_SEC : atoi(env->arg) * GS_NS_PER_MS));
    free(memory);
    close_side(&side);
    if (status.code && status.code != GS_DEADLINE_EXCEEDED && status.code != GS_ABORTED)
        return status;
    return gs_ok();
}

static void broadcast_may_end_at_any_time(void **state) {
    (void)state;
    for (int ms = 5; ms <= 160; ms *= 2) {
        char arg[16];
        snprintf(arg, sizeof arg, "%d", ms);
        assert_ok(gs_ranks_run("broken_broadcast", 2, arg, soon()));
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"commit", body_commit},
                                          {"commit_differs", body_commit_differs},
                                          {"buffers", body_buffers},
                                          {"broadcast", body_broadcast},
                                          {"late", body_late},
                                          {"broken_broadcast", body_broken_broadcast},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_counts_votes_of_all_ranks),
        cmocka_unit_test(commit_names_rank_and_field_that_differ),
        cmocka_unit_test(buffers_come_from_rank_0_at_each_step),
        cmocka_unit_test(coalesced_broadcast_brings_the_roots_tensors),
        cmocka_unit_test(memory_of_a_collective_that_timed_out_is_left_alone),
        cmocka_unit_test(broadcast_may_end_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
