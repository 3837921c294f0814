// What a failure is in the whole: levels tell of their own ranks, lanes and sequences, and people hear of the job's.
//
// Whoever moves asks, but for what is said to be the owner's.
#ifndef GRADSYNC_COMM_HOSTS_CAUSES_H
#define GRADSYNC_COMM_HOSTS_CAUSES_H

#include <stdint.h>

#include "gradsync/comm/hosts/lane.h"
#include "gradsync/comm/hosts/roll.h"

// What it goes by; all borrowed.
typedef struct gs_hosts_causes {
    gs_hosts_party *party;
    const gs_hosts_roll *roll;
    gs_hosts_lane *lanes;
    int num_lanes;
} gs_hosts_causes;

// `status` and `cause` as `level` tells of them: cause becomes one of the whole, and its words are returned.
gs_status gs_hosts_causes_relate(const gs_hosts_causes *causes, const gs_hosts_level *level, gs_status status,
                                 gs_comm_failure *cause);
// DEADLINE_EXCEEDED behind a wait for the first of `lane`, with *late. Who is silent is missing; if all are here, who keeps the
// level that it is at.
gs_status gs_hosts_causes_say_late(const gs_hosts_causes *causes, gs_hosts_lane *lane, int64_t waited_ns,
                                   gs_comm_failure *late);
// The owner, while somebody else moves for long: nobody else is to blame, and nothing is known of them.
gs_status gs_hosts_causes_say_held_up(const gs_hosts_causes *causes, const gs_hosts_lane *lane, int64_t waited_ns,
                                      gs_comm_failure *late);

#endif
