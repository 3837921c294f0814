#include "gradsync/bucket/grad_layout.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/bucket/main_grad.h"

#define CLEARING_SECONDS 60.0

static size_t parts_of(const gs_grad_layout_shape *shape) {
    return shape->num_parts ? shape->num_parts : 1;
}

// Laid out without memory.
static gs_status measure_windows(size_t *bytes, const gs_grad_layout_shape *shape,
                                 const gs_bucket_plan *plan) {
    gs_grad_layout layout;
    gs_grad_layout_shape without_memory = *shape;
    without_memory.num_slots = 0;
    GS_TRY(gs_grad_layout_init(&layout, &without_memory, NULL));
    gs_status status = gs_grad_layout_set_plan(&layout, plan);
    *bytes = layout.slot_bytes;
    gs_grad_layout_release(&layout);
    return status;
}

gs_status gs_grad_layout_bytes(size_t *bytes, const gs_grad_layout_shape *shape,
                               const gs_bucket_plan *plan) {
    size_t slot_bytes;
    if (shape->num_windows) return measure_windows(bytes, shape, plan);
    GS_TRY(gs_bucket_max_layout_bytes(&slot_bytes, shape->params, shape->num_params,
                                      parts_of(shape)));
    if (!gs_bytes_of(bytes, slot_bytes, (size_t)shape->num_slots))
        return gs_error(GS_RESOURCE_EXHAUSTED, "%d slots of %zu bytes do not fit into memory",
                        shape->num_slots, slot_bytes);
    return gs_ok();
}

static gs_windows_shape windows_of(const gs_grad_layout_shape *shape) {
    return (gs_windows_shape){.num_windows = shape->num_windows,
                              .opens_early = shape->opens_early,
                              .num_parts = parts_of(shape),
                              .own_part = shape->own_part,
                              .adds_up = shape->adds_up};
}

static gs_status alloc_lists(gs_grad_layout *layout, const gs_grad_layout_shape *shape) {
    const gs_windows_shape windows = windows_of(shape);
    size_t num_params = layout->num_params;
    layout->params = calloc(num_params, sizeof *layout->params);
    layout->buckets = calloc(num_params, sizeof *layout->buckets);
    layout->bucket_of = calloc(num_params, sizeof *layout->bucket_of);
    layout->offset_bytes = calloc(num_params, sizeof *layout->offset_bytes);
    layout->counts = calloc(num_params, sizeof *layout->counts);
    layout->dtypes = calloc(num_params, sizeof *layout->dtypes);
    layout->grads = calloc(num_params * (size_t)layout->num_slots + 1, sizeof *layout->grads);
    layout->results = calloc(num_params, sizeof *layout->results);
    if (!layout->params || !layout->buckets || !layout->bucket_of || !layout->offset_bytes ||
        !layout->counts || !layout->dtypes || !layout->grads || !layout->results)
        return gs_error(GS_RESOURCE_EXHAUSTED, "gradient layout: out of memory");
    return gs_grad_windows_init(&layout->windows, &windows, num_params);
}

gs_status gs_grad_layout_init(gs_grad_layout *layout, const gs_grad_layout_shape *shape,
                              void *memory) {
    *layout = (gs_grad_layout){.num_params = shape->num_params,
                               .num_slots = shape->num_slots,
                               .num_parts = parts_of(shape),
                               .has_reserved = shape->tally == GS_TALLY_IN_BUCKETS,
                               .memory = memory};
    if (shape->device && !gs_device_is_host(shape->device)) layout->device = shape->device;
    GS_TRY(gs_bucket_max_layout_bytes(&layout->slot_bytes, shape->params, shape->num_params,
                                      layout->num_parts));
    gs_status status = alloc_lists(layout, shape);
    if (status.code) {
        gs_grad_layout_release(layout);
        return status;
    }
    memcpy(layout->params, shape->params, shape->num_params * sizeof *shape->params);
    for (size_t i = 0; i < shape->num_params; i++) {
        const gs_param_spec *param = &shape->params[i];
        layout->counts[i] = param->sparse ? 0 : gs_param_spec_count(param);
        layout->dtypes[i] = gs_main_grad_dtype(param->dtype);
    }
    return gs_ok();
}

void gs_grad_layout_release(gs_grad_layout *layout) {
    if (!layout) return;
    gs_bucket_plan_release(&layout->plan);
    free(layout->params);
    free(layout->buckets);
    free(layout->bucket_of);
    free(layout->offset_bytes);
    free(layout->counts);
    free(layout->dtypes);
    free(layout->grads);
    free(layout->results);
    gs_grad_windows_release(&layout->windows);
    *layout = (gs_grad_layout){0};
}

// A GPU's memory is cleared as a whole, and waited for: nothing that follows on another stream may
// find it unfinished.
static gs_status clear_memory(const gs_grad_layout *layout) {
    gs_device *device = layout->device;
    gs_device_kernels(device)->clear(gs_device_stream(device), layout->memory,
                                     layout->slot_bytes * (size_t)layout->num_slots);
    return gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(CLEARING_SECONDS));
}

// Of a gradient that is not all here it is where its beginning would lie, perhaps before the slot.
static void place_results(gs_grad_layout *layout) {
    for (size_t i = 0; i < layout->num_params && layout->num_slots; i++) {
        const gs_bucket *bucket = &layout->buckets[layout->bucket_of[i]];
        uintptr_t result = (uintptr_t)gs_grad_layout_result(layout, bucket);
        result += layout->offset_bytes[i] - bucket->offset_bytes;
        result -= bucket->result.first * bucket->element_bytes;
        layout->results[i] = layout->params[i].sparse ? NULL : (void *)result;
    }
}

// Views of all slots, and zeros between them.
static gs_status place_slots(gs_grad_layout *layout) {
    bool on_host = !layout->device;
    for (int slot = 0; slot < layout->num_slots; slot++) {
        char *memory = gs_grad_layout_slot(layout, slot);
        for (size_t b = 0; b < layout->plan.num_buckets && on_host; b++)
            gs_bucket_clear_padding(&layout->buckets[b], memory, layout->params);
        void **grads = layout->grads + (size_t)slot * layout->num_params;
        for (size_t i = 0; i < layout->num_params; i++)
            grads[i] =
                layout->params[i].sparse ? NULL : (float *)(memory + layout->offset_bytes[i]);
    }
    place_results(layout);
    return on_host ? gs_ok() : clear_memory(layout);
}

static gs_status lay_out(gs_grad_layout *layout) {
    gs_bucket_layout(layout->buckets, layout->offset_bytes, &layout->plan, layout->params,
                     layout->num_parts);
    for (size_t b = 0; b < layout->plan.num_buckets; b++) {
        gs_bucket *bucket = &layout->buckets[b];
        if (!layout->has_reserved) bucket->reserved_count = 0;
        for (size_t i = 0; i < bucket->num_params; i++) layout->bucket_of[bucket->params[i]] = b;
    }
    size_t bytes = gs_grad_windows_place(&layout->windows, layout->buckets,
                                         layout->plan.num_buckets, layout->offset_bytes);
    if (layout->windows.shape.num_windows) layout->slot_bytes = bytes;
    return place_slots(layout);
}

gs_status gs_grad_layout_set_plan(gs_grad_layout *layout, const gs_bucket_plan *plan) {
    gs_bucket_plan copy;
    GS_TRY(gs_bucket_plan_copy(&copy, plan));
    gs_bucket_plan_release(&layout->plan);
    layout->plan = copy;
    return lay_out(layout);
}

gs_status gs_grad_layout_resize(gs_grad_layout *layout, const gs_grad_layout_shape *shape) {
    size_t slot_bytes, num_parts = parts_of(shape);
    GS_TRY(gs_bucket_max_layout_bytes(&slot_bytes, layout->params, layout->num_params, num_parts));
    void **grads = calloc(layout->num_params * (size_t)shape->num_slots, sizeof *grads);
    if (!grads) return gs_error(GS_RESOURCE_EXHAUSTED, "gradient layout: out of memory");
    free(layout->grads);
    layout->grads = grads;
    layout->num_slots = shape->num_slots;
    layout->num_parts = num_parts;
    layout->slot_bytes = slot_bytes;
    layout->windows.shape.num_parts = num_parts;
    layout->windows.shape.own_part = shape->own_part;
    layout->windows.shape.adds_up = shape->adds_up;
    return lay_out(layout);
}

bool gs_grad_layout_keeps(const gs_grad_layout *layout, const gs_segment *segment) {
    const gs_bucket *bucket = &layout->buckets[layout->bucket_of[segment->tensor]];
    const gs_bucket_result *result = &bucket->result;
    size_t first =
        (layout->offset_bytes[segment->tensor] - bucket->offset_bytes) / bucket->element_bytes +
        segment->first;
    return first >= result->first && first + segment->count <= result->first + result->count;
}

void gs_grad_layout_keep(const gs_grad_layout *layout, const gs_bucket *bucket, bool adds,
                         gs_work_stream on) {
    const gs_bucket_result *result = &bucket->result;
    if (!result->is_apart || !result->count) return;
    void *to = gs_grad_layout_result(layout, bucket);
    const char *from = gs_grad_layout_bucket(layout, 0, bucket);
    from += result->first * bucket->element_bytes;
    if (adds)
        gs_main_grad_add(to, from, bucket->dtype, result->count, on);
    else
        gs_device_kernels(on.device)->copy(on.stream, to, from,
                                           result->count * bucket->element_bytes);
}
