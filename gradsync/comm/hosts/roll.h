// Who is here: asked when a collective takes long.
//
// Between hosts a rank hears of those of its column alone, so it cannot tell whether the one that
// drives another host's column is late, or waits itself for a rank of its host. So whoever waits
// long says where it is to all, again and again: who says nothing is who does not come.
#ifndef GRADSYNC_COMM_HOSTS_ROLL_H
#define GRADSYNC_COMM_HOSTS_ROLL_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/hosts/lane.h"

typedef struct gs_hosts_roll {
    int64_t said_ns[GS_COMM_MAX_LANES];
} gs_hosts_roll;

// Who moves, now and then. FAILED_PRECONDITION, with `cause`: all are here, and do not mean the same.
GS_NODISCARD gs_status gs_hosts_roll_call(gs_hosts_roll *roll, gs_hosts_party *party,
                                          gs_hosts_lane *lane, int64_t now_ns,
                                          gs_comm_failure *cause);
// Of the first that is not finished: rank `culprit` posted something else than `other`.
gs_status gs_hosts_roll_say_mismatch(const gs_hosts_party *party, const gs_hosts_lane *lane,
                                     int culprit, int other);
// Those of whom nothing was heard for long, but for who waits at a collective before; of a short wait who is silent for far
// longer than all others. False: nobody is.
bool gs_hosts_roll_accuse_silent(const gs_hosts_roll *roll, const gs_hosts_party *party,
                                 const gs_hosts_lane *lane, int64_t waited_ns,
                                 gs_comm_failure *late);
// Whether all the accused had once come to what the lane waits for.
bool gs_hosts_roll_knows(const gs_hosts_party *party, const gs_hosts_lane *lane,
                         const gs_comm_failure *late);

#endif
