// How the levels of two are made when a communicator is: who is on which host, the segment of this
// one, the column across the hosts, and the net of all. Owner's thread.
#ifndef GRADSYNC_COMM_HOSTS_FOUNDING_H
#define GRADSYNC_COMM_HOSTS_FOUNDING_H

#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/hosts/lane.h"

// What a party borrows: it may not be moved while there is one.
typedef struct gs_hosts_founding {
    gs_arena *memory;      // owned: the slots
    gs_reduce_tree order;  // of the column, with its arrays
    int order_ranks[GS_HOSTS_MOST_RANKS], order_parts[GS_HOSTS_MOST_RANKS];
    uint8_t order_merges[GS_HOSTS_MOST_RANKS];
} gs_hosts_founding;

// Collective, with `party` of this rank and generation, else zero: topology, slots and levels of
// it. The first error of any rank is that of all; what was made until then is left and released
// like the rest.
GS_NODISCARD gs_status gs_hosts_founding_open(gs_hosts_founding *out, gs_hosts_party *party,
                                              int num_lanes, const gs_comm_options *options,
                                              gs_stages *stages, gs_deadline deadline);
void gs_hosts_founding_leave(gs_hosts_party *party);  // closes the levels; before lanes are closed
void gs_hosts_founding_release(gs_hosts_founding *founding);  // behind that

#endif
