// The reducer's modes between real processes: uneven rounds, weighted means, gradients of the
// caller's own, static graphs, resets; and that a step allocates nothing there either.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "tests/support/asserts.h"
#include "tests/support/near.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8

static size_t num_allocations;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    num_allocations++;
    return __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    num_allocations++;
    return __real_calloc(count, bytes);
}

void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) {
    num_allocations++;
    return __real_realloc(memory, bytes);
}

static gs_status expect(const char *what, double got, double expected) {
    return check_near(what, got, expected, (gs_near){.absolute = 1e-6, .relative = 1e-6});
}

static gs_status expect_grad(const small_reducer *small, size_t param, double expected) {
    char what[48];
    snprintf(what, sizeof what, "rank %d: gradient %zu", small->rank, param);
    return expect(what, small_reducer_grad(small, param, SMALL_COUNT - 1), expected);
}

// What all gradients are, to the bit; ranks are compared by the parent.
static void note_digest(const small_reducer *small, const gs_rank_env *env, uint64_t *digest) {
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        if (small->params[p].sparse) continue;
        *digest = gs_hash64(gs_reducer_grads(small->reducer)[p],
                            SMALL_COUNT * (small->params[p].dtype == GS_FP64 ? 8 : 4), *digest);
    }
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)*digest);
    gs_rank_note(env, text);
}

// Step s: ranks below world - s have data; rank r's gradient is r + 1 and its pass has r + 1
// samples.
static gs_status check_uneven_step(small_reducer *small, int64_t step, gs_reducer_op op,
                                   gs_join_divisor divisor) {
    int world = small->world_size, num_active = world - (int)(step % world);
    double value = small->rank + 1;
    gs_join_round round = {.num_active = num_active,
                           .source = num_active - 1,
                           .active = small->rank < num_active,
                           .divisor = divisor};
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin_uneven(small->reducer, step, &round));
    if (round.active)
        GS_TRY(small_reducer_run_pass(small, (const double[]){value, NAN, -value, 1},
                                      small->rank + 1));
    GS_TRY(gs_reducer_finish(small->reducer, &result, soon()));
    double sum = 0, weighted = 0, samples = 0;
    for (int r = 1; r <= num_active; r++) {
        sum += r;
        weighted += r * r;
        samples += r;
    }
    double expected = op == GS_SUM           ? sum
                      : op == GS_SAMPLE_MEAN ? weighted / samples
                                             : sum / (divisor ? num_active : world);
    GS_TRY(expect_grad(small, 0, expected));
    GS_TRY(expect_grad(small, 1, 0));
    GS_TRY(expect_grad(small, 2, -expected));
    GS_TRY(expect("samples", (double)result.samples, samples));
    GS_TRY(expect("active ranks", result.active_ranks, num_active));
    return expect("unused", (double)result.num_unused, 1);
}

static gs_status body_uneven(const gs_rank_env *env) {
    uint64_t digest = 0;
    for (int op = GS_MEAN; op <= GS_SAMPLE_MEAN; op++) {
        for (int divisor = 0; divisor < 2; divisor++) {
            for (int is_static = 0; is_static < 2; is_static++) {
                small_reducer small;
                small_reducer_prepare(&small);
                small.params[2].dtype = GS_FP64;
                GS_TRY(small_reducer_open(
                    &small,
                    &(gs_reducer_options){.op = (gs_reducer_op)op, .static_graph = is_static},
                    env));
                for (int64_t step = 0; step < 2 * env->world_size; step++) {
                    GS_TRY(gs_status_prefix(check_uneven_step(&small, step, (gs_reducer_op)op,
                                                              (gs_join_divisor)divisor),
                                            "op %d, divisor %d, step %d", op, divisor, (int)step));
                    note_digest(&small, env, &digest);
                }
                small_reducer_close(&small);
            }
        }
    }
    return gs_ok();
}

// arg: what is wrong on rank 1.
static gs_status run_wrong_round(small_reducer *small, const char *wrong) {
    bool culprit = small->rank == 1;
    gs_join_round round = {.num_active = small->world_size - 1, .active = small->rank != 0};
    gs_reduce_result result;
    if (culprit && strcmp(wrong, "count") == 0) round.num_active = small->world_size;
    if (culprit && strcmp(wrong, "divisor") == 0) round.divisor = GS_DIVIDE_BY_ACTIVE;
    if (culprit && strcmp(wrong, "flag") == 0) round.active = false;
    GS_TRY(gs_reducer_begin_uneven(small->reducer, 7, &round));
    gs_status status = gs_ok();
    if (round.active || (culprit && strcmp(wrong, "pass") == 0))
        status = small_reducer_run_pass(small, (const double[]){1, 1, 1, 1}, 1);
    if (!status.code && !round.active && small->rank == 0 && strcmp(wrong, "pass") == 0) {
        gs_reducer_pass pass;
        status = gs_reducer_begin_pass(small->reducer, &pass, 1);
    }
    gs_status finished = gs_reducer_finish(small->reducer, &result, soon());
    // The zeros of a rank without data were on their way before its misuse: others may have
    // finished, and are told where they meet next, as they do to commit.
    if (!finished.code && strcmp(wrong, "pass") == 0)
        finished =
            gs_comm_run(small->comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, soon());
    return status.code ? status : finished;
}

static gs_status body_wrong_round(const gs_rank_env *env) {
    small_reducer small;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){0}, env));
    gs_status status = run_wrong_round(&small, env->arg);
    small_reducer_close(&small);
    return status;
}

// Samples per shard differ, one has none. The same bits for every world.
static gs_status body_exact_samples(const gs_rank_env *env) {
    enum { NUM_SHARDS = 6 };
    uint64_t digest = 0;
    small_reducer small;
    small_reducer_prepare(&small);
    small.params[1].dtype = GS_FP64;
    GS_TRY(small_reducer_open(
        &small,
        &(gs_reducer_options){.op = GS_SAMPLE_MEAN,
                              .shards = {.num_shards = NUM_SHARDS, .exact = true}},
        env));
    const gs_logical_shards shards = {
        .num_shards = NUM_SHARDS, .world_size = env->world_size, .rank = env->rank};
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        GS_TRY(gs_reducer_begin(small.reducer, step));
        for (int s = gs_logical_shards_first(&shards, env->rank);
             s < gs_logical_shards_first(&shards, env->rank + 1); s++) {
            double value = sin((double)(10 * step + s));
            GS_TRY(small_reducer_run_pass(&small, (const double[]){value, value, 1, s == 2},
                                          s == 3 ? 0 : s + 1));
        }
        GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
        GS_TRY(expect("samples", (double)result.samples, 1 + 2 + 3 + 5 + 6));
        GS_TRY(expect_grad(&small, 2, 1));
        GS_TRY(expect_grad(&small, 3, 3.0 / 17));
        note_digest(&small, env, &digest);
    }
    small_reducer_close(&small);
    return gs_ok();
}

// Ranks keep their gradients in different ways; rank 0's are views.
typedef struct own_grads {
    double memory[SMALL_PARAMS][SMALL_COUNT];
    gs_separate_grad list[SMALL_PARAMS];
} own_grads;

static void put_own(own_grads *own, size_t param, float value) {
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        void *data = own->memory[param];
        gs_dtype dtype = own->list[param].dtype;
        if (dtype == GS_FP64) ((double *)data)[i] = (double)value;
        if (dtype == GS_FP32) ((float *)data)[i] = value;
        if (dtype == GS_BF16) ((uint16_t *)data)[i] = gs_fp32_to_bf16(value);
    }
}

static double get_own(const own_grads *own, size_t param) {
    const void *data = own->memory[param];
    gs_dtype dtype = own->list[param].dtype;
    if (dtype == GS_FP64) return ((const double *)data)[1];
    if (dtype == GS_FP32) return (double)((const float *)data)[1];
    return (double)gs_bf16_to_fp32(((const uint16_t *)data)[1]);
}

// fc0: all use it; fc1: rank 1 alone; fc2: nobody; fc3: all but rank 1, whose tensor is stale.
static gs_status run_separate_step(small_reducer *small, own_grads *own, int64_t step) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 1));
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        bool uses = p == 0 || (p == 1 && small->rank == 1) || (p == 3 && small->rank != 1);
        float value = uses ? (float)(small->rank + 1) : 64;
        if (small->rank)
            put_own(own, p, value);
        else
            small_reducer_write(small, &pass, p, (double)value);
        if (uses) GS_TRY(gs_reducer_mark_ready(small->reducer, p));
    }
    GS_TRY(gs_reducer_end_pass(small->reducer));
    GS_TRY(gs_reducer_finish(small->reducer, &result, soon()));
    double sum = small->world_size * (small->world_size + 1) / 2.0, world = small->world_size;
    const double expected[] = {sum / world, 2 / world, 64, (sum - 2) / world};
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        GS_TRY(expect_grad(small, p, p == 2 ? 0 : expected[p]));
        double relative = own->list[p].dtype == GS_BF16 ? 0x1p-8 : 1e-6;
        if (small->rank && !(fabs(get_own(own, p) - expected[p]) <= relative * expected[p]))
            return gs_error(GS_INTERNAL, "rank %d: own gradient %zu is %g, expected %g",
                            small->rank, p, get_own(own, p), expected[p]);
    }
    return expect("unused", (double)result.num_unused, 1);
}

static gs_status body_separate(const gs_rank_env *env) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_BF16};
    own_grads own;
    small_reducer small;
    uint64_t digest = 0;
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        own.list[p] = (gs_separate_grad){own.memory[p], dtypes[((size_t)env->rank + p) % 3]};
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small,
                              &(gs_reducer_options){.separate = env->rank ? own.list : NULL}, env));
    for (int64_t step = 0; step < 3; step++) {
        GS_TRY(run_separate_step(&small, &own, step));
        note_digest(&small, env, &digest);
    }
    small_reducer_close(&small);
    return gs_ok();
}

// no_sync: backward passes that no reducer sees add up in the tensors, the next one it sees reduces
// what lies there. Gradients that are not cleared are part of the next reduction, as their mean.
static gs_status body_no_sync(const gs_rank_env *env) {
    static float tensors[SMALL_PARAMS][SMALL_COUNT];
    gs_separate_grad list[SMALL_PARAMS];
    for (size_t p = 0; p < SMALL_PARAMS; p++) list[p] = (gs_separate_grad){tensors[p], GS_FP32};
    small_reducer small;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){.separate = list}, env));
    double world = env->world_size, mean_rank = (world - 1) / 2, carried = 0;
    for (int64_t step = 0; step < 3; step++) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        for (int unseen = 0; unseen < 2; unseen++) {
            for (size_t p = 0; p < SMALL_PARAMS; p++)
                for (size_t i = 0; i < SMALL_COUNT; i++) tensors[p][i] += (float)env->rank;
        }
        GS_TRY(gs_reducer_begin(small.reducer, step));
        GS_TRY(gs_reducer_begin_pass(small.reducer, &pass, 1));
        for (size_t p = 0; p < SMALL_PARAMS; p++) {
            for (size_t i = 0; i < SMALL_COUNT; i++) tensors[p][i] += 10;
            GS_TRY(gs_reducer_mark_ready(small.reducer, p));
        }
        GS_TRY(gs_reducer_end_pass(small.reducer));
        GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
        carried = carried + 2 * mean_rank + 10;
        for (size_t p = 0; p < SMALL_PARAMS; p++)
            GS_TRY(expect("accumulated", (double)tensors[p][2], carried));
    }
    small_reducer_close(&small);
    return gs_ok();
}

// Even ranks mark fc3 twice and use fc0 never; odd ones mark fc3 once, fc0 three times. Nobody uses
// fc1 or fc2, so that after the first step nothing but [3 2] and [1 0] with a used member travels.
static gs_status run_static_step(small_reducer *small, int64_t step, bool breaks) {
    bool odd = small->rank % 2;
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 1));
    const int marks[] = {odd ? 3 : 0, 0, 0, (odd ? 1 : 2) + breaks};
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        for (int mark = 0; mark < marks[p]; mark++) {
            for (size_t i = 0; i < SMALL_COUNT; i++)
                ((float *)pass.grads[p])[i] = (mark ? ((float *)pass.grads[p])[i] : 0) + 1;
            GS_TRY(gs_reducer_mark_ready(small->reducer, p));
        }
    }
    GS_TRY(gs_reducer_end_pass(small->reducer));
    GS_TRY(gs_reducer_finish(small->reducer, &result, soon()));
    double num_odd = small->world_size / 2, world = small->world_size;
    GS_TRY(expect_grad(small, 0, 3 * num_odd / world));
    GS_TRY(expect_grad(small, 1, 0));
    GS_TRY(expect_grad(small, 3, (2 * (world - num_odd) + num_odd) / world));
    return expect("unused", (double)result.num_unused, 2);
}

static gs_status body_static(const gs_rank_env *env) {
    uint64_t digest = 0;
    small_reducer small;
    small_reducer_prepare(&small);
    small.params[1].dtype = GS_FP64;  // a bucket of its own, that nobody uses
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){.static_graph = true}, env));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < 5 && !status.code; step++) {
        bool breaks = strcmp(env->arg, "breaks") == 0 && step == 3 && env->rank == 1;
        status = run_static_step(&small, step, breaks);
        const gs_reduce_stats *stats = gs_reducer_stats(small.reducer);
        for (size_t b = 0; b < stats->num_buckets && !status.code; b++) {
            bool travelled = stats->buckets[b].wire_bytes > 0;
            bool used = small.plan.params[small.plan.buckets[b].first] != 1;
            if (travelled != (used || step == 0))
                status = gs_error(GS_INTERNAL, "step %d: bucket %zu", (int)step, b);
        }
        if (!status.code) note_digest(&small, env, &digest);
    }
    small_reducer_close(&small);
    return status;
}

// The first pass of the last bucket is over while its pass is still open, because everything in it
// was marked, or said to be unused: each rank waits for the others' values before it ends the pass.
static gs_status body_early(const gs_rank_env *env) {
    small_reducer small;
    gs_reducer_pass pass;
    gs_reduce_result result;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){0}, env));
    GS_TRY(gs_reducer_begin(small.reducer, 0));
    GS_TRY(gs_reducer_begin_pass(small.reducer, &pass, 5));
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        if (p % 2) {
            GS_TRY(gs_reducer_mark_unused(small.reducer, p));
        } else {
            small_reducer_write(&small, &pass, p, env->rank);
            GS_TRY(gs_reducer_mark_ready(small.reducer, p));
        }
    }
    double mean = (env->world_size - 1) / 2.0;
    gs_deadline deadline = soon();
    while (!is_near((double)((float *)pass.grads[0])[SMALL_COUNT - 1], mean,
                    (gs_near){.absolute = 1e-6})) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "the last bucket waits for the end of the pass");
        GS_TRY(gs_comm_progress(small.comm));
        gs_sleep_ns(GS_NS_PER_MS / 10);
    }
    GS_TRY(gs_reducer_end_pass(small.reducer));
    GS_TRY(gs_reducer_finish(small.reducer, &result, soon()));
    GS_TRY(expect("samples", (double)result.samples, 5 * env->world_size));
    GS_TRY(expect("unused", (double)result.num_unused, 2));
    small_reducer_close(&small);
    return gs_ok();
}

// Until all ranks are here. Without it an abort could meet a rank in what came before.
static gs_status meet(const gs_rank_env *env, const char *tag) {
    char here = 1, all[MAX_WORLD];
    return gs_rank_exchange(env->exchange, tag, NULL, 0, &here, 1, all, soon());
}

static gs_status run_shard_step(small_reducer *small, int64_t step, int num_shards) {
    const gs_logical_shards shards = {
        .num_shards = num_shards, .world_size = small->world_size, .rank = small->rank};
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    for (int s = gs_logical_shards_first(&shards, small->rank);
         s < gs_logical_shards_first(&shards, small->rank + 1); s++)
        GS_TRY(small_reducer_run_pass(small, (const double[]){s, 1.0 / (s + 3), NAN, 1}, 2));
    GS_TRY(gs_reducer_finish(small->reducer, &result, soon()));
    GS_TRY(expect_grad(small, 0, (num_shards - 1) / 2.0));
    return expect("samples", (double)result.samples, 2 * num_shards);
}

static gs_status move_to(small_reducer *small, const gs_rank_env *env, uint32_t generation) {
    gs_comm *next;
    GS_TRY(gs_comm_wait_ended(small->comm, soon()));
    GS_TRY(small_reducer_connect(&next, small, env, generation));
    gs_status status = gs_reducer_reset(small->reducer, next, soon());
    gs_comm_destroy(small->comm);
    small->comm = next;
    return status;
}

// Rank 1 gives up in the middle of a step with buckets in flight; all meet again in a new
// communicator and redo the step. Then each goes on alone, and then all together once more.
static gs_status run_resets(small_reducer *small, const gs_rank_env *env, int num_shards,
                            uint64_t *digest) {
    int rank = small->rank, world_size = small->world_size;
    gs_reducer_pass pass;
    GS_TRY(run_shard_step(small, 0, num_shards));
    note_digest(small, env, digest);
    GS_TRY(meet(env, "step 0"));
    if (rank == 1) {
        GS_TRY(gs_reducer_begin(small->reducer, 1));
        GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, 1));
        for (size_t p = SMALL_PARAMS; p-- > 1;) GS_TRY(gs_reducer_mark_ready(small->reducer, p));
        gs_comm_abort(small->comm, "rank 1 gave up");
    } else {
        gs_status status = run_shard_step(small, 1, num_shards);
        if (status.code != GS_ABORTED || !strstr(status.message, "rank 1 gave up"))
            return gs_error(GS_INTERNAL, "rank %d: expected an abort, got \"%s\"", rank,
                            status.message);
        if (gs_reducer_complete(small->reducer))
            return gs_error(GS_INTERNAL, "an aborted step is complete");
    }
    GS_TRY(move_to(small, env, 2));
    GS_TRY(run_shard_step(small, 1, num_shards));
    note_digest(small, env, digest);

    small->rank = 0;
    small->world_size = 1;
    GS_TRY(move_to(small, NULL, 3));
    GS_TRY(run_shard_step(small, 2, num_shards));
    note_digest(small, env, digest);
    small->rank = rank;
    small->world_size = world_size;
    GS_TRY(move_to(small, env, 4));
    for (int64_t step = 3; step < 6; step++) GS_TRY(run_shard_step(small, step, num_shards));
    note_digest(small, env, digest);
    return gs_ok();
}

static gs_status body_reset(const gs_rank_env *env) {
    uint64_t digest = 0;
    for (int exact = 0; exact < 2; exact++) {
        small_reducer small;
        small_reducer_prepare(&small);
        small.extra_bytes = 65536;  // a world of one adds more partial sums
        GS_TRY(small_reducer_open(
            &small, &(gs_reducer_options){.shards = {.num_shards = 7, .exact = exact}}, env));
        GS_TRY(run_resets(&small, env, 7, &digest));
        small_reducer_close(&small);
    }
    return gs_ok();
}

// An error of one rank alone, outside of any step, costs no more than a new communicator.
static gs_status body_fails_alone(const gs_rank_env *env) {
    small_reducer small;
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){0}, env));
    GS_TRY(meet(env, "opened"));
    if (env->rank == 1) {
        gs_bucket_plan plan;
        GS_TRY(gs_bucket_plan_parity(&plan, small.params, SMALL_PARAMS, 0, 0, NULL));
        gs_comm_abort(small.comm, "rank 1 takes another plan");
        gs_status status = gs_reducer_set_plan(small.reducer, &plan, soon());
        gs_bucket_plan_release(&plan);
        if (!status.code) return gs_error(GS_INTERNAL, "a plan was taken without the others");
    }
    GS_TRY(move_to(&small, env, 2));
    GS_TRY(run_shard_step(&small, 0, env->world_size));
    small_reducer_close(&small);
    return gs_ok();
}

static gs_status body_memory(const gs_rank_env *env) {
    static float tensors[SMALL_PARAMS][SMALL_COUNT];
    gs_separate_grad separate[SMALL_PARAMS];
    for (size_t p = 0; p < SMALL_PARAMS; p++) separate[p] = (gs_separate_grad){tensors[p], GS_FP32};
    const gs_reducer_options modes[] = {{0},
                                        {.op = GS_SAMPLE_MEAN, .static_graph = true},
                                        {.separate = separate},
                                        {.wire_dtype = GS_BF16},
                                        {.shards = {.num_shards = 7, .exact = true}}};
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        small_reducer small;
        small_reducer_prepare(&small);
        GS_TRY(small_reducer_open(&small, &modes[m], env));
        int shards = modes[m].shards.num_shards ? modes[m].shards.num_shards : env->world_size;
        num_allocations = 0;
        for (int64_t step = 0; step < 20; step++) GS_TRY(run_shard_step(&small, step, shards));
        if (num_allocations)
            return gs_error(GS_INTERNAL, "mode %zu: %zu allocations in 20 steps", m,
                            num_allocations);
        small_reducer_close(&small);
    }
    return gs_ok();
}

// A sparse parameter's used count travels in a bucket of reserved elements alone.
static gs_status body_sparse(const gs_rank_env *env) {
    small_reducer small;
    uint64_t digest = 0;
    small_reducer_prepare(&small);
    small.params[2].sparse = true;
    GS_TRY(small_reducer_open(&small, &(gs_reducer_options){0}, env));
    for (int64_t step = 0; step < 4; step++) {
        bool uses = step == 0 || (step == 1 && env->rank == env->world_size - 1);
        gs_reduce_result result;
        GS_TRY(small_reducer_run_step(&small, step, (const double[]){1, 1, uses ? 1 : NAN, 1},
                                      &result));
        GS_TRY(expect("used", result.used[2], step < 2));
        GS_TRY(expect("unused", (double)result.num_unused, step >= 2));
        note_digest(&small, env, &digest);
    }
    small_reducer_close(&small);
    return gs_ok();
}

// Runs a body in a world; all ranks must end well and note the same.
static void run_alike(const char *body, int world_size, char note[32]) {
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    assert_ok(gs_ranks_start(&ranks, body, world_size, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < world_size; r++) assert_ok(statuses[r]);
    for (int r = 1; r < world_size; r++)
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    snprintf(note, 32, "%s", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
}

static void run_worlds(const char *body) {
    char note[32];
    for (int world_size = 2; world_size <= 4; world_size++) run_alike(body, world_size, note);
}

// Every rank of three must fail with these words.
static void expect_words(const char *body, const char *arg, const char *words) {
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, body, 3, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_ranks_destroy(ranks);
    for (int r = 0; r < 3; r++) {
        if (!statuses[r].code || !strstr(statuses[r].message, words))
            fail_msg("%s: rank %d: \"%s\", expected \"%s\"", arg, r, statuses[r].message, words);
    }
}

static void ranks_without_data_shadow_the_others_with_both_divisors(void **state) {
    (void)state;
    run_worlds("uneven");
}

static void rounds_that_differ_end_the_step_everywhere(void **state) {
    (void)state;
    expect_words("wrong_round", "count", "rank 1 posted all-reduce");
    expect_words("wrong_round", "count", "with 3 active");
    expect_words("wrong_round", "flag", "step 7: bucket 0: 1 ranks had data, 2 were announced");
    expect_words("wrong_round", "divisor", "rank 1");
    expect_words("wrong_round", "pass", "rank 0, step 7: this rank has no data in this step");
}

static void exact_sample_mean_has_the_same_bits_for_every_world(void **state) {
    (void)state;
    char first[32], note[32];
    run_alike("exact_samples", 1, first);
    for (int world_size = 2; world_size <= 4; world_size++) {
        run_alike("exact_samples", world_size, note);
        assert_string_equal(note, first);
    }
}

static void tensors_of_ranks_may_differ_and_all_get_the_mean(void **state) {
    (void)state;
    run_worlds("separate");
}

static void accumulated_gradients_are_reduced_with_the_new_ones(void **state) {
    (void)state;
    run_worlds("no_sync");
}

static void static_graphs_of_ranks_may_differ(void **state) {
    (void)state;
    run_worlds("static");
}

static void broken_promise_is_named_on_every_rank(void **state) {
    (void)state;
    expect_words("static", "breaks",
                 "rank 1, step 3: parameter 3 \"fc3\" marked ready 2 times, in the first step 1");
}

static void last_bucket_is_reduced_while_its_pass_is_open(void **state) {
    (void)state;
    run_worlds("early");
}

static void aborted_step_is_redone_after_a_reset_in_any_world(void **state) {
    (void)state;
    run_worlds("reset");
}

static void rank_that_failed_alone_comes_back_by_a_reset(void **state) {
    (void)state;
    run_worlds("fails_alone");
}

static void sparse_parameter_is_used_when_any_rank_used_it(void **state) {
    (void)state;
    run_worlds("sparse");
}

static void steps_of_several_ranks_allocate_nothing(void **state) {
    (void)state;
    run_worlds("memory");
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"uneven", body_uneven},
                                          {"wrong_round", body_wrong_round},
                                          {"exact_samples", body_exact_samples},
                                          {"separate", body_separate},
                                          {"no_sync", body_no_sync},
                                          {"static", body_static},
                                          {"early", body_early},
                                          {"reset", body_reset},
                                          {"fails_alone", body_fails_alone},
                                          {"sparse", body_sparse},
                                          {"memory", body_memory},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_without_data_shadow_the_others_with_both_divisors),
        cmocka_unit_test(rounds_that_differ_end_the_step_everywhere),
        cmocka_unit_test(exact_sample_mean_has_the_same_bits_for_every_world),
        cmocka_unit_test(tensors_of_ranks_may_differ_and_all_get_the_mean),
        cmocka_unit_test(accumulated_gradients_are_reduced_with_the_new_ones),
        cmocka_unit_test(static_graphs_of_ranks_may_differ),
        cmocka_unit_test(broken_promise_is_named_on_every_rank),
        cmocka_unit_test(last_bucket_is_reduced_while_its_pass_is_open),
        cmocka_unit_test(aborted_step_is_redone_after_a_reset_in_any_world),
        cmocka_unit_test(rank_that_failed_alone_comes_back_by_a_reset),
        cmocka_unit_test(sparse_parameter_is_used_when_any_rank_used_it),
        cmocka_unit_test(steps_of_several_ranks_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
