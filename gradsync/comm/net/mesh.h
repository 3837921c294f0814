// A connection of every two ranks: TCP, of this process alone, greeted (greeting.h) and ready for
// messages.
//
// Ranks tell each other by the stages of a communicator's creation where they listen: at their data
// address, a port that the kernel picks. The lower rank of two connects. No name is looked up.
// Whoever else connects meanwhile is hung up on and keeps nobody waiting.
#ifndef GRADSYNC_COMM_NET_MESH_H
#define GRADSYNC_COMM_NET_MESH_H

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm_options.h"
#include "gradsync/comm/stages.h"

#define GS_NET_PLACE_LEN 64

typedef struct gs_net_mesh {
    int world_size;
    int *sockets;                      // by rank, not blocking; -1: this rank, or taken by its user
    char (*places)[GS_NET_PLACE_LEN];  // by rank, for messages: "10.0.0.2:40123"
} gs_net_mesh;

// Collective. UNAVAILABLE says which two ranks cannot talk, and why: after at most ten seconds, and
// soon enough before the deadline that all hear it.
GS_NODISCARD gs_status gs_net_mesh_form(gs_net_mesh *out, const gs_comm_options *options,
                                        gs_stages *stages, gs_deadline deadline);
void gs_net_mesh_release(gs_net_mesh *mesh);  // closes what is left in it; {0} is fine

#endif
