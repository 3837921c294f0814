// From 64-bit keys to pointers: open addressing, linear probing, no tombstones. Keys are never 0
// and are expected to be random or hashed. Owns its slots, not what they point to. One thread.
#ifndef CORE_U64_MAP_H
#define CORE_U64_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_u64_map_slot {
    uint64_t key;  // 0: free
    void *value;
} gs_u64_map_slot;

typedef struct gs_u64_map {
    gs_u64_map_slot *slots;
    size_t num_slots, count;  // a power of two, or 0
} gs_u64_map;                 // {0} is empty

void gs_u64_map_release(gs_u64_map *map);
void *gs_u64_map_get(const gs_u64_map *map, uint64_t key);  // NULL when absent
// Sets or replaces. False: out of memory.
bool gs_u64_map_set(gs_u64_map *map, uint64_t key, void *value);
void gs_u64_map_remove(gs_u64_map *map, uint64_t key);

#endif
