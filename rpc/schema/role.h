// Who somebody is to the coordinator, as soon as somebody has to show a key: what a method or a route
// asks for, and what a caller has.
#ifndef RPC_SCHEMA_ROLE_H
#define RPC_SCHEMA_ROLE_H

typedef enum gs_role {
    GS_ROLE_ANYBODY = 0,
    GS_ROLE_AGENT,
    GS_ROLE_TRAINER,
    GS_ROLE_METRICS,  // reads numbers
    GS_ROLE_VIEWER,   // reads all
    GS_ROLE_OPERATOR  // changes
} gs_role;

#endif
