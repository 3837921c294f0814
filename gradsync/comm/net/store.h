// Memory that collectives use while they move, kept from one to the next: a step asks the system
// for none.
#ifndef GRADSYNC_COMM_NET_STORE_H
#define GRADSYNC_COMM_NET_STORE_H

#include <stddef.h>

#define GS_NET_STORE_BLOCKS 16

typedef struct gs_net_store {
    // Private:
    void *kept[GS_NET_STORE_BLOCKS];
    size_t kept_bytes[GS_NET_STORE_BLOCKS];
} gs_net_store;

typedef struct gs_net_block {
    void *data;  // on a line's boundary; NULL: none
    size_t bytes;
} gs_net_block;

// At least `bytes`; data is NULL when there are none.
gs_net_block gs_net_store_take(gs_net_store *store, size_t bytes);
void gs_net_store_give_back(gs_net_store *store, gs_net_block block);  // {0} is fine
void gs_net_store_release(gs_net_store *store);                        // what was given back

#endif
