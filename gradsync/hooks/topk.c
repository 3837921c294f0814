// The largest elements alone (Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017): of
// every bucket a part `ratio` by magnitude, with their places; the rest is owed (error feedback).
//
//   M ─▶ values, places of its largest ─▶ from all ranks ─▶ added up in order of ranks ─▶ data
//   M - what was sent is owed
//
// With a wire dtype values travel in it, and what rounding left is owed as well.
#include <math.h>

#include "core/memory.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/residuals.h"

#define PAYLOAD_ALIGNMENT 64

static const gs_hook_option options[] = {
    {.name = "ratio", .fallback = 0.01, .least = 0x1p-40, .most = 1},
    GS_RESIDUAL_OPTIONS,
};

// One at least, so that what is not finite is told in any case.
static size_t num_chosen_of(const gs_hook_choice *choice, size_t num_elements) {
    double chosen = ceil(gs_hook_option_value(choice, "ratio") * (double)num_elements);
    return chosen < (double)num_elements ? (size_t)chosen : num_elements;
}

// Values, then places.
static size_t value_bytes(gs_dtype dtype, gs_dtype wire_dtype, size_t num_chosen) {
    return gs_round_up(num_chosen * gs_dtype_bytes(wire_dtype ? wire_dtype : dtype),
                       sizeof(uint32_t));
}

static gs_residual_sizes size(const gs_hook_choice *choice, gs_dtype dtype, gs_dtype wire_dtype,
                              size_t num_elements, size_t num_items) {
    (void)num_items;
    size_t chosen = num_elements ? num_chosen_of(choice, num_elements) : 0;
    size_t bytes = value_bytes(dtype, wire_dtype, chosen) + chosen * sizeof(uint32_t);
    return (gs_residual_sizes){.payload_bytes = gs_round_up(bytes, PAYLOAD_ALIGNMENT),
                               .scratch_bytes = wire_dtype ? chosen * gs_dtype_bytes(dtype) : 0};
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    return gs_residuals_measure(needs, setup, size);
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    return gs_residuals_place(state, plan, size);
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    gs_residuals *residuals = state;
    if (!gs_residuals_compress(residuals, bucket))
        return gs_residuals_send_plain(residuals, bucket, work);
    const gs_residual_bucket *own = &residuals->buckets[bucket->index];
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    const size_t chosen = num_chosen_of(residuals->choice, own->num_elements);
    const gs_dtype wire_dtype = residuals->wire_dtype;
    char *payload = gs_residuals_own_payload(residuals, own);
    gs_work_stream on;
    GS_TRY(gs_residuals_open(&on, residuals, bucket, work));
    const gs_selection selection = {
        .items = own->items,
        .num_items = own->num_items,
        .num_places = bucket->count,
        .dtype = bucket->dtype,
        .wire_dtype = wire_dtype,
        .num_chosen = chosen,
        .values = wire_dtype ? own->scratch : payload,
        .places = (uint32_t *)(payload + value_bytes(bucket->dtype, wire_dtype, chosen))};
    kernels->select_largest(on.stream, &selection);
    if (wire_dtype)
        kernels->cast(on.stream, payload, wire_dtype, own->scratch, bucket->dtype, 1, chosen);
    return gs_residuals_send(residuals, bucket, chosen, work);
}

// The one in which a place lies; of a place behind all of them the last.
static const gs_hook_param *param_at(const gs_hook_bucket *bucket, size_t place) {
    size_t i = bucket->num_params - 1;
    while (i > 0 && bucket->params[i].first > place) i--;
    return &bucket->params[i];
}

static gs_status blame_place(const gs_hook_bucket *bucket, uint32_t place, int rank) {
    const gs_hook_param *param = param_at(bucket, place);
    return gs_error(GS_DATA_LOSS, "rank %d sent place %u, %s parameter %zu \"%.100s\"", rank, place,
                    place < bucket->count ? "which does not ascend, in" : "behind the bucket's last",
                    param->index, param->spec->name);
}

// What another rank says decides where this one writes. A GPU's host does not see it: the kernel writes nothing outside,
// and leaves a result that is not finite, on all ranks alike.
static gs_status check_places(const gs_hook_bucket *bucket, const uint32_t *places, size_t count,
                              int rank) {
    if (!gs_device_is_host(bucket->device)) return gs_ok();
    for (size_t i = 0; i < count; i++) {
        if (places[i] >= bucket->count || (i && places[i] <= places[i - 1]))
            return blame_place(bucket, places[i], rank);
    }
    return gs_ok();
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    const gs_residuals *residuals = state;
    (void)result, (void)deadline;
    if (!gs_residuals_compress(residuals, bucket)) return gs_ok();
    const gs_residual_bucket *own = &residuals->buckets[bucket->index];
    const gs_work_stream on = gs_work_stream_of(bucket->device);
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    const size_t chosen = num_chosen_of(residuals->choice, own->num_elements);
    gs_main_grad_zero(bucket->data, bucket->dtype, bucket->count, on);
    for (int r = 0; r < residuals->world_size; r++) {
        const char *payload = own->payloads + (size_t)r * own->payload_bytes;
        const uint32_t *places =
            (const uint32_t *)(payload + value_bytes(bucket->dtype, residuals->wire_dtype, chosen));
        const void *values = payload;
        GS_TRY(check_places(bucket, places, chosen, r));
        if (residuals->wire_dtype) {
            kernels->cast(on.stream, own->scratch, bucket->dtype, payload, residuals->wire_dtype, 1,
                          chosen);
            values = own->scratch;
        }
        kernels->add_at(on.stream, bucket->data, values, places, chosen, bucket->count, bucket->dtype);
    }
    gs_residuals_close(bucket);
    return gs_ok();
}

const gs_comm_hook gs_hook_topk = {.name = "topk",
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
