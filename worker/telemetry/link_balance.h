// How ranks agree on who adds how much of a bucket (gs_comm_share), by what they learn of the ways between them.
//
// A choice by rates is a guess: it is taken where a sum that is timed both ways is quicker by a tenth, and left alone for a
// while where it is not. A communicator begins with equal shares, so each generation looks anew. Compute thread; collective.
//
// A trial has bounds of its own, and no deadline of a step or of ranks that meet: each of its collectives may take what any may, and who
// does not come to one is named after it; behind the first sum of each kind no other begins once all together took 5 s; and where a sum is
// expected, by the rates, to take more than a quarter of a collective's time, there is no trial: the deadline of a sum that a slow way
// holds up would end the ranks.
#ifndef WORKER_TELEMETRY_LINK_BALANCE_H
#define WORKER_TELEMETRY_LINK_BALANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "rpc/plan/link_message.h"

typedef struct gs_link_balance {
    uint16_t shares[GS_LINK_MAX_SHARES];  // by rank, as they are in force
    gs_link_deal deal;                    // what people are told of them; num_ranks 0: they are equal
    int num_refused, num_waits;           // trials in a row that were no gain; looks until the next one
} gs_link_balance;

// *changed: other shares are in force.
//   bytes            of the sum that is timed
//   timeout_seconds  of a collective
GS_NODISCARD gs_status gs_link_balance_consider(gs_link_balance *balance, bool *changed, gs_comm *comm, size_t bytes, double timeout_seconds);

#endif
