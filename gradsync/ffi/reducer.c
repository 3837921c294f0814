// Reducers, of ffi.h.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/ffi/object.h"

gs_ffi_reducer *gs_ffi_reducer_new(void) {
    return calloc(1, sizeof(gs_ffi_reducer));
}

static int keep(gs_ffi_reducer *reducer, gs_status status) {
    return gs_ffi_keep(reducer, status);
}

static gs_status check_closed(const gs_ffi_reducer *reducer) {
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    return gs_ffi_expect(!reducer->reducer, "the reducer is open");
}

static gs_status check_open(const gs_ffi_reducer *reducer) {
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    return gs_ffi_expect(reducer->reducer, "the reducer is not open");
}

// Nothing of an open reducer changes.
static int begin_setting(gs_ffi_reducer *reducer) {
    return keep(reducer, check_closed(reducer));
}

static gs_status copy_plan(gs_ffi_reducer *reducer, const gs_ffi_params *params,
                           const gs_ffi_plan *plan) {
    GS_TRY(check_closed(reducer));
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_given(plan, "plan"));
    gs_param_spec *specs = calloc(params->count + 1, sizeof *specs);
    if (!specs) return gs_error(GS_RESOURCE_EXHAUSTED, "reducer: out of memory");
    if (params->count) memcpy(specs, params->specs, params->count * sizeof *specs);
    free(reducer->specs);
    reducer->specs = specs;
    reducer->options.params = specs;
    reducer->options.num_params = params->count;
    gs_bucket_plan_release(&reducer->plan);
    return gs_bucket_plan_copy(&reducer->plan, &plan->plan);
}

int gs_ffi_reducer_set_plan(gs_ffi_reducer *reducer, const gs_ffi_params *params,
                            const gs_ffi_plan *plan) {
    return keep(reducer, copy_plan(reducer, params, plan));
}

int gs_ffi_reducer_set_op(gs_ffi_reducer *reducer, int op) {
    int code = begin_setting(reducer);
    if (!code) reducer->options.op = (gs_reducer_op)op;
    return code;
}

int gs_ffi_reducer_set_passes(gs_ffi_reducer *reducer, int num_passes) {
    int code = begin_setting(reducer);
    if (!code) reducer->options.passes_per_shard = num_passes;
    return code;
}

int gs_ffi_reducer_set_wire_dtype(gs_ffi_reducer *reducer, int dtype) {
    int code = begin_setting(reducer);
    if (!code) reducer->options.wire_dtype = (gs_dtype)dtype;
    return code;
}

int gs_ffi_reducer_set_static_graph(gs_ffi_reducer *reducer, int promised) {
    int code = begin_setting(reducer);
    if (!code) reducer->options.static_graph = promised != 0;
    return code;
}

int gs_ffi_reducer_set_notices(gs_ffi_reducer *reducer,
                               void (*bucket_finished)(void *ctx, size_t bucket),
                               void (*grads_moved)(void *ctx), void *ctx) {
    int code = begin_setting(reducer);
    if (code) return code;
    reducer->options.bucket_finished = bucket_finished;
    reducer->options.bucket_finished_ctx = ctx;
    reducer->options.grads_moved = grads_moved;
    reducer->options.grads_moved_ctx = ctx;
    return 0;
}

static gs_status check_hook(const gs_ffi_reducer *reducer, const char *name, gs_ffi_hook_run run,
                            gs_ffi_hook_finish finish) {
    GS_TRY(check_closed(reducer));
    GS_TRY(gs_ffi_given(name, "hook's name"));
    if (!run || !finish) return gs_error(GS_INVALID_ARGUMENT, "a hook has run and finish");
    if (strlen(name) < sizeof reducer->hook_name) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "a hook's name of %zu bytes, below %zu", strlen(name),
                    sizeof reducer->hook_name);
}

int gs_ffi_reducer_set_hook(gs_ffi_reducer *reducer, const char *name, gs_ffi_hook_run run,
                            gs_ffi_hook_finish finish, void (*cancel)(void *ctx), void *ctx) {
    int code = keep(reducer, check_hook(reducer, name, run, finish));
    if (code) return code;
    snprintf(reducer->hook_name, sizeof reducer->hook_name, "%s", name);
    reducer->hook_run = run;
    reducer->hook_finish = finish;
    reducer->hook_cancel = cancel;
    reducer->hook_ctx = ctx;
    gs_ffi_use_hook(reducer);
    return 0;
}

// What it would be opened with.
static gs_status foresee(gs_reducer_options *options, const gs_ffi_reducer *reducer,
                         const gs_ffi_device *device, int world_size) {
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    GS_TRY(gs_ffi_given(device, "device"));
    GS_TRY(gs_ffi_expect(device->device, "the reducer's device is not open"));
    *options = reducer->options;
    options->device = device->device;
    options->shards = (gs_logical_shards){.num_shards = world_size, .world_size = world_size};
    return gs_ok();
}

static gs_status measure_arena(const gs_ffi_reducer *reducer, const gs_ffi_device *device,
                               int world_size, size_t *bytes) {
    gs_reducer_options options;
    GS_TRY(gs_ffi_given(bytes, "room for the number of bytes"));
    GS_TRY(foresee(&options, reducer, device, world_size));
    return gs_reducer_arena_bytes(bytes, &options);
}

static gs_status count_lanes(const gs_ffi_reducer *reducer, const gs_ffi_device *device,
                             int world_size, int *num_lanes) {
    gs_reducer_options options;
    GS_TRY(gs_ffi_given(num_lanes, "room for the number of lanes"));
    GS_TRY(foresee(&options, reducer, device, world_size));
    return gs_reducer_lanes(num_lanes, &options);
}

int gs_ffi_reducer_arena_bytes(gs_ffi_reducer *reducer, gs_ffi_device *device, int world_size,
                               size_t *bytes) {
    return keep(reducer, measure_arena(reducer, device, world_size, bytes));
}

int gs_ffi_reducer_lanes(gs_ffi_reducer *reducer, gs_ffi_device *device, int world_size,
                         int *num_lanes) {
    return keep(reducer, count_lanes(reducer, device, world_size, num_lanes));
}

static gs_status check_comm(const gs_ffi_comm *comm) {
    return gs_ffi_expect(comm->comm, "the reducer's communicator is not open");
}

static gs_status check_parts(const gs_ffi_reducer *reducer, const gs_ffi_comm *comm,
                             const gs_ffi_arena *arena, const gs_ffi_device *device) {
    GS_TRY(check_closed(reducer));
    GS_TRY(gs_ffi_given(arena, "arena"));
    GS_TRY(gs_ffi_given(device, "device"));
    return check_comm(comm);
}

static gs_status open_reducer(gs_ffi_reducer *reducer, const gs_ffi_comm *comm,
                              const gs_ffi_arena *arena, const gs_ffi_device *device,
                              gs_deadline deadline) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    GS_TRY(gs_ffi_tell_others(comm->comm, check_parts(reducer, comm, arena, device)));
    gs_reducer_options *options = &reducer->options;
    int world_size = gs_comm_world_size(comm->comm);
    options->plan = &reducer->plan;
    options->shards = (gs_logical_shards){
        .num_shards = world_size, .world_size = world_size, .rank = gs_comm_rank(comm->comm)};
    options->arena = arena->arena;
    options->device = device->device;
    reducer->comm = comm->comm;
    return gs_reducer_create(&reducer->reducer, options, comm->comm, deadline);
}

int gs_ffi_reducer_open(gs_ffi_reducer *reducer, gs_ffi_comm *comm, gs_ffi_arena *arena,
                        gs_ffi_device *device, int64_t within_ns) {
    return keep(reducer, open_reducer(reducer, comm, arena, device, gs_ffi_deadline(within_ns)));
}

static gs_status set_trainable(gs_ffi_reducer *reducer, const unsigned char *flags, int *changed,
                               gs_deadline deadline) {
    bool *trainable, has_changed = false;
    GS_TRY(check_open(reducer));
    GS_TRY(gs_ffi_tell_others(reducer->comm,
                              gs_ffi_flags_copy(&trainable, flags, reducer->options.num_params)));
    gs_status status =
        gs_reducer_set_trainable(reducer->reducer, trainable, &has_changed, deadline);
    free(trainable);
    if (changed) *changed = has_changed;
    return status;
}

int gs_ffi_reducer_set_trainable(gs_ffi_reducer *reducer, const unsigned char *trainable,
                                 int *changed, int64_t within_ns) {
    return keep(reducer, set_trainable(reducer, trainable, changed, gs_ffi_deadline(within_ns)));
}

int gs_ffi_reducer_begin(gs_ffi_reducer *reducer, int64_t step) {
    gs_status status = check_open(reducer);
    if (!status.code) status = gs_reducer_begin(reducer->reducer, step);
    return keep(reducer, status);
}

int gs_ffi_reducer_begin_pass(gs_ffi_reducer *reducer, int64_t samples) {
    gs_status status = check_open(reducer);
    if (!status.code) status = gs_reducer_begin_pass(reducer->reducer, &reducer->pass, samples);
    return keep(reducer, status);
}

int gs_ffi_reducer_adds(const gs_ffi_reducer *reducer) {
    return reducer && reducer->pass.accumulate;
}

// Marks are many: a good status is not copied.
static int keep_mark(gs_ffi_reducer *reducer, const gs_status *status) {
    if (status->code || reducer->object.last.code) reducer->object.last = *status;
    return (int)status->code;
}

int gs_ffi_reducer_mark(gs_ffi_reducer *reducer, size_t param) {
    if (!reducer || !reducer->reducer) return keep(reducer, check_open(reducer));
    gs_status status = gs_reducer_mark_ready(reducer->reducer, param);
    return keep_mark(reducer, &status);
}

int gs_ffi_reducer_mark_from(gs_ffi_reducer *reducer, size_t param, const void *data, int dtype) {
    if (!reducer || !reducer->reducer) return keep(reducer, check_open(reducer));
    gs_status status = gs_reducer_mark_from(reducer->reducer, param, data, (gs_dtype)dtype);
    return keep_mark(reducer, &status);
}

int gs_ffi_reducer_mark_unused(gs_ffi_reducer *reducer, size_t param) {
    if (!reducer || !reducer->reducer) return keep(reducer, check_open(reducer));
    gs_status status = gs_reducer_mark_unused(reducer->reducer, param);
    return keep_mark(reducer, &status);
}

int gs_ffi_reducer_end_pass(gs_ffi_reducer *reducer) {
    gs_status status = check_open(reducer);
    if (!status.code) status = gs_reducer_end_pass(reducer->reducer);
    return keep(reducer, status);
}

int gs_ffi_reducer_finish(gs_ffi_reducer *reducer, int64_t within_ns) {
    gs_status status = check_open(reducer);
    if (!status.code)
        status = gs_reducer_finish(reducer->reducer, &reducer->result, gs_ffi_deadline(within_ns));
    return keep(reducer, status);
}

int gs_ffi_reducer_abandon(gs_ffi_reducer *reducer) {
    gs_status status = check_open(reducer);
    if (!status.code) status = gs_reducer_abandon(reducer->reducer);
    return keep(reducer, status);
}

int64_t gs_ffi_reducer_samples(const gs_ffi_reducer *reducer) {
    return reducer ? reducer->result.samples : 0;
}

int gs_ffi_reducer_is_finite(const gs_ffi_reducer *reducer) {
    return reducer && !reducer->result.nonfinite;
}

double gs_ffi_reducer_grad_norm(const gs_ffi_reducer *reducer) {
    return reducer ? reducer->result.grad_norm : 0;
}

int gs_ffi_reducer_was_used(const gs_ffi_reducer *reducer, size_t param) {
    return reducer && reducer->result.used && param < reducer->options.num_params &&
           reducer->result.used[param];
}

size_t gs_ffi_reducer_grad_offset(const gs_ffi_reducer *reducer, size_t param) {
    return reducer && reducer->reducer ? gs_reducer_grad_offset(reducer->reducer, param) : SIZE_MAX;
}

const size_t *gs_ffi_reducer_ready_order(const gs_ffi_reducer *reducer) {
    return reducer && reducer->reducer ? gs_reducer_ready_order(reducer->reducer) : NULL;
}

int gs_ffi_reducer_replan(gs_ffi_reducer *reducer, const gs_ffi_plan *plan, int64_t within_ns) {
    gs_status status = check_open(reducer);
    if (!status.code) status = gs_ffi_tell_others(reducer->comm, gs_ffi_given(plan, "plan"));
    if (!status.code)
        status = gs_reducer_set_plan(reducer->reducer, &plan->plan, gs_ffi_deadline(within_ns));
    return keep(reducer, status);
}

static gs_status reset_to(gs_ffi_reducer *reducer, const gs_ffi_comm *comm, gs_deadline deadline) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    GS_TRY(gs_ffi_tell_others(comm->comm, check_open(reducer)));
    GS_TRY(check_comm(comm));
    reducer->comm = comm->comm;
    return gs_reducer_reset(reducer->reducer, comm->comm, deadline);
}

int gs_ffi_reducer_reset(gs_ffi_reducer *reducer, gs_ffi_comm *comm, int64_t within_ns) {
    return keep(reducer, reset_to(reducer, comm, gs_ffi_deadline(within_ns)));
}

void gs_ffi_reducer_free(gs_ffi_reducer *reducer) {
    if (!reducer) return;
    gs_reducer_destroy(reducer->reducer);
    gs_bucket_plan_release(&reducer->plan);
    free(reducer->specs);
    free(reducer);
}
