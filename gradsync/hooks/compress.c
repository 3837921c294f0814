// Gradients in 16 bits on their way: half the bytes, whatever type they have in their bucket.
//
//   data · scale, rounded once more to the wire dtype ─▶ wire ─▶ sum in fp32, rounded once ─▶ data
//
// The divisor is taken out during the cast, so that what fits after the division does not overflow
// on the way there. What does overflow arrives as infinity on every rank, and the step is skipped
// by all alike. The reserved elements travel apart, as they are: counts are no gradients. Rounding
// depends on which sums a rank holds, so exact mode, which must not know the number of ranks, has
// no wire dtype.
#include <stdlib.h>

#include "gradsync/hooks/hook_calls.h"

typedef struct compressor {
    gs_dtype wire_dtype;
    bool sends_copy;
    void **wires;  // of each bucket of the plan: room for its gradients in the wire dtype, or NULL
} compressor;

// A GPU's library sends the 16 bits, and needs memory for them; the host rounds while it reduces.
static bool sends_copy(const gs_hook_setup *setup) {
    return !setup->device || !gs_device_is_host(setup->device);
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    if (setup->exact)
        return gs_error(GS_FAILED_PRECONDITION, "needs a wire dtype, which exact mode does not have");
    if (!setup->wire_dtype) return gs_error(GS_FAILED_PRECONDITION, "needs a wire dtype");
    *needs = (gs_hook_needs){.num_phases = 1, .most_posts = 2};
    if (sends_copy(setup))
        needs->bucket_bytes = gs_hook_most_bytes(setup, gs_dtype_bytes(setup->wire_dtype));
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    compressor *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->wire_dtype = setup->wire_dtype;
    self->sends_copy = sends_copy(setup);
    *state = self;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    compressor *self = state;
    void **wires = calloc(plan->num_buckets, sizeof *wires);
    if (!wires) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    free(self->wires);
    self->wires = wires;
    for (size_t b = 0; b < plan->num_buckets && self->sends_copy; b++) {
        const gs_hook_layout *bucket = &plan->buckets[b];
        if (bucket->hook == plan->hook)
            GS_TRY(gs_hook_place(&wires[b], plan,
                                 bucket->count * gs_dtype_bytes(self->wire_dtype)));
    }
    return gs_ok();
}

static gs_collective sum_in_place(const gs_hook_bucket *bucket, void *data, size_t count) {
    return (gs_collective){.kind = GS_ALLREDUCE,
                           .send = data,
                           .recv = data,
                           .count = count,
                           .dtype = bucket->dtype,
                           .op = GS_OP_SUM};
}

// The gradients last: their times are the bucket's.
static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const compressor *self = state;
    char *reserved = (char *)bucket->data + bucket->count * gs_dtype_bytes(bucket->dtype);
    gs_collective exact = sum_in_place(bucket, reserved, bucket->reserved_count);
    exact.scale = bucket->scale;
    if (bucket->reserved_count) GS_TRY(gs_hook_post(work, bucket, &exact));
    if (!bucket->count) return gs_ok();
    gs_collective rounded = sum_in_place(bucket, bucket->data, bucket->count);
    rounded.wire_dtype = self->wire_dtype;
    rounded.wire_scale = (float)bucket->scale;
    rounded.wire = self->wires[bucket->index];
    return gs_hook_post(work, bucket, &rounded);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)state, (void)bucket, (void)result, (void)deadline;
    return gs_ok();
}

static void destroy(void *state) {
    compressor *self = state;
    free(self->wires);
    free(self);
}

const gs_comm_hook gs_hook_compress = {.name = "compress",
                                       .measure = measure,
                                       .create = create,
                                       .on_plan = on_plan,
                                       .run = run,
                                       .finish = finish,
                                       .commit = gs_hook_decide_nothing,
                                       .rollback = gs_hook_decide_nothing,
                                       .tensor = gs_hook_no_tensor,
                                       .loaded = gs_hook_load_nothing,
                                       .destroy = destroy};
