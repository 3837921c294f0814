// Bias, GELU and ReLU, 16 bytes to a thread where addresses allow it.
//
// To the bit like the CPU: bias_add, relu, relu_backward, and the fp32 bias_backward. GELU and its
// derivative use the device's exponential and differ by roundings.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wide.cuh"

#define BLOCK 256
#define BLOCKS_PER_SM 16

// ---- flat arrays

struct gelu_backward_op {
    __device__ static float apply(float dy, float x) { return dy * gs_gelu_slope(x); }
};
struct relu_op {
    __device__ static float apply(float in, float) { return in <= 0.0f ? 0.0f : in; }
};
struct relu_backward_op {
    __device__ static float apply(float dy, float out) { return out <= 0.0f ? 0.0f : dy; }
};

// out[i] = apply(a[i], b[i]); out may be a or b, so nothing here is restrict.
template <typename Op>
__global__ static void __launch_bounds__(BLOCK)
    flat_kernel(float *out, const float *a, const float *b, size_t count, bool by_vector) {
    const size_t first = (size_t)blockIdx.x * BLOCK + threadIdx.x, step = (size_t)gridDim.x * BLOCK;
    const size_t vectors = by_vector ? count / 4 : 0;
    for (size_t v = first; v < vectors; v += step) {
        const gs_vec16<float> left = gs_load16(a + v * 4), right = gs_load16(b + v * 4);
        gs_vec16<float> result;
#pragma unroll
        for (int i = 0; i < 4; i++) result.at[i] = Op::apply(left.at[i], right.at[i]);
        gs_store16(out + v * 4, result);
    }
    for (size_t i = vectors * 4 + first; i < count; i += step) out[i] = Op::apply(a[i], b[i]);
}

template <typename Op>
static void run_flat(gs_stream *stream, float *out, const float *a, const float *b, size_t count) {
    const bool by_vector = gs_is_aligned16(out) && gs_is_aligned16(a) && gs_is_aligned16(b);
    const unsigned blocks = gs_num_blocks(by_vector ? count / 4 + 3 : count, BLOCK,
                                          (size_t)gs_num_sms(stream) * BLOCKS_PER_SM);
    if (count) GS_LAUNCH(stream, blocks, BLOCK, 0, (flat_kernel<Op>), out, a, b, count, by_vector);
}

extern "C" void gs_cuda_gelu_backward(gs_stream *stream, float *dx, const float *dy, const float *x,
                                      size_t count) {
    run_flat<gelu_backward_op>(stream, dx, dy, x, count);
}

// Its second operand is the first again: the cache has it.
extern "C" void gs_cuda_relu(gs_stream *stream, float *out, const float *in, size_t count) {
    run_flat<relu_op>(stream, out, in, in, count);
}

extern "C" void gs_cuda_relu_backward(gs_stream *stream, float *dx, const float *dy,
                                      const float *out, size_t count) {
    run_flat<relu_backward_op>(stream, dx, dy, out, count);
}

// ---- rows with a bias

// A thread has columns of its own and goes down the rows, so the bias is read once and nothing is
// divided. WIDTH: columns of a thread, 4 or 1. Blocks: x over columns, y over rows; ROWS at a time
// are in flight.
#define ROWS 4

template <int WIDTH, bool GELU>
__global__ static void __launch_bounds__(BLOCK)
    bias_kernel(float *out, float *x, const float *bias, size_t rows, size_t cols) {
    const size_t group = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.y;
    if (group >= cols / WIDTH) return;
    float added[WIDTH], sum[ROWS][WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) added[i] = bias[group * WIDTH + i];
    for (size_t first = blockIdx.y; first < rows; first += ROWS * step) {
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (first + k * step < rows)
                gs_load_wide<WIDTH>(sum[k], x + (first + k * step) * cols + group * WIDTH);
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (first + k * step >= rows) break;
            const size_t at = (first + k * step) * cols + group * WIDTH;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[k][i] += added[i];
            gs_store_wide<WIDTH>(x + at, sum[k]);
            if (GELU) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) sum[k][i] = gs_gelu(sum[k][i]);
                gs_store_wide<WIDTH>(out + at, sum[k]);
            }
        }
    }
}

template <bool GELU>
static void run_bias(gs_stream *stream, float *out, float *x, const float *bias, size_t rows,
                     size_t cols) {
    if (!rows || !cols) return;
    const bool by_vector = cols % 4 == 0 && gs_is_aligned16(x) && (!GELU || gs_is_aligned16(out));
    const size_t groups = by_vector ? cols / 4 : cols;
    const unsigned block = gs_block_for(groups, BLOCK);
    dim3 grid(gs_num_blocks(groups, block, SIZE_MAX));
    const size_t most = (size_t)gs_num_sms(stream) * BLOCKS_PER_SM * BLOCK / block / grid.x + 1;
    grid.y = gs_num_blocks(rows, ROWS, most < 65535 ? most : 65535);
    if (by_vector) {
        GS_LAUNCH(stream, grid, block, 0, (bias_kernel<4, GELU>), out, x, bias, rows, cols);
    } else {
        GS_LAUNCH(stream, grid, block, 0, (bias_kernel<1, GELU>), out, x, bias, rows, cols);
    }
}

extern "C" void gs_cuda_bias_add(gs_stream *stream, float *x, const float *bias, size_t rows,
                                 size_t cols) {
    run_bias<false>(stream, nullptr, x, bias, rows, cols);
}

extern "C" void gs_cuda_bias_gelu(gs_stream *stream, float *out, float *x, const float *bias,
                                  size_t rows, size_t cols) {
    run_bias<true>(stream, out, x, bias, rows, cols);
}

// ---- sums over rows

extern "C" void gs_cuda_bias_backward(gs_stream *stream, float *dbias, const float *dy, size_t rows,
                                      size_t cols, bool accumulate) {
    gs_sum_columns<float>(stream, dbias, dy, rows, cols, accumulate);
}

extern "C" void gs_cuda_bf16_bias_backward(gs_stream *stream, float *dbias, const gs_half *dy,
                                           size_t rows, size_t cols, bool accumulate) {
    gs_sum_columns(stream, dbias, gs_as<__nv_bfloat16>(dy), rows, cols, accumulate);
}

extern "C" void gs_cuda_fp16_bias_backward(gs_stream *stream, float *dbias, const gs_half *dy,
                                           size_t rows, size_t cols, bool accumulate) {
    gs_sum_columns(stream, dbias, gs_as<__half>(dy), rows, cols, accumulate);
}
