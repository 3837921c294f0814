// What the attention kernels share: where a head lies, which block does what, tiles in shared
// memory and the products of tiles on tensor cores.
//
// A warp has ROWS = 16 · M rows of its own, queries or keys; the other side comes by in tiles. Its
// scores stay in registers: what the first product leaves there is what the second one takes
// (accumulators of 16 x 16 are the A of a product over those 16 columns).
//
// Rows in shared memory are D + 8 numbers long: an odd number of 16-byte pieces, so that eight rows
// lie in different banks, whatever D. Channels from head_channels to D, and rows behind the last
// position, are 0.
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/kernels.h"

#define GS_ATTENTION_THREADS 128
#define GS_ATTENTION_WARPS (GS_ATTENTION_THREADS / 32)
#define GS_ATTENTION_MAX_CHANNELS 256
#define GS_ATTENTION_LOG2_E 1.4426950408889634f

// What a launch is about. Blocks are numbered so that those of a group of heads come together,
// whose keys and values the L2 cache holds, and among them the tiles with most work first.
template <typename NUMBER> struct attention_job {
    const NUMBER *qkv, *dout, *out;
    NUMBER *to;  // forward: out; backward: dqkv
    float *logsumexp;
    const float *saved_logsumexp;
    size_t channels;  // C
    int positions, heads, head_channels;
    unsigned num_heads, num_tiles, heads_per_group;  // num_heads: of all sequences
    float scale;                                     // 1/√HS
    bool whole_vectors;                              // every head starts on a 16-byte boundary
};

struct attention_place {
    unsigned head, order;  // order 0: the tile with most work
};

template <typename NUMBER>
__device__ __forceinline__ attention_place find_place(const attention_job<NUMBER> &job) {
    const unsigned group_blocks = job.heads_per_group * job.num_tiles;
    const unsigned group = blockIdx.x / group_blocks, within = blockIdx.x % group_blocks;
    const unsigned first = group * job.heads_per_group;
    const unsigned left = job.num_heads - first;
    const unsigned heads = left < job.heads_per_group ? left : job.heads_per_group;
    attention_place place = {first + within % heads, within / heads};
    return place;
}

// Where position 0 of a head begins in a (B, T, parts · C) tensor.
template <typename NUMBER>
__device__ __forceinline__ size_t find_head(const attention_job<NUMBER> &job, unsigned head,
                                            unsigned parts) {
    const size_t sequence = head / (unsigned)job.heads, h = head % (unsigned)job.heads;
    return sequence * (size_t)job.positions * parts * job.channels + h * (size_t)job.head_channels;
}

// Σ dout · out of a row waits where its dq will be written: the first 32 bits of the head's
// channels, which the last kernel of backward overwrites. So backward needs no memory beside its
// result.
__device__ __forceinline__ void keep_weighted(float *dq, float weighted) {
    *dq = weighted;
}

__device__ __forceinline__ float recall_weighted(const float *dq) {
    return *dq;
}

__device__ __forceinline__ void keep_weighted(uint16_t *dq, float weighted) {
    const uint32_t bits = __float_as_uint(weighted);
    dq[0] = (uint16_t)bits;
    dq[1] = (uint16_t)(bits >> 16);
}

__device__ __forceinline__ float recall_weighted(const uint16_t *dq) {
    return __uint_as_float((uint32_t)dq[0] | (uint32_t)dq[1] << 16);
}

// ---- tiles of 16-bit numbers

template <int D> struct half_tile {
    static constexpr int STRIDE = D + 8;
    static constexpr int PIECES = D / 8;  // of 16 bytes
};

// One head of a tensor: rows `stride` numbers apart.
struct half_rows {
    const uint16_t *data;
    size_t stride;
};

// Rows `first` to first + ROWS - 1 start on their way into `tile`.
template <int D, int ROWS, typename JOB>
__device__ __forceinline__ void start_tile(gs_async_copies &copies, uint16_t *tile, half_rows from,
                                           int first, const JOB &job) {
    constexpr int PIECES = half_tile<D>::PIECES, STRIDE = half_tile<D>::STRIDE;
    if (job.whole_vectors) {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < ROWS * PIECES; i += GS_ATTENTION_THREADS) {
            const int row = i / PIECES, column = i % PIECES * 8;
            const bool valid = first + row < job.positions && column < job.head_channels;
            const uint16_t *at =
                valid ? from.data + (size_t)(first + row) * from.stride + column : from.data;
            copies.copy_16_bytes(tile + row * STRIDE + column, at, valid);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < ROWS * D; i += GS_ATTENTION_THREADS) {
        const int row = i / D, column = i % D;
        const bool valid = first + row < job.positions && column < job.head_channels;
        tile[row * STRIDE + column] =
            valid ? from.data[(size_t)(first + row) * from.stride + column] : (uint16_t)0;
    }
}

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

// ---- launching

// The first of the sizes that kernels exist for which holds a head; 0: none does.
static inline int pad_head_channels(size_t head_channels) {
    static const int sizes[] = {32, 64, 80, 96, 128, GS_ATTENTION_MAX_CHANNELS};
    for (int size : sizes) {
        if (head_channels <= (size_t)size) return size;
    }
    return 0;
}

// body.template operator()<D>() of the size that holds a head; there is one.
template <typename BODY> static void run_for_head_size(size_t head_channels, const BODY &body) {
    switch (pad_head_channels(head_channels)) {
    case 32:
        return body.template operator()<32>();
    case 64:
        return body.template operator()<64>();
    case 80:
        return body.template operator()<80>();
    case 96:
        return body.template operator()<96>();
    case 128:
        return body.template operator()<128>();
    default:
        return body.template operator()<GS_ATTENTION_MAX_CHANNELS>();
    }
}

// What a shape must keep to. False: the stream failed, or there is nothing to do.
static inline bool accept_attention(gs_stream *stream, const gs_attention *shape) {
    if (shape->batch == 0 || shape->positions == 0 || shape->heads == 0 ||
        shape->head_channels == 0) {
        return false;
    }
    if (!pad_head_channels(shape->head_channels)) {
        gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT,
                                        "attention: %zu channels a head, at most %d on CUDA",
                                        shape->head_channels, GS_ATTENTION_MAX_CHANNELS));
        return false;
    }
    // Blocks are counted in 32 bits; the smallest tile has 16 rows.
    const size_t tiles = (shape->positions + 15) / 16, most = (size_t)1 << 31;
    if (shape->positions >= most || shape->heads >= most ||
        tiles >= most / shape->heads / shape->batch) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT,
                                "attention: %zu sequences x %zu heads x %zu positions are too many",
                                shape->batch, shape->heads, shape->positions));
        return false;
    }
    return true;
}

static inline bool is_vector_address(const void *address) {
    return (uintptr_t)address % 16 == 0;
}

// The fields that follow from the shape alone.
template <typename NUMBER> static attention_job<NUMBER> plan_attention(const gs_attention *shape) {
    attention_job<NUMBER> job = {};
    job.channels = shape->heads * shape->head_channels;
    job.positions = (int)shape->positions;
    job.heads = (int)shape->heads;
    job.head_channels = (int)shape->head_channels;
    job.num_heads = (unsigned)(shape->batch * shape->heads);
    job.scale = 1.0f / sqrtf((float)shape->head_channels);
    job.whole_vectors = shape->head_channels * sizeof(NUMBER) % 16 == 0;
    // Half of an L2 cache of 50 MB for what the blocks of a group read again and again.
    const size_t bytes = 4 * shape->positions * shape->head_channels * sizeof(NUMBER);
    size_t heads = ((size_t)24 << 20) / bytes;
    if (heads < 1) heads = 1;
    job.heads_per_group = (unsigned)(heads < job.num_heads ? heads : job.num_heads);
    return job;
}

template <typename NUMBER> static unsigned count_blocks(attention_job<NUMBER> *job, int tile_rows) {
    job->num_tiles = (unsigned)((job->positions + tile_rows - 1) / tile_rows);
    return job->num_heads * job->num_tiles;
}

#endif
