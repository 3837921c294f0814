// Causal self-attention of 16-bit numbers, backward, in three kernels; none of them adds up with
// atomics, so the same inputs give the same bits.
//
//   weigh_rows: Σ dout · out of every query, kept where its dq will be written
//
//   attention_backward_keys: dk and dv; a block has a tile of keys, queries come by
//
//   attention_backward_queries: dq; a block has a tile of queries, keys come by
//
// Probabilities are computed again from logsumexp, in both of the large kernels: 7 products instead
// of the 5 of a kernel that adds dq up in memory. The other deterministic way, partial dq of each
// key tile in fp32, would move T/128 · 4 bytes for each element of dq twice, which takes longer
// than two products do on a GPU with 4 TB/s, and as much memory.
//
// In the kernel of the keys a warp's rows are keys, so that its scores are transposed: they and
// their derivatives are at once the left factor of dv = Pᵀ · dout and dk = dSᵀ · Q, without a way
// through shared memory.
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/attention_library.h"

// ---- dk and dv

// What a launch computes: registers hold both sums for heads of up to 128 channels.
enum key_gradients { DV_OF_KEYS = 1, DK_OF_KEYS = 2, DK_AND_DV_OF_KEYS = 3 };

template <int D> struct keys_plan {
    static constexpr int M = D <= 64 ? 2 : 1;
    static constexpr int KEYS = 16 * M * GS_ATTENTION_WARPS;
    static constexpr int STEP = D <= 128 ? 32 : 16;   // queries that scores are held of
    static constexpr int TILE = D <= 64 ? 64 : STEP;  // queries that are loaded together
    static constexpr int STAGES = D <= 128 ? 2 : 1;
    static constexpr int KEY_NUMBERS = KEYS * half_tile<D>::STRIDE;
    static constexpr int TILE_NUMBERS = TILE * half_tile<D>::STRIDE;
    static constexpr int SHARED_BYTES =
        (2 * KEY_NUMBERS + 2 * STAGES * TILE_NUMBERS) * 2 + 2 * STAGES * TILE * 4;
};

// Transposed scores become probabilities: 0 where a key is later than the query.
template <int M, int N>
__device__ __forceinline__ void find_probabilities(float scores[M][N / 8][4],
                                                   const float *logsumexp_log2, float scale_log2,
                                                   int first_key, int first_query) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const bool all_seen = first_query >= first_key + 16 * M - 1;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 normal = *(const float2 *)(logsumexp_log2 + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p =
                    gs_exp2(scores[m][n][i] * scale_log2 - (i % 2 ? normal.y : normal.x));
                const int key = first_key + 16 * m + i / 2 * 8 + g,
                          query = first_query + 8 * n + 2 * t + i % 2;
                scores[m][n][i] = all_seen || key <= query ? p : 0.0f;
            }
        }
    }
}

// slopes = p · (slopes - weighted)
template <int M, int N>
__device__ __forceinline__ void differentiate(float slopes[M][N / 8][4], const float p[M][N / 8][4],
                                              const float *weighted) {
    const int t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 sums = *(const float2 *)(weighted + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                slopes[m][n][i] = p[m][n][i] * (slopes[m][n][i] - (i % 2 ? sums.y : sums.x));
            }
        }
    }
}

template <gs_dtype TYPE, int D, int WHAT>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2)
    attention_backward_keys(const attention_job<uint16_t> job) {
    typedef keys_plan<D> plan;
    constexpr int M = plan::M, TILE = plan::TILE, STEP = plan::STEP, STAGES = plan::STAGES;
    GS_DYNAMIC_SHARED(uint16_t, shared);
    uint16_t *const keys = shared;
    uint16_t *const values = keys + plan::KEY_NUMBERS;
    uint16_t *const queries = values + plan::KEY_NUMBERS;
    uint16_t *const douts = queries + STAGES * plan::TILE_NUMBERS;
    float *const normals = (float *)(douts + STAGES * plan::TILE_NUMBERS);
    float *const weights = normals + STAGES * TILE;

    const attention_place place = find_place(job);
    const int first = (int)place.order * plan::KEYS, warp_first = (int)(threadIdx.x / 32) * 16 * M;
    const head_inputs<uint16_t> in = find_inputs<true>(job, place.head);
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;
    const int num_tiles = (job.positions + TILE - 1) / TILE, first_tile = first / TILE;

    gs_async_copies copies;
    start_tile<D, plan::KEYS>(copies, keys, in.k, first, job);
    start_tile<D, plan::KEYS>(copies, values, in.v, first, job);
    start_tile<D, TILE>(copies, queries + first_tile % STAGES * plan::TILE_NUMBERS, in.q,
                        first_tile * TILE, job);
    start_tile<D, TILE>(copies, douts + first_tile % STAGES * plan::TILE_NUMBERS, in.dout,
                        first_tile * TILE, job);
    copies.commit();
    query_numbers numbers = read_query(job, in, first_tile * TILE + (int)threadIdx.x);

    warp_rows<D, M, false> key_rows, value_rows;
    key_rows.load(keys, warp_first);
    value_rows.load(values, warp_first);
    float dk[M][D / 8][4], dv[M][D / 8][4];
    clear_sums<D, M>(dk);
    clear_sums<D, M>(dv);

    for (int tile = first_tile; tile < num_tiles; tile++) {
        const int stage = tile % STAGES;
        if (STAGES == 1 && tile > first_tile) {
            __syncthreads();  // all have left the tile before
            start_tile<D, TILE>(copies, queries, in.q, tile * TILE, job);
            start_tile<D, TILE>(copies, douts, in.dout, tile * TILE, job);
            copies.commit();
            numbers = read_query(job, in, tile * TILE + (int)threadIdx.x);
        }
        if (threadIdx.x < TILE) {
            normals[stage * TILE + (int)threadIdx.x] = numbers.logsumexp_log2;
            weights[stage * TILE + (int)threadIdx.x] = numbers.weighted;
        }
        copies.wait<0>();
        __syncthreads();  // this tile is there, and all have left the one before
        if (STAGES > 1 && tile + 1 < num_tiles) {
            const int next = (tile + 1) % STAGES * plan::TILE_NUMBERS,
                      next_first = (tile + 1) * TILE;
            start_tile<D, TILE>(copies, queries + next, in.q, next_first, job);
            start_tile<D, TILE>(copies, douts + next, in.dout, next_first, job);
            copies.commit();
            numbers = read_query(job, in, next_first + (int)threadIdx.x);
        }
        const uint16_t *const tile_queries = queries + stage * plan::TILE_NUMBERS;
        const uint16_t *const tile_douts = douts + stage * plan::TILE_NUMBERS;
        const int warp_key = first + warp_first;
#pragma unroll 1
        for (int step = 0; step < TILE; step += STEP) {
            const int first_query = tile * TILE + step;
            if (first_query + STEP - 1 < warp_key || first_query >= job.positions) continue;
            float p[M][STEP / 8][4];
            multiply_rows<TYPE, D, M, STEP, false>(p, key_rows, tile_queries, step);
            find_probabilities<M, STEP>(p, normals + stage * TILE + step, scale_log2, warp_key,
                                        first_query);
            if (WHAT & DV_OF_KEYS) add_products<TYPE, D, M, STEP>(dv, p, tile_douts, step);
            if (WHAT & DK_OF_KEYS) {
                float slopes[M][STEP / 8][4];
                multiply_rows<TYPE, D, M, STEP, false>(slopes, value_rows, tile_douts, step);
                differentiate<M, STEP>(slopes, p, weights + stage * TILE + step);
                add_products<TYPE, D, M, STEP>(dk, slopes, tile_queries, step);
            }
        }
    }

    // A warp's rows of keys and values are its own.
    float ones[M][2], scales[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        ones[m][0] = ones[m][1] = 1.0f;
        scales[m][0] = scales[m][1] = job.scale;
    }
    const int offset = warp_first * half_tile<D>::STRIDE;
    uint16_t *const to = job.to + in.at + job.channels;
    if (WHAT & DK_OF_KEYS)
        store_rows<TYPE, D, M>(to, in.k.stride, keys + offset, first + warp_first, dk, scales, job);
    if (WHAT & DV_OF_KEYS) {
        store_rows<TYPE, D, M>(to + job.channels, in.v.stride, values + offset, first + warp_first,
                               dv, ones, job);
    }
}

// ---- dq

template <int D> struct queries_plan {
    static constexpr int M = D <= 64 ? 2 : 1;
    static constexpr int QUERIES = 16 * M * GS_ATTENTION_WARPS;
    static constexpr int STEP = D <= 128 ? 32 : 16;
    static constexpr int TILE = D <= 64 ? 64 : STEP;  // of keys
    static constexpr int STAGES = D <= 128 ? 2 : 1;
    static constexpr bool HELD = D <= 128;
    static constexpr int QUERY_NUMBERS = QUERIES * half_tile<D>::STRIDE;
    static constexpr int TILE_NUMBERS = TILE * half_tile<D>::STRIDE;
    static constexpr int SHARED_BYTES = (2 * QUERY_NUMBERS + 2 * STAGES * TILE_NUMBERS) * 2;
};

// Scores and the products of dout with the values become the derivatives of the scores, in
// `slopes`.
template <int M, int N>
__device__ __forceinline__ void
differentiate_rows(float slopes[M][N / 8][4], const float scores[M][N / 8][4],
                   const query_numbers numbers[M][2], float scale_log2, int first_query,
                   int first_key) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const bool all_seen = first_key + N - 1 <= first_query;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const query_numbers &of = numbers[m][i / 2];
                const float p = gs_exp2(scores[m][n][i] * scale_log2 - of.logsumexp_log2);
                const int query = first_query + 16 * m + i / 2 * 8 + g,
                          key = first_key + 8 * n + 2 * t + i % 2;
                slopes[m][n][i] =
                    all_seen || key <= query ? p * (slopes[m][n][i] - of.weighted) : 0.0f;
            }
        }
    }
}

template <gs_dtype TYPE, int D>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2)
    attention_backward_queries(const attention_job<uint16_t> job) {
    typedef queries_plan<D> plan;
    constexpr int M = plan::M, TILE = plan::TILE, STEP = plan::STEP, STAGES = plan::STAGES;
    GS_DYNAMIC_SHARED(uint16_t, shared);
    uint16_t *const queries = shared;
    uint16_t *const douts = queries + plan::QUERY_NUMBERS;
    uint16_t *const keys = douts + plan::QUERY_NUMBERS;
    uint16_t *const values = keys + STAGES * plan::TILE_NUMBERS;

    const attention_place place = find_place(job);
    const int first = (int)(job.num_tiles - 1 - place.order) * plan::QUERIES;
    const int warp_first = (int)(threadIdx.x / 32) * 16 * M, warp_query = first + warp_first;
    const head_inputs<uint16_t> in = find_inputs<true>(job, place.head);
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;
    const int num_tiles = (min(first + plan::QUERIES, job.positions) - 1) / TILE + 1;

    gs_async_copies copies;
    start_tile<D, plan::QUERIES>(copies, queries, in.q, first, job);
    start_tile<D, plan::QUERIES>(copies, douts, in.dout, first, job);
    copies.commit();
    start_tile<D, TILE>(copies, keys, in.k, 0, job);
    start_tile<D, TILE>(copies, values, in.v, 0, job);
    copies.commit();

    // What weigh_rows kept is read before anything is written there: these are the warp's own rows.
    query_numbers numbers[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            numbers[m][part] =
                read_query(job, in, warp_query + 16 * m + 8 * part + (int)(threadIdx.x % 32 / 4));
        }
    }
    float dq[M][D / 8][4];
    clear_sums<D, M>(dq);
    copies.wait<1>();
    __syncthreads();
    warp_rows<D, M, plan::HELD> query_rows, dout_rows;
    query_rows.load(queries, warp_first);
    dout_rows.load(douts, warp_first);

    for (int tile = 0; tile < num_tiles; tile++) {
        const int stage = tile % STAGES;
        if (STAGES == 1 && tile > 0) {
            __syncthreads();  // all have left the tile before
            start_tile<D, TILE>(copies, keys, in.k, tile * TILE, job);
            start_tile<D, TILE>(copies, values, in.v, tile * TILE, job);
            copies.commit();
        }
        copies.wait<0>();
        __syncthreads();  // this tile is there, and all have left the one before
        if (STAGES > 1 && tile + 1 < num_tiles) {
            const int next = (tile + 1) % STAGES * plan::TILE_NUMBERS;
            start_tile<D, TILE>(copies, keys + next, in.k, (tile + 1) * TILE, job);
            start_tile<D, TILE>(copies, values + next, in.v, (tile + 1) * TILE, job);
            copies.commit();
        }
        const uint16_t *const tile_keys = keys + stage * plan::TILE_NUMBERS;
        const uint16_t *const tile_values = values + stage * plan::TILE_NUMBERS;
#pragma unroll 1
        for (int step = 0; step < TILE; step += STEP) {
            const int first_key = tile * TILE + step;
            if (first_key > warp_query + 16 * M - 1) break;  // hidden from the whole warp
            float scores[M][STEP / 8][4], slopes[M][STEP / 8][4];
            multiply_rows<TYPE, D, M, STEP, plan::HELD>(scores, query_rows, tile_keys, step);
            multiply_rows<TYPE, D, M, STEP, plan::HELD>(slopes, dout_rows, tile_values, step);
            differentiate_rows<M, STEP>(slopes, scores, numbers, scale_log2, warp_query, first_key);
            add_products<TYPE, D, M, STEP>(dq, slopes, tile_keys, step);
        }
    }

    float scales[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) scales[m][0] = scales[m][1] = job.scale;
    store_rows<TYPE, D, M>(job.to + in.at, in.q.stride, queries + warp_first * half_tile<D>::STRIDE,
                           warp_query, dq, scales, job);
}

// ---- launching

template <gs_dtype TYPE, int D>
static void launch_backward(gs_stream *stream, const attention_job<uint16_t> &job) {
    typedef keys_plan<D> keys;
    typedef queries_plan<D> queries;
    launch_weights<TYPE>(stream, job);
    if constexpr (D <= 128) {
        GS_LAUNCH_TILES(stream, job, keys::KEYS, keys::SHARED_BYTES,
                        (attention_backward_keys<TYPE, D, DK_AND_DV_OF_KEYS>));
    } else {
        GS_LAUNCH_TILES(stream, job, keys::KEYS, keys::SHARED_BYTES,
                        (attention_backward_keys<TYPE, D, DV_OF_KEYS>));
        GS_LAUNCH_TILES(stream, job, keys::KEYS, keys::SHARED_BYTES,
                        (attention_backward_keys<TYPE, D, DK_OF_KEYS>));
    }
    GS_LAUNCH_TILES(stream, job, queries::QUERIES, queries::SHARED_BYTES,
                    (attention_backward_queries<TYPE, D>));
}

// The library reads out and logsumexp.
template <gs_dtype TYPE>
static void run_backward(gs_stream *stream, uint16_t *dqkv, const uint16_t *dout,
                         const uint16_t *qkv, const uint16_t *out, const float *logsumexp,
                         const gs_attention *shape) {
    const gs_cudnn_attention_job offered = {.shape = shape,
                                            .dtype = TYPE,
                                            .out = const_cast<uint16_t *>(out),
                                            .dqkv = dqkv,
                                            .qkv = qkv,
                                            .dout = dout,
                                            .logsumexp = const_cast<float *>(logsumexp)};
    if (gs_cudnn_attention_run(stream, &offered)) return;
    if (!accept_attention(stream, shape)) return;
    if (shape->head_channels < 2) {
        // keep_weighted needs 32 bits of a row.
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT, "attention_backward: 1 channel a head, at "
                                                     "least 2 on CUDA for numbers of 16 bits"));
        return;
    }
    const attention_job<uint16_t> job = plan_backward(dqkv, dout, qkv, out, logsumexp, shape);
    run_for_head_size(shape->head_channels,
                      [&]<int D>() { launch_backward<TYPE, D>(stream, job); });
}

extern "C" void gs_cuda_bf16_attention_backward(gs_stream *stream, uint16_t *dqkv,
                                                const uint16_t *dout, const uint16_t *qkv,
                                                const uint16_t *out, const float *logsumexp,
                                                const gs_attention *shape) {
    run_backward<GS_BF16>(stream, dqkv, dout, qkv, out, logsumexp, shape);
}

extern "C" void gs_cuda_fp16_attention_backward(gs_stream *stream, uint16_t *dqkv,
                                                const uint16_t *dout, const uint16_t *qkv,
                                                const uint16_t *out, const float *logsumexp,
                                                const gs_attention *shape) {
    run_backward<GS_FP16>(stream, dqkv, dout, qkv, out, logsumexp, shape);
}
