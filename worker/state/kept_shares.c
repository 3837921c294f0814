#include "worker/state/kept_shares.h"

#include <stdlib.h>
#include <string.h>

typedef struct kept {
    int rank;
    char *name;  // owned
    gs_dtype dtype;
    size_t count;
    void *data;  // owned
} kept;

struct gs_kept_shares {
    kept *items;
    size_t num_items, reserved;
};

gs_status gs_kept_shares_create(gs_kept_shares **out, size_t num_tensors) {
    gs_kept_shares *shares = calloc(1, sizeof *shares);
    if (shares) shares->items = calloc(num_tensors + 1, sizeof *shares->items);
    if (!shares || !shares->items) {
        free(shares);
        return gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
    }
    shares->reserved = num_tensors + 1;
    *out = shares;
    return gs_ok();
}

static void release_item(kept *item) {
    free(item->name);
    free(item->data);
}

void gs_kept_shares_destroy(gs_kept_shares *shares) {
    if (!shares) return;
    for (size_t i = 0; i < shares->num_items; i++) release_item(&shares->items[i]);
    free(shares->items);
    free(shares);
}

static bool reserve(gs_kept_shares *shares) {
    if (shares->num_items < shares->reserved) return true;
    kept *items = realloc(shares->items, 2 * shares->reserved * sizeof *items);
    if (!items) return false;
    shares->items = items;
    shares->reserved *= 2;
    return true;
}

void *gs_kept_shares_add(gs_kept_shares *shares, int rank, const char *name, gs_dtype dtype,
                         size_t count) {
    if (!reserve(shares)) return NULL;
    size_t bytes = count * gs_dtype_bytes(dtype);
    kept item = {.rank = rank,
                 .name = strdup(name),
                 .dtype = dtype,
                 .count = count,
                 .data = malloc(bytes ? bytes : 1)};
    if (!item.name || !item.data) {
        release_item(&item);
        return NULL;
    }
    shares->items[shares->num_items++] = item;
    return item.data;
}

void gs_kept_shares_drop(gs_kept_shares *shares, int rank) {
    size_t left = 0;
    for (size_t i = 0; i < shares->num_items; i++) {
        if (shares->items[i].rank == rank)
            release_item(&shares->items[i]);
        else
            shares->items[left++] = shares->items[i];
    }
    shares->num_items = left;
}

static gs_status read_kept(void *ctx, const char *name, int rank, gs_dtype dtype, size_t count,
                           void *to) {
    const gs_kept_shares *shares = ctx;
    for (size_t i = 0; i < shares->num_items; i++) {
        const kept *item = &shares->items[i];
        if (item->rank != rank || strcmp(item->name, name) != 0) continue;
        if (item->dtype != dtype || item->count != count) break;
        if (count) memcpy(to, item->data, count * gs_dtype_bytes(dtype));
        return gs_ok();
    }
    return gs_error(GS_INVALID_ARGUMENT, "there is no tensor \"%s\" of %zu elements of %s", name,
                    count, gs_dtype_name(dtype));
}

static void release_kept(void *ctx) {
    gs_kept_shares_destroy(ctx);
}

gs_share_source gs_kept_shares_source(gs_kept_shares *shares, size_t num_tensors) {
    gs_share_source source = {
        .num_tensors = num_tensors, .ctx = shares, .read = read_kept, .release = release_kept};
    for (size_t i = 0; i < shares->num_items; i++)
        gs_share_claim_add(&source.claim, shares->items[i].rank);
    return source;
}
