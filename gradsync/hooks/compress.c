// Gradients in 16 bits on their way: half the bytes, whatever type they have in their bucket.
//
//   data · scale, rounded once more to the wire dtype ─▶ wire ─▶ sum in fp32, rounded once ─▶ data
//
// The divisor is taken out during the cast, so that what fits after the division does not overflow
// on the way there. What does overflow arrives as infinity on every rank, and the step is skipped
// by all alike. The reserved elements travel apart, as they are: counts are no gradients. Rounding
// depends on which sums a rank holds, so exact mode, which must not know the number of ranks, has
// no wire dtype.
#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/comm_hook.h"

static gs_status create(void **state, gs_comm *comm) {
    (void)comm;
    *state = NULL;
    return gs_ok();
}

static gs_collective sum_in_place(const gs_hook_bucket *bucket, void *data, size_t count,
                                  gs_dtype dtype, double scale) {
    return (gs_collective){.kind = GS_ALLREDUCE,
                           .send = data,
                           .recv = data,
                           .count = count,
                           .dtype = dtype,
                           .op = GS_OP_SUM,
                           .scale = scale,
                           .step = bucket->step,
                           .num_active = bucket->num_active,
                           .bucket = bucket->index};
}

// The gradients last: their times are the bucket's.
static gs_status run(void *state, gs_comm *comm, const gs_hook_bucket *bucket, gs_work *work,
                     uint64_t *wire_bytes) {
    (void)state;
    if (!bucket->wire)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: bucket %d: the hook \"compress\" needs a wire dtype%s",
                        (long long)bucket->step, bucket->index,
                        bucket->tree ? ", which exact mode does not have" : "");
    size_t element_bytes = gs_dtype_bytes(bucket->dtype);
    char *reserved = (char *)bucket->data + bucket->count * element_bytes;
    *wire_bytes =
        bucket->count * gs_dtype_bytes(bucket->wire_dtype) + bucket->reserved_count * element_bytes;
    gs_collective exact =
        sum_in_place(bucket, reserved, bucket->reserved_count, bucket->dtype, bucket->scale);
    GS_TRY(gs_comm_post(comm, work, &exact));
    if (!bucket->count) return gs_ok();
    gs_work_stream on = gs_work_stream_before_post(comm);
    gs_device_kernels(bucket->device)
        ->cast(on.stream, bucket->wire, bucket->wire_dtype, bucket->data, bucket->dtype,
               (float)bucket->scale, bucket->count);
    gs_collective rounded =
        sum_in_place(bucket, bucket->wire, bucket->count, bucket->wire_dtype, 1);
    return gs_comm_post(comm, work, &rounded);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket) {
    (void)state;
    if (bucket->count)
        gs_device_kernels(bucket->device)
            ->cast(gs_device_stream(bucket->device), bucket->data, bucket->dtype, bucket->wire,
                   bucket->wire_dtype, 1, bucket->count);
    return gs_ok();
}

static void destroy(void *state) {
    (void)state;
}

const gs_comm_hook gs_hook_compress = {
    .name = "compress", .create = create, .run = run, .finish = finish, .destroy = destroy};
