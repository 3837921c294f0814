#include "coordinator/model/request_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"

void gs_request_keys_release(gs_request_keys *keys) {
    for (size_t i = 0; i < keys->count; i++) free(keys->items[i].key);
    free(keys->items);
    gs_u64_map_release(&keys->by_hash);
    *keys = (gs_request_keys){0};
}

static uint64_t hash_of(const char *key) {
    uint64_t hash = gs_hash64(key, strlen(key), 0);
    return hash ? hash : 1;
}

static bool is_at(const gs_request_keys *keys, size_t index, const char *key) {
    return index < keys->count && !strcmp(keys->items[index].key, key);
}

// count: not there.
static size_t index_of(const gs_request_keys *keys, const char *key) {
    size_t index = (size_t)(uintptr_t)gs_u64_map_get(&keys->by_hash, hash_of(key)) - 1;
    if (index == SIZE_MAX) return keys->count;
    if (is_at(keys, index, key)) return index;
    for (index = 0; index < keys->count && !is_at(keys, index, key);) index++;
    return index;
}

static void note_index(gs_request_keys *keys, size_t index) {
    if (!gs_u64_map_set(&keys->by_hash, hash_of(keys->items[index].key), (void *)(uintptr_t)(index + 1))) abort();
}

gs_request_key *gs_request_keys_find(const gs_request_keys *keys, const char *key, int64_t now_ns) {
    size_t index = index_of(keys, key);
    return index < keys->count && keys->items[index].expires_ns > now_ns ? &keys->items[index] : NULL;
}

gs_request_key *gs_request_keys_add(gs_request_keys *keys, const char *key, const char *fingerprint, uint64_t job,
                                    int64_t expires_ns) {
    gs_request_keys_remove(keys, key);
    keys->items = gs_model_grow(keys->items, keys->count, &keys->reserved, sizeof *keys->items);
    gs_request_key *item = &keys->items[keys->count++];
    size_t bytes = strlen(key) + 1;
    *item = (gs_request_key){.key = gs_model_alloc(bytes, 1), .job = job, .expires_ns = expires_ns};
    memcpy(item->key, key, bytes);
    snprintf(item->fingerprint, sizeof item->fingerprint, "%s", fingerprint);
    keys->num_twins += gs_u64_map_get(&keys->by_hash, hash_of(key)) != NULL;
    note_index(keys, keys->count - 1);
    return item;
}

static void remove_at(gs_request_keys *keys, size_t index) {
    uint64_t hash = hash_of(keys->items[index].key);
    free(keys->items[index].key);
    keys->items[index] = keys->items[--keys->count];
    gs_u64_map_remove(&keys->by_hash, hash);
    if (index < keys->count) note_index(keys, index);
    // Whoever had the same hash has it alone now.
    for (size_t i = 0; i < keys->count && keys->num_twins > 0; i++) note_index(keys, i);
}

void gs_request_keys_remove(gs_request_keys *keys, const char *key) {
    size_t index = index_of(keys, key);
    if (index < keys->count) remove_at(keys, index);
}

void gs_request_keys_remove_job(gs_request_keys *keys, uint64_t job) {
    for (size_t i = keys->count; i-- > 0;) {
        if (keys->items[i].job == job) remove_at(keys, i);
    }
}

void gs_request_keys_expire(gs_request_keys *keys, int64_t now_ns) {
    for (size_t i = keys->count; i-- > 0;) {
        if (keys->items[i].expires_ns <= now_ns) remove_at(keys, i);
    }
}
