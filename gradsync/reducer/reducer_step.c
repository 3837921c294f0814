#include "gradsync/reducer/reducer_step.h"

#include <math.h>
#include <stdio.h>

#include "core/failpoint.h"
#include "gradsync/bucket/grad_norm.h"
#include "gradsync/reducer/reducer_pass.h"

static double scale_for(const gs_reducer *reducer, const gs_join_round *round) {
    const gs_reducer_options *options = &reducer->options;
    // A mean over samples divides behind the sum, once samples are known; 16 bits on the way there
    // have no room for sums.
    bool narrows = options->wire_dtype || reducer->hooks.needs.narrows;
    bool divides = options->op == GS_MEAN || (options->op == GS_SAMPLE_MEAN && narrows);
    if (!divides) return 1;
    int num_shards =
        round->divisor == GS_DIVIDE_BY_ACTIVE ? round->num_active : options->shards.num_shards;
    return 1.0 / ((double)num_shards * options->passes_per_shard);
}

// Of whose gradients that scale makes a mean.
static int mean_ranks_for(const gs_reducer *reducer, const gs_join_round *round) {
    if (reducer->options.op != GS_MEAN) return 0;
    return round->divisor == GS_DIVIDE_BY_ACTIVE ? round->num_active
                                                 : gs_comm_world_size(reducer->comm);
}

static gs_status check_round(const gs_reducer *reducer, const gs_join_round *round) {
    const gs_logical_shards *shards = &reducer->options.shards;
    int world_size = gs_comm_world_size(reducer->comm);
    if (!round->num_active)
        return gs_reducer_misuse(reducer, "no rank has data: the join is over, there is no step");
    if (round->num_active < 0 || round->num_active > world_size ||
        (!round->active && round->num_active == world_size))
        return gs_error(GS_INVALID_ARGUMENT,
                        "rank %d, step %lld: a round of %d active ranks of %d, this one %s",
                        shards->rank, (long long)reducer->step, round->num_active, world_size,
                        round->active ? "active" : "not");
    if (round->divisor == GS_DIVIDE_BY_ACTIVE && reducer->options.op == GS_MEAN &&
        shards->num_shards != world_size)
        return gs_error(GS_FAILED_PRECONDITION,
                        "rank %d, step %lld: a mean over active ranks needs one logical shard for "
                        "each rank, not %d for %d",
                        shards->rank, (long long)reducer->step, shards->num_shards, world_size);
    if (round->num_active == world_size) return gs_ok();
    if (shards->exact)
        return gs_reducer_misuse(reducer, "exact mode takes no step in which ranks have no data");
    if (reducer->graph.on && !reducer->graph.known)
        return gs_reducer_misuse(reducer,
                                 "a static graph needs a first step in which all ranks have data");
    return gs_ok();
}

static gs_status check_may_begin(gs_reducer *reducer, int64_t step) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "a step is open, finish it first");
    if (step < 0)
        return gs_error(GS_INVALID_ARGUMENT, "rank %d: step: %lld", reducer->options.shards.rank,
                        (long long)step);
    return gs_ok();
}

void gs_step_decide(gs_reducer *reducer, bool counts) {
    if (!reducer->undecided) return;
    reducer->undecided = false;
    if (counts)
        gs_hook_set_commit(&reducer->hooks);
    else
        gs_hook_set_rollback(&reducer->hooks);
}

void gs_step_decide_by_result(gs_reducer *reducer) {
    gs_step_decide(reducer, reducer->complete && !reducer->nonfinite);
}

gs_status gs_step_begin(gs_reducer *reducer, int64_t step, const gs_join_round *round) {
    GS_TRY(check_may_begin(reducer, step));
    gs_step_decide_by_result(reducer);
    reducer->step = step;
    GS_TRY(check_round(reducer, round));
    GS_FAILPOINT("reducer.begin");
    gs_hook_set_note(&reducer->hooks, step);
    reducer->undecided = true;
    reducer->phase = GS_REDUCER_OPEN;
    reducer->active = round->active;
    reducer->num_active = round->num_active;
    reducer->has_buckets = reducer->complete = false;
    reducer->samples = 0;
    reducer->passes_run = 0;
    reducer->num_tails = 0;
    reducer->stats = (gs_reduce_stats){.step = step, .begin_ns = gs_now_ns()};
    gs_step_points_begin(&reducer->points);
    gs_reducer_record_begin(&reducer->record, step);
    const gs_bucket_step bucket_step = {.step = step,
                                        .scale = scale_for(reducer, round),
                                        .mean_ranks = mean_ranks_for(reducer, round),
                                        .grad_unit = reducer->grad_unit,
                                        .num_ranks = gs_comm_world_size(reducer->comm),
                                        .num_active = round->num_active,
                                        .active = round->active,
                                        .comm = reducer->comm};
    gs_bucket_tally_begin(&reducer->tally, &bucket_step);
    gs_bucket_queue_begin(&reducer->queue);
    return gs_ok();
}

gs_status gs_step_add_tail(gs_reducer *reducer, const gs_reducer_tail *tail) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase == GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "a tail needs an open step");
    if (reducer->has_buckets)
        return gs_reducer_misuse(reducer, "a tail comes before the buckets are finished");
    if (reducer->num_tails == GS_MAX_TAILS)
        return gs_reducer_misuse(reducer, "more tails than a step takes");
    if (reducer->options.windows.num_windows)
        return gs_reducer_misuse(reducer,
                                 "a tail is for whole gradients, of which windows leave parts");
    if (!tail->finish) return gs_reducer_misuse(reducer, "a tail without a function");
    for (size_t i = 0; i < tail->num_params; i++) {
        if (tail->params[i] >= reducer->layout.num_params)
            return gs_error(
                GS_FAILED_PRECONDITION, "rank %d, step %lld: tail: there is no parameter %zu",
                reducer->options.shards.rank, (long long)reducer->step, tail->params[i]);
    }
    reducer->tails[reducer->num_tails++] = *tail;
    return gs_ok();
}

static gs_status blame_tail(const gs_reducer *reducer, size_t index, gs_status status) {
    char what[32];
    snprintf(what, sizeof what, "tail %zu", index);
    return gs_bucket_queue_blame(&reducer->queue, status, what);
}

static gs_status run_tails(gs_reducer *reducer, gs_deadline deadline) {
    for (size_t t = 0; t < reducer->num_tails; t++) {
        const gs_reducer_tail *tail = &reducer->tails[t];
        gs_status status =
            tail->finish(tail->ctx, gs_grad_layout_results(&reducer->layout), deadline);
        if (status.code) return blame_tail(reducer, t, status);
        for (size_t i = 0; i < tail->num_params; i++)
            gs_bucket_tally_measure(&reducer->tally, tail->params[i]);
    }
    return gs_ok();
}

static size_t find_unseen(const gs_reducer *reducer, size_t *num_unseen) {
    size_t num_params = reducer->layout.num_params, first = num_params;
    *num_unseen = 0;
    for (size_t i = num_params; i-- > 0;) {
        if (gs_pass_saw(reducer, i)) continue;
        ++*num_unseen;
        first = i;
    }
    return first;
}

// The first of the parameters that the open pass lacks, and the numbers of some more.
static gs_status blame_unseen(const gs_reducer *reducer) {
    size_t num_unseen, first = find_unseen(reducer, &num_unseen);
    if (first == reducer->layout.num_params)
        return gs_reducer_misuse(reducer, "the last pass was not ended before finish");
    char what[128];
    int used = snprintf(what, sizeof what, "is not ready and its pass not ended, at finish");
    if (num_unseen > 1)
        used += snprintf(what + used, sizeof what - (size_t)used, "; %zu such in all:", num_unseen);
    for (size_t i = first; i < reducer->layout.num_params && num_unseen > 1; i++) {
        if (gs_pass_saw(reducer, i)) continue;
        if ((size_t)used > sizeof what - 24) break;
        used += snprintf(what + used, sizeof what - (size_t)used, " %zu", i);
    }
    return gs_reducer_blame(reducer, first, what);
}

static gs_status check_passes_done(const gs_reducer *reducer) {
    if (reducer->phase == GS_REDUCER_IDLE) return gs_reducer_misuse(reducer, "no step is open");
    if (reducer->phase == GS_REDUCER_PASS) return blame_unseen(reducer);
    if (reducer->passes_run < reducer->num_passes)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: %d of %d passes run at finish",
                        reducer->options.shards.rank, (long long)reducer->step, reducer->passes_run,
                        reducer->num_passes);
    return gs_ok();
}

gs_status gs_step_check_finished(const gs_reducer *reducer) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase == GS_REDUCER_IDLE) return gs_ok();
    GS_TRY(check_passes_done(reducer));
    return gs_reducer_misuse(reducer, "all passes have run, but the step is not finished");
}

gs_status gs_step_abandon(gs_reducer *reducer) {
    if (reducer->phase == GS_REDUCER_IDLE) return gs_ok();
    if (!gs_bucket_queue_is_untouched(&reducer->queue))
        return gs_reducer_misuse(reducer, "buckets are on their way, and other ranks wait for the "
                                          "rest: gs_reducer_reset leads out");
    gs_step_decide(reducer, false);
    reducer->phase = GS_REDUCER_IDLE;
    return gs_ok();
}

static gs_status count_unused(const gs_reducer *reducer, size_t *num_unused) {
    const uint8_t *used = reducer->tally.used_anywhere;
    *num_unused = 0;
    size_t first = 0;
    for (size_t i = reducer->layout.num_params; i-- > 0;) {
        if (used[i] || gs_trainability_is_frozen(&reducer->trains, i)) continue;
        ++*num_unused;
        first = i;
    }
    if (!*num_unused || !reducer->options.unused_is_error) return gs_ok();
    char others[64] = "";
    int length = 0;
    for (size_t i = first + 1; i < reducer->layout.num_params && length < 40; i++) {
        if (!used[i] && !gs_trainability_is_frozen(&reducer->trains, i))
            length += snprintf(others + length, sizeof others - (size_t)length, " %zu", i);
    }
    return gs_error(GS_FAILED_PRECONDITION,
                    "step %lld: parameter %zu \"%.100s\" was used by no rank, %zu such in all%s%s",
                    (long long)reducer->step, first, reducer->layout.params[first].name,
                    *num_unused, length ? ":" : "", others);
}

static void record_step(gs_reducer *reducer, size_t num_unused) {
    gs_reduce_stats *stats = &reducer->last_stats;
    stats->num_unused = num_unused;
    for (size_t i = 0; num_unused && i < reducer->layout.num_params; i++) {
        if (reducer->tally.used_anywhere[i] || gs_trainability_is_frozen(&reducer->trains, i))
            continue;
        stats->unused_bytes += gs_param_spec_grad_bytes(&reducer->layout.params[i]);
    }
    if (!reducer->active) return;  // a shadow uses nothing, and has no passes to time
    if (reducer->record.times_params) stats->param_ready_ns = reducer->record.param_ready_ns;
    gs_reducer_record_finish(&reducer->record, stats, reducer->tally.used, reducer->order.last);
}

static int64_t end_of_last_bucket(const gs_reduce_stats *stats) {
    int64_t end_ns = 0;
    for (size_t b = 0; b < stats->num_buckets; b++) {
        if (stats->buckets[b].finished_ns > end_ns) end_ns = stats->buckets[b].finished_ns;
    }
    return end_ns;
}

// A GPU's own times. What the host does meanwhile costs nothing as long as it stays ahead: exposed
// is what the last collective took beyond the backward pass.
static gs_status read_points(gs_reducer *reducer) {
    gs_step_points *points = &reducer->points;
    gs_reduce_stats *stats = &reducer->stats;
    if (!points->device) return gs_ok();
    GS_TRY(gs_step_points_read(points, GS_POINT_FORWARD, &stats->forward_begin_ns));
    GS_TRY(gs_step_points_read(points, GS_POINT_BACKWARD, &stats->backward_begin_ns));
    GS_TRY(gs_step_points_read(points, GS_POINT_BACKWARD_END, &stats->backward_end_ns));
    // Points of two streams: the side stream may be late for a backward pass of next to nothing.
    if (stats->backward_begin_ns > stats->backward_end_ns)
        stats->backward_begin_ns = stats->backward_end_ns;
    int64_t beyond_ns = end_of_last_bucket(stats) - stats->backward_end_ns;
    stats->exposed_ns = beyond_ns > 0 ? beyond_ns : 0;
    gs_step_points_align(points);
    return gs_ok();
}

// Residuals are as large as the model: only of sampled steps.
static gs_status read_hooks(gs_reducer *reducer) {
    gs_reduce_stats *stats = &reducer->stats;
    gs_hook_report report;
    bool measures = reducer->record.sampled;
    stats->encode_ns = reducer->queue.encode_ns;
    stats->decode_ns = reducer->queue.decode_ns;
    GS_TRY(gs_hook_set_report(&report, &reducer->hooks, measures));
    stats->elements = report.elements;
    stats->elements_sent = report.elements_sent;
    stats->knows_residuals = report.carries && measures;
    if (stats->knows_residuals) stats->residual_norm = sqrt(report.residual_squares);
    return gs_ok();
}

static gs_status finish_stats(gs_reducer *reducer, int64_t finish_begin_ns) {
    gs_reduce_stats *stats = &reducer->stats;
    stats->num_buckets = reducer->layout.plan.num_buckets;
    stats->buckets = reducer->times;
    for (size_t b = 0; b < stats->num_buckets; b++)
        reducer->times[b] = reducer->layout.buckets[b].times;
    stats->max_phases = reducer->queue.max_phases;
    stats->phases = reducer->queue.phases;
    gs_reduce_stats_sum_buckets(stats);
    stats->end_ns = gs_now_ns();
    stats->ready_order_mismatches = reducer->queue.num_out_of_turn;
    stats->window_wait_ns = reducer->queue.window_wait_ns;
    stats->exposed_ns =
        reducer->queue.owner_ns + stats->window_wait_ns + stats->end_ns - finish_begin_ns;
    GS_TRY(read_points(reducer));
    GS_TRY(read_hooks(reducer));
    reducer->last_stats = *stats;
    return gs_ok();
}

// In a bucket of others a hook may have left something for a parameter that is frozen.
static void read_result(gs_reducer *reducer, gs_reduce_result *result) {
    const gs_bucket_tally *tally = &reducer->tally;
    for (size_t i = 0; i < reducer->trains.num_frozen; i++)
        tally->squares[reducer->trains.frozen[i]] = 0;
    double norm = gs_grad_norm(tally->squares, reducer->layout.num_params);
    *result = (gs_reduce_result){.samples = tally->total_samples,
                                 .active_ranks = reducer->num_active,
                                 .nonfinite = tally->nonfinite,
                                 .used = tally->used_anywhere,
                                 .grad_norm = tally->nonfinite ? (double)NAN : norm};
}

// Into the caller's tensors: what any rank used. Others keep what they hold, to the bit. A GPU does
// it before whatever is launched next.
static gs_status copy_out(gs_reducer *reducer, gs_deadline deadline) {
    if (gs_bucket_tally_is_partial(&reducer->tally))
        return gs_reducer_misuse(reducer, "separate gradients, but a hook leaves parts of a bucket "
                                          "without a result");
    for (size_t b = 0; b < reducer->layout.plan.num_buckets; b++) {
        gs_bucket *bucket = &reducer->layout.buckets[b];
        int64_t begin_ns = gs_now_ns();
        gs_grad_copies_bucket_out(&reducer->copies, &reducer->layout, b,
                                  reducer->tally.used_anywhere, reducer->options.device);
        bucket->times.copy_out_ns = gs_now_ns() - begin_ns;
    }
    if (reducer->points.device) return gs_ok();
    return gs_stream_wait(gs_device_stream(reducer->options.device), deadline);
}

static bool is_used(const gs_static_graph *graph, const gs_bucket *bucket) {
    for (size_t i = 0; i < bucket->num_params; i++) {
        if (graph->used_anywhere[bucket->params[i]]) return true;
    }
    return false;
}

void gs_step_plan_travel(gs_reducer *reducer) {
    const gs_static_graph *graph = &reducer->graph;
    gs_bucket *first = NULL, *last = NULL;
    for (size_t b = 0; b < reducer->layout.plan.num_buckets; b++) {
        gs_bucket *bucket = &reducer->layout.buckets[b];
        bucket->rests =
            gs_trainability_all_frozen(&reducer->trains, bucket->params, bucket->num_params);
        bucket->travels = !bucket->rests && (!graph->known || is_used(graph, bucket));
        bucket->is_last = false;
        if (!bucket->rests && !first) first = bucket;
        if (bucket->travels) last = bucket;
    }
    // One does in any case: it carries samples and ranks.
    if (!last) last = first;
    last->travels = last->is_last = true;
}

static void learn_graph(gs_reducer *reducer) {
    gs_static_graph *graph = &reducer->graph;
    if (!graph->on || graph->known) return;
    gs_static_graph_learn(graph, reducer->tally.used, reducer->tally.used_anywhere);
    gs_step_plan_travel(reducer);
}

static gs_status take_buckets(gs_reducer *reducer, gs_deadline deadline) {
    if (reducer->failed.code) return reducer->failed;
    GS_TRY(check_passes_done(reducer));
    reducer->finish_begin_ns = gs_now_ns();
    GS_FAILPOINT("reducer.finish");
    GS_TRY(gs_bucket_queue_finish(&reducer->queue, deadline));
    GS_TRY(run_tails(reducer, deadline));
    gs_step_points_mark(&reducer->points);
    reducer->has_buckets = true;
    return gs_ok();
}

// As read_result has them, for kernels: in a bucket of others a hook may have left something.
static void clear_frozen_squares(const gs_reducer *reducer) {
    gs_device *device = reducer->options.device;
    for (size_t i = 0; i < reducer->trains.num_frozen; i++) {
        size_t param = reducer->trains.frozen[i];
        if (!reducer->layout.buckets[reducer->layout.bucket_of[param]].rests)
            gs_device_kernels(device)->clear(gs_device_stream(device), &reducer->tally.squares[param],
                                             sizeof(double));
    }
}

gs_status gs_step_finish_buckets(gs_reducer *reducer, const double **squares, gs_deadline deadline) {
    if (!reducer->points.device)
        return gs_reducer_misuse(reducer, "on a CPU there is nothing that could follow the buckets before finish");
    if (reducer->has_buckets) return gs_reducer_misuse(reducer, "its buckets are finished already");
    GS_TRY(take_buckets(reducer, deadline));
    clear_frozen_squares(reducer);
    return gs_bucket_tally_mark(&reducer->tally, squares);
}

gs_status gs_step_finish(gs_reducer *reducer, gs_reduce_result *result, gs_deadline deadline) {
    if (reducer->failed.code) return reducer->failed;
    if (!reducer->has_buckets) GS_TRY(take_buckets(reducer, deadline));
    GS_TRY(gs_bucket_tally_read(&reducer->tally, deadline));
    gs_step_points_meet(&reducer->points);
    read_result(reducer, result);
    reducer->nonfinite = result->nonfinite;
    GS_TRY(count_unused(reducer, &result->num_unused));
    if (reducer->copies.tensors) GS_TRY(copy_out(reducer, deadline));
    GS_TRY(finish_stats(reducer, reducer->finish_begin_ns));
    record_step(reducer, result->num_unused);
    learn_graph(reducer);
    gs_hook_set_finish(&reducer->hooks, reducer->step, !reducer->nonfinite);
    reducer->complete = true;
    reducer->has_buckets = false;
    reducer->phase = GS_REDUCER_IDLE;
    GS_FAILPOINT("reducer.complete");
    return gs_ok();
}
