#include "gradsync/reducer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/agreement.h"
#include "gradsync/bucket.h"
#include "gradsync/bucket_queue.h"
#include "gradsync/grad_layout.h"
#include "gradsync/grad_norm.h"
#include "gradsync/ready_order.h"
#include "gradsync/reducer_options.h"

// Gradients that may become ready before earlier buckets are moved on. Asking costs some 50 ns: in
// models of small tensors not at each of them.
#define PROGRESS_BYTES ((size_t)64 << 10)

typedef enum reducer_phase { PHASE_IDLE = 0, PHASE_OPEN, PHASE_PASS } reducer_phase;

// Where the gradient of an own shard goes, and what is merged when it is complete.
typedef struct shard_step {
    int slot, merges;
} shard_step;

struct gs_reducer {
    gs_reducer_options options;  // params and plan point into the layout
    gs_comm *comm;
    const gs_comm_hook *hook;
    gs_grad_layout layout;
    gs_shard_tree tree;
    shard_step *shard_steps;  // own shards
    int num_passes;           // of a step, on this rank
    gs_status failed;         // the first error; nothing works any more

    // of the step
    reducer_phase phase;
    int64_t step, samples;
    int passes_run;
    bool complete;
    gs_bucket_queue queue;

    // of the pass
    gs_reducer_pass pass;
    bool completes_shard;
    uint32_t serial;  // of the pass, never 0
    uint32_t *marks;  // parameter → serial of the last pass that marked it
    size_t num_marked;
    size_t bytes_since_progress;

    gs_ready_order order;
    gs_reduce_stats stats, last_stats;
    gs_bucket_times *times;  // of last_stats
};

// The first error sticks, and ends the step on every rank with its words.
static gs_status keep_error(gs_reducer *reducer, gs_status status) {
    if (!status.code || reducer->failed.code) return status;
    reducer->failed = status;
    gs_comm_abort(reducer->comm, status.message);
    return status;
}

static gs_status blame(const gs_reducer *reducer, size_t param, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: parameter %zu \"%.100s\" %s",
                    reducer->options.shards.rank, (long long)reducer->step, param,
                    reducer->layout.params[param].name, what);
}

static gs_status misuse(const gs_reducer *reducer, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: %s", reducer->options.shards.rank,
                    (long long)reducer->step, what);
}

// Adds a complete shard's gradient to the partial sums below it, along the tree.
static void merge_slots(gs_reducer *reducer, const gs_bucket *bucket) {
    const shard_step *step =
        &reducer->shard_steps[reducer->passes_run / reducer->options.passes_per_shard];
    const gs_kernels *kernels = gs_device_kernels(reducer->options.device);
    for (int i = 0; i < step->merges; i++) {
        int right_slot = step->slot - i;
        float *left = gs_grad_layout_bucket(&reducer->layout, right_slot - 1, bucket);
        const float *right = gs_grad_layout_bucket(&reducer->layout, right_slot, bucket);
        kernels->add(gs_device_stream(reducer->options.device), left, left, right,
                     bucket->grad_count);
    }
}

// All members are final for this shard.
static gs_status complete_bucket(gs_reducer *reducer, size_t index) {
    merge_slots(reducer, &reducer->layout.buckets[index]);
    if (!reducer->pass.reduces) return gs_ok();
    reducer->bytes_since_progress = 0;
    return gs_bucket_queue_push(&reducer->queue, index);
}

static gs_status begin_step(gs_reducer *reducer, int64_t step) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != PHASE_IDLE) return misuse(reducer, "a step is open, finish it first");
    if (step < 0) return gs_error(GS_INVALID_ARGUMENT, "step: %lld", (long long)step);
    reducer->step = step;
    GS_FAILPOINT("reducer.begin");
    reducer->phase = PHASE_OPEN;
    reducer->complete = false;
    reducer->samples = 0;
    reducer->passes_run = 0;
    reducer->stats = (gs_reduce_stats){.step = step, .begin_ns = gs_now_ns()};
    gs_bucket_queue_begin(&reducer->queue, step);
    return gs_ok();
}

gs_status gs_reducer_begin(gs_reducer *reducer, int64_t step) {
    return keep_error(reducer, begin_step(reducer, step));
}

static gs_status open_pass(gs_reducer *reducer, gs_reducer_pass *pass) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase == PHASE_IDLE) return misuse(reducer, "a pass needs an open step");
    if (reducer->phase == PHASE_PASS) return misuse(reducer, "a pass is open, end it first");
    if (reducer->passes_run == reducer->num_passes)
        return misuse(reducer, "all passes of the step have been run");

    const gs_logical_shards *shards = &reducer->options.shards;
    int per_shard = reducer->options.passes_per_shard;
    int own_shard = reducer->passes_run / per_shard, in_shard = reducer->passes_run % per_shard;
    reducer->completes_shard = in_shard == per_shard - 1;
    reducer->pass = (gs_reducer_pass){
        .grads = gs_grad_layout_grads(&reducer->layout, reducer->shard_steps[own_shard].slot),
        .accumulate = in_shard > 0 || (!shards->exact && own_shard > 0),
        .shard = gs_logical_shards_first(shards, shards->rank) + own_shard,
        .pass = in_shard,
        .reduces = reducer->passes_run == reducer->num_passes - 1};
    if (++reducer->serial == 0) {
        memset(reducer->marks, 0, reducer->layout.num_params * sizeof *reducer->marks);
        reducer->serial = 1;
    }
    reducer->num_marked = 0;
    reducer->bytes_since_progress = 0;
    if (reducer->completes_shard) {
        for (size_t b = 0; b < reducer->layout.plan.num_buckets; b++)
            gs_bucket_reset(&reducer->layout.buckets[b]);
    }
    if (reducer->pass.reduces) gs_ready_order_begin(&reducer->order);
    reducer->phase = PHASE_PASS;
    *pass = reducer->pass;
    return gs_ok();
}

gs_status gs_reducer_begin_pass(gs_reducer *reducer, gs_reducer_pass *pass) {
    return keep_error(reducer, open_pass(reducer, pass));
}

static gs_status mark_param(gs_reducer *reducer, size_t param) {
    if (reducer->failed.code) return reducer->failed;
    GS_FAILPOINT("reducer.mark_ready");
    if (param >= reducer->layout.num_params)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: there is no parameter %zu",
                        reducer->options.shards.rank, (long long)reducer->step, param);
    if (reducer->phase != PHASE_PASS) return blame(reducer, param, "marked ready outside a pass");
    if (reducer->marks[param] == reducer->serial)
        return blame(reducer, param, "marked ready twice in one pass");
    reducer->marks[param] = reducer->serial;
    reducer->queue.used[param] = 1;
    reducer->num_marked++;
    if (!reducer->completes_shard) return gs_ok();

    if (reducer->pass.reduces) {
        if (!reducer->stats.backward_begin_ns) reducer->stats.backward_begin_ns = gs_now_ns();
        gs_ready_order_add(&reducer->order, param);
    }
    size_t bucket = reducer->layout.bucket_of[param];
    if (--reducer->layout.buckets[bucket].num_pending == 0) return complete_bucket(reducer, bucket);
    reducer->bytes_since_progress += reducer->layout.counts[param] * sizeof(float);
    if (reducer->bytes_since_progress < PROGRESS_BYTES) return gs_ok();
    reducer->bytes_since_progress = 0;
    return gs_bucket_queue_progress(&reducer->queue);
}

gs_status gs_reducer_mark_ready(gs_reducer *reducer, size_t param) {
    return keep_error(reducer, mark_param(reducer, param));
}

void gs_reducer_ready_callback(void *reducer, size_t param) {
    gs_status sticks = gs_reducer_mark_ready(reducer, param);
    (void)sticks;
}

// Whoever was not marked did not take part: zero, where this pass was to overwrite.
static void zero_unmarked(gs_reducer *reducer, const gs_bucket *bucket) {
    const gs_kernels *kernels = gs_device_kernels(reducer->options.device);
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i];
        if (reducer->marks[param] != reducer->serial)
            kernels->fill(gs_device_stream(reducer->options.device), reducer->pass.grads[param], 0,
                          reducer->layout.counts[param]);
    }
}

static gs_status close_pass(gs_reducer *reducer, int64_t samples) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != PHASE_PASS) return misuse(reducer, "no pass is open");
    if (samples < 0 || samples > GS_MAX_STEP_SAMPLES - reducer->samples)
        return gs_error(GS_FAILED_PRECONDITION,
                        "rank %d, step %lld: samples of a pass: %lld, of a step at most %lld",
                        reducer->options.shards.rank, (long long)reducer->step, (long long)samples,
                        (long long)GS_MAX_STEP_SAMPLES);
    reducer->samples += samples;
    bool all_marked = reducer->num_marked == reducer->layout.num_params;
    for (size_t b = 0; b < reducer->layout.plan.num_buckets && !all_marked; b++) {
        gs_bucket *bucket = &reducer->layout.buckets[b];
        if (reducer->completes_shard && !bucket->num_pending) continue;
        if (!reducer->pass.accumulate) zero_unmarked(reducer, bucket);
        if (!reducer->completes_shard) continue;
        bucket->num_pending = 0;
        GS_TRY(complete_bucket(reducer, b));
    }
    if (reducer->pass.reduces) {
        gs_ready_order_finish(&reducer->order, &reducer->layout.plan, reducer->marks,
                              reducer->serial);
        gs_reduce_stats *stats = &reducer->stats;
        stats->backward_end_ns = gs_now_ns();
        if (!stats->backward_begin_ns) stats->backward_begin_ns = stats->backward_end_ns;
        GS_TRY(gs_bucket_queue_seal(&reducer->queue, reducer->samples));
    }
    reducer->passes_run++;
    reducer->phase = PHASE_OPEN;
    return gs_ok();
}

gs_status gs_reducer_end_pass(gs_reducer *reducer, int64_t samples) {
    return keep_error(reducer, close_pass(reducer, samples));
}

static gs_status check_passes_done(const gs_reducer *reducer) {
    if (reducer->phase == PHASE_IDLE) return misuse(reducer, "no step is open");
    if (reducer->phase == PHASE_PASS) {
        for (size_t i = 0; i < reducer->layout.num_params; i++) {
            if (reducer->marks[i] != reducer->serial)
                return blame(reducer, i, "is not ready and its pass not ended, at finish");
        }
        return misuse(reducer, "the last pass was not ended before finish");
    }
    if (reducer->passes_run < reducer->num_passes)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: %d of %d passes run at finish",
                        reducer->options.shards.rank, (long long)reducer->step, reducer->passes_run,
                        reducer->num_passes);
    return gs_ok();
}

static gs_status count_unused(const gs_reducer *reducer, size_t *num_unused) {
    *num_unused = 0;
    size_t first = 0;
    for (size_t i = reducer->layout.num_params; i-- > 0;) {
        if (reducer->queue.used_anywhere[i]) continue;
        ++*num_unused;
        first = i;
    }
    if (!*num_unused || !reducer->options.unused_is_error) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "step %lld: parameter %zu \"%.100s\" was used by no rank, %zu such in all",
                    (long long)reducer->step, first, reducer->layout.params[first].name,
                    *num_unused);
}

static void finish_stats(gs_reducer *reducer, int64_t finish_begin_ns) {
    gs_reduce_stats *stats = &reducer->stats;
    stats->num_buckets = reducer->layout.plan.num_buckets;
    stats->buckets = reducer->times;
    for (size_t b = 0; b < stats->num_buckets; b++)
        reducer->times[b] = reducer->layout.buckets[b].times;
    gs_reduce_stats_sum_buckets(stats);
    stats->end_ns = gs_now_ns();
    stats->ready_order_mismatches = reducer->queue.num_out_of_turn;
    stats->exposed_ns = reducer->queue.owner_ns + stats->end_ns - finish_begin_ns;
    reducer->last_stats = *stats;
}

static gs_status finish_step(gs_reducer *reducer, gs_reduce_result *result, gs_deadline deadline) {
    if (reducer->failed.code) return reducer->failed;
    GS_TRY(check_passes_done(reducer));
    int64_t begin_ns = gs_now_ns();
    GS_FAILPOINT("reducer.finish");
    const gs_bucket_queue *queue = &reducer->queue;
    GS_TRY(gs_bucket_queue_finish(&reducer->queue, deadline));
    GS_TRY(gs_stream_wait(gs_device_stream(reducer->options.device), deadline));
    finish_stats(reducer, begin_ns);
    *result = (gs_reduce_result){
        .samples = queue->total_samples,
        .nonfinite = !queue->finite,
        .used = queue->used_anywhere,
        .grad_norm =
            queue->finite ? gs_grad_norm(queue->squares, reducer->layout.num_params) : (double)NAN};
    GS_TRY(count_unused(reducer, &result->num_unused));
    reducer->complete = true;
    reducer->phase = PHASE_IDLE;
    GS_FAILPOINT("reducer.complete");
    return gs_ok();
}

gs_status gs_reducer_finish(gs_reducer *reducer, gs_reduce_result *result, gs_deadline deadline) {
    *result = (gs_reduce_result){.used = reducer->queue.used_anywhere};
    return keep_error(reducer, finish_step(reducer, result, deadline));
}

float *const *gs_reducer_grads(const gs_reducer *reducer) {
    return gs_grad_layout_grads(&reducer->layout, 0);
}

bool gs_reducer_complete(const gs_reducer *reducer) {
    return reducer->complete;
}

const gs_reduce_stats *gs_reducer_stats(const gs_reducer *reducer) {
    return &reducer->last_stats;
}

const size_t *gs_reducer_ready_order(const gs_reducer *reducer) {
    return reducer->order.last;
}

const gs_bucket_plan *gs_reducer_plan(const gs_reducer *reducer) {
    return &reducer->layout.plan;
}

static gs_status agree(const gs_reducer *reducer, const gs_bucket_plan *plan,
                       gs_deadline deadline) {
    const gs_reducer_options *options = &reducer->options;
    return gs_agreement_check(&(gs_agreement){.params = reducer->layout.params,
                                              .num_params = reducer->layout.num_params,
                                              .plan = plan,
                                              .num_shards = options->shards.num_shards,
                                              .passes_per_shard = options->passes_per_shard,
                                              .exact = options->shards.exact,
                                              .op = (int64_t)options->op,
                                              .unused_is_error = options->unused_is_error,
                                              .hook = reducer->hook->name},
                              reducer->comm, deadline);
}

static gs_status plan_shards(gs_reducer *reducer) {
    const gs_logical_shards *shards = &reducer->options.shards;
    int num_own = gs_logical_shards_count(shards);
    reducer->num_passes = num_own * reducer->options.passes_per_shard;
    reducer->shard_steps = calloc((size_t)num_own, sizeof *reducer->shard_steps);
    if (!reducer->shard_steps) return gs_error(GS_RESOURCE_EXHAUSTED, "reducer: out of memory");
    for (int i = 0; i < num_own; i++)
        gs_logical_shards_step(shards, i, &reducer->shard_steps[i].slot,
                               &reducer->shard_steps[i].merges);
    return shards->exact ? gs_shard_tree_init(&reducer->tree, shards) : gs_ok();
}

static gs_status alloc_params(gs_reducer *reducer) {
    size_t num_params = reducer->options.num_params;
    reducer->marks = calloc(num_params, sizeof *reducer->marks);
    reducer->times = calloc(num_params, sizeof *reducer->times);
    if (!reducer->marks || !reducer->times)
        return gs_error(GS_RESOURCE_EXHAUSTED, "reducer: out of memory");
    return gs_ok();
}

static gs_status build(gs_reducer *reducer, const gs_bucket_plan *plan, gs_deadline deadline) {
    gs_reducer_options *options = &reducer->options;
    GS_TRY(gs_grad_layout_init(&reducer->layout, options->params, options->num_params,
                               gs_logical_shards_num_slots(&options->shards),
                               gs_arena_data(options->arena)));
    options->params = reducer->layout.params;
    GS_TRY(alloc_params(reducer));
    GS_TRY(plan_shards(reducer));
    GS_TRY(agree(reducer, plan, deadline));
    GS_TRY(gs_grad_layout_set_plan(&reducer->layout, plan));
    options->plan = &reducer->layout.plan;
    GS_TRY(gs_ready_order_init(&reducer->order, plan));
    const gs_bucket_queue_options queue = {
        .layout = &reducer->layout,
        .comm = reducer->comm,
        .hook = reducer->hook,
        .device = options->device,
        .tree = options->shards.exact ? &reducer->tree.tree : NULL,
        .scale = options->op == GS_SUM
                     ? 1
                     : 1.0 / ((double)options->shards.num_shards * options->passes_per_shard)};
    return gs_bucket_queue_init(&reducer->queue, &queue);
}

gs_status gs_reducer_create(gs_reducer **out, const gs_reducer_options *options, gs_comm *comm,
                            gs_deadline deadline) {
    *out = NULL;
    gs_status status;
    gs_reducer *reducer = calloc(1, sizeof *reducer);
    if (!reducer) return gs_error(GS_RESOURCE_EXHAUSTED, "reducer: out of memory");
    reducer->options = *options;
    reducer->comm = comm;
    reducer->hook = options->hook ? options->hook : &gs_hook_allreduce;
    if (!options->passes_per_shard) reducer->options.passes_per_shard = 1;

    status = gs_reducer_options_check(options, comm);
    if (status.code) {
        status = gs_status_prefix(status, "rank %d: reducer", gs_comm_rank(comm));
        goto fail;
    }
    status = build(reducer, options->plan, deadline);
    if (status.code) goto fail;
    *out = reducer;
    return gs_ok();
fail:
    // Whoever alone cannot go on must tell the ranks that wait for it.
    gs_comm_abort(comm, status.message);
    gs_reducer_destroy(reducer);
    return status;
}

void gs_reducer_destroy(gs_reducer *reducer) {
    if (!reducer) return;
    gs_bucket_queue_release(&reducer->queue);
    gs_ready_order_release(&reducer->order);
    gs_shard_tree_release(&reducer->tree);
    gs_grad_layout_release(&reducer->layout);
    free(reducer->shard_steps);
    free(reducer->marks);
    free(reducer->times);
    free(reducer);
}

static gs_status change_plan(gs_reducer *reducer, const gs_bucket_plan *plan,
                             gs_deadline deadline) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != PHASE_IDLE) return misuse(reducer, "a plan changes between steps only");
    GS_TRY(gs_bucket_plan_check(plan, reducer->layout.params, reducer->layout.num_params));
    GS_TRY(agree(reducer, plan, deadline));
    reducer->complete = false;
    return gs_grad_layout_set_plan(&reducer->layout, plan);
}

gs_status gs_reducer_set_plan(gs_reducer *reducer, const gs_bucket_plan *plan,
                              gs_deadline deadline) {
    return keep_error(reducer, change_plan(reducer, plan, deadline));
}
