// What kind of fault a generation ended by, as both ends of the wire and the HTTP API name it.
#ifndef RPC_SCHEMA_FAULT_KIND_H
#define RPC_SCHEMA_FAULT_KIND_H

typedef enum gs_fault_kind {
    GS_FAULT_INTERNAL = 0,  // a bug; or a word that this build does not know
    // Between ranks, as a communicator tells it:
    GS_FAULT_TIMEOUT,    // the accused did not come in time; of a rank alone: its own work did not
    GS_FAULT_PEER_LOST,  // the accused died, or left
    GS_FAULT_MISMATCH,   // the accused asked for something else than the others
    GS_FAULT_DAMAGED,    // the accused wrote where it may not
    GS_FAULT_DEVICE,     // the accused's device failed in a collective
    GS_FAULT_ABORTED,    // the reporter ended it, for a reason of its own
    // Of a rank alone:
    GS_FAULT_ERROR,  // it ended with an error, as its exit code or its last word says
    GS_FAULT_DATA,
    GS_FAULT_NUMERICS,
    GS_FAULT_DIVERGENCE,
    GS_FAULT_NO_DEVICE_MEMORY,
    GS_FAULT_DEVICE_LOST,
    GS_NUM_FAULT_KINDS
} gs_fault_kind;

const char *gs_fault_kind_name(gs_fault_kind kind);  // "peer_lost"
gs_fault_kind gs_fault_kind_of(const char *name);

#endif
