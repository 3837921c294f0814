// One bit for each element and two means for each item (1-bit SGD: Seide et al., "1-Bit Stochastic Gradient Descent",
// Interspeech 2014): what a rank says of its gradients in a 32nd of the bytes. What that leaves out is owed.
//
// Means are of fp64 sums over chunks, in order. An infinity or a NaN makes the mean of its side such, so that
// every rank hears of it.
#include <string.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

// At most MAX_SUMS sums of a large item, on the stack.
#define MAX_SUMS 256

typedef struct side_sums {
    double above, below;  // sums of elements that are not below zero, and of those that are
    size_t num_below;
} side_sums;

typedef struct signs_job {
    const gs_residual_item *item;
    size_t chunk_count;  // a multiple of GS_CHUNK, so of 8
    uint8_t *bits;       // of the item
    void *means;
    // take_signs
    side_sums sums[MAX_SUMS];
    // add_signs
    int num_ranks;
    size_t stride_bytes;
} signs_job;

#define DEFINE_SUM_SIDES(name, type)                                                               \
    static void name(void *ctx, size_t chunk) {                                                    \
        signs_job *job = ctx;                                                                      \
        gs_range range = gs_item_range(chunk, job->chunk_count, job->item->count);                 \
        const type *error = (const type *)job->item->error + range.first;                          \
        side_sums *sums = &job->sums[chunk];                                                       \
        double total;                                                                              \
        GS_LANE_SUM(double, sums->above, i, range.count, error[i] < 0 ? 0.0 : (double)error[i]);   \
        GS_LANE_SUM(double, sums->below, i, range.count, error[i] < 0 ? (double)error[i] : 0.0);   \
        GS_LANE_SUM(double, total, i, range.count, error[i] < 0 ? 1.0 : 0.0);                      \
        sums->num_below = (size_t)total;                                                           \
    }

#define DEFINE_TAKE_SIGNS(name, type)                                                              \
    static void name(void *ctx, size_t chunk) {                                                    \
        const signs_job *job = ctx;                                                                \
        gs_range range = gs_item_range(chunk, job->chunk_count, job->item->count);                 \
        type *error = (type *)job->item->error + range.first;                                      \
        uint8_t *bits = job->bits + range.first / 8;                                               \
        const type above = ((const type *)job->means)[0], below = ((const type *)job->means)[1];   \
        for (size_t at = 0; at < range.count; at += 8) {                                           \
            size_t count = range.count - at < 8 ? range.count - at : 8;                            \
            unsigned byte = 0;                                                                     \
            for (size_t k = 0; k < count; k++) byte |= (unsigned)(error[at + k] < 0) << k;         \
            for (size_t k = 0; k < count; k++) error[at + k] -= byte >> k & 1 ? below : above;     \
            bits[at / 8] = (uint8_t)byte;                                                          \
        }                                                                                          \
    }

#define DEFINE_ADD_SIGNS(name, type)                                                               \
    static void name(void *ctx, size_t chunk) {                                                    \
        const signs_job *job = ctx;                                                                \
        gs_range range = gs_item_range(chunk, job->chunk_count, job->item->count);                 \
        type *grad = (type *)job->item->grad + range.first;                                        \
        for (int r = 0; r < job->num_ranks; r++) {                                                 \
            const size_t offset = (size_t)r * job->stride_bytes;                                   \
            const type *means = (const type *)((const char *)job->means + offset);                 \
            const uint8_t *bits = job->bits + offset + range.first / 8;                            \
            const type above = means[0], below = means[1];                                         \
            for (size_t i = 0; i < range.count; i++) {                                             \
                const type said = bits[i / 8] >> i % 8 & 1 ? below : above;                        \
                grad[i] = r ? grad[i] + said : said;                                               \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_SUM_SIDES(sum_sides_fp32, float)
DEFINE_SUM_SIDES(sum_sides_fp64, double)
DEFINE_TAKE_SIGNS(take_signs_fp32, float)
DEFINE_TAKE_SIGNS(take_signs_fp64, double)
DEFINE_ADD_SIGNS(add_signs_fp32, float)
DEFINE_ADD_SIGNS(add_signs_fp64, double)

static void store_means(const signs_job *job, size_t num_chunks, gs_dtype dtype) {
    side_sums all = {0};
    for (size_t c = 0; c < num_chunks; c++) {
        all.above += job->sums[c].above;
        all.below += job->sums[c].below;
        all.num_below += job->sums[c].num_below;
    }
    size_t num_above = job->item->count - all.num_below;
    double above = num_above ? all.above / (double)num_above : 0;
    double below = all.num_below ? all.below / (double)all.num_below : 0;
    if (dtype == GS_FP64) memcpy(job->means, (const double[]){above, below}, 2 * sizeof(double));
    else memcpy(job->means, (const float[]){(float)above, (float)below}, 2 * sizeof(float));
}

// In so many chunks.
static size_t open_item(signs_job *job, const gs_signs *signs, size_t i) {
    job->item = &signs->items[i];
    job->bits = signs->bits + job->item->first / 8;
    job->means = (char *)signs->means + 2 * i * gs_dtype_bytes(signs->dtype);
    job->chunk_count =
        GS_CHUNK * gs_num_items(gs_num_items(job->item->count, GS_CHUNK), MAX_SUMS);
    return job->chunk_count ? gs_num_items(job->item->count, job->chunk_count) : 0;
}

void GS_CPU(take_signs)(gs_stream *stream, const gs_signs *signs) {
    const bool is_wide = signs->dtype == GS_FP64;
    signs_job job = {0};
    for (size_t i = 0; i < signs->num_items; i++) {
        size_t num_chunks = open_item(&job, signs, i);
        gs_stream_for_each(stream, num_chunks, is_wide ? sum_sides_fp64 : sum_sides_fp32, &job);
        store_means(&job, num_chunks, signs->dtype);
        gs_stream_for_each(stream, num_chunks, is_wide ? take_signs_fp64 : take_signs_fp32, &job);
    }
}

void GS_CPU(add_signs)(gs_stream *stream, const gs_signs *signs, int num_ranks,
                       size_t stride_bytes) {
    const bool is_wide = signs->dtype == GS_FP64;
    signs_job job = {.num_ranks = num_ranks, .stride_bytes = stride_bytes};
    for (size_t i = 0; i < signs->num_items; i++) {
        size_t num_chunks = open_item(&job, signs, i);
        gs_stream_for_each(stream, num_chunks,
                           is_wide ? add_signs_fp64 : add_signs_fp32, &job);
    }
}
