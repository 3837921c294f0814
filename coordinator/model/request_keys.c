#include "coordinator/model/request_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"

void gs_request_keys_release(gs_request_keys *keys) {
    for (size_t i = 0; i < keys->count; i++) free(keys->items[i].key);
    free(keys->items);
    *keys = (gs_request_keys){0};
}

gs_request_key *gs_request_keys_find(const gs_request_keys *keys, const char *key, int64_t now_ms) {
    for (size_t i = 0; i < keys->count; i++) {
        if (!strcmp(keys->items[i].key, key) && keys->items[i].expires_ms > now_ms) return &keys->items[i];
    }
    return NULL;
}

gs_request_key *gs_request_keys_add(gs_request_keys *keys, const char *key, const char *fingerprint, uint64_t job,
                                    int64_t expires_ms) {
    gs_request_keys_remove(keys, key);
    keys->items = gs_model_grow(keys->items, keys->count, &keys->reserved, sizeof *keys->items);
    gs_request_key *item = &keys->items[keys->count++];
    size_t bytes = strlen(key) + 1;
    *item = (gs_request_key){.key = gs_model_alloc(bytes, 1), .job = job, .expires_ms = expires_ms};
    memcpy(item->key, key, bytes);
    snprintf(item->fingerprint, sizeof item->fingerprint, "%s", fingerprint);
    return item;
}

static void remove_at(gs_request_keys *keys, size_t index) {
    free(keys->items[index].key);
    keys->items[index] = keys->items[--keys->count];
}

void gs_request_keys_remove(gs_request_keys *keys, const char *key) {
    for (size_t i = keys->count; i-- > 0;) {
        if (!strcmp(keys->items[i].key, key)) remove_at(keys, i);
    }
}

void gs_request_keys_expire(gs_request_keys *keys, int64_t now_ms) {
    for (size_t i = keys->count; i-- > 0;) {
        if (keys->items[i].expires_ms <= now_ms) remove_at(keys, i);
    }
}
