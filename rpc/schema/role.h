// Who somebody is to the coordinator, as soon as somebody has to show a key: what a method or a route
// asks for, and what a caller has.
#ifndef RPC_SCHEMA_ROLE_H
#define RPC_SCHEMA_ROLE_H

#include <stdbool.h>
#include <string.h>

typedef enum gs_role {
    GS_ROLE_ANYBODY = 0,
    GS_ROLE_AGENT,
    GS_ROLE_TRAINER,
    GS_ROLE_ENROL,    // is to become a worker, and may do nothing else
    GS_ROLE_METRICS,  // reads numbers
    GS_ROLE_VIEWER,   // reads all
    GS_ROLE_OPERATOR,  // changes
    GS_ROLE_ADMIN      // says who may
} gs_role;

// Whether who has the key or token of role `has` may do what asks for `needed`. A worker's trainers have its key, and it may ask
// what it was enrolled as. Those
// who read, change and administer are in one order; nobody else is in it.
static inline bool gs_role_may(gs_role has, gs_role needed) {
    if (needed == GS_ROLE_ANYBODY) return true;
    if (has == GS_ROLE_AGENT) return needed <= GS_ROLE_ENROL;
    if (has < GS_ROLE_METRICS || needed < GS_ROLE_METRICS) return has == needed;
    return has >= needed;
}

// Whether the key of this name is that of the worker, or of a pool (whose workers' names begin with it and a hyphen).
static inline bool gs_key_name_covers(const char *name, bool is_pool, const char *worker) {
    if (!is_pool) return strcmp(name, worker) == 0;
    size_t len = strlen(name);
    return strncmp(name, worker, len) == 0 && worker[len] == '-' && worker[len + 1];
}

#endif
