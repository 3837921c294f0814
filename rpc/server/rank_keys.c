#include "rpc/server/rank_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"

#define FEW 256  // are never swept

void gs_rank_keys_init(gs_rank_keys *keys, uint64_t seed) { *keys = (gs_rank_keys){.seed = seed}; }

void gs_rank_keys_release(gs_rank_keys *keys) {
    for (size_t i = 0; i < keys->count; i++) free(keys->items[i]);
    free(keys->items);
    gs_u64_map_release(&keys->by_key);
    gs_u64_map_release(&keys->by_id);
    gs_u64_map_release(&keys->by_incarnation);
    *keys = (gs_rank_keys){0};
}

// Seeded: an agent chooses these bytes.
static uint64_t key_of_curve(const gs_rank_keys *keys, const gs_curve_key *shown) {
    uint64_t key = gs_hash64(shown->bytes, sizeof shown->bytes, keys->seed);
    return key ? key : 1;
}

static uint64_t key_of_id(const char *id) { return strncmp(id, "r-", 2) == 0 ? strtoull(id + 2, NULL, 16) : 0; }

const gs_rank_key *gs_rank_keys_find(const gs_rank_keys *keys, const gs_curve_key *shown) {
    const gs_rank_key *found = gs_u64_map_get(&keys->by_key, key_of_curve(keys, shown));
    return found && gs_curve_key_equal(&found->shown, shown) ? found : NULL;
}

const gs_rank_key *gs_rank_keys_find_rank(const gs_rank_keys *keys, uint64_t incarnation) {
    return gs_u64_map_get(&keys->by_incarnation, incarnation);
}

const gs_rank_key *gs_rank_keys_find_id(const gs_rank_keys *keys, const char *id) {
    uint64_t key = key_of_id(id);
    return key ? gs_u64_map_get(&keys->by_id, key) : NULL;
}

static void forget(gs_rank_keys *keys, gs_rank_key *key) {
    gs_u64_map_remove(&keys->by_key, key_of_curve(keys, &key->shown));
    gs_u64_map_remove(&keys->by_id, key_of_id(key->id));
    gs_u64_map_remove(&keys->by_incarnation, key->incarnation);
}

static void drop_at(gs_rank_keys *keys, size_t at) {
    forget(keys, keys->items[at]);
    free(keys->items[at]);
    keys->items[at] = keys->items[--keys->count];
    if (at < keys->count) keys->items[at]->at = at;
}

void gs_rank_keys_drop(gs_rank_keys *keys, uint64_t incarnation) {
    const gs_rank_key *key = gs_u64_map_get(&keys->by_incarnation, incarnation);
    if (key) drop_at(keys, key->at);
}

static bool make_room(gs_rank_keys *keys) {
    if (keys->count < keys->reserved) return true;
    size_t reserved = keys->reserved ? 2 * keys->reserved : 64;
    gs_rank_key **items = realloc(keys->items, reserved * sizeof *items);
    if (!items) return false;
    keys->items = items;
    keys->reserved = reserved;
    return true;
}

bool gs_rank_keys_add(gs_rank_keys *keys, const gs_rank_key *key) {
    const gs_rank_key *other = gs_u64_map_get(&keys->by_key, key_of_curve(keys, &key->shown));
    if (other && other->incarnation != key->incarnation) return false;
    gs_rank_key *same = gs_u64_map_get(&keys->by_incarnation, key->incarnation);
    if (same && gs_curve_key_equal(&same->shown, &key->shown)) {
        memcpy(same->worker, key->worker, sizeof same->worker);
        memcpy(same->owner, key->owner, sizeof same->owner);
        return true;
    }
    gs_rank_keys_drop(keys, key->incarnation);
    gs_rank_key *made = make_room(keys) ? malloc(sizeof *made) : NULL;
    if (!made) return false;
    *made = *key;
    snprintf(made->id, sizeof made->id, "r-%012llx", (unsigned long long)++keys->last_id);
    if (!gs_u64_map_set(&keys->by_key, key_of_curve(keys, &made->shown), made) ||
        !gs_u64_map_set(&keys->by_id, key_of_id(made->id), made) ||
        !gs_u64_map_set(&keys->by_incarnation, made->incarnation, made)) {
        forget(keys, made);
        free(made);
        return false;
    }
    made->at = keys->count;
    keys->items[keys->count++] = made;
    return true;
}

bool gs_rank_keys_are_many(const gs_rank_keys *keys) { return keys->count > FEW && keys->count > 2 * keys->swept; }

void gs_rank_keys_sweep(gs_rank_keys *keys, bool (*is_there)(void *ctx, uint64_t incarnation), void *ctx) {
    for (size_t i = keys->count; i-- > 0;)
        if (!is_there(ctx, keys->items[i]->incarnation)) drop_at(keys, i);
    keys->swept = keys->count;
}
