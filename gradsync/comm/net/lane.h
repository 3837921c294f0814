// The collectives of a lane in their order: posted by the owner, claimed by peers before or after
// that, a few moving at a time, finished one by one.
#ifndef GRADSYNC_COMM_NET_LANE_H
#define GRADSYNC_COMM_NET_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/net/work.h"

#define GS_NET_MAX_POSTED 1024
// A peer is at most so far ahead as it has in flight, of which this rank has posted the first.
#define GS_NET_MAX_KNOWN (2 * GS_NET_MAX_POSTED)

typedef struct gs_net_stamps {
    _Atomic int64_t posted_ns, all_arrived_ns, finished_ns;
} gs_net_stamps;

typedef struct gs_net_lane {
    int number;
    _Atomic uint64_t posted;                 // by the owner
    _Atomic uint64_t finished;               // by the moving thread
    gs_collective posts[GS_NET_MAX_POSTED];  // the owner's until posted
    const gs_net_shares *shares[GS_NET_MAX_POSTED];  // likewise, of each post
    gs_net_stamps stamps[GS_NET_MAX_POSTED];
    // Of the moving thread:
    gs_net_party *party;
    uint64_t taken, started;               // posts that were taken; collectives that were started
    gs_comm_failure cause;                 // of the last error, where it is between ranks
    gs_net_work *works[GS_NET_MAX_KNOWN];  // owned; sequence mod GS_NET_MAX_KNOWN
} gs_net_lane;

void gs_net_lane_open(gs_net_lane *lane, gs_net_party *party, int number);
void gs_net_lane_close(gs_net_lane *lane);  // nothing of it is on its way any more

// Nothing moves any more: the own inputs of what is not finished are as they were.
void gs_net_lane_restore(gs_net_lane *lane);

// The owner.
//   shares  stay until the lane is closed
void gs_net_lane_post(gs_net_lane *lane, uint64_t sequence, const gs_collective *collective,
                      const gs_net_shares *shares);

// The moving thread: all that can be done now. *moved: something was.
GS_NODISCARD gs_status gs_net_lane_move(gs_net_lane *lane, bool *moved);
GS_NODISCARD gs_status gs_net_lane_place(gs_net_lane *lane, int peer, const gs_net_header *header,
                                         void **body);
GS_NODISCARD gs_status gs_net_lane_came(gs_net_lane *lane, int peer, const gs_net_header *header);

static inline uint64_t gs_net_lane_finished(const gs_net_lane *lane) {
    return atomic_load_explicit(&lane->finished, memory_order_acquire);
}
static inline bool gs_net_lane_has_work(const gs_net_lane *lane) {
    return atomic_load_explicit(&lane->posted, memory_order_acquire) != gs_net_lane_finished(lane);
}
static inline bool gs_net_lane_has_posts(const gs_net_lane *lane) {
    return atomic_load_explicit(&lane->posted, memory_order_acquire) != lane->taken;
}
gs_work_times gs_net_lane_times(const gs_net_lane *lane, uint64_t sequence);

// The first that is not finished, of those that were taken; NULL: none. Not beside the moving
// thread.
const gs_net_work *gs_net_lane_first(const gs_net_lane *lane);

#endif
