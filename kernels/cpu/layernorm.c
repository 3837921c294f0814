// Layer norm over the last dimension: eps 1e-5, variance divided by C.
#include <math.h>
#include <string.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

#define EPS 1e-5f

typedef struct norm_job {
    float *out, *mean, *rstd;
    float *residual; // NULL: normalise `a`
    const float *a, *b, *bias_b, *weight, *bias;
    size_t rows, channels, rows_per_item;
} norm_job;

GS_INLINE void normalise_row(const norm_job *job, size_t row, const float *x) {
    const size_t channels = job->channels;
    const float *weight = job->weight, *bias = job->bias;
    float sum, squares;
    GS_LANE_SUM(float, sum, i, channels, x[i]);
    const float mean = sum / (float)channels;
    GS_LANE_SUM(float, squares, i, channels, (x[i] - mean) * (x[i] - mean));
    const float rstd = 1.0f / sqrtf(squares / (float)channels + EPS);
    float *out = job->out + row * channels;
    GS_ELEMENTWISE
    for (size_t i = 0; i < channels; i++) out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
    job->mean[row] = mean;
    job->rstd[row] = rstd;
}

GS_INLINE void add_residual(const norm_job *job, size_t row) {
    const size_t first = row * job->channels;
    float *residual = job->residual + first;
    const float *a = job->a + first, *b = job->b + first, *bias_b = job->bias_b;
    if (bias_b) {
        GS_ELEMENTWISE
        for (size_t i = 0; i < job->channels; i++) residual[i] = a[i] + (b[i] + bias_b[i]);
    } else {
        GS_ELEMENTWISE
        for (size_t i = 0; i < job->channels; i++) residual[i] = a[i] + b[i];
    }
}

static void layernorm_item(void *ctx, size_t item) {
    const norm_job *job = ctx;
    gs_range rows = gs_item_range(item, job->rows_per_item, job->rows);
    for (size_t row = rows.first; row < rows.first + rows.count; row++) {
        if (job->residual) add_residual(job, row);
        normalise_row(job, row, (job->residual ? job->residual : job->a) + row * job->channels);
    }
}

static void run_norm(gs_stream *stream, norm_job *job) {
    job->rows_per_item = gs_rows_per_item(job->channels);
    gs_stream_for_each(stream, gs_num_items(job->rows, job->rows_per_item), layernorm_item, job);
}

void GS_CPU(layernorm)(gs_stream *stream, float *out, float *mean, float *rstd, const float *x,
                       const float *weight, const float *bias, size_t rows, size_t channels) {
    norm_job job = {.out = out,
                    .mean = mean,
                    .rstd = rstd,
                    .a = x,
                    .weight = weight,
                    .bias = bias,
                    .rows = rows,
                    .channels = channels};
    run_norm(stream, &job);
}

void GS_CPU(residual_layernorm)(gs_stream *stream, float *residual, float *out, float *mean,
                                float *rstd, const float *a, const float *b, const float *bias_b,
                                const float *weight, const float *bias, size_t rows,
                                size_t channels) {
    norm_job job = {.out = out,
                    .mean = mean,
                    .rstd = rstd,
                    .residual = residual,
                    .a = a,
                    .b = b,
                    .bias_b = bias_b,
                    .weight = weight,
                    .bias = bias,
                    .rows = rows,
                    .channels = channels};
    run_norm(stream, &job);
}

// Rows are cut into at most MAX_PARTS parts. Each sums its rows of dweight and dbias into its own
// row of scratch; then the parts are added up in order, columns in parallel.
#define MAX_PARTS 64
#define LEAST_PART_ROWS 8
#define FOLD_COLS ((size_t)256)

typedef struct norm_backward_job {
    float *dx, *dweight, *dbias, *scratch;
    const float *dy, *x, *weight, *mean, *rstd;
    size_t rows, channels, rows_per_part, num_parts;
    bool accumulate;
} norm_backward_job;

static void layernorm_backward_part(void *ctx, size_t part) {
    const norm_backward_job *job = ctx;
    const size_t channels = job->channels;
    gs_range rows = gs_item_range(part, job->rows_per_part, job->rows);
    const float *weight = job->weight;
    float *dweight = job->scratch + part * 2 * channels, *dbias = dweight + channels;
    memset(dweight, 0, 2 * channels * sizeof *dweight);
    for (size_t row = rows.first; row < rows.first + rows.count; row++) {
        const float *dy = job->dy + row * channels, *x = job->x + row * channels;
        float *dx = job->dx + row * channels;
        const float mean = job->mean[row], rstd = job->rstd[row];
        float sum, dot;
        GS_LANE_SUM(float, sum, i, channels, dy[i] * weight[i]);
        GS_LANE_SUM(float, dot, i, channels, dy[i] * weight[i] * ((x[i] - mean) * rstd));
        sum /= (float)channels;
        dot /= (float)channels;
        GS_ELEMENTWISE
        for (size_t i = 0; i < channels; i++) {
            float normal = (x[i] - mean) * rstd;
            dweight[i] += dy[i] * normal;
            dbias[i] += dy[i];
            dx[i] += (dy[i] * weight[i] - sum - normal * dot) * rstd;
        }
    }
}

static void fold_parts(void *ctx, size_t item) {
    const norm_backward_job *job = ctx;
    gs_range cols = gs_item_range(item, FOLD_COLS, job->channels);
    for (size_t i = cols.first; i < cols.first + cols.count; i++) {
        float dweight = 0.0f, dbias = 0.0f;
        for (size_t part = 0; part < job->num_parts; part++) {
            const float *sums = job->scratch + part * 2 * job->channels;
            dweight += sums[i];
            dbias += sums[job->channels + i];
        }
        job->dweight[i] = job->accumulate ? job->dweight[i] + dweight : dweight;
        job->dbias[i] = job->accumulate ? job->dbias[i] + dbias : dbias;
    }
}

void GS_CPU(layernorm_backward)(gs_stream *stream, float *dx, float *dweight, float *dbias,
                                float *scratch, const float *dy, const float *x,
                                const float *weight, const float *mean, const float *rstd,
                                size_t rows, size_t channels, bool accumulate) {
    norm_backward_job job = {.dx = dx,
                             .dweight = dweight,
                             .dbias = dbias,
                             .scratch = scratch,
                             .dy = dy,
                             .x = x,
                             .weight = weight,
                             .mean = mean,
                             .rstd = rstd,
                             .rows = rows,
                             .channels = channels,
                             .accumulate = accumulate};
    job.rows_per_part = gs_num_items(rows, MAX_PARTS);
    if (job.rows_per_part < LEAST_PART_ROWS) job.rows_per_part = LEAST_PART_ROWS;
    job.num_parts = gs_num_items(rows, job.rows_per_part);
    gs_stream_for_each(stream, job.num_parts, layernorm_backward_part, &job);
    gs_stream_for_each(stream, gs_num_items(channels, FOLD_COLS), fold_parts, &job);
}
