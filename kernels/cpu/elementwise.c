// Elementwise work over flat arrays, and the two counts that clipping and skipping need.
#include <string.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

typedef struct arrays {
    float *out;
    const float *a, *b;
    float factor;
    size_t count;
} arrays;

static void fill_item(void *ctx, size_t item) {
    const arrays *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *out = job->out + range.first;
    const float value = job->factor;
    for (size_t i = 0; i < range.count; i++) out[i] = value;
}

void GS_CPU(fill)(gs_stream *stream, float *out, float value, size_t count) {
    arrays job = {.out = out, .factor = value, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), fill_item, &job);
}

typedef struct bytes_copy {
    char *out;
    const char *in;
    size_t bytes;
} bytes_copy;

#define COPY_CHUNK_BYTES (4 * GS_CHUNK)

static void copy_item(void *ctx, size_t item) {
    const bytes_copy *job = ctx;
    gs_range range = gs_item_range(item, COPY_CHUNK_BYTES, job->bytes);
    memcpy(job->out + range.first, job->in + range.first, range.count);
}

void GS_CPU(copy)(gs_stream *stream, void *out, const void *in, size_t bytes) {
    if (out == in) return;
    bytes_copy job = {out, in, bytes};
    gs_stream_for_each(stream, gs_num_items(bytes, COPY_CHUNK_BYTES), copy_item, &job);
}

static void add_item(void *ctx, size_t item) {
    const arrays *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *out = job->out + range.first;
    const float *a = job->a + range.first, *b = job->b + range.first;
    GS_ELEMENTWISE
    for (size_t i = 0; i < range.count; i++) out[i] = a[i] + b[i];
}

void GS_CPU(add)(gs_stream *stream, float *out, const float *a, const float *b, size_t count) {
    arrays job = {.out = out, .a = a, .b = b, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), add_item, &job);
}

static void scale_item(void *ctx, size_t item) {
    const arrays *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *out = job->out + range.first;
    const float *in = job->a + range.first, factor = job->factor;
    GS_ELEMENTWISE
    for (size_t i = 0; i < range.count; i++) out[i] = in[i] * factor;
}

void GS_CPU(scale)(gs_stream *stream, float *out, const float *in, float factor, size_t count) {
    arrays job = {.out = out, .a = in, .factor = factor, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), scale_item, &job);
}

static void axpy_item(void *ctx, size_t item) {
    const arrays *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *y = job->out + range.first;
    const float *x = job->a + range.first, a = job->factor;
    GS_ELEMENTWISE
    for (size_t i = 0; i < range.count; i++) y[i] += a * x[i];
}

void GS_CPU(axpy)(gs_stream *stream, float *y, const float *x, float a, size_t count) {
    arrays job = {.out = y, .a = x, .factor = a, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), axpy_item, &job);
}

// At most MAX_SUMS items, so that their sums fit on the stack; the cut depends on the count alone.
#define MAX_SUMS 256

typedef struct squares {
    const float *in;
    size_t count, item_count;
    double sums[MAX_SUMS];
} squares;

static void sum_squares_item(void *ctx, size_t item) {
    squares *job = ctx;
    gs_range range = gs_item_range(item, job->item_count, job->count);
    const float *in = job->in + range.first;
    // Squares of fp32 are exact in fp64, and none overflows.
    GS_LANE_SUM(double, job->sums[item], i, range.count, (double)in[i] * (double)in[i]);
}

void GS_CPU(sum_squares)(gs_stream *stream, double *out, const float *in, size_t count) {
    squares job = {.in = in, .count = count};
    job.item_count = GS_CHUNK * gs_num_items(gs_num_items(count, GS_CHUNK), MAX_SUMS);
    size_t num_items = count ? gs_num_items(count, job.item_count) : 0;
    gs_stream_for_each(stream, num_items, sum_squares_item, &job);
    double total = 0.0;
    for (size_t item = 0; item < num_items; item++) total += job.sums[item];
    *out = total;
}

typedef struct nonfinite {
    const float *in;
    size_t count;
    uint64_t total;
} nonfinite;

static void count_nonfinite_item(void *ctx, size_t item) {
    nonfinite *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    const float *in = job->in + range.first;
    uint32_t found = 0;
    for (size_t i = 0; i < range.count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        found += (bits & 0x7f800000u) == 0x7f800000u;
    }
    if (found) __atomic_fetch_add(&job->total, found, __ATOMIC_RELAXED);
}

void GS_CPU(count_nonfinite)(gs_stream *stream, uint64_t *out, const float *in, size_t count) {
    nonfinite job = {.in = in, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), count_nonfinite_item, &job);
    *out = job.total;
}
