// One launch for many items: what their kernels have in common.
//
// The table of items may lie in pinned memory, which every block would read over the bus. So a first, small
// kernel brings it into scratch memory and counts the tiles before each item; then blocks that stay walk the
// tiles of all items together, and a warp finds a tile's item by asking 32 places at once.
#ifndef KERNELS_CUDA_ITEM_TABLE_CUH
#define KERNELS_CUDA_ITEM_TABLE_CUH

#include "kernels/cuda/launch.cuh"

#define GS_PREPARE_BLOCK 1024
#define GS_BLOCKS_PER_SM 4  // of 256 threads; the kernels are bounded to as many registers

// In scratch memory: first_tiles has num_items + 1 elements, the last is the number of all tiles.
template <class Prepared>
struct gs_tile_table {
    const Prepared *items;
    const size_t *first_tiles;
    size_t num_items;
};

// make.prepared(item) and make.num_tiles(item) of every item. One block, which takes GS_PREPARE_BLOCK items at a
// time and keeps the number of tiles before them.
template <class Raw, class Prepared, class Make>
__global__ static void __launch_bounds__(GS_PREPARE_BLOCK)
    gs_prepare_kernel(Prepared *prepared, size_t *first_tiles, const Raw *items, size_t num_items,
                   const Make make) {
    __shared__ size_t sums[GS_PREPARE_BLOCK];
    size_t before = 0;
    for (size_t base = 0; base < num_items; base += GS_PREPARE_BLOCK) {
        const size_t i = base + threadIdx.x;
        size_t own = 0;
        if (i < num_items) {
            const Raw item = items[i];
            own = make.num_tiles(item);
            prepared[i] = make.prepared(item);
        }
        sums[threadIdx.x] = own;
        __syncthreads();
        for (unsigned distance = 1; distance < GS_PREPARE_BLOCK; distance *= 2) {
            const size_t left = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
            __syncthreads();
            sums[threadIdx.x] += left;
            __syncthreads();
        }
        if (i < num_items) first_tiles[i] = before + sums[threadIdx.x] - own;
        before += sums[GS_PREPARE_BLOCK - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) first_tiles[num_items] = before;
}

// The item that `tile` belongs to: the last one that starts at or before it. All lanes of a warp ask for the
// same tile; the range shrinks to a 32nd each time.
template <class Prepared>
__device__ static inline size_t gs_find_item(const gs_tile_table<Prepared> &table, size_t tile) {
    const unsigned lane = threadIdx.x % GS_WARP;
    size_t first = 0, span = table.num_items;
    while (span > 1) {
        const size_t step = (span + GS_WARP - 1) / GS_WARP;
        const size_t at = lane * step;
        const bool starts_before = at < span && table.first_tiles[first + at] <= tile;
        const unsigned votes = __ballot_sync(GS_FULL_WARP, starts_before);
        const size_t last = static_cast<size_t>(__popc(votes) - 1) * step;
        first += last;
        span = span - last < step ? span - last : step;
    }
    return first;
}

// run(item, tile of the item) for every tile, one block each. The item stays where it is: a copy of it would
// cost registers.
template <class Prepared, class Run>
__device__ static inline void gs_walk_tiles(const gs_tile_table<Prepared> &table, const Run &run) {
    const size_t num_tiles = table.first_tiles[table.num_items];
    for (size_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
        const size_t i = gs_find_item(table, tile);
        run(table.items[i], tile - table.first_tiles[i]);
    }
}

// The table in scratch memory; false, and the stream has failed, when it does not fit. *rest: what is behind
// it, 256-byte aligned.
template <class Raw, class Prepared, class Make>
static inline bool gs_prepare_table(gs_stream *stream, gs_tile_table<Prepared> *table, char **rest,
                          const Raw *items, size_t num_items, const Make &make, const char *name) {
    const size_t items_bytes = (num_items * sizeof(Prepared) + 255) / 256 * 256;
    const size_t tiles_bytes = ((num_items + 1) * sizeof(size_t) + 255) / 256 * 256;
    char *scratch = static_cast<char *>(gs_scratch(stream, items_bytes + tiles_bytes, name));
    if (!scratch) return false;
    Prepared *prepared = reinterpret_cast<Prepared *>(scratch);
    size_t *first_tiles = reinterpret_cast<size_t *>(scratch + items_bytes);
    GS_LAUNCH(stream, 1, GS_PREPARE_BLOCK, 0, (gs_prepare_kernel<Raw, Prepared, Make>), prepared,
              first_tiles, items, num_items, make);
    *table = {prepared, first_tiles, num_items};
    *rest = scratch + items_bytes + tiles_bytes;
    return true;
}

static inline unsigned gs_persistent_grid(gs_stream *stream) {
    return GS_BLOCKS_PER_SM * gs_num_sms(stream);
}

#endif
