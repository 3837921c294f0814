// A failure and a fault as people are shown them.
#ifndef COORDINATOR_OBSERVE_VIEWS_FAILURE_VIEW_H
#define COORDINATOR_OBSERVE_VIEWS_FAILURE_VIEW_H

#include "coordinator/model/run.h"
#include "rpc/json/json.h"

// kind, accused, and what else is known: reporter, collective, lane, collective_step, bucket.
void gs_fault_to_view(gs_json *out, const gs_fault_facts *fault);
// Of a run whose cause is complete: {class, message, hint, first, log_tail, consequences}. The caller's.
gs_json *gs_failure_to_view(const gs_run *run);

#endif
