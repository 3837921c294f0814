// Layer norm over the last dimension: eps 1e-5, variance divided by C, statistics in fp32 and in
// two passes over registers.
//
// Forward: a warp for each row, which it holds in registers up to 16 accesses per lane; other rows
// are read again from the cache. Backward: a block has columns of its own and goes down its part of
// the rows, so that one read of x, dy and dx gives dx and the part's sums for dweight and dbias;
// the parts are then added up in order. Sums over a row run in another order than the CPU's.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wide.cuh"

#define EPS 1e-5f
#define BLOCK 256
#define BLOCK_WARPS (BLOCK / GS_WARP)
#define BLOCKS_PER_SM 8
#define MOST_VECTORS 16

// ---- forward

template <typename T> struct norm_args {
    T *out, *residual;  // residual NULL: normalise `a`
    float *mean, *rstd;
    const T *a, *b, *bias_b, *weight, *bias;
    size_t rows, channels;
};

// x of these columns: a, or a + b (with b's bias), which is stored and rounded like what is stored.
template <typename T, int WIDTH>
__device__ static inline gs_packed<T, WIDTH> take_x(const norm_args<T> &args, size_t row,
                                                    size_t c) {
    const size_t at = row * args.channels + c;
    const gs_packed<T, WIDTH> a = gs_load_packed<WIDTH>(args.a + at);
    if (!args.residual) return a;
    float sum[WIDTH], b[WIDTH];
    gs_load_wide<WIDTH>(b, args.b + at);
    if (args.bias_b) {
        float bias[WIDTH];
        gs_load_wide<WIDTH>(bias, args.bias_b + c);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) b[i] += bias[i];
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] = a[i] + b[i];
    const gs_packed<T, WIDTH> x = gs_pack<T, WIDTH>(sum);
    gs_store_packed<WIDTH>(args.residual + at, x);
    return x;
}

template <typename T, int WIDTH>
__device__ static inline void store_normal(const norm_args<T> &args, const gs_packed<T, WIDTH> &x,
                                           float mean, float rstd, size_t row, size_t c) {
    float weight[WIDTH], bias[WIDTH], out[WIDTH];
    gs_load_wide<WIDTH>(weight, args.weight + c);
    gs_load_wide<WIDTH>(bias, args.bias + c);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
    gs_store_wide<WIDTH>(args.out + row * args.channels + c, out);
}

__device__ static inline float to_rstd(float squares, size_t channels) {
    return 1.0f / sqrtf(squares / (float)channels + EPS);
}

// VECTORS: accesses of a lane for a row.
template <typename T, int WIDTH, int VECTORS>
__global__ static void __launch_bounds__(BLOCK) norm_kernel(norm_args<T> args) {
    const unsigned lane = threadIdx.x % GS_WARP;
    const size_t step = (size_t)gridDim.x * BLOCK_WARPS;
    for (size_t row = (size_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / GS_WARP; row < args.rows;
         row += step) {
        gs_packed<T, WIDTH> x[VECTORS];
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const size_t c = (size_t)(v * GS_WARP + lane) * WIDTH;
            if (c < args.channels) x[v] = take_x<T, WIDTH>(args, row, c);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const bool has = (size_t)(v * GS_WARP + lane) * WIDTH < args.channels;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum += has ? x[v][i] : 0.0f;
        }
        const float mean = gs_warp_sum(sum) / (float)args.channels;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const bool has = (size_t)(v * GS_WARP + lane) * WIDTH < args.channels;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float distance = has ? x[v][i] - mean : 0.0f;
                squares += distance * distance;
            }
        }
        const float rstd = to_rstd(gs_warp_sum(squares), args.channels);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const size_t c = (size_t)(v * GS_WARP + lane) * WIDTH;
            if (c < args.channels) store_normal<T, WIDTH>(args, x[v], mean, rstd, row, c);
        }
        if (lane == 0) {
            args.mean[row] = mean;
            args.rstd[row] = rstd;
        }
    }
}

// Rows of any length: three reads, of which the cache answers two.
template <typename T>
__global__ static void __launch_bounds__(BLOCK) norm_long_kernel(norm_args<T> args) {
    const unsigned lane = threadIdx.x % GS_WARP;
    const size_t step = (size_t)gridDim.x * BLOCK_WARPS;
    for (size_t row = (size_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / GS_WARP; row < args.rows;
         row += step) {
        // Each lane reads again what it wrote itself.
        const T *x = (args.residual ? args.residual : args.a) + row * args.channels;
        float sum = 0.0f, squares = 0.0f;
        for (size_t c = lane; c < args.channels; c += GS_WARP) sum += take_x<T, 1>(args, row, c)[0];
        const float mean = gs_warp_sum(sum) / (float)args.channels;
        for (size_t c = lane; c < args.channels; c += GS_WARP) {
            const float distance = gs_to_float(x[c]) - mean;
            squares += distance * distance;
        }
        const float rstd = to_rstd(gs_warp_sum(squares), args.channels);
        for (size_t c = lane; c < args.channels; c += GS_WARP)
            store_normal<T, 1>(args, gs_load_packed<1>(x + c), mean, rstd, row, c);
        if (lane == 0) {
            args.mean[row] = mean;
            args.rstd[row] = rstd;
        }
    }
}

template <typename T, int WIDTH>
static void launch_norm(gs_stream *stream, unsigned blocks, const norm_args<T> &args) {
    const size_t vectors = (args.channels + GS_WARP * WIDTH - 1) / (GS_WARP * WIDTH);
    if (vectors <= 2) {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (norm_kernel<T, WIDTH, 2>), args);
    } else if (vectors <= 4) {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (norm_kernel<T, WIDTH, 4>), args);
    } else if (vectors <= 8) {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (norm_kernel<T, WIDTH, 8>), args);
    } else if (vectors <= MOST_VECTORS) {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (norm_kernel<T, WIDTH, MOST_VECTORS>), args);
    } else {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (norm_long_kernel<T>), args);
    }
}

template <typename T> static void run_norm(gs_stream *stream, const norm_args<T> &args) {
    if (!args.rows) return;
    const unsigned blocks =
        gs_num_blocks(args.rows, BLOCK_WARPS, (size_t)gs_num_sms(stream) * BLOCKS_PER_SM);
    const bool by_vector = args.channels % gs_vec_width<T> == 0 && gs_is_aligned16(args.out) &&
                           gs_is_aligned16(args.residual) && gs_is_aligned16(args.a) &&
                           gs_is_aligned16(args.b) && gs_is_aligned16(args.bias_b) &&
                           gs_is_aligned16(args.weight) && gs_is_aligned16(args.bias);
    if (by_vector) {
        launch_norm<T, gs_vec_width<T>>(stream, blocks, args);
    } else {
        launch_norm<T, 1>(stream, blocks, args);
    }
}

// ---- backward

#define MOST_PARTS 512
#define AHEAD 4          // rows in flight; parts are a multiple of it
#define MOST_OWNERS 512  // threads of a block that have columns of their own
#define MOST_OWNER_WARPS (MOST_OWNERS / GS_WARP)

template <typename T> struct norm_backward_args {
    T *dx;
    float *parts;  // (num_parts, 2, channels): dweight, dbias
    const T *dy, *x, *weight;
    const float *mean, *rstd;
    size_t rows, channels, rows_per_part;
    bool first;
};

// Totals over the block of `mine`, in every thread; warps are added in their order. One barrier:
// `shared` must be another one in the next call.
template <int COUNT>
__device__ static inline void sum_block(float (&mine)[COUNT],
                                        float (&shared)[MOST_OWNER_WARPS][COUNT]) {
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        mine[i] = gs_warp_sum(mine[i]);
        if (lane == 0) shared[warp][i] = mine[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) mine[i] = 0.0f;
    for (unsigned w = 0; w < blockDim.x / GS_WARP; w++) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) mine[i] += shared[w][i];
    }
}

template <typename T, int WIDTH>
__global__ static void __launch_bounds__(MOST_OWNERS)
    norm_backward_kernel(norm_backward_args<T> args) {
    __shared__ float shared[2][MOST_OWNER_WARPS][2 * AHEAD];
    const size_t channels = args.channels, c = (size_t)threadIdx.x * WIDTH;
    const bool has_cols = c < channels;
    const size_t begin = blockIdx.x * args.rows_per_part;
    const size_t end =
        args.rows - begin < args.rows_per_part ? args.rows : begin + args.rows_per_part;
    gs_packed<T, WIDTH> weight = {};
    if (has_cols) weight = gs_load_packed<WIDTH>(args.weight + c);
    float dweight[WIDTH], dbias[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) dweight[i] = dbias[i] = 0.0f;
    unsigned turn = 0;
    for (size_t first = begin; first < end; first += AHEAD, turn ^= 1) {
        gs_packed<T, WIDTH> dy[AHEAD] = {}, x[AHEAD] = {}, dx[AHEAD] = {};
        float mean[AHEAD], rstd[AHEAD], sums[2 * AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const size_t row = first + k, at = row * channels + c;
            mean[k] = row < end ? args.mean[row] : 0.0f;
            rstd[k] = row < end ? args.rstd[row] : 0.0f;
            if (row >= end || !has_cols) continue;
            dy[k] = gs_load_packed<WIDTH>(args.dy + at);
            x[k] = gs_load_packed<WIDTH>(args.x + at);
            if (!args.first) dx[k] = gs_load_packed<WIDTH>(args.dx + at);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            sums[2 * k] = sums[2 * k + 1] = 0.0f;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float weighted = dy[k][i] * weight[i];
                sums[2 * k] += weighted;
                sums[2 * k + 1] += weighted * ((x[k][i] - mean[k]) * rstd[k]);
            }
        }
        sum_block(sums, shared[turn]);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const float sum = sums[2 * k] / (float)channels,
                        dot = sums[2 * k + 1] / (float)channels;
            float slope[WIDTH];
            gs_stay_packed(dy[k]);
            gs_stay_packed(x[k]);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float normal = (x[k][i] - mean[k]) * rstd[k];
                dweight[i] += dy[k][i] * normal;
                dbias[i] += dy[k][i];
                slope[i] = dx[k][i] + (dy[k][i] * weight[i] - sum - normal * dot) * rstd[k];
            }
            if (first + k < end && has_cols)
                gs_store_wide<WIDTH>(args.dx + (first + k) * channels + c, slope);
        }
    }
    if (!has_cols) return;
    float *part = args.parts + (size_t)blockIdx.x * 2 * channels + c;
    gs_store_floats<WIDTH>(part, dweight);
    gs_store_floats<WIDTH>(part + channels, dbias);
}

// Rows that are too long for one block's threads: dx by warps, then the parts by columns.
template <typename T>
__global__ static void __launch_bounds__(BLOCK) norm_dx_long_kernel(norm_backward_args<T> args) {
    const unsigned lane = threadIdx.x % GS_WARP;
    const size_t channels = args.channels, step = (size_t)gridDim.x * BLOCK_WARPS;
    for (size_t row = (size_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / GS_WARP; row < args.rows;
         row += step) {
        const T *dy = args.dy + row * channels, *x = args.x + row * channels;
        T *dx = args.dx + row * channels;
        const float mean = args.mean[row], rstd = args.rstd[row];
        float sum = 0.0f, dot = 0.0f;
        for (size_t c = lane; c < channels; c += GS_WARP) {
            const float weighted = gs_to_float(dy[c]) * gs_to_float(args.weight[c]);
            sum += weighted;
            dot += weighted * ((gs_to_float(x[c]) - mean) * rstd);
        }
        sum = gs_warp_sum(sum) / (float)channels;
        dot = gs_warp_sum(dot) / (float)channels;
        for (size_t c = lane; c < channels; c += GS_WARP) {
            const float weighted = gs_to_float(dy[c]) * gs_to_float(args.weight[c]);
            const float normal = (gs_to_float(x[c]) - mean) * rstd;
            const float before = args.first ? 0.0f : gs_to_float(dx[c]);
            dx[c] = gs_from_float<T>(before + (weighted - sum - normal * dot) * rstd);
        }
    }
}

// blockIdx.x: columns; blockIdx.y: the part.
template <typename T>
__global__ static void __launch_bounds__(BLOCK) norm_parts_long_kernel(norm_backward_args<T> args) {
    const size_t channels = args.channels, c = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (c >= channels) return;
    const size_t begin = blockIdx.y * args.rows_per_part;
    const size_t end =
        args.rows - begin < args.rows_per_part ? args.rows : begin + args.rows_per_part;
    float dweight = 0.0f, dbias = 0.0f;
#pragma unroll 4
    for (size_t row = begin; row < end; row++) {
        const float dy = gs_to_float(args.dy[row * channels + c]);
        const float x = gs_to_float(args.x[row * channels + c]);
        dweight += dy * ((x - args.mean[row]) * args.rstd[row]);
        dbias += dy;
    }
    float *part = args.parts + (size_t)blockIdx.y * 2 * channels + c;
    part[0] = dweight;
    part[channels] = dbias;
}

template <typename T>
static void launch_norm_backward(gs_stream *stream, const norm_backward_args<T> &args,
                                 unsigned num_parts) {
    const size_t channels = args.channels;
    const int width = gs_vec_width<T>;
    const bool by_vector = channels % width == 0 && gs_is_aligned16(args.dx) &&
                           gs_is_aligned16(args.dy) && gs_is_aligned16(args.x) &&
                           gs_is_aligned16(args.weight);
    if (by_vector && channels / width <= MOST_OWNERS) {
        GS_LAUNCH(stream, num_parts, gs_block_for(channels / width, MOST_OWNERS), 0,
                  (norm_backward_kernel<T, width>), args);
    } else if (channels <= MOST_OWNERS) {
        GS_LAUNCH(stream, num_parts, gs_block_for(channels, MOST_OWNERS), 0,
                  (norm_backward_kernel<T, 1>), args);
    } else {
        const unsigned blocks =
            gs_num_blocks(args.rows, BLOCK_WARPS, (size_t)gs_num_sms(stream) * BLOCKS_PER_SM);
        GS_LAUNCH(stream, blocks, BLOCK, 0, (norm_dx_long_kernel<T>), args);
        const dim3 grid(gs_num_blocks(channels, BLOCK, SIZE_MAX), num_parts);
        GS_LAUNCH(stream, grid, BLOCK, 0, (norm_parts_long_kernel<T>), args);
    }
}

// The parts follow from the shape alone. They lie in the stream's scratch memory, which has room
// for more of them than the caller's: enough to keep a device busy.
template <typename T>
static void run_norm_backward(gs_stream *stream, norm_backward_args<T> args, float *dweight,
                              float *dbias, bool accumulate) {
    if (!args.channels) return;
    const size_t part_bytes = 2 * args.channels * sizeof(float);
    size_t most = GS_CUDA_SCRATCH_BYTES / part_bytes;
    most = most < MOST_PARTS ? most : MOST_PARTS;
    args.parts = static_cast<float *>(
        gs_scratch(stream, most ? part_bytes : SIZE_MAX, "layernorm_backward"));
    if (!args.parts) return;
    const size_t even = (args.rows + most - 1) / most;
    args.rows_per_part = even > 2 * AHEAD ? (even + AHEAD - 1) / AHEAD * AHEAD : 2 * AHEAD;
    const unsigned num_parts = gs_num_blocks(args.rows, args.rows_per_part, SIZE_MAX);
    if (num_parts) launch_norm_backward(stream, args, num_parts);
    const gs_fold fold = {.outs = {dweight, dbias},
                          .start = nullptr,
                          .parts = args.parts,
                          .num_parts = num_parts,
                          .cols = args.channels,
                          .stride = 2 * args.channels,
                          .accumulate = accumulate};
    gs_run_fold(stream, fold, 2);
}

// ---- launchers

template <typename T>
static void norm(gs_stream *stream, T *out, float *mean, float *rstd, const T *x, const T *weight,
                 const T *bias, size_t rows, size_t channels) {
    run_norm(stream, norm_args<T>{.out = out,
                                  .residual = nullptr,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .a = x,
                                  .b = nullptr,
                                  .bias_b = nullptr,
                                  .weight = weight,
                                  .bias = bias,
                                  .rows = rows,
                                  .channels = channels});
}

template <typename T>
static void residual_norm(gs_stream *stream, T *residual, T *out, float *mean, float *rstd,
                          const T *a, const T *b, const T *bias_b, const T *weight, const T *bias,
                          size_t rows, size_t channels) {
    run_norm(stream, norm_args<T>{.out = out,
                                  .residual = residual,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .a = a,
                                  .b = b,
                                  .bias_b = bias_b,
                                  .weight = weight,
                                  .bias = bias,
                                  .rows = rows,
                                  .channels = channels});
}

struct norm_grads {
    float *dweight, *dbias;
    bool first, accumulate;
};

template <typename T>
static void norm_backward(gs_stream *stream, T *dx, const norm_grads &to, const T *dy, const T *x,
                          const T *weight, const float *mean, const float *rstd, size_t rows,
                          size_t channels) {
    const norm_backward_args<T> args = {.dx = dx,
                                        .parts = nullptr,
                                        .dy = dy,
                                        .x = x,
                                        .weight = weight,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .rows = rows,
                                        .channels = channels,
                                        .rows_per_part = 0,
                                        .first = to.first};
    run_norm_backward(stream, args, to.dweight, to.dbias, to.accumulate);
}

extern "C" void gs_cuda_layernorm(gs_stream *stream, float *out, float *mean, float *rstd,
                                  const float *x, const float *weight, const float *bias,
                                  size_t rows, size_t channels) {
    norm(stream, out, mean, rstd, x, weight, bias, rows, channels);
}

extern "C" void gs_cuda_residual_layernorm(gs_stream *stream, float *residual, float *out,
                                           float *mean, float *rstd, const float *a, const float *b,
                                           const float *bias_b, const float *weight,
                                           const float *bias, size_t rows, size_t channels) {
    residual_norm(stream, residual, out, mean, rstd, a, b, bias_b, weight, bias, rows, channels);
}

// Parts lie in the stream's scratch memory, and the caller's stays as it is.
extern "C" void gs_cuda_layernorm_backward(gs_stream *stream, float *dx, float *dweight,
                                           float *dbias, float *scratch, const float *dy,
                                           const float *x, const float *weight, const float *mean,
                                           const float *rstd, size_t rows, size_t channels,
                                           bool accumulate) {
    (void)scratch;
    norm_backward(stream, dx, {dweight, dbias, false, accumulate}, dy, x, weight, mean, rstd, rows,
                  channels);
}

#define HALF_LAUNCHERS(name, type)                                                                 \
    extern "C" void gs_cuda_##name##_layernorm(                                                    \
        gs_stream *stream, gs_half *out, float *mean, float *rstd, const gs_half *x,               \
        const gs_half *weight, const gs_half *bias, size_t rows, size_t channels) {                \
        norm(stream, gs_as<type>(out), mean, rstd, gs_as<type>(x), gs_as<type>(weight),            \
             gs_as<type>(bias), rows, channels);                                                   \
    }                                                                                              \
    extern "C" void gs_cuda_##name##_residual_layernorm(                                           \
        gs_stream *stream, gs_half *residual, gs_half *out, float *mean, float *rstd,              \
        const gs_half *a, const gs_half *b, const gs_half *weight, const gs_half *bias,            \
        size_t rows, size_t channels) {                                                            \
        residual_norm<type>(stream, gs_as<type>(residual), gs_as<type>(out), mean, rstd,           \
                            gs_as<type>(a), gs_as<type>(b), nullptr, gs_as<type>(weight),          \
                            gs_as<type>(bias), rows, channels);                                    \
    }                                                                                              \
    extern "C" void gs_cuda_##name##_layernorm_backward(                                           \
        gs_stream *stream, gs_half *dx, float *dweight, float *dbias, float *scratch,              \
        const gs_half *dy, const gs_half *x, const gs_half *weight, const float *mean,             \
        const float *rstd, size_t rows, size_t channels, bool first, bool accumulate) {            \
        (void)scratch;                                                                             \
        norm_backward(stream, gs_as<type>(dx), {dweight, dbias, first, accumulate},                \
                      gs_as<type>(dy), gs_as<type>(x), gs_as<type>(weight), mean, rstd, rows,      \
                      channels);                                                                   \
    }

HALF_LAUNCHERS(bf16, __nv_bfloat16)
HALF_LAUNCHERS(fp16, __half)
