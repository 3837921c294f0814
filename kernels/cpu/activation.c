// Bias, GELU and ReLU: what stands between the matrix products of a layer.
#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/math.h"

typedef struct rows_job {
    float *out, *x;
    const float *bias;
    size_t rows, cols, rows_per_item;
} rows_job;

static void bias_add_item(void *ctx, size_t item) {
    const rows_job *job = ctx;
    gs_range rows = gs_item_range(item, job->rows_per_item, job->rows);
    const float *bias = job->bias;
    for (size_t row = rows.first; row < rows.first + rows.count; row++) {
        float *x = job->x + row * job->cols;
        GS_ELEMENTWISE
        for (size_t i = 0; i < job->cols; i++) x[i] += bias[i];
    }
}

void GS_CPU(bias_add)(gs_stream *stream, float *x, const float *bias, size_t rows, size_t cols) {
    rows_job job = {.x = x, .bias = bias, .rows = rows, .cols = cols};
    job.rows_per_item = gs_rows_per_item(cols);
    gs_stream_for_each(stream, gs_num_items(rows, job.rows_per_item), bias_add_item, &job);
}

static void bias_gelu_item(void *ctx, size_t item) {
    const rows_job *job = ctx;
    gs_range rows = gs_item_range(item, job->rows_per_item, job->rows);
    const float *bias = job->bias;
    for (size_t row = rows.first; row < rows.first + rows.count; row++) {
        float *x = job->x + row * job->cols, *out = job->out + row * job->cols;
        GS_ELEMENTWISE
        for (size_t i = 0; i < job->cols; i++) {
            float sum = x[i] + bias[i];
            x[i] = sum;
            out[i] = gelu_fp32(sum);
        }
    }
}

void GS_CPU(bias_gelu)(gs_stream *stream, float *out, float *x, const float *bias, size_t rows,
                       size_t cols) {
    rows_job job = {.out = out, .x = x, .bias = bias, .rows = rows, .cols = cols};
    job.rows_per_item = gs_rows_per_item(cols);
    gs_stream_for_each(stream, gs_num_items(rows, job.rows_per_item), bias_gelu_item, &job);
}

// Columns for one item, and rows for one partial sum: pairs of short sums lose fewer digits than
// one long one.
#define BIAS_COLS ((size_t)128)
#define BIAS_ROWS ((size_t)64)

typedef struct column_sums {
    float *sums;
    const float *in;
    size_t rows, cols;
    bool accumulate;
} column_sums;

GS_INLINE void sum_columns(const column_sums *job, size_t first_col, const size_t cols) {
    float total[BIAS_COLS] = {0};
    for (size_t first_row = 0; first_row < job->rows; first_row += BIAS_ROWS) {
        size_t end_row = job->rows - first_row < BIAS_ROWS ? job->rows : first_row + BIAS_ROWS;
        float part[BIAS_COLS] = {0};
        for (size_t row = first_row; row < end_row; row++) {
            const float *in = job->in + row * job->cols + first_col;
            for (size_t i = 0; i < cols; i++) part[i] += in[i];
        }
        for (size_t i = 0; i < cols; i++) total[i] += part[i];
    }
    float *sums = job->sums + first_col;
    for (size_t i = 0; i < cols; i++) sums[i] = job->accumulate ? sums[i] + total[i] : total[i];
}

static void bias_backward_item(void *ctx, size_t item) {
    const column_sums *job = ctx;
    gs_range cols = gs_item_range(item, BIAS_COLS, job->cols);
    if (cols.count == BIAS_COLS) {
        sum_columns(job, cols.first, BIAS_COLS);
    } else {
        sum_columns(job, cols.first, cols.count);
    }
}

void GS_CPU(bias_backward)(gs_stream *stream, float *dbias, const float *dy, size_t rows,
                           size_t cols, bool accumulate) {
    column_sums job = {dbias, dy, rows, cols, accumulate};
    gs_stream_for_each(stream, gs_num_items(cols, BIAS_COLS), bias_backward_item, &job);
}

typedef struct flat_job {
    float *out;
    const float *a, *b;
    size_t count;
} flat_job;

static void gelu_backward_item(void *ctx, size_t item) {
    const flat_job *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *dx = job->out + range.first;
    const float *dy = job->a + range.first, *x = job->b + range.first;
    GS_ELEMENTWISE
    for (size_t i = 0; i < range.count; i++) dx[i] = dy[i] * gelu_slope_fp32(x[i]);
}

void GS_CPU(gelu_backward)(gs_stream *stream, float *dx, const float *dy, const float *x,
                           size_t count) {
    flat_job job = {dx, dy, x, count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), gelu_backward_item, &job);
}

static void relu_item(void *ctx, size_t item) {
    const flat_job *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *out = job->out + range.first;
    const float *in = job->a + range.first;
    GS_ELEMENTWISE
    for (size_t i = 0; i < range.count; i++) out[i] = in[i] <= 0.0f ? 0.0f : in[i];
}

void GS_CPU(relu)(gs_stream *stream, float *out, const float *in, size_t count) {
    flat_job job = {.out = out, .a = in, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), relu_item, &job);
}

static void relu_backward_item(void *ctx, size_t item) {
    const flat_job *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *dx = job->out + range.first;
    const float *dy = job->a + range.first, *out = job->b + range.first;
    GS_ELEMENTWISE
    for (size_t i = 0; i < range.count; i++) dx[i] = out[i] <= 0.0f ? 0.0f : dy[i];
}

void GS_CPU(relu_backward)(gs_stream *stream, float *dx, const float *dy, const float *out,
                           size_t count) {
    flat_job job = {dx, dy, out, count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), relu_backward_item, &job);
}
