#include "gradsync/comm/net/store.h"

#include <stdlib.h>

#include "core/memory.h"

// The smallest that fits; else a new one, and the largest that does not fit goes: it would be in
// the way.
gs_net_block gs_net_store_take(gs_net_store *store, size_t bytes) {
    int best = -1, largest = -1;
    for (int i = 0; i < GS_NET_STORE_BLOCKS; i++) {
        if (!store->kept[i]) continue;
        size_t there = store->kept_bytes[i];
        if (there >= bytes && (best < 0 || there < store->kept_bytes[best])) best = i;
        if (largest < 0 || there > store->kept_bytes[largest]) largest = i;
    }
    if (best >= 0) {
        gs_net_block block = {store->kept[best], store->kept_bytes[best]};
        store->kept[best] = NULL;
        return block;
    }
    if (largest >= 0) {
        free(store->kept[largest]);
        store->kept[largest] = NULL;
    }
    size_t rounded = gs_round_up(bytes ? bytes : 1, GS_LINE_BYTES);
    return (gs_net_block){aligned_alloc(GS_LINE_BYTES, rounded), rounded};
}

void gs_net_store_give_back(gs_net_store *store, gs_net_block block) {
    for (int i = 0; block.data && i < GS_NET_STORE_BLOCKS; i++) {
        if (store->kept[i]) continue;
        store->kept[i] = block.data;
        store->kept_bytes[i] = block.bytes;
        return;
    }
    free(block.data);
}

void gs_net_store_release(gs_net_store *store) {
    for (int i = 0; i < GS_NET_STORE_BLOCKS; i++) free(store->kept[i]);
    *store = (gs_net_store){0};
}
