// The rows of a table by their key, rows of the same key in their order: what makes sums by token
// deterministic. A radix sort with digits of 8 bits, least first; each of its passes is stable.
//
// Two kernels for each pass and nothing on the host: chunks count their digits; then each chunk
// finds where its digits go from everybody's counts and moves its pairs there.
#ifndef KERNELS_CUDA_ROW_SORT_CUH
#define KERNELS_CUDA_ROW_SORT_CUH

#include "kernels/cuda/launch.cuh"

#define GS_SORT_DIGITS 256
#define GS_SORT_BLOCK 256  // threads: one for each digit
#define GS_SORT_WARPS (GS_SORT_BLOCK / GS_WARP)
#define GS_SORT_STEPS 4
#define GS_SORT_CHUNK (GS_SORT_BLOCK * GS_SORT_STEPS)

struct gs_sorted_rows {
    uint32_t *keys, *rows;
};

// Memory of the sort, in one piece.
struct gs_sort_memory {
    gs_sorted_rows sides[2];
    uint32_t *counts;  // (chunks, digits)
};

static inline size_t gs_sort_bytes(size_t count) {
    const size_t padded = (count + GS_SORT_CHUNK - 1) / GS_SORT_CHUNK * GS_SORT_CHUNK;
    return padded * 4 * sizeof(uint32_t) +
           padded / GS_SORT_CHUNK * GS_SORT_DIGITS * sizeof(uint32_t);
}

// The lanes of the warp that have the same digit, of those that are `active`.
__device__ static inline uint32_t gs_same_digit(uint32_t digit, bool active) {
    uint32_t same = __ballot_sync(GS_FULL_WARP, active);
#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
        const bool set = digit >> bit & 1;
        const uint32_t lanes = __ballot_sync(GS_FULL_WARP, set);
        same &= set ? lanes : ~lanes;
    }
    return same;
}

// Position of this thread's pair of a step: warps have consecutive pieces of the chunk.
__device__ static inline size_t gs_sort_position(int step) {
    const size_t warp = threadIdx.x / GS_WARP, lane = threadIdx.x % GS_WARP;
    return (size_t)blockIdx.x * GS_SORT_CHUNK + (warp * GS_SORT_STEPS + step) * GS_WARP + lane;
}

__global__ static void __launch_bounds__(GS_SORT_BLOCK)
    gs_sort_count_kernel(uint32_t *counts, const uint32_t *keys, size_t count, int shift) {
    __shared__ unsigned found[GS_SORT_DIGITS];
    found[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int step = 0; step < GS_SORT_STEPS; step++) {
        const size_t at = gs_sort_position(step);
        if (at < count) atomicAdd(&found[keys[at] >> shift & (GS_SORT_DIGITS - 1)], 1u);
    }
    __syncthreads();
    counts[(size_t)blockIdx.x * GS_SORT_DIGITS + threadIdx.x] = found[threadIdx.x];
}

// Where this chunk's pairs of the thread's digit begin: behind all pairs of smaller digits, and
// those of the same digit in earlier chunks. All threads of the block.
__device__ static inline uint32_t gs_find_start(const uint32_t *counts, uint32_t *sums) {
    uint32_t earlier = 0, total = 0;
#pragma unroll 8
    for (unsigned chunk = 0; chunk < gridDim.x; chunk++) {
        const uint32_t found = counts[(size_t)chunk * GS_SORT_DIGITS + threadIdx.x];
        total += found;
        if (chunk < blockIdx.x) earlier += found;
    }
    sums[threadIdx.x] = total;
    __syncthreads();
    for (unsigned distance = 1; distance < GS_SORT_DIGITS; distance *= 2) {
        const uint32_t below = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
        __syncthreads();
        sums[threadIdx.x] += below;
        __syncthreads();
    }
    return sums[threadIdx.x] - total + earlier;
}

// `rows` NULL: the first pass, pairs are (keys[i], i).
__global__ static void __launch_bounds__(GS_SORT_BLOCK)
    gs_sort_move_kernel(gs_sorted_rows out, const uint32_t *keys, const uint32_t *rows,
                        const uint32_t *counts, size_t count, int shift) {
    __shared__ uint32_t places[GS_SORT_WARPS][GS_SORT_DIGITS], sums[GS_SORT_DIGITS];
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    uint32_t key[GS_SORT_STEPS], row[GS_SORT_STEPS], same[GS_SORT_STEPS];
    const uint32_t start = gs_find_start(counts, sums);
#pragma unroll
    for (int w = 0; w < GS_SORT_WARPS; w++) places[w][threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int step = 0; step < GS_SORT_STEPS; step++) {
        const size_t at = gs_sort_position(step);
        key[step] = at < count ? keys[at] : 0;
        row[step] = rows ? (at < count ? rows[at] : 0) : static_cast<uint32_t>(at);
        const uint32_t digit = key[step] >> shift & (GS_SORT_DIGITS - 1);
        same[step] = gs_same_digit(digit, at < count);
        // The lowest lane of each digit counts for the others; no two of them share a digit.
        if (at < count && __ffs(static_cast<int>(same[step])) == static_cast<int>(lane) + 1)
            places[warp][digit] += __popc(same[step]);
        __syncwarp();
    }
    __syncthreads();
    uint32_t place = start;
#pragma unroll
    for (int w = 0; w < GS_SORT_WARPS; w++) {
        const uint32_t found = places[w][threadIdx.x];
        places[w][threadIdx.x] = place;
        place += found;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < GS_SORT_STEPS; step++) {
        const bool active = gs_sort_position(step) < count;
        const uint32_t digit = key[step] >> shift & (GS_SORT_DIGITS - 1);
        const uint32_t first = places[warp][digit];
        __syncwarp();
        if (active) {
            const uint32_t to = first + __popc(same[step] & ((1u << lane) - 1));
            out.keys[to] = key[step];
            out.rows[to] = row[step];
            if (__ffs(static_cast<int>(same[step])) == static_cast<int>(lane) + 1)
                places[warp][digit] = first + __popc(same[step]);
        }
        __syncwarp();
    }
}

// Rows 0 … count − 1 sorted by their key, of which `key_bits` bits count. `memory`:
// gs_sort_bytes(count).
static inline gs_sorted_rows gs_sort_rows(gs_stream *stream, void *memory, const int32_t *keys,
                                          size_t count, int key_bits) {
    const size_t chunks = (count + GS_SORT_CHUNK - 1) / GS_SORT_CHUNK,
                 padded = chunks * GS_SORT_CHUNK;
    uint32_t *at = static_cast<uint32_t *>(memory);
    const gs_sort_memory sort = {{{at, at + padded}, {at + 2 * padded, at + 3 * padded}},
                                 at + 4 * padded};
    const uint32_t *from_keys = reinterpret_cast<const uint32_t *>(keys), *from_rows = nullptr;
    const unsigned grid = static_cast<unsigned>(chunks);
    int side = 0;
    for (int shift = 0; shift == 0 || shift < key_bits; shift += 8) {
        const gs_sorted_rows to = sort.sides[side];
        GS_LAUNCH(stream, grid, GS_SORT_BLOCK, 0, gs_sort_count_kernel, sort.counts, from_keys,
                  count, shift);
        GS_LAUNCH(stream, grid, GS_SORT_BLOCK, 0, gs_sort_move_kernel, to, from_keys, from_rows,
                  sort.counts, count, shift);
        from_keys = to.keys;
        from_rows = to.rows;
        side = 1 - side;
    }
    return sort.sides[1 - side];
}

#endif
