// Causal self-attention of 16-bit numbers, forward.
//
// A block has one tile of queries of one head, a warp 16 or 32 of them, held in registers; keys and
// values come by in tiles of TILE, the next on its way while this one is worked on. Scores live in
// registers alone: a running maximum and sum for each query (online softmax), the output shrinks
// when the maximum grows. Exponentials are of base 2, their scale folded into one multiplication.
// Everything adds up in fp32; the probabilities are rounded to the type before they meet the
// values, which is where the results differ from kernels/cpu.
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/attention_library.h"

template <int D> struct forward_plan {
    static constexpr int M = D <= 64 ? 2 : 1;
    static constexpr int QUERIES = 16 * M * GS_ATTENTION_WARPS;
    static constexpr int TILE = D <= 128 ? 64 : 32;
    static constexpr bool HELD = D <= 128;
    static constexpr int TILE_NUMBERS = TILE * half_tile<D>::STRIDE;
    static constexpr int QUERY_NUMBERS = QUERIES * half_tile<D>::STRIDE;
    static constexpr int SHARED_BYTES = (QUERY_NUMBERS + 4 * TILE_NUMBERS) * 2;
};

// A query sees the keys up to its own position.
template <int M, int N>
__device__ __forceinline__ void hide_later_keys(float scores[M][N / 8][4], int first_query,
                                                int first_key) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int query = first_query + 16 * m + i / 2 * 8 + g;
                const int key = first_key + 8 * n + 2 * t + i % 2;
                if (key > query) scores[m][n][i] = -INFINITY;
            }
        }
    }
}

// Of the rows that a lane has a part of: [m][0] is row g, [m][1] row g + 8.
template <int M> struct running_softmax {
    float largest[M][2];
    float sum[M][2];  // of the lane's columns alone
};

__device__ __forceinline__ float largest_of_row(float mine) {
    mine = fmaxf(mine, __shfl_xor_sync(0xffffffffu, mine, 1));
    return fmaxf(mine, __shfl_xor_sync(0xffffffffu, mine, 2));
}

__device__ __forceinline__ float sum_of_row(float mine) {
    mine += __shfl_xor_sync(0xffffffffu, mine, 1);
    return mine + __shfl_xor_sync(0xffffffffu, mine, 2);
}

// Scores become exponentials; what was summed before shrinks.
template <int D, int M, int N>
__device__ __forceinline__ void advance_softmax(running_softmax<M> &state,
                                                float scores[M][N / 8][4], float sums[M][D / 8][4],
                                                float scale_log2) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            float largest = state.largest[m][part];
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                largest = fmaxf(largest, fmaxf(scores[m][n][2 * part], scores[m][n][2 * part + 1]));
            }
            largest = largest_of_row(largest);
            const float shift = largest * scale_log2;
            const float shrink = gs_exp2(state.largest[m][part] * scale_log2 - shift);
            float sum = state.sum[m][part] * shrink;
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
#pragma unroll
                for (int i = 2 * part; i < 2 * part + 2; i++) {
                    scores[m][n][i] = gs_exp2(scores[m][n][i] * scale_log2 - shift);
                    sum += scores[m][n][i];
                }
            }
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                sums[m][n][2 * part] *= shrink;
                sums[m][n][2 * part + 1] *= shrink;
            }
            state.largest[m][part] = largest;
            state.sum[m][part] = sum;
        }
    }
}

template <int M>
__device__ __forceinline__ void finish_softmax(const running_softmax<M> &state, float factors[M][2],
                                               float *logsumexp, int first, int positions,
                                               float scale) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const float sum = sum_of_row(state.sum[m][part]);
            const int query = first + 16 * m + 8 * part + g;
            factors[m][part] = 1.0f / sum;
            if (t == 0 && query < positions) {
                logsumexp[query] = state.largest[m][part] * scale + logf(sum);
            }
        }
    }
}

template <gs_dtype TYPE, int D>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2)
    attention_forward(const attention_job<uint16_t> job) {
    typedef forward_plan<D> plan;
    constexpr int M = plan::M, TILE = plan::TILE;
    GS_DYNAMIC_SHARED(uint16_t, shared);
    uint16_t *const queries = shared;
    uint16_t *const keys = shared + plan::QUERY_NUMBERS;
    uint16_t *const values = keys + 2 * plan::TILE_NUMBERS;
    const attention_place place = find_place(job);
    const int first = (int)(job.num_tiles - 1 - place.order) * plan::QUERIES;
    const int warp_first = (int)(threadIdx.x / 32) * 16 * M;
    const head_inputs<uint16_t> in = find_inputs<false>(job, place.head);
    const int last = min(first + plan::QUERIES, job.positions) - 1;
    const int num_tiles = last / TILE + 1;
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;

    gs_async_copies copies;
    start_tile<D, plan::QUERIES>(copies, queries, in.q, first, job);
    copies.commit();
    start_tile<D, TILE>(copies, keys, in.k, 0, job);
    start_tile<D, TILE>(copies, values, in.v, 0, job);
    copies.commit();

    float sums[M][D / 8][4];
    clear_sums<D, M>(sums);
    running_softmax<M> state;
#pragma unroll
    for (int m = 0; m < M; m++) {
        state.largest[m][0] = state.largest[m][1] = -INFINITY;
        state.sum[m][0] = state.sum[m][1] = 0;
    }
    copies.wait<1>();
    __syncthreads();
    warp_rows<D, M, plan::HELD> rows;
    rows.load(queries, warp_first);

    for (int tile = 0; tile < num_tiles; tile++) {
        copies.wait<0>();
        __syncthreads();  // this tile is there, and all have left the one before
        const uint16_t *const tile_keys = keys + tile % 2 * plan::TILE_NUMBERS;
        const uint16_t *const tile_values = values + tile % 2 * plan::TILE_NUMBERS;
        if (tile + 1 < num_tiles) {
            const int next = (tile + 1) % 2 * plan::TILE_NUMBERS;
            start_tile<D, TILE>(copies, keys + next, in.k, (tile + 1) * TILE, job);
            start_tile<D, TILE>(copies, values + next, in.v, (tile + 1) * TILE, job);
            copies.commit();
        }
        const int first_key = tile * TILE, warp_query = first + warp_first;
        if (first_key > warp_query + 16 * M - 1) continue;  // hidden from the whole warp
        float scores[M][TILE / 8][4];
        multiply_rows<TYPE, D, M, TILE, plan::HELD>(scores, rows, tile_keys, 0);
        if (first_key + TILE - 1 > warp_query)
            hide_later_keys<M, TILE>(scores, warp_query, first_key);
        advance_softmax<D, M, TILE>(state, scores, sums, scale_log2);
        add_products<TYPE, D, M, TILE>(sums, scores, tile_values, 0);
    }

    float factors[M][2];
    finish_softmax<M>(state, factors, job.logsumexp + (size_t)place.head * (size_t)job.positions,
                      first + warp_first, job.positions, job.scale);
    store_rows<TYPE, D, M>(job.to + find_head(job, place.head, 1), job.channels,
                           queries + warp_first * half_tile<D>::STRIDE, first + warp_first, sums,
                           factors, job);
}

template <gs_dtype TYPE>
static void run_forward(gs_stream *stream, uint16_t *out, float *logsumexp, const uint16_t *qkv,
                        const gs_attention *shape) {
    const gs_cudnn_attention_job offered = {.shape = shape,
                                            .dtype = TYPE,
                                            .out = out,
                                            .dqkv = nullptr,
                                            .qkv = qkv,
                                            .dout = nullptr,
                                            .logsumexp = logsumexp};
    if (gs_cudnn_attention_run(stream, &offered)) return;
    if (!accept_attention(stream, shape)) return;
    const attention_job<uint16_t> job = plan_forward(out, logsumexp, qkv, shape);
    run_for_head_size(shape->head_channels, [&]<int D>() {
        typedef forward_plan<D> plan;
        GS_LAUNCH_TILES(stream, job, plan::QUERIES, plan::SHARED_BYTES,
                        (attention_forward<TYPE, D>));
    });
}

extern "C" void gs_cuda_bf16_attention(gs_stream *stream, uint16_t *out, float *logsumexp,
                                       const uint16_t *qkv, const gs_attention *shape) {
    run_forward<GS_BF16>(stream, out, logsumexp, qkv, shape);
}

extern "C" void gs_cuda_fp16_attention(gs_stream *stream, uint16_t *out, float *logsumexp,
                                       const uint16_t *qkv, const gs_attention *shape) {
    run_forward<GS_FP16>(stream, out, logsumexp, qkv, shape);
}
