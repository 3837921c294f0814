#include "gradsync/reducer/reducer.h"

#include <math.h>

#include "gradsync/reducer/reducer_pass.h"
#include "gradsync/reducer/reducer_state.h"
#include "gradsync/reducer/reducer_step.h"

void *const *gs_reducer_grads(const gs_reducer *reducer) {
    return gs_grad_layout_results(&reducer->layout);
}

const uint8_t *gs_reducer_used(const gs_reducer *reducer) {
    return gs_bucket_tally_used(&reducer->tally);
}

bool gs_reducer_complete(const gs_reducer *reducer) {
    return reducer->complete;
}

bool gs_reducer_holds_own(const gs_reducer *reducer) {
    return reducer->tally.holds_own;
}

const gs_reduce_stats *gs_reducer_stats(const gs_reducer *reducer) {
    return &reducer->last_stats;
}

const gs_reducer_record *gs_reducer_get_record(const gs_reducer *reducer) {
    return &reducer->record;
}

const size_t *gs_reducer_ready_order(const gs_reducer *reducer) {
    return reducer->order.last;
}

size_t gs_reducer_num_ready(const gs_reducer *reducer, uint64_t *passes) {
    *passes = reducer->order.num_passes;
    return reducer->order.num_ready;
}

const gs_bucket_plan *gs_reducer_plan(const gs_reducer *reducer) {
    return &reducer->layout.plan;
}

bool gs_reducer_posts_all(const gs_reducer *reducer) {
    return reducer->layout.plan.num_buckets <= reducer->queue.most_in_flight &&
           !reducer->options.windows.num_windows;
}

// Every rank takes part in a step without a round.
gs_status gs_reducer_begin(gs_reducer *reducer, int64_t step) {
    const gs_join_round everybody = {.num_active = gs_comm_world_size(reducer->comm),
                                     .active = true};
    return gs_reducer_keep_error(reducer, gs_step_begin(reducer, step, &everybody));
}

gs_status gs_reducer_begin_uneven(gs_reducer *reducer, int64_t step, const gs_join_round *round) {
    gs_status status = gs_step_begin(reducer, step, round);
    if (!status.code && !round->active) status = gs_pass_shadow(reducer);
    return gs_reducer_keep_error(reducer, status);
}

void gs_reducer_note_forward(gs_reducer *reducer) {
    if (reducer->phase == GS_REDUCER_IDLE) return;
    reducer->stats.forward_begin_ns = gs_now_ns();
    if (reducer->points.device)
        gs_step_points_take(&reducer->points, GS_POINT_FORWARD,
                            gs_device_stream(reducer->options.device));
}

gs_status gs_reducer_begin_pass(gs_reducer *reducer, gs_reducer_pass *pass, int64_t samples) {
    return gs_reducer_keep_error(reducer, gs_pass_open(reducer, pass, samples));
}

bool gs_reducer_pass_adds(const gs_reducer *reducer, size_t param) {
    if (!reducer->pass.accumulate || param >= reducer->layout.num_params) return false;
    return !reducer->copies.tensors || reducer->copies.written[param];
}

gs_status gs_reducer_open_grad(gs_reducer *reducer, size_t param) {
    gs_status status = gs_pass_open_grad(reducer, param);
    if (status.code) status = gs_reducer_keep_error(reducer, status);
    return status;
}

gs_status gs_reducer_open_callback(void *reducer, size_t param) {
    return gs_reducer_open_grad(reducer, param);
}

// A status is large: a good one stays where the caller wants it.
gs_status gs_reducer_mark_ready(gs_reducer *reducer, size_t param) {
    gs_status status = gs_pass_mark_ready(reducer, param);
    if (status.code) status = gs_reducer_keep_error(reducer, status);
    return status;
}

gs_status gs_reducer_mark_from(gs_reducer *reducer, size_t param, const void *data,
                               gs_dtype dtype) {
    gs_status status = gs_pass_mark_from(reducer, param, data, dtype);
    if (status.code) status = gs_reducer_keep_error(reducer, status);
    return status;
}

void gs_reducer_ready_callback(void *reducer, size_t param) {
    gs_status sticks = gs_reducer_mark_ready(reducer, param);
    (void)sticks;
}

gs_status gs_reducer_mark_unused(gs_reducer *reducer, size_t param) {
    return gs_reducer_keep_error(reducer, gs_pass_mark_unused(reducer, param));
}

void gs_reducer_unused_callback(void *reducer, size_t param) {
    gs_status sticks = gs_reducer_mark_unused(reducer, param);
    (void)sticks;
}

gs_status gs_reducer_end_pass(gs_reducer *reducer) {
    return gs_reducer_keep_error(reducer, gs_pass_close(reducer));
}

gs_status gs_reducer_add_tail(gs_reducer *reducer, const gs_reducer_tail *tail) {
    return gs_reducer_keep_error(reducer, gs_step_add_tail(reducer, tail));
}

gs_status gs_reducer_finish_buckets(gs_reducer *reducer, const double **squares, gs_deadline deadline) {
    *squares = NULL;
    return gs_reducer_keep_error(reducer, gs_step_finish_buckets(reducer, squares, deadline));
}

gs_status gs_reducer_finish(gs_reducer *reducer, gs_reduce_result *result, gs_deadline deadline) {
    *result = (gs_reduce_result){.used = reducer->tally.used_anywhere};
    return gs_reducer_keep_error(reducer, gs_step_finish(reducer, result, deadline));
}

gs_status gs_reducer_abandon(gs_reducer *reducer) {
    if (reducer->failed.code) return reducer->failed;
    return gs_step_abandon(reducer);
}

size_t gs_reducer_grad_offset(const gs_reducer *reducer, size_t param) {
    const gs_grad_layout *layout = &reducer->layout;
    if (param >= layout->num_params || !gs_grad_layout_results(layout)[param] ||
        layout->buckets[layout->bucket_of[param]].result.is_apart)
        return SIZE_MAX;
    const char *grad = gs_grad_layout_results(layout)[param];
    return (size_t)(grad - (const char *)gs_arena_data(reducer->options.arena));
}

static gs_status decide(gs_reducer *reducer, bool counts) {
    if (reducer->phase != GS_REDUCER_IDLE || (counts && !reducer->complete))
        return gs_reducer_misuse(reducer, "a step that is not finished is neither committed nor "
                                          "rolled back");
    gs_step_decide(reducer, counts);
    return gs_ok();
}

gs_status gs_reducer_commit(gs_reducer *reducer) {
    return decide(reducer, true);
}

gs_status gs_reducer_rollback(gs_reducer *reducer) {
    return decide(reducer, false);
}

bool gs_reducer_hook_state(gs_hook_state_tensor *out, gs_reducer *reducer, size_t index) {
    return gs_hook_set_tensor(out, &reducer->hooks, index);
}

bool gs_reducer_bucket_offers(gs_hook_offers *out, gs_reducer *reducer, size_t bucket) {
    *out = (gs_hook_offers){0};
    if (bucket >= reducer->layout.plan.num_buckets) return false;
    const gs_set_hook *one = &reducer->hooks.hooks[reducer->layout.buckets[bucket].hook];
    const gs_comm_hook *hook = one->choice.hook;
    return hook->offers && hook->offers(one->state, bucket, out);
}

void gs_reducer_note_step(gs_reducer *reducer, int64_t step) {
    if (reducer->phase == GS_REDUCER_IDLE && !reducer->undecided)
        gs_hook_set_note(&reducer->hooks, step);
}

const void *gs_reducer_peer_hook_data(gs_reducer *reducer, size_t index, int rank, int64_t step) {
    return gs_hook_set_peer_data(&reducer->hooks, index, reducer->comm, rank, step);
}

gs_status gs_reducer_set_grad_unit(gs_reducer *reducer, double unit) {
    if (reducer->phase != GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "the unit of gradients changes between steps only");
    if (!(unit > 0) || isinf(unit))
        return gs_error(GS_INVALID_ARGUMENT, "rank %d: unit of gradients: %g, must be positive",
                        reducer->options.shards.rank, unit);
    reducer->grad_unit = unit;
    return gs_ok();
}

gs_status gs_reducer_hook_state_loaded(gs_reducer *reducer) {
    if (reducer->phase != GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "the state of hooks is loaded between steps only");
    if (reducer->undecided)
        return gs_reducer_misuse(reducer, "the state of hooks is loaded, and a step is neither "
                                          "committed nor rolled back that would replace it");
    return gs_hook_set_loaded(&reducer->hooks);
}

gs_status gs_reducer_check_finished(const gs_reducer *reducer) {
    return gs_step_check_finished(reducer);
}
