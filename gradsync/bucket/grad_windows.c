#include "gradsync/bucket/grad_windows.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

gs_status gs_grad_windows_init(gs_grad_windows *windows, const gs_windows_shape *shape,
                               size_t num_params) {
    *windows = (gs_grad_windows){.shape = *shape};
    windows->shape.opens_early = NULL;
    if (!shape->num_windows) return gs_ok();
    bool *opens_early = calloc(num_params, sizeof *opens_early);
    if (opens_early && shape->opens_early)
        memcpy(opens_early, shape->opens_early, num_params * sizeof *opens_early);
    windows->shape.opens_early = opens_early;
    windows->windows = calloc(shape->num_windows, sizeof *windows->windows);
    if (opens_early && windows->windows) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "gradient windows: out of memory");
}

void gs_grad_windows_release(gs_grad_windows *windows) {
    free((void *)windows->shape.opens_early);
    free(windows->windows);
    *windows = (gs_grad_windows){0};
}

static bool opens_early(const gs_grad_windows *windows, const gs_bucket *bucket) {
    for (size_t i = 0; i < bucket->num_params; i++) {
        if (windows->shape.opens_early[bucket->params[i]]) return true;
    }
    return false;
}

static size_t place_bytes(const gs_bucket *bucket) {
    size_t count = bucket->grad_count + bucket->reserved_count;
    return gs_round_up(count * bucket->element_bytes, GS_BUCKET_BYTES);
}

// Who takes which window, in plan order.
static void deal(const gs_grad_windows *windows, gs_bucket *buckets, size_t num_buckets) {
    size_t num_dealt = 0;
    for (size_t w = 0; w < windows->shape.num_windows; w++)
        windows->windows[w] = (gs_grad_window){.last = GS_NO_BUCKET};
    for (size_t b = 0; b < num_buckets; b++) {
        gs_bucket *bucket = &buckets[b];
        bucket->in_window = !opens_early(windows, bucket);
        if (!bucket->in_window) continue;
        bucket->window = num_dealt++ % windows->shape.num_windows;
        gs_grad_window *window = &windows->windows[bucket->window];
        bucket->before = window->last;
        window->last = b;
        if (place_bytes(bucket) > window->bytes) window->bytes = place_bytes(bucket);
    }
}

static void move(gs_bucket *bucket, size_t offset_bytes, size_t *param_offset_bytes) {
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t *param = &param_offset_bytes[bucket->params[i]];
        *param = *param - bucket->offset_bytes + offset_bytes;
    }
    bucket->offset_bytes = offset_bytes;
}

static size_t place_grads(const gs_grad_windows *windows, gs_bucket *buckets, size_t num_buckets,
                          size_t *param_offset_bytes) {
    size_t offset = 0;
    for (size_t w = 0; w < windows->shape.num_windows; w++) {
        windows->windows[w].offset_bytes = offset;
        offset += windows->windows[w].bytes;
    }
    for (size_t b = 0; b < num_buckets; b++) {
        gs_bucket *bucket = &buckets[b];
        if (bucket->in_window) {
            move(bucket, windows->windows[bucket->window].offset_bytes, param_offset_bytes);
            continue;
        }
        move(bucket, offset, param_offset_bytes);
        offset += place_bytes(bucket);
    }
    return offset;
}

// The own part of what takes a window, or is to be added up; all others lie where they were
// reduced.
static size_t place_results(const gs_grad_windows *windows, gs_bucket *buckets, size_t num_buckets,
                            size_t offset) {
    const gs_windows_shape *shape = &windows->shape;
    for (size_t b = 0; b < num_buckets; b++) {
        gs_bucket *bucket = &buckets[b];
        bucket->result =
            (gs_bucket_result){.count = bucket->grad_count, .offset_bytes = bucket->offset_bytes};
        if (!bucket->in_window && !(shape->num_windows && shape->adds_up)) continue;
        size_t count = bucket->grad_count / shape->num_parts;
        bucket->result = (gs_bucket_result){.first = shape->own_part * count,
                                            .count = count,
                                            .offset_bytes = offset,
                                            .is_apart = true};
        offset += gs_round_up(count * bucket->element_bytes, GS_LINE_BYTES);
    }
    return gs_round_up(offset, GS_BUCKET_BYTES);
}

size_t gs_grad_windows_place(const gs_grad_windows *windows, gs_bucket *buckets, size_t num_buckets,
                             size_t *param_offset_bytes) {
    size_t end = 0;
    if (windows->shape.num_windows) {
        deal(windows, buckets, num_buckets);
        end = place_grads(windows, buckets, num_buckets, param_offset_bytes);
    }
    return place_results(windows, buckets, num_buckets, end);
}
