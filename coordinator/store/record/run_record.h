// A run as the store keeps it: enough to know its members again after a restart.
#ifndef COORDINATOR_STORE_RECORD_RUN_RECORD_H
#define COORDINATOR_STORE_RECORD_RUN_RECORD_H

#include "coordinator/model/run.h"
#include "rpc/json/json.h"

gs_json *gs_run_to_record(const gs_run *run);
// RELOADING, with members that are not connected; SETTLING where it had failed, or was being ended. NULL: not one that trained.
gs_run *gs_run_from_record(gs_job *job, const gs_json *record, int64_t now_ns);

#endif
