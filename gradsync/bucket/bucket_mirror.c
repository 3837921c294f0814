#include "gradsync/bucket/bucket_mirror.h"

#include <math.h>
#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/bucket/grad_squares.h"

// A bucket's reserved elements take at most this for each of its members.
#define RESERVED_BYTES ((size_t)64)

static gs_status alloc_pinned(void **memory, size_t count, size_t bytes, gs_device *device) {
    size_t all_bytes;
    if (!gs_bytes_of(&all_bytes, count, bytes))
        return gs_error(GS_RESOURCE_EXHAUSTED, "pinned memory for %zu parameters", count);
    return gs_device_alloc_pinned(device, memory, all_bytes);
}

static gs_status alloc_mirror(gs_bucket_mirror *mirror) {
    size_t count = mirror->layout->num_params + 1;
    void *memory;
    GS_TRY(alloc_pinned(&memory, count, RESERVED_BYTES, mirror->device));
    mirror->out = memory;
    GS_TRY(alloc_pinned(&memory, count, RESERVED_BYTES, mirror->device));
    mirror->in = memory;
    GS_TRY(alloc_pinned(&memory, count, sizeof *mirror->squares, mirror->device));
    mirror->squares = memory;
    GS_TRY(alloc_pinned(&memory, count, sizeof *mirror->num_nonfinite, mirror->device));
    mirror->num_nonfinite = memory;
    GS_TRY(alloc_pinned(&memory, count, sizeof *mirror->items, mirror->device));
    mirror->items = memory;
    mirror->offset_bytes = calloc(count, sizeof *mirror->offset_bytes);
    mirror->first_item = calloc(count, sizeof *mirror->first_item);
    mirror->num_items = calloc(count, sizeof *mirror->num_items);
    mirror->item_of = calloc(count, sizeof *mirror->item_of);
    mirror->held = calloc(count, sizeof *mirror->held);
    if (mirror->offset_bytes && mirror->first_item && mirror->num_items && mirror->item_of &&
        mirror->held)
        return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "bucket mirror: out of memory");
}

gs_status gs_bucket_mirror_init(gs_bucket_mirror *mirror, const gs_grad_layout *layout) {
    *mirror = (gs_bucket_mirror){.device = layout->device, .layout = layout};
    return mirror->device ? alloc_mirror(mirror) : gs_ok();
}

void gs_bucket_mirror_release(gs_bucket_mirror *mirror) {
    if (!mirror->device) return;
    gs_device_free_pinned(mirror->device, mirror->out);
    gs_device_free_pinned(mirror->device, mirror->in);
    gs_device_free_pinned(mirror->device, mirror->squares);
    gs_device_free_pinned(mirror->device, mirror->num_nonfinite);
    gs_device_free_pinned(mirror->device, mirror->items);
    free(mirror->offset_bytes);
    free(mirror->first_item);
    free(mirror->num_items);
    free(mirror->item_of);
    free(mirror->held);
    *mirror = (gs_bucket_mirror){0};
}

static void *held_at(const gs_bucket_mirror *mirror, size_t param) {
    const gs_grad_layout *layout = mirror->layout;
    return (char *)gs_grad_layout_results(layout)[param] +
           mirror->held[param].first * gs_dtype_bytes(layout->dtypes[param]);
}

static void add_item(const gs_bucket_mirror *mirror, size_t index, const gs_segment *segment) {
    size_t param = segment->tensor;
    mirror->held[param] = *segment;
    if (!segment->count || mirror->layout->dtypes[param] != GS_FP32) return;
    size_t item = mirror->first_item[index] + mirror->num_items[index]++;
    mirror->item_of[param] = item;
    mirror->items[item] = (gs_square_item){
        .from = held_at(mirror, param), .sum = &mirror->squares[param], .count = segment->count};
}

static void hold_nothing(const gs_bucket_mirror *mirror, size_t index) {
    const gs_bucket *bucket = &mirror->layout->buckets[index];
    mirror->num_items[index] = 0;
    for (size_t i = 0; i < bucket->num_params; i++) {
        mirror->item_of[bucket->params[i]] = SIZE_MAX;
        mirror->held[bucket->params[i]].count = 0;
        mirror->squares[bucket->params[i]] = 0;
    }
}

void gs_bucket_mirror_hold_all(const gs_bucket_mirror *mirror, size_t index) {
    const gs_bucket *bucket = &mirror->layout->buckets[index];
    hold_nothing(mirror, index);
    for (size_t i = 0; i < bucket->num_params; i++)
        add_item(mirror, index,
                 &(gs_segment){.tensor = bucket->params[i],
                               .count = mirror->layout->counts[bucket->params[i]]});
}

void gs_bucket_mirror_hold(const gs_bucket_mirror *mirror, size_t index, const gs_segment *segments,
                           size_t num_segments) {
    hold_nothing(mirror, index);
    for (size_t i = 0; i < num_segments; i++) add_item(mirror, index, &segments[i]);
}

void gs_bucket_mirror_place(gs_bucket_mirror *mirror) {
    const gs_grad_layout *layout = mirror->layout;
    size_t num_items = 0, offset = 0;
    if (!mirror->device) return;
    for (size_t b = 0; b < layout->plan.num_buckets; b++) {
        const gs_bucket *bucket = &layout->buckets[b];
        mirror->offset_bytes[b] = offset;
        offset += bucket->reserved_count * bucket->element_bytes;
        mirror->first_item[b] = num_items;
        if (bucket->rests)
            hold_nothing(mirror, b);
        else
            gs_bucket_mirror_hold_all(mirror, b);
        num_items += bucket->num_params;
    }
}

static size_t reserved_bytes(const gs_bucket *bucket) {
    return bucket->reserved_count * bucket->element_bytes;
}

static void *reserved_at(const gs_bucket_mirror *mirror, const gs_bucket *bucket) {
    return gs_bucket_reserved_at(bucket, gs_grad_layout_slot(mirror->layout, 0));
}

void gs_bucket_mirror_send(const gs_bucket_mirror *mirror, size_t index, gs_work_stream on) {
    const gs_bucket *bucket = &mirror->layout->buckets[index];
    gs_device_kernels(on.device)->copy(on.stream, reserved_at(mirror, bucket),
                                       mirror->out + mirror->offset_bytes[index],
                                       reserved_bytes(bucket));
}

void gs_bucket_mirror_fetch(const gs_bucket_mirror *mirror, size_t index) {
    const gs_bucket *bucket = &mirror->layout->buckets[index];
    gs_device_kernels(mirror->device)
        ->copy(gs_device_stream(mirror->device), mirror->in + mirror->offset_bytes[index],
               reserved_at(mirror, bucket), reserved_bytes(bucket));
}

static void measure_items(const gs_bucket_mirror *mirror, size_t first, size_t end) {
    if (end > first)
        gs_device_kernels(mirror->device)
            ->sum_squares_many(gs_device_stream(mirror->device), mirror->items + first,
                               end - first);
}

void gs_bucket_mirror_measure(const gs_bucket_mirror *mirror, size_t index) {
    size_t first = mirror->first_item[index];
    measure_items(mirror, first, first + mirror->num_items[index]);
}

void gs_bucket_mirror_measure_param(const gs_bucket_mirror *mirror, size_t param) {
    size_t item = mirror->item_of[param];
    if (item != SIZE_MAX) measure_items(mirror, item, item + 1);
}

// Finite gradients whose squares are not, or gradients that are not: counted on the device. A sum
// of squares that is NaN has seen a NaN.
static size_t count_nonfinite(const gs_bucket_mirror *mirror) {
    size_t num_counted = 0;
    for (size_t param = 0; param < mirror->layout->num_params; param++) {
        if (!isinf(mirror->squares[param])) continue;
        gs_device_kernels(mirror->device)
            ->count_nonfinite(gs_device_stream(mirror->device), &mirror->num_nonfinite[param],
                              held_at(mirror, param), mirror->held[param].count);
        num_counted++;
    }
    return num_counted;
}

static gs_status settle_param(const gs_bucket_mirror *mirror, size_t param) {
    const gs_grad_layout *layout = mirror->layout;
    double *squares = &mirror->squares[param];
    bool is_measured = mirror->item_of[param] != SIZE_MAX;
    if (!mirror->held[param].count || (is_measured && !isinf(*squares))) return gs_ok();
    if (is_measured && mirror->num_nonfinite[param]) {
        *squares = (double)NAN;
        return gs_ok();
    }
    return gs_grad_squares_fetch(squares, held_at(mirror, param), layout->dtypes[param],
                                 mirror->held[param].count, mirror->device);
}

gs_status gs_bucket_mirror_settle(const gs_bucket_mirror *mirror, gs_deadline deadline) {
    if (count_nonfinite(mirror)) GS_TRY(gs_stream_wait(gs_device_stream(mirror->device), deadline));
    for (size_t param = 0; param < mirror->layout->num_params; param++)
        GS_TRY(settle_param(mirror, param));
    return gs_ok();
}
