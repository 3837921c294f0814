// The items of a bucket cut into parts by place: blocks walk the elements of one part, whatever items they are
// of. The cut is made by the kernels, which read the items where they are; the host knows only how many.
#ifndef KERNELS_CUDA_PARTS_CUH
#define KERNELS_CUDA_PARTS_CUH

#include "kernels/cuda/launch.cuh"

#define GS_PART_BLOCK 256
#define GS_MOST_PARTS 512
#define GS_LEAST_PART ((size_t)4 * GS_PART_BLOCK)

struct gs_item_table {
    const gs_residual_item *items;
    size_t num_items;
};

// Elements of one item, from `first` on.
struct gs_piece {
    size_t item, first, count;
};

// Every thread of a block asks for the same part, so reads are the same words for all of them.
struct gs_part {
    gs_item_table table;
    size_t begin, end;  // places

    // One for each block of the grid.
    __device__ gs_part(const gs_item_table &whole) : table(whole) {
        const gs_residual_item &last = whole.items[whole.num_items - 1];
        const size_t places = last.first + last.count;
        size_t count = (places + gridDim.x - 1) / gridDim.x;
        count = (count + GS_LEAST_PART - 1) / GS_LEAST_PART * GS_LEAST_PART;
        begin = blockIdx.x * count < places ? blockIdx.x * count : places;
        end = begin + count < places ? begin + count : places;
    }

    // What of item `item`, and if there is nothing of a later one, lies here; count 0: no more.
    __device__ gs_piece from(size_t item) const {
        for (; item < table.num_items; item++) {
            const size_t first = table.items[item].first, count = table.items[item].count;
            if (first >= end) break;
            const size_t left = begin > first ? begin - first : 0;
            const size_t right = end - first < count ? end - first : count;
            if (left < right) return {item, left, right - left};
        }
        return {0, 0, 0};
    }

    __device__ gs_piece first() const {
        if (begin == end) return {0, 0, 0};
        size_t low = 0, high = table.num_items;
        while (high - low > 1) {
            const size_t middle = low + (high - low) / 2;
            if (table.items[middle].first <= begin) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return from(low);
    }
    __device__ gs_piece next(const gs_piece &piece) const { return from(piece.item + 1); }
};

#endif
