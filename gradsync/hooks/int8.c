// "int8" and "int8_channel": gradients in 8 bits, as PyTorch's quantisation hooks send them.
//
//   data ─▶ scale, zero, codes ─▶ all-gather ─▶ scale · Σ over ranks of scale_k · (code_k − zero_k) ─▶ data
//
// A scale for the whole bucket ("int8"), or for each row of 512 of it ("int8_channel"). The last row is as
// long as it is: zeros behind it, of which the original adds 1 to 512, would change neither its range nor
// another number. Scales and codes are one message, so there is one collective and no phase waits for another;
// the reserved elements travel beside it, as they are.
//
// A rank's message goes to all others: world - 1 bytes for each element, against about 8 of an all-reduce of
// fp32, and they are kept until the sum is made. So in worlds of more than MOST_RANKS gradients travel by the
// plain all-reduce, which is then shorter, and exact. Sums of more ranks in 8 bits: "uint8_gather".
#include <stdlib.h>

#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/code_message.h"
#include "gradsync/hooks/hook_calls.h"

#define MOST_RANKS 8
#define ROW_COUNT ((size_t)512)
#define WHOLE_BUCKET SIZE_MAX
#define LEAST_SCALE 0x1p-23  // the eps of PyTorch's observers

typedef struct quantizer {
    size_t segment_count;
    void *plain;      // the state of "allreduce"
    bool is_plain;    // in this world
    void **messages;  // of all ranks; of each bucket of the plan, or NULL
} quantizer;

static bool sends_plainly(int world_size) {
    return world_size > MOST_RANKS;
}

static gs_status measure_as(gs_hook_needs *needs, const gs_hook_setup *setup,
                            size_t segment_count) {
    GS_TRY(gs_hook_refuse_exact(setup));
    GS_TRY(gs_hook_allreduce.measure(needs, setup));
    if (!sends_plainly(setup->world_size))
        needs->bucket_bytes =
            gs_code_message_most_bytes(setup, segment_count, setup->world_size, false);
    needs->num_phases = 1;
    needs->most_posts = 2;
    return gs_ok();
}

static gs_status create_as(void **state, const gs_hook_setup *setup, size_t segment_count) {
    quantizer *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->segment_count = segment_count;
    gs_status status = gs_hook_allreduce.create(&self->plain, setup);
    if (status.code) free(self);
    else *state = self;
    return status;
}

static gs_status measure_bucket(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, WHOLE_BUCKET);
}

static gs_status measure_rows(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return measure_as(needs, setup, ROW_COUNT);
}

static gs_status create_bucket(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, WHOLE_BUCKET);
}

static gs_status create_rows(void **state, const gs_hook_setup *setup) {
    return create_as(state, setup, ROW_COUNT);
}

static gs_code_message message_of(const quantizer *self, size_t count, gs_dtype dtype) {
    return (gs_code_message){.count = count, .segment_count = self->segment_count, .dtype = dtype};
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    quantizer *self = state;
    const int world_size = gs_comm_world_size(plan->comm);
    self->is_plain = sends_plainly(world_size);
    if (self->is_plain) return gs_hook_allreduce.on_plan(self->plain, plan);
    void **messages = calloc(plan->num_buckets, sizeof *messages);
    if (!messages) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    free(self->messages);
    self->messages = messages;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_hook_layout *bucket = &plan->buckets[b];
        const gs_code_message message = message_of(self, bucket->count, bucket->dtype);
        if (bucket->hook == plan->hook && bucket->count)
            GS_TRY(gs_hook_place(&messages[b], plan,
                                 gs_code_message_bytes(&message) * (size_t)world_size));
    }
    return gs_ok();
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const quantizer *self = state;
    if (self->is_plain) return gs_hook_allreduce.run(self->plain, bucket, work);
    if (bucket->reserved_count) GS_TRY(gs_hook_post_reserved(work, bucket));
    if (!bucket->count) return gs_ok();
    const gs_code_message message = message_of(self, bucket->count, bucket->dtype);
    const int rank = gs_comm_rank(bucket->comm);
    void *messages = self->messages[bucket->index];
    const gs_quantized own = gs_code_message_at(&message, messages, rank);
    gs_device_kernels(bucket->device)
        ->quantize(gs_work_stream_before_post(bucket->comm).stream, &own, bucket->data,
                   LEAST_SCALE);
    const gs_collective gather = gs_code_message_gather(&message, messages, rank);
    return gs_hook_post(work, bucket, &gather);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    const quantizer *self = state;
    if (self->is_plain) return gs_hook_allreduce.finish(self->plain, bucket, result, deadline);
    if (!bucket->count) return gs_ok();
    const gs_code_message message = message_of(self, bucket->count, bucket->dtype);
    const gs_quantized first = gs_code_message_at(&message, self->messages[bucket->index], 0);
    gs_device_kernels(bucket->device)
        ->dequantize(gs_device_stream(bucket->device), bucket->data, &first,
                     (size_t)gs_comm_world_size(bucket->comm), gs_code_message_bytes(&message),
                     bucket->scale);
    return gs_ok();
}

static void destroy(void *state) {
    quantizer *self = state;
    gs_hook_allreduce.destroy(self->plain);
    free(self->messages);
    free(self);
}

#define QUANTIZATION(hook_name, own_measure, own_create)                                           \
    {.name = (hook_name),                                                                          \
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

const gs_comm_hook gs_hook_int8 = QUANTIZATION("int8", measure_bucket, create_bucket);
const gs_comm_hook gs_hook_int8_channel = QUANTIZATION("int8_channel", measure_rows, create_rows);
