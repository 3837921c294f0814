#include "coordinator/model/memory.h"

#include <stdlib.h>

void *gs_model_alloc(size_t count, size_t bytes) {
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory) abort();
    return memory;
}

void *gs_model_grow(void *items, size_t count, size_t *reserved, size_t bytes) {
    if (count < *reserved) return items;
    size_t wanted = *reserved ? *reserved * 2 : 16;
    void *grown = wanted > (size_t)-1 / bytes ? NULL : realloc(items, wanted * bytes);
    if (!grown) abort();
    *reserved = wanted;
    return grown;
}
