// The metrics page: the loop takes a picture of jobs, some at a time, another thread writes it down, the loop sends what
// came of it to all who asked before. So no number of jobs and ranks holds the loop. Loop thread.
#ifndef COORDINATOR_OBSERVE_METRICS_METRICS_PAGE_H
#define COORDINATOR_OBSERVE_METRICS_METRICS_PAGE_H

#include "coordinator/observe/observer.h"

// Goes on with a page that somebody waits for, for at most about a millisecond.
void gs_metrics_page_turn(gs_observer *observer);
// There is more to do at once; else its thread writes, and wakes the loop.
bool gs_metrics_page_hurries(const gs_observer *observer);
void gs_metrics_page_destroy(gs_observer *observer);

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);

#endif
