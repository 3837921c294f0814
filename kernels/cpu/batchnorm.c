// Batch norm over the rows, for each channel, in one piece and in parts. Items are blocks of channels;
// sums over rows are fp64, in row order.
#include <math.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"

#define COLS ((size_t)64)

typedef struct batchnorm_job {
    float *out, *save_mean, *save_rstd, *next_mean, *next_var;
    float *dx, *dweight, *dbias;
    const float *x, *dy, *weight, *bias, *running_mean, *running_var;
    const float *saved_mean, *saved_rstd;
    double *mean_part, *m2_part, *sum_part, *dot_part;  // outputs of a part
    const double *mean, *m2, *sum, *dot;                // of all parts
    double total_rows;
    gs_batchnorm shape;
    bool accumulate;
} batchnorm_job;

static void run_blocks(gs_stream *stream, const batchnorm_job *job,
                       void (*body)(void *ctx, size_t item)) {
    gs_stream_for_each(stream, gs_num_items(job->shape.channels, COLS), body, (void *)job);
}

// out = (x − mean)·rstd·weight + bias
static void normalise_cols(const batchnorm_job *job, gs_range cols, const float *mean,
                           const float *rstd) {
    const float *weight = job->weight + cols.first, *bias = job->bias + cols.first;
    for (size_t row = 0; row < job->shape.rows; row++) {
        const float *x = job->x + row * job->shape.channels + cols.first;
        float *out = job->out + row * job->shape.channels + cols.first;
        GS_ELEMENTWISE
        for (size_t i = 0; i < cols.count; i++) {
            out[i] = (x[i] - mean[i]) * rstd[i] * weight[i] + bias[i];
        }
    }
}

static void measure_cols(const batchnorm_job *job, gs_range cols, double mean[COLS],
                         double squares[COLS]) {
    const size_t channels = job->shape.channels;
    double sum[COLS] = {0};
    for (size_t row = 0; row < job->shape.rows; row++) {
        const float *x = job->x + row * channels + cols.first;
        for (size_t i = 0; i < cols.count; i++) sum[i] += (double)x[i];
    }
    for (size_t i = 0; i < COLS; i++) {
        mean[i] = job->shape.rows ? sum[i] / (double)job->shape.rows : 0.0;
        squares[i] = 0.0;
    }
    for (size_t row = 0; row < job->shape.rows; row++) {
        const float *x = job->x + row * channels + cols.first;
        for (size_t i = 0; i < cols.count; i++) {
            double distance = (double)x[i] - mean[i];
            squares[i] += distance * distance;
        }
    }
}

// Running and saved statistics of these columns, and the result.
static void apply_cols(const batchnorm_job *job, gs_range cols, const double *mean,
                       const double *squares, double rows) {
    const double momentum = (double)job->shape.momentum;
    float mean_fp32[COLS], rstd[COLS];
    for (size_t i = 0; i < cols.count; i++) {
        const size_t c = cols.first + i;
        mean_fp32[i] = (float)mean[i];
        rstd[i] = (float)(1.0 / sqrt(squares[i] / rows + (double)job->shape.eps));
        job->save_mean[c] = mean_fp32[i];
        job->save_rstd[c] = rstd[i];
        job->next_mean[c] =
            (float)((1.0 - momentum) * (double)job->running_mean[c] + momentum * mean[i]);
        job->next_var[c] = (float)((1.0 - momentum) * (double)job->running_var[c] +
                                   momentum * (squares[i] / (rows - 1.0)));
    }
    normalise_cols(job, cols, mean_fp32, rstd);
}

static void batchnorm_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    double mean[COLS], squares[COLS];
    measure_cols(job, cols, mean, squares);
    apply_cols(job, cols, mean, squares, (double)job->shape.rows);
}

static void fail_few_rows(gs_stream *stream, double rows) {
    gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT,
                                    "batchnorm: training needs at least 2 rows, got %.0f: the "
                                    "unbiased variance divides by rows - 1",
                                    rows));
}

void GS_CPU(batchnorm)(gs_stream *stream, float *out, float *save_mean, float *save_rstd,
                       float *next_running_mean, float *next_running_var, const float *x,
                       const float *weight, const float *bias, const float *running_mean,
                       const float *running_var, const gs_batchnorm *shape) {
    if (shape->rows < 2) {
        fail_few_rows(stream, (double)shape->rows);
        return;
    }
    batchnorm_job job = {.out = out,
                         .save_mean = save_mean,
                         .save_rstd = save_rstd,
                         .next_mean = next_running_mean,
                         .next_var = next_running_var,
                         .x = x,
                         .weight = weight,
                         .bias = bias,
                         .running_mean = running_mean,
                         .running_var = running_var,
                         .shape = *shape};
    run_blocks(stream, &job, batchnorm_item);
}

static void batchnorm_eval_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    float rstd[COLS];
    for (size_t i = 0; i < cols.count; i++) {
        rstd[i] = 1.0f / sqrtf(job->running_var[cols.first + i] + job->shape.eps);
    }
    normalise_cols(job, cols, job->running_mean + cols.first, rstd);
}

void GS_CPU(batchnorm_eval)(gs_stream *stream, float *out, const float *x, const float *weight,
                            const float *bias, const float *running_mean, const float *running_var,
                            const gs_batchnorm *shape) {
    batchnorm_job job = {.out = out,
                         .x = x,
                         .weight = weight,
                         .bias = bias,
                         .running_mean = running_mean,
                         .running_var = running_var,
                         .shape = *shape};
    run_blocks(stream, &job, batchnorm_eval_item);
}

static void sum_cols(const batchnorm_job *job, gs_range cols, double sum[COLS], double dot[COLS]) {
    const size_t channels = job->shape.channels;
    const float *mean = job->saved_mean + cols.first, *rstd = job->saved_rstd + cols.first;
    for (size_t row = 0; row < job->shape.rows; row++) {
        const float *x = job->x + row * channels + cols.first;
        const float *dy = job->dy + row * channels + cols.first;
        for (size_t i = 0; i < cols.count; i++) {
            sum[i] += (double)dy[i];
            dot[i] += (double)dy[i] * (double)((x[i] - mean[i]) * rstd[i]);
        }
    }
    for (size_t i = 0; i < cols.count; i++) {
        const size_t c = cols.first + i;
        job->dweight[c] = job->accumulate ? job->dweight[c] + (float)dot[i] : (float)dot[i];
        job->dbias[c] = job->accumulate ? job->dbias[c] + (float)sum[i] : (float)sum[i];
    }
}

// dx = weight·rstd·(dy − mean(dy) − x̂·mean(dy·x̂))
static void spread_cols(const batchnorm_job *job, gs_range cols, const double *sum,
                        const double *dot, double rows) {
    const size_t channels = job->shape.channels;
    const float *mean = job->saved_mean + cols.first, *rstd = job->saved_rstd + cols.first;
    float factor[COLS], mean_dy[COLS], mean_dot[COLS];
    for (size_t i = 0; i < cols.count; i++) {
        factor[i] = job->weight[cols.first + i] * rstd[i];
        mean_dy[i] = (float)(sum[i] / rows);
        mean_dot[i] = (float)(dot[i] / rows);
    }
    for (size_t row = 0; row < job->shape.rows; row++) {
        const float *x = job->x + row * channels + cols.first;
        const float *dy = job->dy + row * channels + cols.first;
        float *dx = job->dx + row * channels + cols.first;
        GS_ELEMENTWISE
        for (size_t i = 0; i < cols.count; i++) {
            float normal = (x[i] - mean[i]) * rstd[i];
            dx[i] = factor[i] * (dy[i] - mean_dy[i] - normal * mean_dot[i]);
        }
    }
}

static void batchnorm_backward_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    double sum[COLS] = {0}, dot[COLS] = {0};
    sum_cols(job, cols, sum, dot);
    spread_cols(job, cols, sum, dot, (double)job->shape.rows);
}

void GS_CPU(batchnorm_backward)(gs_stream *stream, float *dx, float *dweight, float *dbias,
                                const float *dy, const float *x, const float *weight,
                                const float *save_mean, const float *save_rstd,
                                const gs_batchnorm *shape, bool accumulate) {
    batchnorm_job job = {.dx = dx,
                         .dweight = dweight,
                         .dbias = dbias,
                         .dy = dy,
                         .x = x,
                         .weight = weight,
                         .saved_mean = save_mean,
                         .saved_rstd = save_rstd,
                         .shape = *shape,
                         .accumulate = accumulate};
    run_blocks(stream, &job, batchnorm_backward_item);
}

static void batchnorm_measure_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    double mean[COLS], squares[COLS];
    measure_cols(job, cols, mean, squares);
    for (size_t i = 0; i < cols.count; i++) {
        job->mean_part[cols.first + i] = mean[i];
        job->m2_part[cols.first + i] = squares[i];
    }
}

void GS_CPU(batchnorm_measure)(gs_stream *stream, double *mean, double *m2, const float *x,
                               const gs_batchnorm *shape) {
    batchnorm_job job = {.mean_part = mean, .m2_part = m2, .x = x, .shape = *shape};
    run_blocks(stream, &job, batchnorm_measure_item);
}

static void batchnorm_apply_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    apply_cols(job, cols, job->mean + cols.first, job->m2 + cols.first, job->total_rows);
}

void GS_CPU(batchnorm_apply)(gs_stream *stream, float *out, float *save_mean, float *save_rstd,
                             float *next_running_mean, float *next_running_var, const float *x,
                             const float *weight, const float *bias, const float *running_mean,
                             const float *running_var, const double *mean, const double *m2,
                             double total_rows, const gs_batchnorm *shape) {
    if (total_rows < 2.0) {
        fail_few_rows(stream, total_rows);
        return;
    }
    batchnorm_job job = {.out = out,
                         .save_mean = save_mean,
                         .save_rstd = save_rstd,
                         .next_mean = next_running_mean,
                         .next_var = next_running_var,
                         .x = x,
                         .weight = weight,
                         .bias = bias,
                         .running_mean = running_mean,
                         .running_var = running_var,
                         .mean = mean,
                         .m2 = m2,
                         .total_rows = total_rows,
                         .shape = *shape};
    run_blocks(stream, &job, batchnorm_apply_item);
}

static void batchnorm_sums_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    double sum[COLS] = {0}, dot[COLS] = {0};
    sum_cols(job, cols, sum, dot);
    for (size_t i = 0; i < cols.count; i++) {
        job->sum_part[cols.first + i] = sum[i];
        job->dot_part[cols.first + i] = dot[i];
    }
}

void GS_CPU(batchnorm_sums)(gs_stream *stream, double *sum, double *dot, float *dweight,
                            float *dbias, const float *dy, const float *x, const float *save_mean,
                            const float *save_rstd, const gs_batchnorm *shape, bool accumulate) {
    batchnorm_job job = {.sum_part = sum,
                         .dot_part = dot,
                         .dweight = dweight,
                         .dbias = dbias,
                         .dy = dy,
                         .x = x,
                         .saved_mean = save_mean,
                         .saved_rstd = save_rstd,
                         .shape = *shape,
                         .accumulate = accumulate};
    run_blocks(stream, &job, batchnorm_sums_item);
}

static void batchnorm_backward_apply_item(void *ctx, size_t item) {
    const batchnorm_job *job = ctx;
    const gs_range cols = gs_item_range(item, COLS, job->shape.channels);
    spread_cols(job, cols, job->sum + cols.first, job->dot + cols.first, job->total_rows);
}

void GS_CPU(batchnorm_backward_apply)(gs_stream *stream, float *dx, const float *dy,
                                      const float *x, const float *weight, const float *save_mean,
                                      const float *save_rstd, const double *sum, const double *dot,
                                      double total_rows, const gs_batchnorm *shape) {
    batchnorm_job job = {.dx = dx,
                         .dy = dy,
                         .x = x,
                         .weight = weight,
                         .saved_mean = save_mean,
                         .saved_rstd = save_rstd,
                         .sum = sum,
                         .dot = dot,
                         .total_rows = total_rows,
                         .shape = *shape};
    run_blocks(stream, &job, batchnorm_backward_apply_item);
}
