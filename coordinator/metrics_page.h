// The metrics page: jobs are looked at one in a turn, so that many of them do not hold the loop; then
// all families go out in pieces. Loop thread.
#ifndef COORDINATOR_METRICS_PAGE_H
#define COORDINATOR_METRICS_PAGE_H

#include "coordinator/coordinator.h"

void gs_metrics_pages_turn(gs_coordinator *coordinator);
void gs_metrics_pages_destroy(gs_coordinator *coordinator);

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);

#endif
