// What travels between two ranks: a header of 24 bytes, and a body of as many bytes as it says.
//
// As it lies in memory: the greeting (greeting.h) makes sure that both sides mean the same by it.
#ifndef GRADSYNC_COMM_NET_MESSAGE_H
#define GRADSYNC_COMM_NET_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm_failure.h"

typedef enum gs_net_kind {
    GS_NET_UNSET = 0,
    GS_NET_CLAIM,    // a gs_collective_claim: the sender has posted; behind it all of a small input
    GS_NET_GRANT,    // no body: inputs of segments below `segment` of the sender's slice may come
    GS_NET_INPUT,    // a rank's own elements of a segment of the receiver's slice
    GS_NET_RESULT,   // a segment of the sender's slice, reduced
    GS_NET_FAILURE,  // a gs_net_failure: the communicator has ended, and why
    GS_NET_BYE,      // no body: the sender leaves; nothing comes behind it
    GS_NET_WAITS,    // a gs_net_ranks: for whom the sender has waited for long, in its first
                     // collective of a lane
    GS_NET_HERE,     // no body: the sender has come to `sequence`, of whoever drives the backend
    GS_NET_NUM_KINDS
} gs_net_kind;

typedef struct gs_net_header {
    uint8_t kind, lane;
    uint16_t input;    // of INPUT: which of a tree's inputs; else the sender's rank
    uint32_t segment;  // of the slice
    uint64_t sequence;
    uint64_t bytes;
} gs_net_header;

typedef struct gs_net_failure {
    gs_status status;
    gs_comm_failure failure;
} gs_net_failure;

// What a peer's driver said last of a lane, in numbers of its own.
typedef struct gs_net_presence {
    uint64_t sequence;
    uint32_t word;
    int64_t heard_ns;  // when it came, on the clock of gs_now_ns; 0: nothing was said
} gs_net_presence;

// What is large fills the line; all else keeps ranks going.
static inline bool gs_net_is_bulk(const gs_net_header *header) {
    return header->kind == GS_NET_INPUT || header->kind == GS_NET_RESULT;
}

// A peer's words may be any bytes: what cannot be in them becomes "not known".
void gs_net_failure_sanitize(gs_net_failure *heard, int world_size, int num_lanes);

#endif
