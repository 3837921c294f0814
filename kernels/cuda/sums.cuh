// Sums over flat arrays, in an order that the count alone decides: neither the device nor the array's address
// has a say.
//
// An array is cut into chunks of GS_SUM_CHUNK elements. A block sums a chunk: thread t takes the elements
// 4t … 4t+3 of every 4·256, each of the four places has its own sum, and the sums are folded as a tree. The
// chunks' sums go to scratch memory, and one block folds them the same way.
#ifndef KERNELS_CUDA_SUMS_CUH
#define KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/launch.cuh"

#define GS_SUM_BLOCK 256
#define GS_SUM_CHUNK ((size_t)16384)
#define GS_SUM_STEP ((size_t)4 * GS_SUM_BLOCK)
#define GS_SUM_UNROLL 4

struct gs_square_term {
    typedef double sum;
    // The square of an fp32 is exact in fp64: fused or not is the same.
    __device__ static void add(double &total, float value) {
        total = __fma_rn(static_cast<double>(value), static_cast<double>(value), total);
    }
};

__host__ __device__ static inline size_t gs_num_sum_chunks(size_t count) {
    return count / GS_SUM_CHUNK + (count % GS_SUM_CHUNK != 0);
}

// Elements [at, at + 4) as far as there are any; zeros add nothing to any of the sums.
__device__ static inline void gs_load_four(float (&four)[4], const float *in, size_t at, size_t end,
                                           bool aligned) {
    if (aligned && at + 4 <= end) {
        const gs_vec16<float> vec = gs_load16(in + at);
#pragma unroll
        for (int k = 0; k < 4; k++) four[k] = vec.at[k];
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) four[k] = at + k < end ? in[at + k] : 0.0f;
}

// The sum of one chunk, in every thread of a block of GS_SUM_BLOCK. Ends with a barrier, so that it can be
// called again.
template <class Term>
__device__ static inline typename Term::sum gs_sum_chunk(const float *in, size_t chunk, size_t count) {
    typedef typename Term::sum sum;
    __shared__ sum shared[GS_WARP];
    const size_t first = chunk * GS_SUM_CHUNK;
    const size_t end = count - first < GS_SUM_CHUNK ? count : first + GS_SUM_CHUNK;
    const bool aligned = gs_is_aligned16(in);
    sum sums[4] = {};
    for (size_t at = first + 4 * threadIdx.x; at < end; at += GS_SUM_UNROLL * GS_SUM_STEP) {
        float values[GS_SUM_UNROLL][4];
#pragma unroll
        for (int u = 0; u < GS_SUM_UNROLL; u++)
            gs_load_four(values[u], in, at + u * GS_SUM_STEP, end, aligned);
#pragma unroll
        for (int u = 0; u < GS_SUM_UNROLL; u++) {
#pragma unroll
            for (int k = 0; k < 4; k++) Term::add(sums[k], values[u][k]);
        }
    }
    const sum total = gs_block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
    __syncthreads();
    return total;
}

// The sum of the chunks' sums, in every thread. Ends with a barrier.
template <typename Sum>
__device__ static inline Sum gs_fold_chunks(const Sum *chunk_sums, size_t num_chunks) {
    __shared__ Sum shared[GS_WARP];
    Sum total = 0;
    for (size_t chunk = threadIdx.x; chunk < num_chunks; chunk += GS_SUM_BLOCK)
        total += chunk_sums[chunk];
    total = gs_block_sum(total, shared);
    __syncthreads();
    return total;
}

template <class Term>
__global__ static void __launch_bounds__(GS_SUM_BLOCK)
    gs_sum_chunks_kernel(typename Term::sum *chunk_sums, const float *in, size_t count) {
    const size_t num_chunks = gs_num_sum_chunks(count);
    for (size_t chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
        const typename Term::sum total = gs_sum_chunk<Term>(in, chunk, count);
        if (threadIdx.x == 0) chunk_sums[chunk] = total;
    }
}

template <typename Sum, class Finish>
__global__ static void __launch_bounds__(GS_SUM_BLOCK)
    gs_fold_kernel(Sum *out, const Sum *chunk_sums, size_t num_chunks, Finish finish) {
    const Sum total = gs_fold_chunks(chunk_sums, num_chunks);
    if (threadIdx.x == 0) finish(out, total);
}

// finish(out, total) by one thread, total = Σ Term over in.
template <class Term, class Finish>
static inline void gs_sum_array(gs_stream *stream, typename Term::sum *out, const float *in,
                                size_t count, Finish finish, const char *name) {
    typedef typename Term::sum sum;
    const size_t num_chunks = gs_num_sum_chunks(count);
    sum *chunk_sums = static_cast<sum *>(gs_scratch(stream, num_chunks * sizeof(sum), name));
    if (!chunk_sums) return;
    GS_LAUNCH(stream, gs_num_blocks(num_chunks, 1, 1u << 30), GS_SUM_BLOCK, 0,
              (gs_sum_chunks_kernel<Term>), chunk_sums, in, count);
    GS_LAUNCH(stream, 1, GS_SUM_BLOCK, 0, (gs_fold_kernel<sum, Finish>), out, chunk_sums, num_chunks,
              finish);
}

#endif
