// The thread of a communicator between hosts that moves: it alone speaks with peers and touches
// what lanes have in flight. Its owner posts, and looks at what it publishes.
//
// No call of the owner waits for what the thread does, but leaving: neither a long sum nor a call
// of the kernel that does not return keeps a wait from its deadline.
#ifndef GRADSYNC_COMM_NET_MOVER_H
#define GRADSYNC_COMM_NET_MOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/collective.h"
#include "gradsync/comm/futex_event.h"
#include "gradsync/comm/net/lane.h"
#include "gradsync/comm/net/mesh.h"
#include "gradsync/comm/net/words.h"

typedef struct gs_net_mover gs_net_mover;

// Why it ended: for all ranks the words of the one that found it out.
typedef struct gs_net_end {
    gs_status status;
    gs_comm_failure failure;
} gs_net_end;

// Takes the mesh's sockets.
GS_NODISCARD gs_status gs_net_mover_start(gs_net_mover **out, gs_net_mesh *mesh, int rank,
                                          int num_lanes, uint32_t generation);
void gs_net_mover_stop(gs_net_mover *mover);

// Of the owner's thread:
void gs_net_mover_post(gs_net_mover *mover, int lane, uint64_t sequence,
                       const gs_collective *collective);
// Of what is posted from here on; they stay until the mover is stopped. NULL: equal ones.
void gs_net_mover_share(gs_net_mover *mover, const gs_net_shares *shares);

// Of any thread:
const gs_net_lane *gs_net_mover_lane(const gs_net_mover *mover, int lane);
gs_futex_event *gs_net_mover_event(gs_net_mover *mover);  // when something finished, or ended
gs_net_standing gs_net_mover_standing(gs_net_mover *mover, int lane);
void gs_net_mover_say_here(gs_net_mover *mover, int lane, gs_net_presence here);
gs_net_presence gs_net_mover_was_here(const gs_net_mover *mover, int rank, int lane);
void gs_net_mover_link(gs_net_mover *mover, int peer, gs_comm_link *out);
// The first end that is asked for counts, unless there was one before.
void gs_net_mover_ask_end(gs_net_mover *mover, const gs_net_end *end);
bool gs_net_mover_end_asked(const gs_net_mover *mover);
// From then on no buffer of a collective is touched.
bool gs_net_mover_has_ended(const gs_net_mover *mover);
// What it ended by, or was asked to; false: neither.
bool gs_net_mover_end(gs_net_mover *mover, gs_net_end *out);
void gs_net_mover_leave(gs_net_mover *mover);  // tells peers; does not wait
bool gs_net_mover_has_left(const gs_net_mover *mover);

#endif
