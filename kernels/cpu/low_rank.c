// PowerSGD's dense passes over all matrices of a bucket: M ≈ P·Qᵀ.
//
// The work of a launch is cut into blocks by the shapes alone: of rows where a row has its own
// result (p, the approximation), of columns where a column has (q). Threads take blocks of all
// matrices together.
#include <stdbool.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"

#define REAL float
#define LOW_RANK(name) name##_fp32
#include "kernels/cpu/low_rank_passes.h"
#define REAL double
#define LOW_RANK(name) name##_fp64
#include "kernels/cpu/low_rank_passes.h"

#define BLOCK_ELEMENTS ((size_t)32768)
#define STRIP ((size_t)1024)  // columns
// Matrices whose blocks are handed out together. Their first blocks are counted on the stack.
#define MOST_ITEMS ((size_t)64)

typedef struct low_rank_job {
    const gs_low_rank_item *items;
    size_t num_items;
    size_t first_blocks[MOST_ITEMS + 1];
    gs_dtype dtype;
    double grad_scale, held_scale, error_scale;
} low_rank_job;

static size_t rows_of_block(const gs_low_rank_item *item) {
    const size_t rows = BLOCK_ELEMENTS / item->cols;
    return rows < BLOCK_ROWS ? BLOCK_ROWS : rows - rows % BLOCK_ROWS;
}

static size_t count_row_blocks(const gs_low_rank_item *item) {
    return gs_num_items(item->rows, rows_of_block(item));
}

static size_t count_strips(const gs_low_rank_item *item) {
    return gs_num_items(item->cols, STRIP);
}

static void run_passes(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                       low_rank_job job, size_t (*count_blocks)(const gs_low_rank_item *item),
                       void (*body)(void *ctx, size_t block)) {
    for (size_t first = 0; first < num_items; first += MOST_ITEMS) {
        job.items = items + first;
        job.num_items = num_items - first < MOST_ITEMS ? num_items - first : MOST_ITEMS;
        for (size_t i = 0; i < job.num_items; i++)
            job.first_blocks[i + 1] = job.first_blocks[i] + count_blocks(&job.items[i]);
        gs_stream_for_each(stream, job.first_blocks[job.num_items], body, &job);
    }
}

// The matrix that `block` belongs to; *block becomes the one of it.
static const gs_low_rank_item *find_item(const low_rank_job *job, size_t *block) {
    size_t first = 0, end = job->num_items;
    while (end - first > 1) {
        const size_t middle = (first + end) / 2;
        if (job->first_blocks[middle] <= *block)
            first = middle;
        else
            end = middle;
    }
    *block -= job->first_blocks[first];
    return &job->items[first];
}

static void project_block(void *ctx, size_t block) {
    const low_rank_job *job = ctx;
    const gs_low_rank_item *item = find_item(job, &block);
    const gs_range rows = gs_item_range(block, rows_of_block(item), item->rows);
    if (job->dtype == GS_FP64)
        project_fp64(item, rows, job->grad_scale, job->held_scale);
    else
        project_fp32(item, rows, job->grad_scale, job->held_scale);
}

void GS_CPU(low_rank_project)(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                              gs_dtype dtype, double grad_scale, double held_scale) {
    const low_rank_job job = {.dtype = dtype, .grad_scale = grad_scale, .held_scale = held_scale};
    run_passes(stream, items, num_items, job, count_row_blocks, project_block);
}

static void back_project_strip(void *ctx, size_t strip) {
    const low_rank_job *job = ctx;
    const gs_low_rank_item *item = find_item(job, &strip);
    const gs_range cols = gs_item_range(strip, STRIP, item->cols);
    if (job->dtype == GS_FP64)
        back_project_fp64(item, cols);
    else
        back_project_fp32(item, cols);
}

void GS_CPU(low_rank_back_project)(gs_stream *stream, const gs_low_rank_item *items,
                                   size_t num_items, gs_dtype dtype) {
    run_passes(stream, items, num_items, (low_rank_job){.dtype = dtype}, count_strips,
               back_project_strip);
}

static void rebuild_block(void *ctx, size_t block) {
    const low_rank_job *job = ctx;
    const gs_low_rank_item *item = find_item(job, &block);
    const gs_range rows = gs_item_range(block, rows_of_block(item), item->rows);
    if (job->dtype == GS_FP64)
        rebuild_fp64(item, rows, job->error_scale);
    else
        rebuild_fp32(item, rows, job->error_scale);
}

void GS_CPU(low_rank_rebuild)(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                              gs_dtype dtype, double error_scale) {
    const low_rank_job job = {.dtype = dtype, .error_scale = error_scale};
    run_passes(stream, items, num_items, job, count_row_blocks, rebuild_block);
}
