// Sizes that cannot overflow unseen, and memory on a boundary.
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// *bytes = count * element_bytes; false on overflow.
static inline bool gs_bytes_of(size_t *bytes, size_t count, size_t element_bytes) {
    return !__builtin_mul_overflow(count, element_bytes, bytes);
}

static inline size_t gs_round_up(size_t value, size_t boundary) {
    return (value + boundary - 1) / boundary * boundary;
}

// Tensors that share a block start on a cache line each.
#define GS_LINE_BYTES ((size_t)64)

// *total += bytes, padded to a line; false on overflow.
static inline bool gs_add_padded(size_t *total, size_t bytes) {
    return bytes <= SIZE_MAX - GS_LINE_BYTES &&
           !__builtin_add_overflow(*total, gs_round_up(bytes, GS_LINE_BYTES), total);
}

// `bytes` zeroed bytes on `boundary` (a power of two); NULL when there are none. free() releases.
static inline void *gs_alloc_aligned(size_t bytes, size_t boundary) {
    if (bytes > SIZE_MAX - boundary) return NULL;
    size_t rounded = gs_round_up(bytes ? bytes : 1, boundary);
    void *memory = aligned_alloc(boundary, rounded);
    if (memory) memset(memory, 0, rounded);
    return memory;
}

#endif
