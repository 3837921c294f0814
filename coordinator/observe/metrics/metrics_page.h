// The metrics page: what is behind the series is looked at and sent in slices over several turns, so
// that no number of jobs and ranks holds the loop. Loop thread.
#ifndef COORDINATOR_OBSERVE_METRICS_METRICS_PAGE_H
#define COORDINATOR_OBSERVE_METRICS_METRICS_PAGE_H

#include "coordinator/observe/observer.h"

// Goes on with a page that somebody waits for, for at most about 2 ms.
void gs_metrics_page_turn(gs_observer *observer);
void gs_metrics_page_destroy(gs_observer *observer);

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);

#endif
