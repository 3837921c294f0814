#include "coordinator/idempotency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gs_keys {
    gs_key *items;  // owned
    size_t count, reserved;
};

static void load_key(void *ctx, const gs_store_row *row) {
    gs_keys_add(ctx, row->key, row->body, row->job, row->expires_ms);
}

gs_status gs_keys_create(gs_keys **out, gs_job_store *store) {
    gs_keys *keys = calloc(1, sizeof *keys);
    if (!keys) return gs_error(GS_RESOURCE_EXHAUSTED, "idempotency keys: out of memory");
    gs_status status = gs_job_store_load_keys(store, load_key, keys);
    if (status.code) {
        gs_keys_destroy(keys);
        return status;
    }
    *out = keys;
    return gs_ok();
}

void gs_keys_destroy(gs_keys *keys) {
    if (!keys) return;
    for (size_t i = 0; i < keys->count; i++) free(keys->items[i].key);
    free(keys->items);
    free(keys);
}

gs_key *gs_keys_find(gs_keys *keys, const char *key, int64_t now_ms) {
    for (size_t i = 0; i < keys->count; i++) {
        if (!strcmp(keys->items[i].key, key) && keys->items[i].expires_ms > now_ms) {
            return &keys->items[i];
        }
    }
    return NULL;
}

gs_key *gs_keys_add(gs_keys *keys, const char *key, const char *fingerprint, uint64_t job,
                    int64_t expires_ms) {
    gs_keys_remove(keys, key);
    if (keys->count == keys->reserved) {
        size_t reserved = keys->reserved ? keys->reserved * 2 : 64;
        gs_key *items = realloc(keys->items, reserved * sizeof *items);
        if (!items) return NULL;
        keys->items = items;
        keys->reserved = reserved;
    }
    gs_key *item = &keys->items[keys->count];
    *item = (gs_key){.key = strdup(key), .job = job, .expires_ms = expires_ms};
    if (!item->key) return NULL;
    snprintf(item->fingerprint, sizeof item->fingerprint, "%s", fingerprint);
    keys->count++;
    return item;
}

static void remove_at(gs_keys *keys, size_t index) {
    free(keys->items[index].key);
    keys->items[index] = keys->items[--keys->count];
}

void gs_keys_remove(gs_keys *keys, const char *key) {
    for (size_t i = keys->count; i-- > 0;) {
        if (!strcmp(keys->items[i].key, key)) remove_at(keys, i);
    }
}

void gs_keys_expire(gs_keys *keys, int64_t now_ms) {
    for (size_t i = keys->count; i-- > 0;) {
        if (keys->items[i].expires_ms <= now_ms) remove_at(keys, i);
    }
}
