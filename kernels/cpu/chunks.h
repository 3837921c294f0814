// How launchers cut their work into items for gs_stream_for_each. The cut depends on the shape
// alone, never on the number of threads.
#ifndef KERNELS_CPU_CHUNKS_H
#define KERNELS_CPU_CHUNKS_H

#include <stddef.h>

#include "kernels/device.h"

#define GS_CHUNK ((size_t)16384) // elements: 64 KiB of fp32 from each array

typedef struct gs_range {
    size_t first, count;
} gs_range;

static inline size_t gs_num_items(size_t count, size_t item_count) {
    return count / item_count + (count % item_count != 0);
}

static inline gs_range gs_item_range(size_t item, size_t item_count, size_t count) {
    size_t first = item * item_count;
    return (gs_range){first, count - first < item_count ? count - first : item_count};
}

// Rows for one item: about half a chunk of elements, so that few rows still feed several threads.
static inline size_t gs_rows_per_item(size_t cols) {
    size_t rows = cols ? GS_CHUNK / 2 / cols : 1;
    return rows ? rows : 1;
}

#endif
