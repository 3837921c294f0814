// One launch for many tensors, and masters of 32 bits in two halves of 16.
#include <math.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"

void GS_CPU(clear)(gs_stream *stream, void *out, size_t bytes) {
    (void)stream;
    memset(out, 0, bytes);
}

void GS_CPU(add_mean)(gs_stream *stream, double *sum, const float *in, size_t count) {
    (void)stream;
    double total = 0.0;
    for (size_t i = 0; i < count; i++) total += (double)in[i];
    if (count) *sum += total / (double)count;
}

void GS_CPU(cast_many)(gs_stream *stream, const gs_cast_item *items, size_t num_items, gs_dtype to,
                       gs_dtype from, float scale) {
    for (size_t i = 0; i < num_items; i++)
        GS_CPU(cast)(stream, items[i].to, to, items[i].from, from, scale, items[i].count);
}

void GS_CPU(sum_squares_many)(gs_stream *stream, const gs_square_item *items, size_t num_items) {
    for (size_t i = 0; i < num_items; i++)
        GS_CPU(sum_squares)(stream, items[i].sum, items[i].from, items[i].count);
}

GS_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

GS_INLINE float join_halves(uint16_t value, uint16_t remainder) {
    uint32_t bits = (((uint32_t)value << 16) - (remainder >= 0x8000 ? 0x10000u : 0)) | remainder;
    float master;
    memcpy(&master, &bits, sizeof master);
    return master;
}

typedef struct halves_job {
    float *master;
    uint16_t *value, *remainder;
    size_t count;
} halves_job;

static void split_item(void *ctx, size_t item) {
    const halves_job *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    for (size_t i = range.first; i < range.first + range.count; i++) {
        uint32_t bits = bits_of(job->master[i]);
        job->value[i] = (uint16_t)((bits + 0x8000u) >> 16);
        job->remainder[i] = (uint16_t)bits;
    }
}

static void join_item(void *ctx, size_t item) {
    const halves_job *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    for (size_t i = range.first; i < range.first + range.count; i++)
        job->master[i] = join_halves(job->value[i], job->remainder[i]);
}

void GS_CPU(split_master)(gs_stream *stream, uint16_t *value, uint16_t *remainder,
                          const float *master, size_t count) {
    halves_job job = {(float *)master, value, remainder, count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), split_item, &job);
}

void GS_CPU(join_master)(gs_stream *stream, float *master, const uint16_t *value,
                         const uint16_t *remainder, size_t count) {
    halves_job job = {master, (uint16_t *)value, (uint16_t *)remainder, count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), join_item, &job);
}

// A master in halves is joined, stepped and split in pieces that stay in the cache.
static void step_halves(gs_stream *stream, const gs_adamw_item *item, const gs_adamw *step) {
    enum { PIECE = 1024 };
    float master[PIECE];
    for (size_t first = 0; first < item->count; first += PIECE) {
        size_t count = item->count - first < PIECE ? item->count - first : PIECE;
        halves_job job = {master, item->value + first, item->remainder + first, count};
        join_item(&job, 0);
        GS_CPU(adamw)(stream, master, item->m + first, item->v + first, item->grad + first, step,
                      count);
        split_item(&job, 0);
    }
}

void GS_CPU(adamw_many)(gs_stream *stream, const gs_adamw_item *items, size_t num_items,
                        const gs_adamw *step) {
    if (stream->factor && !stream->factor->applies) return;
    for (size_t i = 0; i < num_items; i++) {
        const gs_adamw_item *item = &items[i];
        gs_adamw own = *step;
        own.weight_decay = item->weight_decay;
        own.correction1 = item->correction1;
        own.correction2 = item->correction2;
        if (item->remainder) {
            step_halves(stream, item, &own);
            continue;
        }
        GS_CPU(adamw)(stream, item->param, item->m, item->v, item->grad, &own, item->count);
        if (item->value)
            GS_CPU(cast)(stream, item->value, GS_BF16, item->param, GS_FP32, 1.0f, item->count);
    }
}
