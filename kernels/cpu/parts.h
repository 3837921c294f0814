// The items of a bucket cut into parts by place, so that a few large items and many small ones feed the same
// number of threads. The cut depends on the bucket alone. No more parts than a launcher has sums of on its stack.
#ifndef KERNELS_CPU_PARTS_H
#define KERNELS_CPU_PARTS_H

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"

#define GS_MAX_PARTS 256

typedef struct gs_parts {
    const gs_residual_item *items;
    size_t num_items, num_parts, part_count;  // places in a part: a multiple of GS_CHUNK
} gs_parts;

// Elements of one item that lie in one part; count 0: no more of them.
typedef struct gs_piece {
    size_t item;
    size_t first, count;  // of the item's elements
} gs_piece;

static inline gs_parts gs_cut_parts(const gs_residual_item *items, size_t num_items) {
    gs_parts parts = {.items = items, .num_items = num_items};
    if (!num_items) return parts;
    size_t places = items[num_items - 1].first + items[num_items - 1].count;
    size_t chunks = gs_num_items(places, GS_CHUNK);
    parts.part_count = GS_CHUNK * gs_num_items(chunks, GS_MAX_PARTS);
    parts.num_parts = gs_num_items(places, parts.part_count);
    return parts;
}

// What of item `item`, and if there is nothing of a later one, lies in the part.
static inline gs_piece gs_piece_from(const gs_parts *parts, size_t part, size_t item) {
    size_t begin = part * parts->part_count, end = begin + parts->part_count;
    for (; item < parts->num_items && parts->items[item].first < end; item++) {
        const gs_residual_item *it = &parts->items[item];
        size_t from = begin > it->first ? begin - it->first : 0;
        size_t to = end - it->first < it->count ? end - it->first : it->count;
        if (from < to) return (gs_piece){item, from, to - from};
    }
    return (gs_piece){0};
}

static inline gs_piece gs_first_piece(const gs_parts *parts, size_t part) {
    // The last item that begins at or before the part.
    size_t low = 0, high = parts->num_items, begin = part * parts->part_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (parts->items[middle].first <= begin) low = middle;
        else high = middle;
    }
    return gs_piece_from(parts, part, low);
}

static inline gs_piece gs_next_piece(const gs_parts *parts, size_t part, gs_piece piece) {
    return gs_piece_from(parts, part, piece.item + 1);
}

#endif
