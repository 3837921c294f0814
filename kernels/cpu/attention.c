// Causal self-attention in blocks of BLOCK queries by BLOCK keys, so that scores never leave the
// cache and memory does not grow with the square of T. Forward keeps a running maximum and sum for
// each row; backward computes the probabilities again from logsumexp and uses
// ds = p·(dp − Σ p·dp), where Σ p·dp = Σ dout·out.
//
// Forward items are blocks of queries; backward items are whole heads, because a key's gradient is
// summed over all later queries, in their order.
#include <math.h>
#include <string.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

#define BLOCK ((size_t)64)

typedef struct attention_job {
    float *out, *logsumexp, *dqkv;
    const float *qkv, *dout, *saved_out, *saved_logsumexp;
    gs_attention shape;
    size_t channels, num_blocks;
    float scale; // 1/√HS
} attention_job;

static attention_job plan_attention(const gs_attention *shape) {
    attention_job job = {.shape = *shape, .channels = shape->heads * shape->head_channels};
    job.num_blocks = gs_num_items(shape->positions, BLOCK);
    job.scale = 1.0f / sqrtf((float)shape->head_channels);
    return job;
}

// Where position 0 of a head begins in a (B, T, parts·C) tensor; its K and V lie C and 2·C further.
static size_t locate_head(const attention_job *job, size_t head, size_t parts) {
    size_t sequence = head / job->shape.heads, h = head % job->shape.heads;
    return sequence * job->shape.positions * parts * job->channels + h * job->shape.head_channels;
}

// One head of a tensor: (T, HS), rows `stride` elements apart.
typedef struct matrix {
    const float *data;
    size_t stride;
} matrix;

// A block of queries against a block of keys.
typedef struct tile {
    gs_range rows, keys;
} tile;

// scores (rows, BLOCK) = scale · a · bᵀ
static void multiply_scores(const attention_job *job, float *scores, matrix a, matrix b, tile at,
                            float scale) {
    const gs_matmul shape = {.transpose_b = true,
                             .m = at.rows.count,
                             .n = at.keys.count,
                             .k = job->shape.head_channels,
                             .stride_a = a.stride,
                             .stride_b = b.stride,
                             .stride_c = BLOCK,
                             .alpha = scale};
    gs_cpu_multiply(scores, a.data + at.rows.first * a.stride, b.data + at.keys.first * b.stride,
                    &shape);
}

// The queries' rows of `to` = scale · scores · from, or are added to it after the first
// block of keys.
static void multiply_keys(const attention_job *job, float *to, size_t to_stride,
                          const float *scores, matrix from, tile at, float scale) {
    const gs_matmul shape = {.m = at.rows.count,
                             .n = job->shape.head_channels,
                             .k = at.keys.count,
                             .stride_a = BLOCK,
                             .stride_b = from.stride,
                             .stride_c = to_stride,
                             .alpha = scale,
                             .beta = at.keys.first > 0 ? 1.0f : 0.0f};
    gs_cpu_multiply(to + at.rows.first * to_stride, scores, from.data + at.keys.first * from.stride,
                    &shape);
}

// The keys' rows of `to` = scale · scoresᵀ · from, or are added to it. The diagonal block is the
// first to reach its keys.
static void multiply_rows(const attention_job *job, float *to, const float *scores, matrix from,
                          tile at, float scale) {
    const size_t to_stride = 3 * job->channels;
    const gs_matmul shape = {.transpose_a = true,
                             .m = at.keys.count,
                             .n = job->shape.head_channels,
                             .k = at.rows.count,
                             .stride_a = BLOCK,
                             .stride_b = from.stride,
                             .stride_c = to_stride,
                             .alpha = scale,
                             .beta = at.rows.first > at.keys.first ? 1.0f : 0.0f};
    gs_cpu_multiply(to + at.keys.first * to_stride, scores, from.data + at.rows.first * from.stride,
                    &shape);
}

// Row `row` of a block sees this many of its keys. Loops run over all BLOCK columns and select, so
// that their length is known and there is no tail.
static size_t count_visible(tile at, size_t row) {
    size_t visible = at.rows.first + row + 1 - at.keys.first;
    return visible < at.keys.count ? visible : at.keys.count;
}

typedef struct running {
    float largest[BLOCK], sum[BLOCK];
} running;

// Scores become exponentials; returns by what the earlier part of the output must shrink.
GS_INLINE float advance_row(float *scores, size_t visible, float *largest, float *sum) {
    float block_largest, block_sum;
    GS_LANE_MAX(block_largest, i, BLOCK, i < visible ? scores[i] : -INFINITY);
    const float next = block_largest > *largest ? block_largest : *largest;
    for (size_t i = 0; i < BLOCK; i++) {
        float e = exp_fp32(scores[i] - next);
        scores[i] = i < visible ? e : 0.0f;
    }
    GS_LANE_SUM(float, block_sum, i, BLOCK, scores[i]);
    const float shrink = exp_fp32(*largest - next);
    *sum = *sum * shrink + block_sum;
    *largest = next;
    return shrink;
}

static void advance_block(const attention_job *job, float *scores, tile at, running *state,
                          float *out) {
    for (size_t row = 0; row < at.rows.count; row++) {
        float shrink = advance_row(scores + row * BLOCK, count_visible(at, row),
                                   &state->largest[row], &state->sum[row]);
        if (at.keys.first == 0) continue;
        float *out_row = out + (at.rows.first + row) * job->channels;
        for (size_t i = 0; i < job->shape.head_channels; i++) out_row[i] *= shrink;
    }
}

static void finish_rows(const attention_job *job, gs_range rows, const running *state, float *out,
                        float *logsumexp) {
    for (size_t row = 0; row < rows.count; row++) {
        float *out_row = out + (rows.first + row) * job->channels;
        const float sum = state->sum[row];
        for (size_t i = 0; i < job->shape.head_channels; i++) out_row[i] /= sum;
        logsumexp[rows.first + row] = (float)((double)state->largest[row] + log_fp64((double)sum));
    }
}

static void attention_item(void *ctx, size_t item) {
    const attention_job *job = ctx;
    const size_t head = item / job->num_blocks, last_block = item % job->num_blocks;
    const size_t positions = job->shape.positions, stride = 3 * job->channels;
    const float *qkv = job->qkv + locate_head(job, head, 3);
    const matrix q = {qkv, stride}, k = {qkv + job->channels, stride};
    const matrix v = {qkv + 2 * job->channels, stride};
    float *out = job->out + locate_head(job, head, 1);
    _Alignas(64) float scores[BLOCK * BLOCK] = {0};
    running state = {.sum = {0}};
    for (size_t row = 0; row < BLOCK; row++) state.largest[row] = -INFINITY;

    tile at = {.rows = gs_item_range(last_block, BLOCK, positions)};
    for (size_t block = 0; block <= last_block; block++) {
        at.keys = gs_item_range(block, BLOCK, positions);
        multiply_scores(job, scores, q, k, at, job->scale);
        advance_block(job, scores, at, &state, out);
        multiply_keys(job, out, job->channels, scores, v, at, 1.0f);
    }
    finish_rows(job, at.rows, &state, out, job->logsumexp + head * positions);
}

void GS_CPU(attention)(gs_stream *stream, float *out, float *logsumexp, const float *qkv,
                       const gs_attention *shape) {
    attention_job job = plan_attention(shape);
    job.out = out;
    job.logsumexp = logsumexp;
    job.qkv = qkv;
    gs_stream_for_each(stream, shape->batch * shape->heads * job.num_blocks, attention_item, &job);
}

typedef struct backward_blocks {
    _Alignas(64) float p[BLOCK * BLOCK];
    _Alignas(64) float ds[BLOCK * BLOCK];
    float weighted[BLOCK]; // Σ p·dp of each row
} backward_blocks;

// p holds scores and ds holds dp; they become what their names say.
static void differentiate_block(backward_blocks *blocks, tile at, const float *logsumexp) {
    for (size_t row = 0; row < at.rows.count; row++) {
        float *restrict p = blocks->p + row * BLOCK, *restrict ds = blocks->ds + row * BLOCK;
        const size_t visible = count_visible(at, row);
        const float normal = logsumexp[at.rows.first + row], weighted = blocks->weighted[row];
        for (size_t i = 0; i < BLOCK; i++) {
            float e = exp_fp32(p[i] - normal);
            float slope = e * (ds[i] - weighted);
            p[i] = i < visible ? e : 0.0f;
            ds[i] = i < visible ? slope : 0.0f;
        }
    }
}

static void weigh_rows(const attention_job *job, size_t head, gs_range rows, float *weighted) {
    const size_t first = locate_head(job, head, 1);
    for (size_t row = 0; row < rows.count; row++) {
        const float *dout = job->dout + first + (rows.first + row) * job->channels;
        const float *out = job->saved_out + first + (rows.first + row) * job->channels;
        GS_LANE_SUM(float, weighted[row], i, job->shape.head_channels, dout[i] * out[i]);
    }
}

static void attention_backward_item(void *ctx, size_t head) {
    const attention_job *job = ctx;
    const size_t positions = job->shape.positions, channels = job->channels, stride = 3 * channels;
    const float *qkv = job->qkv + locate_head(job, head, 3);
    const matrix q = {qkv, stride}, k = {qkv + channels, stride}, v = {qkv + 2 * channels, stride};
    const matrix dout = {job->dout + locate_head(job, head, 1), channels};
    float *dq = job->dqkv + locate_head(job, head, 3), *dk = dq + channels, *dv = dk + channels;
    backward_blocks blocks;
    memset(&blocks, 0, sizeof blocks);

    for (size_t i = 0; i < job->num_blocks; i++) {
        tile at = {.rows = gs_item_range(i, BLOCK, positions)};
        weigh_rows(job, head, at.rows, blocks.weighted);
        for (size_t j = 0; j <= i; j++) {
            at.keys = gs_item_range(j, BLOCK, positions);
            multiply_scores(job, blocks.p, q, k, at, job->scale);
            multiply_scores(job, blocks.ds, dout, v, at, 1.0f);
            differentiate_block(&blocks, at, job->saved_logsumexp + head * positions);
            multiply_rows(job, dv, blocks.p, dout, at, 1.0f);
            multiply_rows(job, dk, blocks.ds, q, at, job->scale);
            multiply_keys(job, dq, stride, blocks.ds, k, at, job->scale);
        }
    }
}

void GS_CPU(attention_backward)(gs_stream *stream, float *dqkv, const float *dout, const float *qkv,
                                const float *out, const float *logsumexp,
                                const gs_attention *shape) {
    attention_job job = plan_attention(shape);
    job.dqkv = dqkv;
    job.dout = dout;
    job.qkv = qkv;
    job.saved_out = out;
    job.saved_logsumexp = logsumexp;
    gs_stream_for_each(stream, shape->batch * shape->heads, attention_backward_item, &job);
}
