#include "gradsync/hooks/own_places.h"

#define MAGIC UINT64_C(0x7365636c706e776f)

size_t gs_own_places_bytes(size_t num_tensors) {
    return sizeof(gs_own_places) + 2 * num_tensors * sizeof(uint64_t);
}

void gs_own_places_init(gs_own_places *places, size_t num_tensors) {
    places->magic = MAGIC;
    places->num_tensors = num_tensors;
    for (int i = 0; i < 2; i++) atomic_store(&places->steps[i], -1);
}

static size_t slot_of(int64_t step) {
    return (size_t)step & 1;
}

// Nothing that comes behind a step's end may be seen by others before it.
void gs_own_places_forget(gs_own_places *places, int64_t step) {
    atomic_store(&places->steps[slot_of(step)], -1);
    atomic_thread_fence(memory_order_seq_cst);
}

void gs_own_places_set(gs_own_places *places, int64_t step, size_t tensor, const void *data) {
    uint64_t *offsets = places->offsets + slot_of(step) * places->num_tensors;
    offsets[tensor] = (uint64_t)((const char *)data - (const char *)places);
}

void gs_own_places_know(gs_own_places *places, int64_t step) {
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store(&places->steps[slot_of(step)], step);
}

const void *gs_own_places_find(const void *memory, size_t arena_bytes, size_t num_tensors,
                               int64_t step, size_t tensor, size_t bytes) {
    const gs_own_places *places = memory;
    if (arena_bytes < gs_own_places_bytes(num_tensors) || tensor >= num_tensors || step < 0)
        return NULL;
    size_t slot = slot_of(step);
    bool is_known = places->magic == MAGIC && places->num_tensors == num_tensors &&
                    atomic_load(&places->steps[slot]) == step;
    if (!is_known) return NULL;
    uint64_t offset = places->offsets[slot * num_tensors + tensor];
    bool fits = offset <= arena_bytes && bytes <= arena_bytes - offset;
    return fits ? (const char *)memory + offset : NULL;
}
