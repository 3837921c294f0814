#include "kernels/cpu/matmul.h"

#include <limits.h>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/chunks.h"

static void scale_rows(float *c, size_t m, size_t n, size_t stride, float beta) {
    for (size_t row = 0; row < m; row++) {
        for (size_t col = 0; col < n; col++) {
            c[row * stride + col] = beta == 0.0f ? 0.0f : beta * c[row * stride + col];
        }
    }
}

void gs_cpu_multiply(float *c, const float *a, const float *b, const gs_matmul *shape) {
    if (shape->m == 0 || shape->n == 0) return;
    if (shape->k == 0) {
        scale_rows(c, shape->m, shape->n, shape->stride_c, shape->beta);
        return;
    }
    gs_blas_multiply(c, a, b, shape);
}

// Blocks of C for the threads, by the shape alone: the kernels of BLAS may round an element
// differently in a block of another size. Blocks of 192 columns or more cost one thread 2–4 %.
typedef struct grid {
    size_t row_blocks, col_blocks;
} grid;

#define MAX_BLOCKS 32
#define LEAST_SPLIT_FLOPS 2e6

static size_t count_blocks(size_t extent, size_t max_blocks, size_t least_pair, size_t least) {
    size_t blocks = 1;
    while (2 * blocks <= max_blocks &&
           extent / (2 * blocks) >= (blocks == 1 ? least_pair : least)) {
        blocks *= 2;
    }
    return blocks;
}

static grid plan_grid(const gs_matmul *shape) {
    grid plan = {1, 1};
    double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
    if (flops < LEAST_SPLIT_FLOPS) return plan;
    // Splitting along the longer side repeats the packing of the shorter operand.
    if (shape->m > shape->n) {
        plan.row_blocks = count_blocks(shape->m, MAX_BLOCKS, 128, 192);
        plan.col_blocks = count_blocks(shape->n, MAX_BLOCKS / plan.row_blocks, 512, 512);
    } else {
        plan.col_blocks = count_blocks(shape->n, MAX_BLOCKS, 128, 192);
        plan.row_blocks = count_blocks(shape->m, MAX_BLOCKS / plan.col_blocks, 512, 512);
    }
    return plan;
}

typedef struct product {
    float *c;
    const float *a, *b;
    gs_matmul shape;
    grid plan;
    size_t block_rows, block_cols;
} product;

static void multiply_block(void *ctx, size_t item) {
    const product *job = ctx;
    gs_range rows = gs_item_range(item / job->plan.col_blocks, job->block_rows, job->shape.m);
    gs_range cols = gs_item_range(item % job->plan.col_blocks, job->block_cols, job->shape.n);
    gs_matmul part = job->shape;
    part.m = rows.count;
    part.n = cols.count;
    gs_cpu_multiply(job->c + rows.first * part.stride_c + cols.first,
                    job->a + (part.transpose_a ? rows.first : rows.first * part.stride_a),
                    job->b + (part.transpose_b ? cols.first * part.stride_b : cols.first), &part);
}

static size_t block_size(size_t extent, size_t blocks) {
    size_t size = gs_num_items(extent, blocks);
    return blocks == 1 ? extent : gs_num_items(size, 16) * 16;
}

void gs_cpu_matmul(gs_stream *stream, float *c, const float *a, const float *b,
                   const gs_matmul *shape) {
    product job = {.c = c, .a = a, .b = b, .shape = *shape};
    gs_matmul *s = &job.shape;
    if (!s->stride_a) s->stride_a = s->transpose_a ? s->m : s->k;
    if (!s->stride_b) s->stride_b = s->transpose_b ? s->k : s->n;
    if (!s->stride_c) s->stride_c = s->n;
    if (s->m == 0 || s->n == 0) return;
    const size_t most = INT_MAX;
    if (s->m > most || s->n > most || s->k > most || s->stride_a > most || s->stride_b > most ||
        s->stride_c > most) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT, "matmul: %zu×%zu×%zu is beyond 2^31 - 1", s->m,
                                s->n, s->k));
        return;
    }
    job.plan = plan_grid(s);
    job.block_rows = block_size(s->m, job.plan.row_blocks);
    job.block_cols = block_size(s->n, job.plan.col_blocks);
    // Rounding blocks up to whole registers may leave fewer of them.
    job.plan.row_blocks = gs_num_items(s->m, job.block_rows);
    job.plan.col_blocks = gs_num_items(s->n, job.block_cols);
    gs_stream_for_each(stream, job.plan.row_blocks * job.plan.col_blocks, multiply_block, &job);
}
