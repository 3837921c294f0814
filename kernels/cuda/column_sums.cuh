// Sums over the rows of a matrix, for each column, in two stages that no launch shape can change:
// parts of rows, each summed in the order of its rows by one thread per column, and the parts in
// their order.
//
// gs_sum_columns cuts into parts of 64 rows like kernels/cpu/activation.c: the same bits.
#ifndef KERNELS_CUDA_COLUMN_SUMS_CUH
#define KERNELS_CUDA_COLUMN_SUMS_CUH

#include "kernels/cuda/wide.cuh"

#define GS_PART_ROWS 64
#define GS_PART_BLOCK 256
#define GS_FOLD_BLOCK 1024
#define GS_FOLD_PARTS 256  // of a tile in shared memory
// Scratch memory for parts; little in the simulator, so that its tests take several turns.
#ifdef GRADSYNC_CUDA_SIM
#define GS_PART_BYTES ((size_t)64 << 10)
#else
#define GS_PART_BYTES GS_CUDA_SCRATCH_BYTES
#endif

// out[c] = (accumulate: out[c] +) (start[c] + Σ parts[part][c]), for one or two neighbouring groups
// of cols columns: blockIdx.y 0 and 1. start may be out itself or NULL.
struct gs_fold {
    float *outs[2];
    const float *start;
    const float *parts;
    size_t num_parts, cols, stride;  // stride: floats from part to part
    bool accumulate;
};

// All warps fetch a tile of parts for 32 columns, the first adds it up: a column's sum has one
// thread and one order, and the wait for memory is shared.
__global__ static void __launch_bounds__(GS_FOLD_BLOCK) gs_fold_kernel(gs_fold fold) {
    __shared__ float tile[GS_FOLD_PARTS][GS_WARP];
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    const size_t col = (size_t)blockIdx.x * GS_WARP + lane;
    const bool has_col = col < fold.cols;
    const float *parts = fold.parts + blockIdx.y * fold.cols;
    float sum = fold.start && has_col && warp == 0 ? fold.start[col] : 0.0f;
    for (size_t first = 0; first < fold.num_parts; first += GS_FOLD_PARTS) {
        const unsigned count = static_cast<unsigned>(
            fold.num_parts - first < GS_FOLD_PARTS ? fold.num_parts - first : GS_FOLD_PARTS);
#pragma unroll
        for (unsigned part = 0; part < GS_FOLD_PARTS; part += GS_FOLD_BLOCK / GS_WARP) {
            if (part + warp < count && has_col)
                tile[part + warp][lane] = parts[(first + part + warp) * fold.stride + col];
        }
        __syncthreads();
        if (warp == 0 && has_col) {
#pragma unroll 16
            for (unsigned part = 0; part < count; part++) sum += tile[part][lane];
        }
        __syncthreads();
    }
    float *out = blockIdx.y ? fold.outs[1] : fold.outs[0];
    if (warp == 0 && has_col) out[col] = fold.accumulate ? out[col] + sum : sum;
}

static inline void gs_run_fold(gs_stream *stream, const gs_fold &fold, unsigned num_groups) {
    dim3 grid(gs_num_blocks(fold.cols, GS_WARP, SIZE_MAX), num_groups);
    GS_LAUNCH(stream, grid, GS_FOLD_BLOCK, 0, gs_fold_kernel, fold);
}

template <typename T, int WIDTH>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    gs_part_kernel(float *__restrict__ parts, const T *__restrict__ in, size_t rows, size_t cols,
                   size_t num_parts) {
    const size_t groups = cols / WIDTH, group = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= groups) return;
    for (size_t part = blockIdx.y; part < num_parts; part += gridDim.y) {
        const size_t first = part * GS_PART_ROWS;
        const size_t end = rows - first < GS_PART_ROWS ? rows : first + GS_PART_ROWS;
        float sum[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sum[i] = 0.0f;
#pragma unroll 8
        for (size_t row = first; row < end; row++) {
            const gs_packed<T, WIDTH> values =
                gs_load_packed<WIDTH>(in + row * cols + group * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[i] += values[i];
        }
        gs_store_floats<WIDTH>(parts + part * cols + group * WIDTH, sum);
    }
}

template <typename T, int WIDTH>
static inline void gs_run_parts(gs_stream *stream, float *parts, const T *in, size_t rows,
                                size_t cols, size_t num_parts) {
    const unsigned block = gs_block_for(cols / WIDTH, GS_PART_BLOCK);
    dim3 grid(gs_num_blocks(cols / WIDTH, block, SIZE_MAX), gs_num_blocks(num_parts, 1, 65535));
    GS_LAUNCH(stream, grid, block, 0, (gs_part_kernel<T, WIDTH>), parts, in, rows, cols, num_parts);
}

// sums (cols) = or += Σ over rows of in (rows, cols). More rows than scratch memory holds parts of
// are taken in turns, and the sum so far goes from one to the next.
template <typename T>
static inline void gs_sum_columns(gs_stream *stream, float *sums, const T *in, size_t rows,
                                  size_t cols, bool accumulate) {
    if (!cols) return;
    const size_t num_parts = rows / GS_PART_ROWS + (rows % GS_PART_ROWS != 0);
    const size_t aligned_cols = (cols + 3) / 4 * 4, row_bytes = aligned_cols * sizeof(float);
    const size_t room = GS_PART_BYTES / row_bytes;
    const size_t turn = room > 1 ? (num_parts < room - 1 ? num_parts : room - 1) : 1;
    float *carry = static_cast<float *>(gs_scratch(stream, (turn + 1) * row_bytes, "column sums"));
    if (!carry) return;
    float *parts = carry + aligned_cols;
    const bool by_vector = cols % gs_vec_width<T> == 0 && gs_is_aligned16(in);
    size_t first = 0;
    do {
        const size_t count = num_parts - first < turn ? num_parts - first : turn;
        const size_t first_row = first * GS_PART_ROWS;
        const size_t num_rows = first + count < num_parts ? count * GS_PART_ROWS : rows - first_row;
        const T *at = in + first_row * cols;
        if (count && by_vector) {
            gs_run_parts<T, gs_vec_width<T>>(stream, parts, at, num_rows, cols, count);
        } else if (count) {
            gs_run_parts<T, 1>(stream, parts, at, num_rows, cols, count);
        }
        const bool is_last = first + count == num_parts;
        const gs_fold fold = {.outs = {is_last ? sums : carry, nullptr},
                              .start = first ? carry : nullptr,
                              .parts = parts,
                              .num_parts = count,
                              .cols = cols,
                              .stride = cols,
                              .accumulate = is_last && accumulate};
        gs_run_fold(stream, fold, 1);
        first += count;
    } while (first < num_parts);
}

#endif
