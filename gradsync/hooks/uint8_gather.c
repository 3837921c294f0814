// "uint8_gather": the mean in 8 bits, rounded once however many ranks there are.
//
//   data ─▶ reduce-scatter: each rank owns the exact sum of a part ─▶ scales and codes of it ─▶ all-gather ─▶ data
//
// Everybody, the owner too, takes numbers from the same bytes, so all ranks hold the same bits; an element is
// off by no more than a step of its segment, in any world. A segment has SEGMENT_COUNT elements, 256 KiB of
// fp32, so that its second reading comes from the cache. Sent are (4 + 1) · (world − 1) / world bytes for an
// element of fp32, against 8 of an all-reduce; with a wire dtype, of which the sum then is, (2 + 1) against 4.
//
// Parts are equal, so what does not divide, a few elements at the end, is reduced with the reserved ones that
// lie behind it, exactly; no gradient is copied for it. Where a part would have fewer than LEAST_PART elements a
// second collective costs more than the bytes that it spares, and the whole bucket goes by the plain all-reduce.
#include <stdlib.h>

#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/code_message.h"
#include "gradsync/hooks/hook_calls.h"

#define SEGMENT_COUNT ((size_t)65536)
#define LEAST_PART ((size_t)4096)
#define PART_BOUNDARY ((size_t)64)  // elements: no two ranks write into one pair of lines

typedef struct gatherer {
    gs_dtype wire_dtype;
    bool sends_copy;  // a GPU's library sends the 16 bits, and needs memory for them
    void *plain;      // the state of "allreduce", for small buckets
    void **messages;  // of all ranks; of each bucket of the plan that is cut into parts, or NULL
    void **wires;     // the same: for its gradients in the wire dtype
} gatherer;

// Elements of each rank's part; 0: the bucket is not cut.
static size_t part_count(size_t count, int world_size) {
    size_t part = count / (size_t)world_size / PART_BOUNDARY * PART_BOUNDARY;
    return world_size > 1 && part >= LEAST_PART ? part : 0;
}

static bool sends_copy(const gs_hook_setup *setup) {
    return setup->wire_dtype && (!setup->device || !gs_device_is_host(setup->device));
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    GS_TRY(gs_hook_refuse_exact(setup));
    GS_TRY(gs_hook_allreduce.measure(needs, setup));
    size_t wires =
        sends_copy(setup) ? gs_hook_most_bytes(setup, gs_dtype_bytes(setup->wire_dtype)) : 0;
    size_t messages = gs_code_message_most_bytes(setup, SEGMENT_COUNT, setup->world_size, true);
    if (__builtin_add_overflow(needs->bucket_bytes, wires, &needs->bucket_bytes) ||
        __builtin_add_overflow(needs->bucket_bytes, messages, &needs->bucket_bytes))
        needs->bucket_bytes = SIZE_MAX;
    needs->num_phases = 2;
    needs->most_posts = 2;
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    gatherer *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->wire_dtype = setup->wire_dtype;
    self->sends_copy = sends_copy(setup);
    gs_status status = gs_hook_allreduce.create(&self->plain, setup);
    if (status.code) free(self);
    else *state = self;
    return status;
}

static gs_code_message message_of(size_t part, gs_dtype dtype) {
    return (gs_code_message){.count = part, .segment_count = SEGMENT_COUNT, .dtype = dtype};
}

static gs_status place_bucket(gatherer *self, const gs_hook_plan *plan, size_t b, size_t part) {
    const gs_code_message message = message_of(part, plan->buckets[b].dtype);
    const size_t world_size = (size_t)gs_comm_world_size(plan->comm);
    if (self->sends_copy)
        GS_TRY(gs_hook_place(&self->wires[b], plan,
                             world_size * part * gs_dtype_bytes(self->wire_dtype)));
    return gs_hook_place(&self->messages[b], plan, world_size * gs_code_message_bytes(&message));
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    gatherer *self = state;
    const int world_size = gs_comm_world_size(plan->comm);
    GS_TRY(gs_hook_allreduce.on_plan(self->plain, plan));
    free(self->messages);
    free(self->wires);
    self->messages = calloc(plan->num_buckets, sizeof *self->messages);
    self->wires = calloc(plan->num_buckets, sizeof *self->wires);
    if (!self->messages || !self->wires) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const size_t part = part_count(plan->buckets[b].count, world_size);
        if (plan->buckets[b].hook == plan->hook && part)
            GS_TRY(place_bucket(self, plan, b, part));
    }
    return gs_ok();
}

static void *element(const gs_hook_bucket *bucket, size_t index) {
    return (char *)bucket->data + index * gs_dtype_bytes(bucket->dtype);
}

// All from element `first` on, reserved ones included.
static gs_status sum_tail(const gs_hook_bucket *bucket, gs_hook_work *work, size_t first) {
    const size_t count = bucket->count + bucket->reserved_count - first;
    if (!count) return gs_ok();
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = element(bucket, first),
                                         .recv = element(bucket, first),
                                         .count = count,
                                         .dtype = bucket->dtype,
                                         .op = GS_OP_SUM,
                                         .scale = bucket->scale});
}

// The sum of this rank's part, where it lies.
static gs_status scatter_sums(const gatherer *self, const gs_hook_bucket *bucket,
                              gs_hook_work *work, size_t part) {
    GS_TRY(sum_tail(bucket, work, (size_t)gs_comm_world_size(bucket->comm) * part));
    gs_collective sums = {.kind = GS_REDUCE_SCATTER,
                          .send = bucket->data,
                          .recv = element(bucket, (size_t)gs_comm_rank(bucket->comm) * part),
                          .count = part,
                          .dtype = bucket->dtype,
                          .op = GS_OP_SUM,
                          .scale = self->wire_dtype ? 1 : bucket->scale};
    if (self->wire_dtype) {
        sums.wire_dtype = self->wire_dtype;
        sums.wire_scale = (float)bucket->scale;
        sums.wire = self->wires[bucket->index];
    }
    return gs_hook_post(work, bucket, &sums);
}

static gs_status gather_codes(const gatherer *self, const gs_hook_bucket *bucket,
                              gs_hook_work *work, size_t part) {
    const int rank = gs_comm_rank(bucket->comm);
    const gs_code_message message = message_of(part, bucket->dtype);
    void *messages = self->messages[bucket->index];
    const gs_quantized to = gs_code_message_at(&message, messages, rank);
    // Below it numbers of the type are no longer normal, and steps would be coarse.
    gs_device_kernels(bucket->device)
        ->quantize(gs_work_stream_before_post(bucket->comm).stream, &to,
                   element(bucket, (size_t)rank * part),
                   bucket->dtype == GS_FP64 ? 0x1p-1022 : 0x1p-126);
    const gs_collective gather = gs_code_message_gather(&message, messages, rank);
    return gs_hook_post(work, bucket, &gather);
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const gatherer *self = state;
    const size_t part = part_count(bucket->count, gs_comm_world_size(bucket->comm));
    if (part) {
        return work->phase ? gather_codes(self, bucket, work, part)
                           : scatter_sums(self, bucket, work, part);
    }
    return work->phase ? gs_ok() : gs_hook_allreduce.run(self->plain, bucket, work);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    const gatherer *self = state;
    const int world_size = gs_comm_world_size(bucket->comm);
    const size_t part = part_count(bucket->count, world_size);
    if (!part) return gs_hook_allreduce.finish(self->plain, bucket, result, deadline);
    const gs_code_message message = message_of(part, bucket->dtype);
    for (int r = 0; r < world_size; r++) {
        const gs_quantized from =
            gs_code_message_at(&message, self->messages[bucket->index], r);
        gs_device_kernels(bucket->device)
            ->dequantize(gs_device_stream(bucket->device), element(bucket, (size_t)r * part), &from,
                         1, 0, 1);
    }
    return gs_ok();
}

static void destroy(void *state) {
    gatherer *self = state;
    gs_hook_allreduce.destroy(self->plain);
    free(self->messages);
    free(self->wires);
    free(self);
}

const gs_comm_hook gs_hook_uint8_gather = {.name = "uint8_gather",
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
