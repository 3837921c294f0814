// Causal self-attention of fp32, forward and backward, on the ordinary cores: as exact as
// kernels/cpu, also where matrix products may round to TF32.
//
// Jobs, places and tiles are those of 16 bits (attention.cuh), products are fused multiplications
// and additions: thread (y, x) of 8 x 16 holds rows y, y + 8, … and columns x, x + 16, … of a
// product of SIDE rows with SIDE columns. A row belongs to 16 lanes of one warp, so what passes
// through `weights` in shared memory needs no barrier of the block.
#include "kernels/cuda/attention.cuh"

typedef attention_job<float> float_job;

// R rows and C columns are a thread's, so that everything fits into registers and 99 KiB.
template <int D> struct float_plan {
    static constexpr int SIDE = D <= 64 ? 64 : D <= 128 ? 32 : 16;
    static constexpr int R = SIDE / 8, C = SIDE / 16;
    static constexpr int STRIDE = attention_tile<float, D>::STRIDE;
    static constexpr int WEIGHT_STRIDE = SIDE + 4;
    static constexpr int TILE_NUMBERS = SIDE * STRIDE, WEIGHT_NUMBERS = SIDE * WEIGHT_STRIDE;
    static constexpr int FORWARD_BYTES = (3 * TILE_NUMBERS + WEIGHT_NUMBERS) * 4;
    static constexpr int BACKWARD_BYTES = (4 * TILE_NUMBERS + WEIGHT_NUMBERS + 2 * SIDE) * 4;
};

// Row i and column j of a thread.
__device__ __forceinline__ int row_of(int i) {
    return (int)(threadIdx.x / 16) + 8 * i;
}

__device__ __forceinline__ int column_of(int j) {
    return (int)(threadIdx.x % 16) + 16 * j;
}

// Two tiles, once all have left those before, and what has started on its way earlier.
template <int D>
__device__ __forceinline__ void load_two(gs_async_copies &copies, float *to, head_rows<float> from,
                                         float *other, head_rows<float> other_from, int first,
                                         const float_job &job) {
    __syncthreads();
    start_tile<D, float_plan<D>::SIDE>(copies, to, from, first, job);
    start_tile<D, float_plan<D>::SIDE>(copies, other, other_from, first, job);
    copies.commit();
    copies.wait<0>();
}

// scores = rows · columnsᵀ
template <int D, int R, int C>
__device__ __forceinline__ void multiply(float (&scores)[R][C], const float *rows,
                                         const float *columns) {
    constexpr int STRIDE = float_plan<D>::STRIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < C; j++) scores[i][j] = 0;
    }
#pragma unroll 2
    for (int k = 0; k < D; k += 4) {
        float4 a[R], b[C];
#pragma unroll
        for (int i = 0; i < R; i++) a[i] = *(const float4 *)(rows + row_of(i) * STRIDE + k);
#pragma unroll
        for (int j = 0; j < C; j++) b[j] = *(const float4 *)(columns + column_of(j) * STRIDE + k);
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < C; j++) {
                float sum = fmaf(a[i].x, b[j].x, scores[i][j]);
                sum = fmaf(a[i].y, b[j].y, sum);
                sum = fmaf(a[i].z, b[j].z, sum);
                scores[i][j] = fmaf(a[i].w, b[j].w, sum);
            }
        }
    }
}

// sums += mine · tile; `mine` passes through `weights`.
template <int D, int R, int C>
__device__ __forceinline__ void add_product(float (&sums)[R][D / 16], const float (&mine)[R][C],
                                            float *weights, const float *tile) {
    constexpr int STRIDE = float_plan<D>::STRIDE, WEIGHT_STRIDE = float_plan<D>::WEIGHT_STRIDE;
    __syncwarp();  // the warp has left what was there
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < C; j++) weights[row_of(i) * WEIGHT_STRIDE + column_of(j)] = mine[i][j];
    }
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < 16 * C; k += 4) {
        float4 a[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            a[i] = *(const float4 *)(weights + row_of(i) * WEIGHT_STRIDE + k);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            const float *at = tile + k * STRIDE + column_of(j);
            const float b0 = at[0], b1 = at[STRIDE], b2 = at[2 * STRIDE], b3 = at[3 * STRIDE];
#pragma unroll
            for (int i = 0; i < R; i++) {
                float sum = fmaf(a[i].x, b0, sums[i][j]);
                sum = fmaf(a[i].y, b1, sum);
                sum = fmaf(a[i].z, b2, sum);
                sums[i][j] = fmaf(a[i].w, b3, sum);
            }
        }
    }
}

// Rows from position `first` on = factors · sums.
template <int D, int R>
__device__ __forceinline__ void store(float *to, size_t stride, int first,
                                      const float (&sums)[R][D / 16], const float (&factors)[R],
                                      const float_job &job) {
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = first + row_of(i);
        if (row >= job.positions) continue;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            if (column_of(j) < job.head_channels)
                to[(size_t)row * stride + column_of(j)] = sums[i][j] * factors[i];
        }
    }
}

// ---- forward

// Of the 16 lanes that share a row.
__device__ __forceinline__ float sum_lanes(float value) {
#pragma unroll
    for (int distance = 8; distance; distance /= 2)
        value += __shfl_xor_sync(GS_FULL_WARP, value, distance);
    return value;
}

__device__ __forceinline__ float max_lanes(float value) {
#pragma unroll
    for (int distance = 8; distance; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(GS_FULL_WARP, value, distance));
    return value;
}

// Scores become exponentials, what was summed before shrinks. `first_query` and `first_key` are the
// tile's.
template <int D, int R, int C>
__device__ __forceinline__ void advance(float (&scores)[R][C], float (&sums)[R][D / 16],
                                        float (&largest)[R], float (&sum)[R], int first_query,
                                        int first_key, float scale_log2) {
#pragma unroll
    for (int i = 0; i < R; i++) {
        float next = largest[i];
#pragma unroll
        for (int j = 0; j < C; j++) {
            if (first_key + column_of(j) > first_query + row_of(i)) scores[i][j] = -INFINITY;
            next = fmaxf(next, scores[i][j]);
        }
        next = max_lanes(next);
        const float shift = next * scale_log2, shrink = exp2f(fmaf(largest[i], scale_log2, -shift));
        sum[i] *= shrink;
#pragma unroll
        for (int j = 0; j < C; j++) {
            scores[i][j] = exp2f(fmaf(scores[i][j], scale_log2, -shift));
            sum[i] += scores[i][j];
        }
#pragma unroll
        for (int j = 0; j < D / 16; j++) sums[i][j] *= shrink;
        largest[i] = next;
    }
}

template <int D>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2) attention_forward(const float_job job) {
    typedef float_plan<D> plan;
    constexpr int R = plan::R, C = plan::C, SIDE = plan::SIDE;
    GS_DYNAMIC_SHARED(float, shared);
    float *const queries = shared;
    float *const keys = queries + plan::TILE_NUMBERS;
    float *const values = keys + plan::TILE_NUMBERS;
    float *const weights = values + plan::TILE_NUMBERS;
    const attention_place place = find_place(job);
    const head_inputs<float> in = find_inputs<false>(job, place.head);
    const int first = (int)(job.num_tiles - 1 - place.order) * SIDE;
    const int end = min(first + SIDE, job.positions);
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;

    float sums[R][D / 16] = {}, largest[R], sum[R] = {}, factors[R];
#pragma unroll
    for (int i = 0; i < R; i++) largest[i] = -INFINITY;
    gs_async_copies copies;
    start_tile<D, SIDE>(copies, queries, in.q, first, job);
    for (int first_key = 0; first_key < end; first_key += SIDE) {
        load_two<D>(copies, keys, in.k, values, in.v, first_key, job);
        __syncthreads();
        float scores[R][C];
        multiply<D>(scores, queries, keys);
        advance<D>(scores, sums, largest, sum, first, first_key, scale_log2);
        add_product<D>(sums, scores, weights, values);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float whole = sum_lanes(sum[i]);
        const int query = first + row_of(i);
        factors[i] = 1.0f / whole;
        if (column_of(0) == 0 && query < job.positions) {
            job.logsumexp[(size_t)place.head * (size_t)job.positions + (size_t)query] =
                largest[i] * job.scale + logf(whole);
        }
    }
    store<D>(job.to + find_head(job, place.head, 1), job.channels, first, sums, factors, job);
}

// ---- backward, behind weigh_rows

// OF_KEYS: dk and dv of a tile of keys, by which queries come. Else dq of a tile of queries, by
// which keys come.
template <int D, bool OF_KEYS>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2) attention_backward(const float_job job) {
    typedef float_plan<D> plan;
    constexpr int R = plan::R, C = plan::C, SIDE = plan::SIDE;
    GS_DYNAMIC_SHARED(float, shared);
    float *const score_rows = shared;
    float *const slope_rows = score_rows + plan::TILE_NUMBERS;
    float *const score_columns = slope_rows + plan::TILE_NUMBERS;
    float *const slope_columns = score_columns + plan::TILE_NUMBERS;
    float *const weights = slope_columns + plan::TILE_NUMBERS;
    float *const normals = weights + plan::WEIGHT_NUMBERS;  // of the queries
    float *const weighted = normals + SIDE;
    const attention_place place = find_place(job);
    const head_inputs<float> in = find_inputs<true>(job, place.head);
    const int first = (int)(OF_KEYS ? place.order : job.num_tiles - 1 - place.order) * SIDE;
    const int begin = OF_KEYS ? first : 0;
    const int end = OF_KEYS ? job.positions : min(first + SIDE, job.positions);
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;

    float dv[R][D / 16] = {}, sums[R][D / 16] = {};  // sums: dk or dq
    gs_async_copies copies;
    start_tile<D, SIDE>(copies, score_rows, OF_KEYS ? in.k : in.q, first, job);
    start_tile<D, SIDE>(copies, slope_rows, OF_KEYS ? in.v : in.dout, first, job);
    for (int column = begin; column < end; column += SIDE) {
        load_two<D>(copies, score_columns, OF_KEYS ? in.q : in.k, slope_columns,
                    OF_KEYS ? in.dout : in.v, column, job);
        // What weigh_rows kept of a block's own queries is read before the block writes there.
        if (threadIdx.x < SIDE && (OF_KEYS || column == begin)) {
            const query_numbers numbers =
                read_query(job, in, (OF_KEYS ? column : first) + (int)threadIdx.x);
            normals[threadIdx.x] = numbers.logsumexp_log2;
            weighted[threadIdx.x] = numbers.weighted;
        }
        __syncthreads();
        float p[R][C], slopes[R][C];
        multiply<D>(p, score_rows, score_columns);
        multiply<D>(slopes, slope_rows, slope_columns);
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < C; j++) {
                const int query = OF_KEYS ? column_of(j) : row_of(i);
                const int ahead = column + column_of(j) - first - row_of(i);
                const bool seen = OF_KEYS ? ahead >= 0 : ahead <= 0;
                const float e = exp2f(fmaf(p[i][j], scale_log2, -normals[query]));
                p[i][j] = seen ? e : 0.0f;
                slopes[i][j] = seen ? e * (slopes[i][j] - weighted[query]) : 0.0f;
            }
        }
        if (OF_KEYS) add_product<D>(dv, p, weights, slope_columns);
        add_product<D>(sums, slopes, weights, score_columns);
    }
    float ones[R], scales[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        ones[i] = 1.0f;
        scales[i] = job.scale;
    }
    float *const to = job.to + in.at;
    store<D>(OF_KEYS ? to + job.channels : to, in.q.stride, first, sums, scales, job);
    if (OF_KEYS) store<D>(to + 2 * job.channels, in.q.stride, first, dv, ones, job);
}

// ---- launching

extern "C" void gs_cuda_attention(gs_stream *stream, float *out, float *logsumexp, const float *qkv,
                                  const gs_attention *shape) {
    if (!accept_attention(stream, shape)) return;
    const float_job job = plan_forward(out, logsumexp, qkv, shape);
    run_for_head_size(shape->head_channels, [&]<int D>() {
        GS_LAUNCH_TILES(stream, job, float_plan<D>::SIDE, float_plan<D>::FORWARD_BYTES,
                        (attention_forward<D>));
    });
}

extern "C" void gs_cuda_attention_backward(gs_stream *stream, float *dqkv, const float *dout,
                                           const float *qkv, const float *out,
                                           const float *logsumexp, const gs_attention *shape) {
    if (!accept_attention(stream, shape)) return;
    const float_job job = plan_backward(dqkv, dout, qkv, out, logsumexp, shape);
    launch_weights<GS_FP32>(stream, job);
    run_for_head_size(shape->head_channels, [&]<int D>() {
        typedef float_plan<D> plan;
        GS_LAUNCH_TILES(stream, job, plan::SIDE, plan::BACKWARD_BYTES,
                        (attention_backward<D, true>));
        GS_LAUNCH_TILES(stream, job, plan::SIDE, plan::BACKWARD_BYTES,
                        (attention_backward<D, false>));
    });
}
