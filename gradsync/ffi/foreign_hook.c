// A hook whose functions are the host's: they move the bucket by whatever they have.
#include <stdio.h>

#include "gradsync/ffi/object.h"

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    *needs = (gs_hook_needs){.num_phases = 1};
    if (!setup->exact && !setup->wire_dtype) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "a foreign hook has neither exact sums nor a wire dtype");
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    *state = setup->choice->user;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    (void)state;
    (void)plan;
    return gs_ok();
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const gs_ffi_reducer *reducer = state;
    size_t count = bucket->count + bucket->reserved_count;
    work->is_elsewhere = true;
    work->wire_bytes = count * gs_dtype_bytes(bucket->dtype);
    work->algorithm = "foreign";
    return gs_ffi_returned(reducer->hook_run(reducer->hook_ctx, bucket->index, bucket->is_last,
                                             bucket->step, bucket->data, count, (int)bucket->dtype,
                                             bucket->scale),
                           "run");
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    const gs_ffi_reducer *reducer = state;
    (void)result;
    return gs_ffi_returned(
        reducer->hook_finish(reducer->hook_ctx, bucket->index, gs_deadline_left_ns(deadline)),
        "finish");
}

static void commit(void *state) {
    (void)state;
}

static void rollback(void *state) {
    const gs_ffi_reducer *reducer = state;
    if (reducer->hook_cancel) reducer->hook_cancel(reducer->hook_ctx);
}

static bool tensor(void *state, size_t index, gs_hook_tensor *out) {
    (void)state;
    (void)index;
    (void)out;
    return false;
}

static gs_status loaded(void *state) {
    (void)state;
    return gs_ok();
}

void gs_ffi_use_hook(gs_ffi_reducer *reducer) {
    reducer->hook = (gs_comm_hook){.name = reducer->hook_name,
                                   .measure = measure,
                                   .create = create,
                                   .on_plan = on_plan,
                                   .run = run,
                                   .finish = finish,
                                   .commit = commit,
                                   .rollback = rollback,
                                   .tensor = tensor,
                                   .loaded = loaded,
                                   .destroy = rollback};
    reducer->choice = (gs_hook_choice){.hook = &reducer->hook, .user = reducer};
    reducer->options.tally = GS_TALLY_IN_BUCKETS;
    reducer->options.hooks = &reducer->choice;
    reducer->options.num_hooks = 1;
}
