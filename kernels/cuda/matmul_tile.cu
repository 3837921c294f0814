// Matrix products in own kernels, for what cuBLASLt does not take: fp32 arithmetic on tiles in shared memory,
// any shape and alignment, no tensor cores. Each element is one sum over k in order, so that its bits depend
// on its row and column alone.
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"

#define TILE 64      // rows and columns of C for a block
#define TILE_K 16    // of A and B at a time
#define SIDE 16      // threads along each side; each has PART × PART elements
#define PART (TILE / SIDE)
#define THREADS (SIDE * SIDE)
#define BLOCKS_PER_SM 8

namespace {

template <typename In, typename Out>
struct tile_job {
    Out *c;
    const In *a, *b;
    const Out *bias, *residual;
    Out *aux;
    size_t m, n, k, stride_a, stride_b, stride_c;
    float alpha, beta;
    bool transpose_a, transpose_b;
    gs_epilogue epilogue;
    size_t tiles_n, num_tiles;
};

template <typename In, typename Out>
__device__ void store_element(const tile_job<In, Out> &job, size_t row, size_t col, float product) {
    const size_t at = row * job.stride_c + col;
    float value = product;
    switch (job.epilogue) {
    case GS_EPILOGUE_BIAS:
        value += gs_to_float(job.bias[col]);
        if (job.residual) value += gs_to_float(job.residual[at]);
        break;
    case GS_EPILOGUE_BIAS_GELU:
        value += gs_to_float(job.bias[col]);
        job.aux[at] = gs_from_float<Out>(value);
        value = gs_gelu(value);
        break;
    case GS_EPILOGUE_DGELU:
        value *= gs_gelu_slope(gs_to_float(job.aux[at]));
        break;
    default:
        if (job.beta != 0.0f) value += job.beta * gs_to_float(job.c[at]);
    }
    job.c[at] = gs_from_float<Out>(value);
}

// A piece of a stored matrix, TILE wide along the output and TILE_K along k, as to[k][output]. Threads that
// are neighbours read neighbours.
template <typename In>
__device__ void load_piece(float (*to)[TILE + 1], const In *from, size_t stride, bool k_is_row,
                           size_t first, size_t end, size_t first_k, size_t end_k) {
    for (unsigned i = threadIdx.x; i < TILE * TILE_K; i += THREADS) {
        const unsigned along = k_is_row ? i % TILE : i / TILE_K;
        const unsigned deep = k_is_row ? i / TILE : i % TILE_K;
        const size_t at = first + along, k = first_k + deep;
        float value = 0.0f;
        if (at < end && k < end_k)
            value = gs_to_float(k_is_row ? from[k * stride + at] : from[at * stride + k]);
        to[deep][along] = value;
    }
}

template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS) multiply_tiles(tile_job<In, Out> job) {
    __shared__ float a[TILE_K][TILE + 1], b[TILE_K][TILE + 1];
    const unsigned thread_row = threadIdx.x / SIDE, thread_col = threadIdx.x % SIDE;
    for (size_t tile = blockIdx.x; tile < job.num_tiles; tile += gridDim.x) {
        const size_t first_row = tile / job.tiles_n * TILE, first_col = tile % job.tiles_n * TILE;
        float sums[PART][PART] = {};
        for (size_t first_k = 0; first_k < job.k; first_k += TILE_K) {
            load_piece(a, job.a, job.stride_a, job.transpose_a, first_row, job.m, first_k, job.k);
            load_piece(b, job.b, job.stride_b, !job.transpose_b, first_col, job.n, first_k, job.k);
            __syncthreads();
            for (int k = 0; k < TILE_K; k++) {
#pragma unroll
                for (int i = 0; i < PART; i++) {
#pragma unroll
                    for (int j = 0; j < PART; j++)
                        sums[i][j] += a[k][thread_row + i * SIDE] * b[k][thread_col + j * SIDE];
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < PART; i++) {
#pragma unroll
            for (int j = 0; j < PART; j++) {
                const size_t row = first_row + thread_row + i * SIDE;
                const size_t col = first_col + thread_col + j * SIDE;
                if (row < job.m && col < job.n)
                    store_element(job, row, col, job.alpha * sums[i][j]);
            }
        }
    }
}

template <typename Out>
__global__ void __launch_bounds__(THREADS) finish_product(tile_job<Out, Out> job) {
    const size_t count = job.m * job.n, stride = static_cast<size_t>(gridDim.x) * THREADS;
    const Out *product = job.epilogue == GS_EPILOGUE_BIAS_GELU ? job.aux : job.c;
    for (size_t i = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += stride) {
        const size_t row = i / job.n, col = i % job.n;
        store_element(job, row, col, gs_to_float(product[row * job.stride_c + col]));
    }
}

template <typename In, typename Out>
tile_job<In, Out> job_of(const gs_cuda_product *product) {
    const gs_matmul *s = &product->shape;
    const size_t tiles_m = s->m / TILE + (s->m % TILE != 0);
    const size_t tiles_n = s->n / TILE + (s->n % TILE != 0);
    return {.c = static_cast<Out *>(product->c),
            .a = static_cast<const In *>(product->a),
            .b = static_cast<const In *>(product->b),
            .bias = static_cast<const Out *>(product->bias),
            .residual = static_cast<const Out *>(product->residual),
            .aux = static_cast<Out *>(product->aux),
            .m = s->m,
            .n = s->n,
            .k = s->k,
            .stride_a = s->stride_a,
            .stride_b = s->stride_b,
            .stride_c = s->stride_c,
            .alpha = s->alpha,
            .beta = s->beta,
            .transpose_a = s->transpose_a,
            .transpose_b = s->transpose_b,
            .epilogue = product->epilogue,
            .tiles_n = tiles_n,
            .num_tiles = tiles_m * tiles_n};
}

template <typename In, typename Out>
void launch_tiles(gs_stream *stream, const gs_cuda_product *product) {
    const tile_job<In, Out> job = job_of<In, Out>(product);
    const size_t most = static_cast<size_t>(gs_num_sms(stream)) * BLOCKS_PER_SM;
    GS_LAUNCH(stream, gs_num_blocks(job.num_tiles, 1, most), THREADS, 0, (multiply_tiles<In, Out>),
              job);
}

template <typename Out>
void launch_epilogue(gs_stream *stream, const gs_cuda_product *product) {
    const tile_job<Out, Out> job = job_of<Out, Out>(product);
    const size_t most = static_cast<size_t>(gs_num_sms(stream)) * BLOCKS_PER_SM;
    GS_LAUNCH(stream, gs_num_blocks(job.m * job.n, THREADS, most), THREADS, 0,
              (finish_product<Out>), job);
}

}  // namespace

void gs_cuda_tile_product(gs_stream *stream, const gs_cuda_product *product) {
    const bool to_fp32 = product->out == GS_FP32;
    if (product->in == GS_FP32)
        launch_tiles<float, float>(stream, product);
    else if (product->in == GS_BF16 && to_fp32)
        launch_tiles<__nv_bfloat16, float>(stream, product);
    else if (product->in == GS_BF16)
        launch_tiles<__nv_bfloat16, __nv_bfloat16>(stream, product);
    else if (to_fp32)
        launch_tiles<__half, float>(stream, product);
    else
        launch_tiles<__half, __half>(stream, product);
}

void gs_cuda_tile_epilogue(gs_stream *stream, const gs_cuda_product *product) {
    if (product->out == GS_BF16)
        launch_epilogue<__nv_bfloat16>(stream, product);
    else
        launch_epilogue<__half>(stream, product);
}
