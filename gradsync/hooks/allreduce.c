// The plain hooks, one all-reduce for each bucket: "allreduce" as gradients lie there, in place, the scale
// folded into it; "fp16" and "bf16" with 16 bits on their way, half the bytes or a quarter.
//
//   data · scale, rounded once more to the wire dtype ─▶ wire ─▶ sum in fp32, rounded once ─▶ data
//
// The divisor is taken out during the cast, so that what fits after the division does not overflow on the
// way there; "divide_after_cast" rounds first and divides in 16 bits, as PyTorch's hooks do. What does
// overflow arrives as infinity on every rank, and the step is skipped by all alike. The reserved elements
// travel apart, as they are: counts are no gradients. Rounding depends on which sums a rank holds, so exact
// mode, which must not know the number of ranks, has no wire dtype.
#include <stdlib.h>

#include "gradsync/hooks/hook_calls.h"

// Of what has a wire dtype; plain sums keep nothing.
typedef struct half_sums {
    gs_dtype wire_dtype;
    bool divides_after, sends_copy;
    void **wires;  // of each bucket of the plan: room for its gradients in the wire dtype, or NULL
} half_sums;

// A GPU's library sends the 16 bits, and needs memory for them; the host rounds while it reduces.
static bool sends_copy(const gs_hook_setup *setup) {
    return !setup->device || !gs_device_is_host(setup->device);
}

static gs_status measure_as(gs_hook_needs *needs, const gs_hook_setup *setup, gs_dtype wire_dtype) {
    *needs = (gs_hook_needs){.num_phases = 1, .most_posts = 1};
    if (!wire_dtype) return gs_ok();
    if (setup->exact)
        return gs_error(GS_FAILED_PRECONDITION, "sends %s, which exact mode does not",
                        gs_dtype_name(wire_dtype));
    if (setup->wire_dtype && setup->wire_dtype != wire_dtype)
        return gs_error(GS_INVALID_ARGUMENT, "sends %s, and the wire dtype is %s",
                        gs_dtype_name(wire_dtype), gs_dtype_name(setup->wire_dtype));
    needs->most_posts = 2;
    needs->narrows = true;
    if (sends_copy(setup))
        needs->bucket_bytes = gs_hook_most_bytes(setup, gs_dtype_bytes(wire_dtype));
    return gs_ok();
}

static gs_status create_as(void **state, const gs_hook_setup *setup, gs_dtype wire_dtype) {
    *state = NULL;
    if (!wire_dtype) return gs_ok();
    half_sums *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->wire_dtype = wire_dtype;
    self->divides_after = gs_hook_option_value(setup->choice, "divide_after_cast") != 0;
    self->sends_copy = sends_copy(setup);
    *state = self;
    return gs_ok();
}

// As a wrapper, or the reducer's options, say.
static gs_status measure_plain(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, setup->wire_dtype);
}

static gs_status measure_fp16(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, GS_FP16);
}

static gs_status measure_bf16(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, GS_BF16);
}

static gs_status create_plain(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, setup->wire_dtype);
}

static gs_status create_fp16(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, GS_FP16);
}

static gs_status create_bf16(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, GS_BF16);
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    half_sums *self = state;
    if (!self) return gs_ok();
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

static gs_status post_all(const gs_hook_bucket *bucket, gs_hook_work *work) {
    gs_collective all = sum_in_place(bucket, bucket->data, bucket->count + bucket->reserved_count);
    all.scale = bucket->scale;
    all.tree = bucket->tree;
    all.part_stride_bytes = bucket->part_stride_bytes;
    return gs_hook_post(work, bucket, &all);
}

// The gradients last: their times are the bucket's.
static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const half_sums *self = state;
    if (!self) return post_all(bucket, work);
    char *reserved = (char *)bucket->data + bucket->count * gs_dtype_bytes(bucket->dtype);
    gs_collective exact = sum_in_place(bucket, reserved, bucket->reserved_count);
    exact.scale = bucket->scale;
    if (bucket->reserved_count) GS_TRY(gs_hook_post(work, bucket, &exact));
    if (!bucket->count) return gs_ok();
    gs_collective rounded = sum_in_place(bucket, bucket->data, bucket->count);
    rounded.wire_dtype = self->wire_dtype;
    rounded.wire_scale = (float)bucket->scale;
    rounded.wire_scale_after = self->divides_after;
    rounded.wire = self->wires[bucket->index];
    return gs_hook_post(work, bucket, &rounded);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)state, (void)bucket, (void)result, (void)deadline;
    return gs_ok();
}

static void destroy(void *state) {
    half_sums *self = state;
    if (self) free(self->wires);
    free(self);
}

static const gs_hook_option half_options[] = {
    {.name = "divide_after_cast", .fallback = 0, .least = 0, .most = 1, .is_whole = true}};

#define PLAIN_SUMS(hook_name, own_measure, own_create, own_options, own_num_options)               \
    {.name = (hook_name),                                                                          \
     .options = (own_options),                                                                     \
     .num_options = (own_num_options),                                                             \
     .measure = (own_measure),                                                                     \
     .create = (own_create),                                                                       \
     .on_plan = on_plan,                                                                           \
     .run = run,                                                                                   \
     .finish = finish,                                                                             \
     .commit = gs_hook_decide_nothing,                                                             \
     .rollback = gs_hook_decide_nothing,                                                           \
     .tensor = gs_hook_no_tensor,                                                                  \
     .loaded = gs_hook_load_nothing,                                                               \
     .destroy = destroy}

const gs_comm_hook gs_hook_allreduce =
    PLAIN_SUMS("allreduce", measure_plain, create_plain, NULL, 0);
const gs_comm_hook gs_hook_fp16 = PLAIN_SUMS("fp16", measure_fp16, create_fp16, half_options, 1);
const gs_comm_hook gs_hook_bf16 = PLAIN_SUMS("bf16", measure_bf16, create_bf16, half_options, 1);
