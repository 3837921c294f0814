// One bit for each element (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014): below zero or not, and for
// each parameter the mean of either side; the rest is owed (error feedback).
//
//   M ─▶ means, bits ─▶ from all ranks ─▶ added up in order of ranks ─▶ data
//   M - what they say is owed
//
// Every rank gets every rank's bits: N - 1 thirty-seconds of a bucket, where a ring moves twice a bucket. Beyond some
// sixty ranks it sends more than an all-reduce.
#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/residuals.h"

#define PAYLOAD_ALIGNMENT 64
#define MOST_PADDING 16  // elements between two parameters of a bucket, at most

typedef struct onebit {
    const gs_hook_choice *choice;
    gs_residuals residuals;
} onebit;

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

static void destroy(void *state) {
    onebit *self = state;
    gs_residuals_release(&self->residuals);
    free(self);
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    onebit *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->choice = setup->choice;
    gs_status status = gs_residuals_init(&self->residuals, setup);
    if (status.code) destroy(self);
    else *state = self;
    return status;
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    onebit *self = state;
    return gs_residuals_place(&self->residuals, plan, self->choice, size);
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
    onebit *self = state;
    gs_residuals *residuals = &self->residuals;
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
    const onebit *self = state;
    const gs_residuals *residuals = &self->residuals;
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

static void commit(void *state) {
    gs_residuals_commit(&((onebit *)state)->residuals);
}

static void rollback(void *state) {
    gs_residuals_rollback(&((onebit *)state)->residuals);
}

static bool tensor(void *state, size_t index, gs_hook_tensor *out) {
    const onebit *self = state;
    return self->residuals.error_feedback &&
           gs_param_state_tensor(&self->residuals.errors, index, out);
}

static void report(void *state, gs_hook_report *out) {
    gs_residuals_report(&((const onebit *)state)->residuals, out);
}

const gs_comm_hook gs_hook_onebit = {.name = "onebit",
                                     .options = options,
                                     .num_options = sizeof options / sizeof options[0],
                                     .measure = measure,
                                     .create = create,
                                     .on_plan = on_plan,
                                     .run = run,
                                     .finish = finish,
                                     .commit = commit,
                                     .rollback = rollback,
                                     .tensor = tensor,
                                     .loaded = gs_hook_load_nothing,
                                     .destroy = destroy,
                                     .report = report};
