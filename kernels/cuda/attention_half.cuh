// Products of 16-bit tiles on tensor cores, for attention.
//
// A warp has ROWS = 16 · M rows of its own, queries or keys; the other side comes by in tiles. Its
// scores stay in registers: what the first product leaves there is what the second one takes
// (accumulators of 16 x 16 are the A of a product over those 16 columns).
#ifndef KERNELS_CUDA_ATTENTION_HALF_CUH
#define KERNELS_CUDA_ATTENTION_HALF_CUH

#include "kernels/cuda/attention.cuh"

#define GS_ATTENTION_WARPS (GS_ATTENTION_THREADS / 32)

template <int D> using half_tile = attention_tile<uint16_t, D>;

// 16 x 16 numbers from row `row` and column `column` on, as A of a product.
template <int D>
__device__ __forceinline__ void load_a(uint32_t a[4], const uint16_t *tile, int row, int column) {
    const int lane = (int)(threadIdx.x % 32);
    gs_load_matrices_x4(a,
                        tile + (row + lane % 16) * half_tile<D>::STRIDE + column + lane / 16 * 8);
}

// As B of two products, whose 16 columns are rows of the tile: for A · tileᵀ.
template <int D>
__device__ __forceinline__ void load_b_of_rows(uint32_t b[4], const uint16_t *tile, int row,
                                               int column) {
    const int lane = (int)(threadIdx.x % 32);
    gs_load_matrices_x4(b, tile + (row + lane / 16 * 8 + lane % 8) * half_tile<D>::STRIDE + column +
                               lane / 8 % 2 * 8);
}

// As B of two products, whose 16 columns are columns of the tile: for A · tile.
template <int D>
__device__ __forceinline__ void load_b_of_columns(uint32_t b[4], const uint16_t *tile, int row,
                                                  int column) {
    const int lane = (int)(threadIdx.x % 32);
    gs_load_matrices_x4_transposed(b, tile + (row + lane % 16) * half_tile<D>::STRIDE + column +
                                          lane / 16 * 8);
}

// The rows of a warp as A, for products over all D channels: held in registers, or read again each
// time.
template <int D, int M, bool HELD> struct warp_rows {
    uint32_t held[M][D / 16][4];

    __device__ __forceinline__ void load(const uint16_t *tile, int first) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int k = 0; k < D / 16; k++) load_a<D>(held[m][k], tile, first + 16 * m, 16 * k);
        }
    }

    __device__ __forceinline__ void take(uint32_t a[4], int m, int k) const {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = held[m][k][i];
    }
};

template <int D, int M> struct warp_rows<D, M, false> {
    const uint16_t *tile;
    int first;

    __device__ __forceinline__ void load(const uint16_t *from, int first_row) {
        tile = from;
        first = first_row;
    }

    __device__ __forceinline__ void take(uint32_t a[4], int m, int k) const {
        load_a<D>(a, tile, first + 16 * m, 16 * k);
    }
};

// scores (16 M x N) = rows · tileᵀ, N rows of the tile from `first` on
template <gs_dtype TYPE, int D, int M, int N, bool HELD>
__device__ __forceinline__ void multiply_rows(float scores[M][N / 8][4],
                                              const warp_rows<D, M, HELD> &rows,
                                              const uint16_t *tile, int first) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) scores[m][n][i] = 0;
        }
    }
#pragma unroll(HELD ? D / 16 : 2)  // what is held has no run-time index
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) rows.take(a[m], m, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            load_b_of_rows<D>(b, tile, first + 16 * n, 16 * k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                gs_mma<TYPE>(scores[m][2 * n], a[m], b);
                gs_mma<TYPE>(scores[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

// sums (16 M x D) += weights (16 M x N), rounded to TYPE, · N rows of the tile from `first` on
template <gs_dtype TYPE, int D, int M, int N>
__device__ __forceinline__ void add_products(float sums[M][D / 8][4],
                                             const float weights[M][N / 8][4], const uint16_t *tile,
                                             int first) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = weights[m][2 * k + i / 2] + i % 2 * 2;
                a[m][i] = gs_pack<TYPE>(pair[0], pair[1]);
            }
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_b_of_columns<D>(b, tile, first + 16 * k, 16 * n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                gs_mma<TYPE>(sums[m][2 * n], a[m], b);
                gs_mma<TYPE>(sums[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

template <int D, int M> __device__ __forceinline__ void clear_sums(float sums[M][D / 8][4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] = 0;
        }
    }
}

// The warp's rows of `to`, from position `first` on, = factors · sums. They pass through the warp's
// own rows of a tile in shared memory, which nobody else reads any more.
template <gs_dtype TYPE, int D, int M, typename JOB>
__device__ __forceinline__ void store_rows(uint16_t *to, size_t stride, uint16_t *tile, int first,
                                           const float sums[M][D / 8][4], const float factors[M][2],
                                           const JOB &job) {
    constexpr int PIECES = half_tile<D>::PIECES, STRIDE = half_tile<D>::STRIDE;
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const float factor = factors[m][part];
                *(uint32_t *)(tile + (16 * m + 8 * part + g) * STRIDE + 8 * n + 2 * t) =
                    gs_pack<TYPE>(sums[m][n][2 * part] * factor, sums[m][n][2 * part + 1] * factor);
            }
        }
    }
    __syncwarp();
    if (job.whole_vectors) {
#pragma unroll 1
        for (int i = lane; i < 16 * M * PIECES; i += 32) {
            const int row = i / PIECES, column = i % PIECES * 8;
            if (first + row >= job.positions || column >= job.head_channels) continue;
            *(uint4 *)(to + (size_t)(first + row) * stride + column) =
                *(const uint4 *)(tile + row * STRIDE + column);
        }
        return;
    }
    for (int i = lane; i < 16 * M * D; i += 32) {
        const int row = i / D, column = i % D;
        if (first + row >= job.positions || column >= job.head_channels) continue;
        to[(size_t)(first + row) * stride + column] = tile[row * STRIDE + column];
    }
}

#endif
