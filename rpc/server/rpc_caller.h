// Who has the other end of a connection, as its key says. A value.
#ifndef RPC_SERVER_RPC_CALLER_H
#define RPC_SERVER_RPC_CALLER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "rpc/keys/key_list.h"

typedef struct gs_rpc_caller {
    bool is_known;  // by a key; else it came where nobody is asked for one, and may do everything
    bool is_local;  // it is in this process
    bool is_pool;   // it may be any worker whose name begins with this one
    gs_role role;
    char id[GS_KEY_ID_BYTES], name[GS_KEY_NAME_BYTES];  // "" when not known
    int64_t expires_ms;                                 // 0: never
    uint64_t incarnation;                               // of the one rank that it is; 0: it is none
} gs_rpc_caller;

// Whether it may call what asks for `needed`.
static inline bool gs_rpc_caller_may(const gs_rpc_caller *caller, gs_role needed) {
    return !caller->is_known || gs_role_may(caller->role, needed);
}

// Whether it may name somebody else for whom it asks: an API, which knows by what token it was asked. Who shows no key has no name
// of his own by which one could go.
static inline bool gs_rpc_caller_speaks_for_others(const gs_rpc_caller *caller) {
    return caller->is_local || (caller->is_known && gs_role_may(caller->role, GS_ROLE_OPERATOR));
}

// Whether a connection that was one's may go on as the other's.
static inline bool gs_rpc_caller_equal(const gs_rpc_caller *a, const gs_rpc_caller *b) {
    return a->role == b->role && a->incarnation == b->incarnation && a->is_pool == b->is_pool && a->expires_ms == b->expires_ms && strcmp(a->name, b->name) == 0;
}

#endif
