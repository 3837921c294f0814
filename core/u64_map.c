#include "core/u64_map.h"

#include <assert.h>
#include <stdlib.h>

void gs_u64_map_release(gs_u64_map *map) {
    free(map->slots);
    *map = (gs_u64_map){0};
}

// Fibonacci hashing: counters as keys do not cluster.
static size_t home_of(const gs_u64_map *map, uint64_t key) {
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (map->num_slots - 1);
}

// The slot of `key`, or the free one where it belongs.
static size_t find_slot(const gs_u64_map *map, uint64_t key) {
    size_t i = home_of(map, key);
    while (map->slots[i].key && map->slots[i].key != key) i = (i + 1) & (map->num_slots - 1);
    return i;
}

void *gs_u64_map_get(const gs_u64_map *map, uint64_t key) {
    if (!map->count) return NULL;
    return map->slots[find_slot(map, key)].value;
}

static bool grow(gs_u64_map *map) {
    gs_u64_map bigger = {.num_slots = map->num_slots ? map->num_slots * 2 : 16,
                         .count = map->count};
    bigger.slots = calloc(bigger.num_slots, sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (size_t i = 0; i < map->num_slots; i++) {
        if (map->slots[i].key) bigger.slots[find_slot(&bigger, map->slots[i].key)] = map->slots[i];
    }
    free(map->slots);
    *map = bigger;
    return true;
}

bool gs_u64_map_set(gs_u64_map *map, uint64_t key, void *value) {
    assert(key && value);
    if ((map->count + 1) * 4 > map->num_slots * 3 && !grow(map)) return false;
    gs_u64_map_slot *slot = &map->slots[find_slot(map, key)];
    if (!slot->key) map->count++;
    *slot = (gs_u64_map_slot){.key = key, .value = value};
    return true;
}

void gs_u64_map_remove(gs_u64_map *map, uint64_t key) {
    if (!map->count) return;
    size_t hole = find_slot(map, key);
    if (!map->slots[hole].key) return;
    map->count--;
    // Shift back whatever would no longer be found behind the hole.
    size_t mask = map->num_slots - 1;
    for (size_t i = (hole + 1) & mask; map->slots[i].key; i = (i + 1) & mask) {
        size_t home = home_of(map, map->slots[i].key);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        map->slots[hole] = map->slots[i];
        hole = i;
    }
    map->slots[hole] = (gs_u64_map_slot){0};
}
