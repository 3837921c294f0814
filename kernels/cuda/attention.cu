// Causal self-attention of fp32, forward and backward, on the ordinary cores: as exact as
// kernels/cpu, also where matrix products may round to TF32.
//
// The same tiles and the same kernels as for 16 bits (attention_half_forward.cu,
// attention_half_backward.cu), with products of fused multiplications and additions: thread (y, x)
// of 8 x 16 holds rows y, y + 8, … and columns x, x + 16, … of every product. A row belongs to 16
// lanes of one warp, so what passes through `weights` in shared memory needs no barrier of the
// block.
#include "kernels/cuda/attention.cuh"

typedef attention_job<float> float_job;

// R: rows of a thread, C: columns of its scores, so that everything fits into registers and 99 KiB.
template <int D> struct float_plan {
    static constexpr int R = D <= 64 ? 8 : D <= 128 ? 4 : 2;
    static constexpr int C = D <= 64 ? 4 : D <= 128 ? 2 : 1;
    static constexpr int ROWS = 8 * R, COLUMNS = 16 * C;
    static constexpr int STRIDE = D + 4;  // an odd number of 16-byte pieces
    static constexpr int WEIGHT_STRIDE = COLUMNS + 4;
    static constexpr int ROW_NUMBERS = ROWS * STRIDE, COLUMN_NUMBERS = COLUMNS * STRIDE;
    static constexpr int WEIGHT_NUMBERS = ROWS * WEIGHT_STRIDE;
    static constexpr int FORWARD_BYTES = (ROW_NUMBERS + 2 * COLUMN_NUMBERS + WEIGHT_NUMBERS) * 4;
    static constexpr int BACKWARD_BYTES =
        (2 * ROW_NUMBERS + 2 * COLUMN_NUMBERS + WEIGHT_NUMBERS + 2 * COLUMNS) * 4;
};

struct float_rows {
    const float *data;
    size_t stride;
};

__device__ __forceinline__ int thread_y() {
    return (int)(threadIdx.x / 16);
}

__device__ __forceinline__ int thread_x() {
    return (int)(threadIdx.x % 16);
}

template <int D, int ROWS>
__device__ __forceinline__ void load_rows(float *tile, float_rows from, int first,
                                          const float_job &job) {
    constexpr int STRIDE = float_plan<D>::STRIDE;
    if (job.whole_vectors) {
        for (int i = (int)threadIdx.x; i < ROWS * (D / 4); i += GS_ATTENTION_THREADS) {
            const int row = i / (D / 4), column = i % (D / 4) * 4;
            float4 numbers = {0, 0, 0, 0};
            if (first + row < job.positions && column < job.head_channels) {
                numbers =
                    *(const float4 *)(from.data + (size_t)(first + row) * from.stride + column);
            }
            *(float4 *)(tile + row * STRIDE + column) = numbers;
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < ROWS * D; i += GS_ATTENTION_THREADS) {
        const int row = i / D, column = i % D;
        const bool valid = first + row < job.positions && column < job.head_channels;
        tile[row * STRIDE + column] =
            valid ? from.data[(size_t)(first + row) * from.stride + column] : 0.0f;
    }
}

// scores = rows · columnsᵀ
template <int D, int R, int C>
__device__ __forceinline__ void multiply(float scores[R][C], const float *rows,
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
        for (int i = 0; i < R; i++)
            a[i] = *(const float4 *)(rows + (thread_y() + 8 * i) * STRIDE + k);
#pragma unroll
        for (int j = 0; j < C; j++)
            b[j] = *(const float4 *)(columns + (thread_x() + 16 * j) * STRIDE + k);
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

template <int D, int R, int C>
__device__ __forceinline__ void share_weights(float *weights, const float mine[R][C]) {
    __syncwarp();  // the warp has left what was there
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < C; j++) {
            weights[(thread_y() + 8 * i) * float_plan<D>::WEIGHT_STRIDE + thread_x() + 16 * j] =
                mine[i][j];
        }
    }
    __syncwarp();
}

// sums += weights · tile
template <int D, int R, int C>
__device__ __forceinline__ void add_weighted(float sums[R][D / 16], const float *weights,
                                             const float *tile) {
    constexpr int STRIDE = float_plan<D>::STRIDE, WEIGHT_STRIDE = float_plan<D>::WEIGHT_STRIDE;
#pragma unroll 1
    for (int k = 0; k < 16 * C; k += 4) {
        float4 a[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            a[i] = *(const float4 *)(weights + (thread_y() + 8 * i) * WEIGHT_STRIDE + k);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            const float *at = tile + k * STRIDE + thread_x() + 16 * j;
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

template <int D, int R> __device__ __forceinline__ void clear(float sums[R][D / 16]) {
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < D / 16; j++) sums[i][j] = 0;
    }
}

template <int D, int R>
__device__ __forceinline__ void store(float *to, size_t stride, int first,
                                      const float sums[R][D / 16], const float factors[R],
                                      const float_job &job) {
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = first + thread_y() + 8 * i;
        if (row >= job.positions) continue;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            const int column = thread_x() + 16 * j;
            if (column < job.head_channels)
                to[(size_t)row * stride + column] = sums[i][j] * factors[i];
        }
    }
}

// Of the 16 lanes that share a row.
__device__ __forceinline__ float sum_lanes(float value) {
#pragma unroll
    for (int distance = 8; distance; distance /= 2)
        value += __shfl_xor_sync(GS_FULL_WARP, value, distance);
    return value;
}

__device__ __forceinline__ float max_lanes(float value) {
#pragma unroll
    for (int distance = 8; distance; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(GS_FULL_WARP, value, distance));
    }
    return value;
}

// ---- forward

// Scores become exponentials, what was summed before shrinks. `first_query` and `first_key` are the
// tile's.
template <int D, int R, int C>
__device__ __forceinline__ void advance(float scores[R][C], float sums[R][D / 16], float largest[R],
                                        float sum[R], int first_query, int first_key,
                                        float scale_log2) {
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int query = first_query + thread_y() + 8 * i;
        float next = largest[i];
#pragma unroll
        for (int j = 0; j < C; j++) {
            if (first_key + thread_x() + 16 * j > query) scores[i][j] = -INFINITY;
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
    constexpr int R = plan::R, C = plan::C;
    GS_DYNAMIC_SHARED(float, shared);
    float *const queries = shared;
    float *const keys = queries + plan::ROW_NUMBERS;
    float *const values = keys + plan::COLUMN_NUMBERS;
    float *const weights = values + plan::COLUMN_NUMBERS;
    const attention_place place = find_place(job);
    const int first = (int)(job.num_tiles - 1 - place.order) * plan::ROWS;
    const size_t stride = 3 * job.channels;
    const float_rows q = {job.qkv + find_head(job, place.head, 3), stride};
    const float_rows k = {q.data + job.channels, stride}, v = {k.data + job.channels, stride};
    const int last = min(first + plan::ROWS, job.positions) - 1;
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;

    float sums[R][D / 16], largest[R], sum[R], factors[R];
    clear<D, R>(sums);
#pragma unroll
    for (int i = 0; i < R; i++) {
        largest[i] = -INFINITY;
        sum[i] = 0;
    }
    load_rows<D, plan::ROWS>(queries, q, first, job);
    for (int first_key = 0; first_key <= last; first_key += plan::COLUMNS) {
        __syncthreads();  // all have left the tile before
        load_rows<D, plan::COLUMNS>(keys, k, first_key, job);
        load_rows<D, plan::COLUMNS>(values, v, first_key, job);
        __syncthreads();
        float scores[R][C];
        multiply<D, R, C>(scores, queries, keys);
        advance<D, R, C>(scores, sums, largest, sum, first, first_key, scale_log2);
        share_weights<D, R, C>(weights, scores);
        add_weighted<D, R, C>(sums, weights, values);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float whole = sum_lanes(sum[i]);
        const int query = first + thread_y() + 8 * i;
        factors[i] = 1.0f / whole;
        if (thread_x() == 0 && query < job.positions) {
            job.logsumexp[(size_t)place.head * (size_t)job.positions + (size_t)query] =
                largest[i] * job.scale + logf(whole);
        }
    }
    store<D, R>(job.to + find_head(job, place.head, 1), job.channels, first, sums, factors, job);
}

// ---- backward

#define WEIGHT_LANES 8  // of a row
#define WEIGHT_ROWS (GS_ATTENTION_THREADS / WEIGHT_LANES)

// Σ dout · out of each position of each head, in the order in which (B, T, C) has them.
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2) weigh_float_rows(const float_job job) {
    const size_t num_rows = (size_t)job.num_heads * (size_t)job.positions;
    const int lane = (int)(threadIdx.x % WEIGHT_LANES);
    for (size_t first = (size_t)blockIdx.x * WEIGHT_ROWS; first < num_rows;
         first += (size_t)gridDim.x * WEIGHT_ROWS) {
        const size_t row = first + threadIdx.x / WEIGHT_LANES, at = row * (size_t)job.head_channels;
        float sum = 0;
        for (int i = lane; row < num_rows && i < job.head_channels; i += WEIGHT_LANES) {
            sum = fmaf(job.dout[at + (size_t)i], job.out[at + (size_t)i], sum);
        }
#pragma unroll
        for (int distance = WEIGHT_LANES / 2; distance; distance /= 2) {
            sum += __shfl_xor_sync(GS_FULL_WARP, sum, distance);
        }
        if (lane || row >= num_rows) continue;
        const size_t position = row / (size_t)job.heads, h = row % (size_t)job.heads;
        keep_weighted(job.to + position * 3 * job.channels + h * (size_t)job.head_channels, sum);
    }
}

// A query's logsumexp in base 2; behind the last position every probability is 0.
__device__ __forceinline__ float read_normal(const float_job &job, const float *logsumexp,
                                             int query) {
    return query < job.positions ? logsumexp[query] * GS_ATTENTION_LOG2_E : INFINITY;
}

__device__ __forceinline__ float read_weighted(const float_job &job, const float *dq, int query) {
    return query < job.positions ? recall_weighted(dq + (size_t)query * 3 * job.channels) : 0.0f;
}

// dk and dv: rows are keys, columns are queries.
template <int D>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2)
    attention_backward_keys(const float_job job) {
    typedef float_plan<D> plan;
    constexpr int R = plan::R, C = plan::C;
    GS_DYNAMIC_SHARED(float, shared);
    float *const keys = shared;
    float *const values = keys + plan::ROW_NUMBERS;
    float *const queries = values + plan::ROW_NUMBERS;
    float *const douts = queries + plan::COLUMN_NUMBERS;
    float *const weights = douts + plan::COLUMN_NUMBERS;
    float *const normals = weights + plan::WEIGHT_NUMBERS;
    float *const weighted = normals + plan::COLUMNS;
    const attention_place place = find_place(job);
    const int first = (int)place.order * plan::ROWS;
    const size_t stride = 3 * job.channels, head = find_head(job, place.head, 3);
    const float_rows q = {job.qkv + head, stride}, k = {q.data + job.channels, stride};
    const float_rows v = {k.data + job.channels, stride};
    const float_rows dout = {job.dout + find_head(job, place.head, 1), job.channels};
    const float *const logsumexp = job.saved_logsumexp + (size_t)place.head * (size_t)job.positions;
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;

    float dk[R][D / 16], dv[R][D / 16], ones[R], scales[R];
    clear<D, R>(dk);
    clear<D, R>(dv);
    load_rows<D, plan::ROWS>(keys, k, first, job);
    load_rows<D, plan::ROWS>(values, v, first, job);
    for (int first_query = first / plan::COLUMNS * plan::COLUMNS; first_query < job.positions;
         first_query += plan::COLUMNS) {
        __syncthreads();  // all have left the tile before
        load_rows<D, plan::COLUMNS>(queries, q, first_query, job);
        load_rows<D, plan::COLUMNS>(douts, dout, first_query, job);
        if (threadIdx.x < plan::COLUMNS) {
            const int query = first_query + (int)threadIdx.x;
            normals[threadIdx.x] = read_normal(job, logsumexp, query);
            weighted[threadIdx.x] = read_weighted(job, job.to + head, query);
        }
        __syncthreads();
        float p[R][C], slopes[R][C];
        multiply<D, R, C>(p, keys, queries);
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < C; j++) {
                const int key = first + thread_y() + 8 * i, column = thread_x() + 16 * j;
                const float e = exp2f(fmaf(p[i][j], scale_log2, -normals[column]));
                p[i][j] = key <= first_query + column ? e : 0.0f;
            }
        }
        share_weights<D, R, C>(weights, p);
        add_weighted<D, R, C>(dv, weights, douts);
        multiply<D, R, C>(slopes, values, douts);
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < C; j++)
                slopes[i][j] = p[i][j] * (slopes[i][j] - weighted[thread_x() + 16 * j]);
        }
        share_weights<D, R, C>(weights, slopes);
        add_weighted<D, R, C>(dk, weights, queries);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        ones[i] = 1.0f;
        scales[i] = job.scale;
    }
    float *const to = job.to + head + job.channels;
    store<D, R>(to, stride, first, dk, scales, job);
    store<D, R>(to + job.channels, stride, first, dv, ones, job);
}

// dq: rows are queries, columns are keys.
template <int D>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS, 2)
    attention_backward_queries(const float_job job) {
    typedef float_plan<D> plan;
    constexpr int R = plan::R, C = plan::C;
    GS_DYNAMIC_SHARED(float, shared);
    float *const queries = shared;
    float *const douts = queries + plan::ROW_NUMBERS;
    float *const keys = douts + plan::ROW_NUMBERS;
    float *const values = keys + plan::COLUMN_NUMBERS;
    float *const weights = values + plan::COLUMN_NUMBERS;
    const attention_place place = find_place(job);
    const int first = (int)(job.num_tiles - 1 - place.order) * plan::ROWS;
    const size_t stride = 3 * job.channels, head = find_head(job, place.head, 3);
    const float_rows q = {job.qkv + head, stride}, k = {q.data + job.channels, stride};
    const float_rows v = {k.data + job.channels, stride};
    const float_rows dout = {job.dout + find_head(job, place.head, 1), job.channels};
    const float *const logsumexp = job.saved_logsumexp + (size_t)place.head * (size_t)job.positions;
    const int last = min(first + plan::ROWS, job.positions) - 1;
    const float scale_log2 = job.scale * GS_ATTENTION_LOG2_E;

    float dq[R][D / 16], normals[R], weighted[R], scales[R];
    clear<D, R>(dq);
    // What weigh_float_rows kept is read before anything is written there: the 16 lanes of a row
    // are of one warp.
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int query = first + thread_y() + 8 * i;
        normals[i] = read_normal(job, logsumexp, query);
        weighted[i] = read_weighted(job, job.to + head, query);
        scales[i] = job.scale;
    }
    load_rows<D, plan::ROWS>(queries, q, first, job);
    load_rows<D, plan::ROWS>(douts, dout, first, job);
    for (int first_key = 0; first_key <= last; first_key += plan::COLUMNS) {
        __syncthreads();  // all have left the tile before
        load_rows<D, plan::COLUMNS>(keys, k, first_key, job);
        load_rows<D, plan::COLUMNS>(values, v, first_key, job);
        __syncthreads();
        float p[R][C], slopes[R][C];
        multiply<D, R, C>(p, queries, keys);
        multiply<D, R, C>(slopes, douts, values);
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < C; j++) {
                const int query = first + thread_y() + 8 * i, key = first_key + thread_x() + 16 * j;
                const float e = exp2f(fmaf(p[i][j], scale_log2, -normals[i]));
                slopes[i][j] = key <= query ? e * (slopes[i][j] - weighted[i]) : 0.0f;
            }
        }
        share_weights<D, R, C>(weights, slopes);
        add_weighted<D, R, C>(dq, weights, keys);
    }
    store<D, R>(job.to + head, stride, first, dq, scales, job);
}

// ---- launching

template <int D> static void launch_forward(gs_stream *stream, float_job job) {
    const unsigned blocks = count_blocks(&job, float_plan<D>::ROWS);
    GS_ALLOW_SHARED(stream, (attention_forward<D>), float_plan<D>::FORWARD_BYTES);
    GS_LAUNCH(stream, blocks, GS_ATTENTION_THREADS, float_plan<D>::FORWARD_BYTES,
              (attention_forward<D>), job);
}

template <int D> static void launch_backward(gs_stream *stream, float_job job) {
    const size_t num_rows = (size_t)job.num_heads * (size_t)job.positions;
    GS_LAUNCH(stream, gs_num_blocks(num_rows, WEIGHT_ROWS, 32 * (size_t)gs_num_sms(stream)),
              GS_ATTENTION_THREADS, 0, weigh_float_rows, job);
    const unsigned blocks = count_blocks(&job, float_plan<D>::ROWS);
    GS_ALLOW_SHARED(stream, (attention_backward_keys<D>), float_plan<D>::BACKWARD_BYTES);
    GS_LAUNCH(stream, blocks, GS_ATTENTION_THREADS, float_plan<D>::BACKWARD_BYTES,
              (attention_backward_keys<D>), job);
    GS_ALLOW_SHARED(stream, (attention_backward_queries<D>), float_plan<D>::BACKWARD_BYTES);
    GS_LAUNCH(stream, blocks, GS_ATTENTION_THREADS, float_plan<D>::BACKWARD_BYTES,
              (attention_backward_queries<D>), job);
}

extern "C" void gs_cuda_attention(gs_stream *stream, float *out, float *logsumexp, const float *qkv,
                                  const gs_attention *shape) {
    if (!accept_attention(stream, shape)) return;
    float_job job = plan_attention<float>(shape);
    job.qkv = qkv;
    job.to = out;
    job.logsumexp = logsumexp;
    job.whole_vectors = job.whole_vectors && is_vector_address(qkv);
    run_for_head_size(shape->head_channels, [&]<int D>() { launch_forward<D>(stream, job); });
}

extern "C" void gs_cuda_attention_backward(gs_stream *stream, float *dqkv, const float *dout,
                                           const float *qkv, const float *out,
                                           const float *logsumexp, const gs_attention *shape) {
    if (!accept_attention(stream, shape)) return;
    float_job job = plan_attention<float>(shape);
    job.qkv = qkv;
    job.dout = dout;
    job.out = out;
    job.to = dqkv;
    job.saved_logsumexp = logsumexp;
    job.whole_vectors = job.whole_vectors && is_vector_address(qkv) && is_vector_address(dout);
    run_for_head_size(shape->head_channels, [&]<int D>() { launch_backward<D>(stream, job); });
}
