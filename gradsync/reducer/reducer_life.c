// A reducer from its creation to its end: its plan, what trains, the communicator of a generation.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/log.h"
#include "core/options.h"
#include "gradsync/reducer/agreement.h"
#include "gradsync/reducer/options_check.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/reducer/reducer_state.h"
#include "gradsync/reducer/reducer_step.h"

#define LETTING_GO_SECONDS 10.0

static gs_status take_options(gs_reducer_options *known, const gs_reducer_options *options,
                              size_t options_bytes) {
    return gs_options_take(known, sizeof *known, options, options_bytes, "gs_reducer_options");
}

gs_status gs_reducer_arena_bytes_sized(size_t *bytes, const gs_reducer_options *options,
                                       size_t options_bytes) {
    gs_reducer_options known;
    gs_arena_parts parts;
    GS_TRY(take_options(&known, options, options_bytes));
    GS_TRY(gs_reducer_arena_parts(&parts, &known));
    *bytes = gs_arena_parts_bytes(&parts);
    return gs_ok();
}

gs_status gs_reducer_lanes_sized(int *num_lanes, const gs_reducer_options *options,
                                 size_t options_bytes) {
    gs_reducer_options known;
    gs_arena_parts parts;
    GS_TRY(take_options(&known, options, options_bytes));
    GS_TRY(gs_reducer_arena_parts(&parts, &known));
    *num_lanes = parts.hooks.num_phases;
    return gs_ok();
}

// What ranks send each other: with squares that are dealt one collective more.
static int64_t tally_of(const gs_reducer_options *options) {
    return options->measured_by ? 2 : (int64_t)options->tally;
}

static gs_status agree_on(const gs_reducer *reducer, const gs_bucket_plan *plan,
                          const bool *trainable, gs_deadline deadline) {
    const gs_reducer_options *options = &reducer->options;
    return gs_agreement_check(&(gs_agreement){.params = reducer->layout.params,
                                              .num_params = reducer->layout.num_params,
                                              .plan = plan,
                                              .trainable = trainable,
                                              .num_shards = options->shards.num_shards,
                                              .passes_per_shard = options->passes_per_shard,
                                              .exact = options->shards.exact,
                                              .op = (int64_t)options->op,
                                              .unused_is_error = options->unused_is_error,
                                              .static_graph = options->static_graph,
                                              .wire_dtype = options->wire_dtype,
                                              .tally = tally_of(options),
                                              .hooks = &reducer->hooks},
                              reducer->comm, deadline);
}

static gs_status agree(const gs_reducer *reducer, const gs_bucket_plan *plan,
                       gs_deadline deadline) {
    return agree_on(reducer, plan, reducer->trains.trainable, deadline);
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
    const gs_reducer_options *options = &reducer->options;
    size_t num_params = options->num_params;
    reducer->marks = calloc(num_params, sizeof *reducer->marks);
    reducer->unused_marks = calloc(num_params, sizeof *reducer->unused_marks);
    reducer->times = calloc(num_params, sizeof *reducer->times);
    bool opens = options->windows.num_windows;
    if (opens) reducer->open_marks = calloc(num_params, sizeof *reducer->open_marks);
    if (!reducer->marks || !reducer->unused_marks || !reducer->times ||
        (opens && !reducer->open_marks))
        return gs_error(GS_RESOURCE_EXHAUSTED, "reducer: out of memory");
    GS_TRY(gs_trainability_init(&reducer->trains, options->trainable, num_params));
    if (options->separate)
        GS_TRY(gs_grad_copies_init(&reducer->copies, options->separate, &reducer->layout,
                                   options->device));
    GS_TRY(gs_bucket_tally_init(&reducer->tally, &reducer->layout, options->device,
                                options->op == GS_SAMPLE_MEAN));
    if (options->measured_by)
        GS_TRY(gs_bucket_tally_deal(&reducer->tally, options->measured_by));
    return options->static_graph ? gs_static_graph_init(&reducer->graph, num_params) : gs_ok();
}

static gs_status init_queue(gs_reducer *reducer) {
    const gs_reducer_options *options = &reducer->options;
    return gs_bucket_queue_init(
        &reducer->queue,
        &(gs_bucket_queue_options){.layout = &reducer->layout,
                                   .tally = &reducer->tally,
                                   .comm = reducer->comm,
                                   .hooks = &reducer->hooks,
                                   .device = options->device,
                                   .tree = options->shards.exact ? &reducer->tree.tree : NULL,
                                   .finished = options->bucket_finished,
                                   .finished_ctx = options->bucket_finished_ctx});
}

// The arena behind its first part, the state of hooks.
static char *slots_at(const gs_reducer *reducer) {
    return (char *)gs_arena_data(reducer->options.arena) + reducer->parts.state_bytes;
}

static gs_status init_hooks(gs_reducer *reducer) {
    const gs_hook_set_options hooks = gs_reducer_hook_options(&reducer->options);
    return gs_hook_set_init(&reducer->hooks, &hooks, gs_arena_data(reducer->options.arena));
}

static const char *algorithm_of_largest(const gs_reducer *reducer, const gs_bucket_plan *plan) {
    uint64_t largest = 0;
    for (size_t b = 0; b < plan->num_buckets; b++)
        if (plan->buckets[b].bytes > largest) largest = plan->buckets[b].bytes;
    void *memory = gs_arena_data(reducer->options.arena);
    return gs_comm_algorithm(reducer->comm, &(gs_collective){.kind = GS_ALLREDUCE,
                                                             .send = memory,
                                                             .recv = memory,
                                                             .count = (size_t)largest / 4,
                                                             .dtype = GS_FP32});
}

static gs_status init_record(gs_reducer *reducer, const gs_bucket_plan *plan) {
    static const char *const ops[] = {"mean", "sum", "sample_mean"};
    const gs_reducer_options *options = &reducer->options;
    const gs_record_facts facts = {
        .params = reducer->layout.params,
        .num_params = reducer->layout.num_params,
        .plan = plan,
        .rank = options->shards.rank,
        .world_size = options->shards.world_size,
        .num_shards = options->shards.num_shards,
        .passes_per_shard = options->passes_per_shard,
        .exact = options->shards.exact,
        .unused_is_error = options->unused_is_error,
        .static_graph = options->static_graph,
        .separate_grads = options->separate != NULL,
        .op = ops[options->op],
        .hook = reducer->hooks.names,
        .wire_dtype = options->wire_dtype ? gs_dtype_name(options->wire_dtype) : NULL,
        .backend = gs_comm_backend_name(reducer->comm),
        .algorithm = algorithm_of_largest(reducer, plan),
        .device = options->device};
    return gs_reducer_record_init(&reducer->record, &facts, &options->record);
}

// What lies beside the buckets follows each change of their layout.
static gs_status place_beside(gs_reducer *reducer, gs_deadline deadline) {
    gs_step_plan_travel(reducer);
    gs_bucket_tally_place(&reducer->tally);
    GS_TRY(gs_grad_copies_place(&reducer->copies, &reducer->layout));
    return gs_hook_set_place(&reducer->hooks, &reducer->layout, reducer->comm,
                             slots_at(reducer) + reducer->parts.slot_bytes, deadline);
}

static gs_status build(gs_reducer *reducer, const gs_bucket_plan *plan, gs_deadline deadline) {
    gs_reducer_options *options = &reducer->options;
    GS_TRY(gs_reducer_arena_parts(&reducer->parts, options));
    const gs_grad_layout_shape shape = gs_reducer_layout_shape(options, &reducer->parts.hooks);
    GS_TRY(gs_grad_layout_init(&reducer->layout, &shape, slots_at(reducer)));
    options->params = reducer->layout.params;
    options->windows.opens_early = reducer->layout.windows.shape.opens_early;
    GS_TRY(init_hooks(reducer));
    GS_TRY(alloc_params(reducer));
    options->separate = reducer->copies.tensors;
    options->trainable = reducer->trains.trainable;
    GS_TRY(plan_shards(reducer));
    GS_TRY(agree(reducer, plan, deadline));
    GS_TRY(gs_grad_layout_set_plan(&reducer->layout, plan));
    GS_TRY(place_beside(reducer, deadline));
    GS_TRY(gs_step_points_init(&reducer->points, options->device));
    options->plan = &reducer->layout.plan;
    GS_TRY(gs_ready_order_init(&reducer->order, plan));
    GS_TRY(init_record(reducer, plan));
    return init_queue(reducer);
}

// Before there is a reducer, the others wait for this rank.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    status = gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
    gs_comm_abort(comm, status.message);
    return status;
}

static gs_status create_reducer(gs_reducer **out, const gs_reducer_options *options, gs_comm *comm,
                                gs_deadline deadline) {
    *out = NULL;
    gs_status status;
    gs_reducer *reducer = calloc(1, sizeof *reducer);
    if (!reducer)
        return tell_others(comm, gs_error(GS_RESOURCE_EXHAUSTED, "reducer: out of memory"));
    reducer->options = *options;
    reducer->comm = comm;
    reducer->owner = getpid();
    reducer->grad_unit = 1;
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

gs_status gs_reducer_create_sized(gs_reducer **out, const gs_reducer_options *options,
                                  size_t options_bytes, gs_comm *comm, gs_deadline deadline) {
    gs_reducer_options known;
    gs_status status = take_options(&known, options, options_bytes);
    if (status.code) {
        *out = NULL;
        return tell_others(comm, status);
    }
    return create_reducer(out, &known, comm, deadline);
}

static void end_queue(gs_reducer *reducer, const char *why) {
    char reason[96];
    snprintf(reason, sizeof reason, "rank %d, step %lld: the reducer was %s within a step",
             reducer->options.shards.rank, (long long)reducer->step, why);
    gs_bucket_queue_release(&reducer->queue, reason);
}

// What a GPU still does for a step that was left ends before its memory goes, and is not an error
// of what comes next; that the GPU itself is lost, the next wait says again.
static void forget_work(gs_reducer *reducer) {
    gs_device *device = reducer->options.device;
    if (!device || gs_device_is_host(device)) return;
    // Zeros and copies for buckets that were never posted.
    gs_stream *before_posts = gs_comm_stream(reducer->comm);
    if (before_posts) gs_stream_follow(gs_device_stream(device), before_posts);
    gs_status left =
        gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(LETTING_GO_SECONDS));
    (void)left;
}

void gs_reducer_destroy(gs_reducer *reducer) {
    if (!reducer || reducer->owner != getpid()) return;
    end_queue(reducer, "destroyed");
    forget_work(reducer);
    gs_hook_set_release(&reducer->hooks);
    gs_step_points_release(&reducer->points);
    gs_ready_order_release(&reducer->order);
    gs_reducer_record_release(&reducer->record);
    gs_shard_tree_release(&reducer->tree);
    gs_static_graph_release(&reducer->graph);
    gs_trainability_release(&reducer->trains);
    gs_grad_copies_release(&reducer->copies);
    gs_bucket_tally_release(&reducer->tally);
    gs_grad_layout_release(&reducer->layout);
    free(reducer->shard_steps);
    free(reducer->marks);
    free(reducer->unused_marks);
    free(reducer->open_marks);
    free(reducer->times);
    free(reducer);
}

static void tell_moved(const gs_reducer *reducer) {
    const gs_reducer_options *options = &reducer->options;
    if (options->grads_moved) options->grads_moved(options->grads_moved_ctx);
}

// Another plan wants other windows.
static gs_status measure_plan(gs_reducer *reducer, const gs_bucket_plan *plan) {
    gs_reducer_options options = reducer->options;
    gs_arena_parts parts;
    if (!options.windows.num_windows) return gs_ok();
    options.plan = plan;
    GS_TRY(gs_reducer_arena_parts(&parts, &options));
    size_t bytes = gs_arena_parts_bytes(&parts), has = gs_arena_bytes(options.arena);
    if (bytes > has)
        return gs_error(GS_FAILED_PRECONDITION, "arena: has %zu bytes, the plan's windows need %zu",
                        has, bytes);
    reducer->parts = parts;
    return gs_ok();
}

static gs_status change_plan(gs_reducer *reducer, const gs_bucket_plan *plan,
                             gs_deadline deadline) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "a plan changes between steps only");
    // Before anything can fail: ranks may not decide in two ways.
    gs_step_decide_by_result(reducer);
    GS_TRY(gs_reducer_plan_check(plan, &reducer->options));
    GS_TRY(measure_plan(reducer, plan));
    GS_TRY(agree(reducer, plan, deadline));
    reducer->complete = false;
    GS_TRY(gs_grad_layout_set_plan(&reducer->layout, plan));
    GS_TRY(place_beside(reducer, deadline));
    gs_reducer_record_set_plan(&reducer->record, &reducer->layout.plan);
    tell_moved(reducer);
    return gs_ok();
}

gs_status gs_reducer_set_plan(gs_reducer *reducer, const gs_bucket_plan *plan,
                              gs_deadline deadline) {
    return gs_reducer_keep_error(reducer, change_plan(reducer, plan, deadline));
}

static void tell_trainable(const gs_reducer *reducer) {
    if (reducer->options.tells_trainable)
        gs_log_warn("trainable parameters have changed", "rank=%d frozen=%zu of=%zu",
                    reducer->options.shards.rank, reducer->trains.num_frozen,
                    reducer->trains.num_params);
}

static gs_status change_trainable(gs_reducer *reducer, const bool *trainable, bool *changed,
                                  gs_deadline deadline) {
    if (reducer->failed.code) return reducer->failed;
    if (reducer->phase != GS_REDUCER_IDLE)
        return gs_reducer_misuse(reducer, "which parameters train changes between steps only");
    gs_step_decide_by_result(reducer);
    GS_TRY(gs_status_prefix(gs_trainability_check(trainable, reducer->layout.num_params), "rank %d",
                            reducer->options.shards.rank));
    GS_TRY(agree_on(reducer, &reducer->layout.plan, trainable, deadline));
    *changed = gs_trainability_take(&reducer->trains, trainable);
    if (!*changed) return gs_ok();
    gs_static_graph_forget(&reducer->graph);
    gs_step_plan_travel(reducer);
    gs_bucket_tally_place(&reducer->tally);
    tell_trainable(reducer);
    return gs_ok();
}

gs_status gs_reducer_set_trainable(gs_reducer *reducer, const bool *trainable, bool *changed,
                                   gs_deadline deadline) {
    bool unasked;
    if (!changed) changed = &unasked;
    *changed = false;
    return gs_reducer_keep_error(reducer, change_trainable(reducer, trainable, changed, deadline));
}

static void note_comm(gs_reducer *reducer) {
    gs_record_facts *facts = &reducer->record.facts;
    facts->rank = reducer->options.shards.rank;
    facts->world_size = reducer->options.shards.world_size;
    facts->backend = gs_comm_backend_name(reducer->comm);
}

// Everything that follows from rank and world, anew.
static gs_status move_to_comm(gs_reducer *reducer, gs_deadline deadline) {
    gs_reducer_options *options = &reducer->options;
    options->shards.rank = gs_comm_rank(reducer->comm);
    options->shards.world_size = gs_comm_world_size(reducer->comm);
    GS_TRY(gs_status_prefix(gs_reducer_options_check(options, reducer->comm), "rank %d: reducer",
                            options->shards.rank));
    GS_TRY(gs_hook_set_resize(&reducer->hooks, options->shards.rank, options->shards.world_size));
    GS_TRY(gs_reducer_arena_parts(&reducer->parts, options));
    gs_shard_tree_release(&reducer->tree);
    free(reducer->shard_steps);
    reducer->shard_steps = NULL;
    GS_TRY(plan_shards(reducer));
    const gs_grad_layout_shape shape = gs_reducer_layout_shape(options, &reducer->parts.hooks);
    GS_TRY(gs_grad_layout_resize(&reducer->layout, &shape));
    GS_TRY(agree(reducer, &reducer->layout.plan, deadline));
    gs_static_graph_forget(&reducer->graph);
    GS_TRY(place_beside(reducer, deadline));
    note_comm(reducer);
    tell_moved(reducer);
    return init_queue(reducer);
}

gs_status gs_reducer_reset(gs_reducer *reducer, gs_comm *comm, gs_deadline deadline) {
    end_queue(reducer, "reset");
    forget_work(reducer);
    gs_step_decide(reducer, false);
    reducer->comm = comm;
    reducer->failed = gs_ok();
    reducer->phase = GS_REDUCER_IDLE;
    reducer->has_buckets = reducer->complete = false;
    return gs_reducer_keep_error(reducer, move_to_comm(reducer, deadline));
}
