// Collectives that are timed among all ranks: each of them hears the same seconds, and decides alike.
#ifndef WORKER_TELEMETRY_LINK_TIMING_H
#define WORKER_TELEMETRY_LINK_TIMING_H

#include <stddef.h>

#include "core/status.h"
#include "gradsync/comm/comm.h"

// Collective: of each number the largest of any rank.
//   timeout_seconds  of each collective, from when this rank comes to it: how many are timed, and how long they take together, is no
//                    reason to give up a rank that comes to each
GS_NODISCARD gs_status gs_link_agree_on_most(gs_comm *comm, double *numbers, size_t count, double timeout_seconds);
// Collective: what a sum of so many bytes takes on the slowest rank, behind a barrier. `memory` has them.
GS_NODISCARD gs_status gs_link_time_sum(double *seconds, gs_comm *comm, float *memory, size_t bytes, double timeout_seconds);

#endif
