// Who a client is to its server, and what the server made of that.
#ifndef RPC_CLIENT_RPC_IDENTITY_H
#define RPC_CLIENT_RPC_IDENTITY_H

#include "core/status.h"
#include "rpc/keys/key_file.h"

// Where the key of now is, asked for each connection, and each second while there is none. On the client's thread.
typedef struct gs_rpc_key_source {
    gs_status (*read)(void *ctx, gs_key_file *key);
    void *ctx;  // borrowed until the client is closed
} gs_rpc_key_source;

// How the last attempt to connect ended, when one of the two sides did not want it.
typedef enum gs_rpc_refusal {
    GS_RPC_NOT_REFUSED = 0,
    GS_RPC_KEY_REFUSED,   // the server does not know our key
    GS_RPC_OTHER_SERVER,  // it asks for a key and we show none, or it shows none, or not the one that ours is for
    GS_RPC_NO_KEY         // ours cannot be read
} gs_rpc_refusal;

#endif
