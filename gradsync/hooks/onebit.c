// One bit for each element (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014): below zero or not, and for
// each parameter the mean of either side; the rest is owed (error feedback).
//
//   M ─▶ means, bits ─▶ from all ranks ─▶ added up in order of ranks ─▶ data
//   M - what they say is owed
//
// Every rank gets every rank's bits: N - 1 thirty-seconds of a bucket, where a ring moves twice a bucket. Beyond some
// sixty ranks it sends more than an all-reduce.
#include "core/memory.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/residuals.h"

#define PAYLOAD_ALIGNMENT 64
#define MOST_PADDING 16  // elements between two parameters of a bucket, at most

static const gs_hook_option options[] = {GS_RESIDUAL_OPTIONS};

static size_t mean_bytes(gs_dtype dtype, size_t num_items) {
    return gs_round_up(2 * num_items * gs_dtype_bytes(dtype), sizeof(uint64_t));
}

// Bits of padding are sent as well.
static gs_residual_sizes size(const gs_hook_choice *choice, gs_dtype dtype, gs_dtype wire_dtype,
                              size_t num_elements, size_t num_items) {
    (void)choice, (void)wire_dtype;
    size_t bits = num_elements + num_items * MOST_PADDING;
    return (gs_residual_sizes){.payload_bytes = gs_round_up(
                                   mean_bytes(dtype, num_items) + bits / 8 + 1, PAYLOAD_ALIGNMENT)};
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return gs_residuals_measure(needs, setup, size);
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    return gs_residuals_place(state, plan, size);
}

// Of the payload that begins at `payload`.
static gs_signs signs_at(const gs_residual_bucket *own, const gs_hook_bucket *bucket,
                         char *payload) {
    return (gs_signs){.items = own->items,
                      .num_items = own->num_items,
                      .dtype = bucket->dtype,
                      .means = payload,
                      .bits = (uint8_t *)payload + mean_bytes(bucket->dtype, own->num_items)};
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    gs_residuals *residuals = state;
    if (!gs_residuals_compress(residuals, bucket))
        return gs_residuals_send_plain(residuals, bucket, work);
    const gs_residual_bucket *own = &residuals->buckets[bucket->index];
    gs_work_stream on;
    GS_TRY(gs_residuals_open(&on, residuals, bucket, work));
    const gs_signs signs = signs_at(own, bucket, gs_residuals_own_payload(residuals, own));
    gs_device_kernels(bucket->device)->take_signs(on.stream, &signs);
    // As many elements of the bucket's dtype as its bits and means are.
    size_t sent = own->payload_bytes / gs_dtype_bytes(bucket->dtype);
    return gs_residuals_send(residuals, bucket, sent, work);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    const gs_residuals *residuals = state;
    (void)result, (void)deadline;
    if (!gs_residuals_compress(residuals, bucket)) return gs_ok();
    const gs_residual_bucket *own = &residuals->buckets[bucket->index];
    const gs_signs signs = signs_at(own, bucket, own->payloads);
    gs_device_kernels(bucket->device)
        ->add_signs(gs_device_stream(bucket->device), &signs, residuals->world_size,
                    own->payload_bytes);
    gs_residuals_close(bucket);
    return gs_ok();
}

const gs_comm_hook gs_hook_onebit = {.name = "onebit",
                                     .options = options,
                                     .num_options = sizeof options / sizeof options[0],
                                     .measure = measure,
                                     .create = gs_residuals_create,
                                     .on_plan = on_plan,
                                     .run = run,
                                     .finish = finish,
                                     .commit = gs_residuals_commit,
                                     .rollback = gs_residuals_rollback,
                                     .tensor = gs_residuals_tensor,
                                     .loaded = gs_hook_load_nothing,
                                     .destroy = gs_residuals_destroy,
                                     .report = gs_residuals_report};
