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

#include "core/plan_policy.h"
#include "core/random.h"
#include "gradsync/comm/coalesce.h"
#include "gradsync/reducer/ready_order.h"
#include "gradsync/step/buffers.h"
#include "gradsync/step/commit.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define MAX_WORLD 5

typedef struct rank_side {
    gs_device *device;
    gs_comm *comm;
} rank_side;

static gs_status join_generation(gs_comm **comm, const rank_side *side, const gs_rank_env *env,
                                 uint32_t generation, gs_helper_thread helper) {
    return gs_comm_create(comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = generation,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .device = side->device,
                                             .helper = helper},
                          soon());
}

static gs_status open_side_with(rank_side *side, const gs_rank_env *env, gs_helper_thread helper) {
    GS_TRY(gs_device_open(&side->device, "cpu", &(gs_device_options){0}));
    return join_generation(&side->comm, side, env, 3, helper);
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
    GS_TRY(
        check_near("the loss", result->loss, loss / (2 * world_size), (gs_near){.absolute = 1e-6}));
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

// None, one of two ranks, another, all: only the last is agreement, and all ranks see it alike.
static gs_status body_commit_plans(const gs_rank_env *env) {
    rank_side side;
    GS_TRY(open_side(&side, env));
    const uint64_t held[][2] = {{0, 0}, {9, 0}, {0, 9}, {9, 8}, {9, 9 + (UINT64_C(1) << 32)}, {9, 9}};
    enum { NUM_STEPS = sizeof held / sizeof held[0] };
    for (int i = 0; i < NUM_STEPS; i++) {
        gs_commit_vote vote = {.step = i,
                               .generation = 3,
                               .plan_digest = 17,
                               .next_plan_digest = held[i][env->rank == 1]};
        gs_commit_result result;
        GS_TRY(gs_commit_run(&result, side.comm, &vote, soon()));
        if (result.switches_plan != (i == NUM_STEPS - 1))
            return gs_error(GS_INTERNAL, "step %d: switches is %d", i, result.switches_plan);
    }
    close_side(&side);
    return gs_ok();
}

// Without a coordinator: rank 0's order is everybody's, and so is the plan along it.
static gs_status body_share_order(const gs_rank_env *env) {
    enum { NUM_PARAMS = 500 };
    static gs_param_spec params[NUM_PARAMS];
    size_t order[NUM_PARAMS];
    rank_side side;
    GS_TRY(open_side(&side, env));
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        params[i] = gs_param_spec_make(i % 3 ? GS_FP32 : GS_FP64, 10 + (int64_t)i, 0, "p%zu", i);
        order[i] = (i * 7 + (size_t)env->rank) % NUM_PARAMS;
    }
    GS_TRY(gs_ready_order_share(order, NUM_PARAMS, side.comm, soon()));
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        if (order[i] != i * 7 % NUM_PARAMS) return gs_error(GS_INTERNAL, "order[%zu] is %zu", i, order[i]);
    }
    gs_bucket_plan plan;
    gs_plan_policy policy = {.first_bytes = 1000, .caps_bytes = {9000}, .num_caps = 1};
    GS_TRY(gs_plan_policy_apply(&plan, &policy, params, NUM_PARAMS, order));
    gs_commit_vote vote = {.plan_digest = gs_digest_fold(gs_bucket_plan_digest(&plan))};
    gs_commit_result result;
    gs_status status = gs_commit_run(&result, side.comm, &vote, soon());
    gs_bucket_plan_release(&plan);
    close_side(&side);
    return status;
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

static void ranks_with_other_plans_that_wait_never_switch(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 4; world_size++)
        assert_ok(gs_ranks_run("commit_plans", world_size, "", gs_deadline_in_seconds(60)));
}

static void the_order_of_rank_0_decides_the_plan(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; world_size++)
        assert_ok(gs_ranks_run("share_order", world_size, "", gs_deadline_in_seconds(60)));
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

static gs_status count_collectives(uint64_t *num_posted, gs_comm *comm) {
    gs_work work;
    GS_TRY(gs_comm_post(comm, &work, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}));
    *num_posted = work.sequence;
    return gs_comm_wait(comm, work, soon());
}

// One step whose passes add rank + 1; `begins` collectives are to be posted before its passes.
static gs_status run_counted_step(gs_buffers *buffers, gs_comm *comm, int source, bool shares,
                                  uint64_t begins) {
    const void *const *from;
    void *const *to;
    uint64_t before, after;
    int rank = gs_comm_rank(comm);
    gs_join_round round = {
        .num_active = gs_comm_world_size(comm), .source = source, .active = true};
    GS_TRY(count_collectives(&before, comm));
    GS_TRY(gs_buffers_begin_uneven(buffers, &round, comm, soon()));
    GS_TRY(count_collectives(&after, comm));
    if (after - before - 1 != begins)
        return gs_error(GS_INTERNAL, "begin posts %llu collectives, wanted %llu",
                        (unsigned long long)(after - before - 1), (unsigned long long)begins);
    gs_buffers_pass(buffers, rank, true, &from, &to);
    ((float *)to[0])[4] = ((const float *)from[0])[4] + (float)(rank + 1);
    gs_buffers_end_pass(buffers);
    if (shares) GS_TRY(gs_buffers_share(buffers, comm, soon()));
    gs_buffers_adopt(buffers);
    return gs_ok();
}

static gs_status expect(const gs_buffers *buffers, float wanted) {
    float value = ((const float *)gs_buffers_committed(buffers)[0])[4];
    if (value == wanted) return gs_ok();
    return gs_error(GS_INTERNAL, "committed %g, wanted %g", (double)value, (double)wanted);
}

// The last rank is another process in the second generation: it holds what nobody else does.
static gs_status body_common_buffers(const gs_rank_env *env) {
    rank_side side;
    gs_comm *next;
    gs_param_spec spec = gs_param_spec_make(GS_FP32, 5, 0, "bn.running_var");
    gs_buffers *buffers;
    int last = env->world_size - 1;
    GS_TRY(open_side(&side, env));
    GS_TRY(gs_buffers_create(&buffers, &spec, 1, GS_BUFFERS_BROADCAST, false, side.device));
    GS_TRY(run_counted_step(buffers, side.comm, 0, true, 1));
    GS_TRY(expect(buffers, 1));
    GS_TRY(run_counted_step(buffers, side.comm, last, true, 0));
    GS_TRY(run_counted_step(buffers, side.comm, 0, false, 0));
    GS_TRY(expect(buffers, (float)(2 + last + env->rank + 1)));
    GS_TRY(run_counted_step(buffers, side.comm, 0, true, 1));
    GS_TRY(expect(buffers, (float)(4 + last)));

    GS_TRY(join_generation(&next, &side, env, 4, GS_HELPER_AUTO));
    if (env->rank == last) {
        gs_buffers_destroy(buffers);
        GS_TRY(gs_buffers_create(&buffers, &spec, 1, GS_BUFFERS_BROADCAST, false, side.device));
    }
    // A step that is not applied makes nothing common.
    GS_TRY(gs_buffers_begin(buffers, next, soon()));
    GS_TRY(gs_buffers_share(buffers, next, soon()));
    GS_TRY(run_counted_step(buffers, next, 0, true, 1));
    GS_TRY(expect(buffers, (float)(5 + last)));
    GS_TRY(run_counted_step(buffers, next, 0, true, 0));
    gs_buffers_destroy(buffers);
    gs_comm_destroy(next);
    close_side(&side);
    return gs_ok();
}

static void buffers_that_are_the_same_everywhere_are_not_sent_again(void **state) {
    (void)state;
    for (int world = 2; world <= MAX_WORLD; world++)
        assert_ok(gs_ranks_run("common_buffers", world, "", soon()));
}

// Three ranks, the last one without data: an average is over two, a broadcast is the second one's.
static gs_status body_uneven_buffers(const gs_rank_env *env) {
    bool averages = strcmp(env->arg, "average") == 0;
    rank_side side;
    GS_TRY(open_side(&side, env));
    const gs_param_spec specs[] = {gs_param_spec_make(GS_I64, 0, 0, "bn.num_batches_tracked"),
                                   gs_param_spec_make(GS_FP32, 5, 0, "bn.running_var"),
                                   gs_param_spec_make(GS_FP64, 3, 0, "total")};
    gs_buffers *buffers;
    GS_TRY(gs_buffers_create(&buffers, specs, 3,
                             averages ? GS_BUFFERS_AVERAGE : GS_BUFFERS_BROADCAST, false,
                             side.device));
    void *const *committed = gs_buffers_committed(buffers);
    gs_join_round round = {.num_active = 2, .source = 1, .active = env->rank < 2};
    for (int step = 0; step < 3; step++) {
        const void *const *from;
        void *const *to;
        double before = *(const double *)committed[2];
        GS_TRY(gs_buffers_begin_uneven(buffers, &round, side.comm, soon()));
        if (round.active) {
            gs_buffers_pass(buffers, env->rank, true, &from, &to);
            *(int64_t *)to[0] += 1 + env->rank;
            ((float *)to[1])[4] += (float)(1 + 2 * env->rank);
            *(double *)to[2] += 1 + 2 * env->rank;
            gs_buffers_end_pass(buffers);
        }
        GS_TRY(gs_buffers_share(buffers, side.comm, soon()));
        if (*(const double *)committed[2] != before)
            return gs_error(GS_INTERNAL, "step %d: committed before the commit", step);
        gs_buffers_adopt(buffers);
        int each = averages ? 2 : 3, wanted = (step + 1) * each;
        if (*(const int64_t *)committed[0] != (step + 1) * 2 ||
            ((const float *)committed[1])[4] != (float)wanted ||
            *(const double *)committed[2] != (double)wanted)
            return gs_error(GS_INTERNAL, "step %d: %lld %g %g, wanted %d", step,
                            (long long)*(const int64_t *)committed[0],
                            (double)((const float *)committed[1])[4],
                            *(const double *)committed[2], wanted);
    }
    gs_buffers_destroy(buffers);
    close_side(&side);
    return gs_ok();
}

// A hook of the user's own: the largest value of any rank, wherever there was data.
static gs_status take_largest(void *ctx, void *const *values, const gs_param_spec *specs,
                              size_t num_buffers, const gs_join_round *round, gs_comm *comm,
                              gs_deadline deadline) {
    int *calls = ctx;
    ++*calls;
    if (round->num_active != 2 || num_buffers != 1)
        return gs_error(GS_INTERNAL, "%d active ranks, %zu buffers", round->num_active, num_buffers);
    return gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = values[0],
                                        .recv = values[0],
                                        .count = gs_param_spec_count(&specs[0]),
                                        .dtype = GS_FP32,
                                        .op = GS_OP_MAX,
                                        .bucket = -1},
                       deadline);
}

// In the original buffer hooks are not supported in a join.
static gs_status body_hooked_buffers(const gs_rank_env *env) {
    int calls = 0;
    rank_side side;
    GS_TRY(open_side(&side, env));
    const gs_param_spec spec = gs_param_spec_make(GS_FP32, 5, 0, "bn.running_var");
    gs_buffers *buffers;
    GS_TRY(gs_buffers_create(&buffers, &spec, 1, GS_BUFFERS_BROADCAST, false, side.device));
    gs_buffers_set_hook(buffers, &(gs_buffers_hook){.run = take_largest, .ctx = &calls});
    gs_join_round round = {.num_active = 2, .source = 2, .active = env->rank != 1};
    for (int step = 0; step < 3; step++) {
        const void *const *from;
        void *const *to;
        GS_TRY(gs_buffers_begin_uneven(buffers, &round, side.comm, soon()));
        if (round.active) {
            gs_buffers_pass(buffers, env->rank, true, &from, &to);
            ((float *)to[0])[3] += (float)(5 - env->rank);
            gs_buffers_end_pass(buffers);
        }
        GS_TRY(gs_buffers_share(buffers, side.comm, soon()));
        gs_buffers_adopt(buffers);
        float value = ((const float *)gs_buffers_committed(buffers)[0])[3];
        if (value != (float)(5 * (step + 1)) || calls != step + 1)
            return gs_error(GS_INTERNAL, "step %d: %g after %d calls", step, (double)value, calls);
    }
    gs_buffers_destroy(buffers);
    close_side(&side);
    return gs_ok();
}

static void buffer_hook_runs_on_ranks_without_data_too(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("hooked_buffers", 3, "", soon()));
}

static void buffers_of_ranks_without_data_do_not_count(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("uneven_buffers", 3, "average", soon()));
    assert_ok(gs_ranks_run("uneven_buffers", 3, "broadcast", soon()));
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
    GS_TRY(gs_rank_exchange(env->exchange, "late/go", NULL, 0, mine, sizeof mine[0], all, soon()));
    if (env->rank == 1) {
        status = gs_comm_run(side.comm, &collective, gs_deadline_in_seconds(0.5));
        if (!status.code) return gs_error(GS_INTERNAL, "rank 0 had gone, but the sum is done");
    }
    GS_TRY(gs_rank_exchange(env->exchange, "late/gone", NULL, 0, mine, sizeof mine[0], all, soon()));
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
    // Rank 0 may have given up before rank 1 is out of the barrier.
    gs_status status = gs_comm_run(side.comm, &(gs_collective){.kind = GS_BARRIER}, soon());
    if (!status.code)
        status = gs_coalesced_broadcast(
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
                                          {"commit_plans", body_commit_plans},
                                          {"share_order", body_share_order},
                                          {"commit_differs", body_commit_differs},
                                          {"buffers", body_buffers},
                                          {"common_buffers", body_common_buffers},
                                          {"uneven_buffers", body_uneven_buffers},
                                          {"hooked_buffers", body_hooked_buffers},
                                          {"broadcast", body_broadcast},
                                          {"late", body_late},
                                          {"broken_broadcast", body_broken_broadcast},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_counts_votes_of_all_ranks),
        cmocka_unit_test(ranks_with_other_plans_that_wait_never_switch),
        cmocka_unit_test(the_order_of_rank_0_decides_the_plan),
        cmocka_unit_test(commit_names_rank_and_field_that_differ),
        cmocka_unit_test(buffers_of_ranks_without_data_do_not_count),
        cmocka_unit_test(buffer_hook_runs_on_ranks_without_data_too),
        cmocka_unit_test(buffers_come_from_rank_0_at_each_step),
        cmocka_unit_test(buffers_that_are_the_same_everywhere_are_not_sent_again),
        cmocka_unit_test(coalesced_broadcast_brings_the_roots_tensors),
        cmocka_unit_test(memory_of_a_collective_that_timed_out_is_left_alone),
        cmocka_unit_test(broadcast_may_end_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
