// Who moves a job: creation, transitions with their events, stops, ends, removal.
#ifndef COORDINATOR_JOB_CONTROL_H
#define COORDINATOR_JOB_CONTROL_H

#include "coordinator/coordinator.h"
#include "coordinator/job.h"

// Adds a job that is complete to the table (takes it). False: out of memory.
bool gs_jobs_add(gs_coordinator *coordinator, gs_job *job);
gs_job *gs_jobs_by_id(gs_coordinator *coordinator, uint64_t id);
gs_job *gs_jobs_by_id_text(gs_coordinator *coordinator, const char *text);
// {job} of a request: id, unique prefix of at least four characters, or the name of a live job.
// NOT_FOUND; FAILED_PRECONDITION with *details when it is ambiguous.
GS_NODISCARD gs_status gs_jobs_find(gs_coordinator *coordinator, gs_job **job, gs_json **details,
                                    const gs_json *request);

// Shows the job in `state` with reason and sentence: event first, then state, then watchers.
void gs_job_move(gs_coordinator *coordinator, gs_job *job, gs_job_state state, const char *reason,
                 const char *format, ...) GS_PRINTF(5, 6);
// The same when the event has been added already.
void gs_job_show(gs_coordinator *coordinator, gs_job *job, gs_job_state state, const char *reason,
                 const char *message);
// Another reason within the state; no event when nothing changes.
void gs_job_explain(gs_coordinator *coordinator, gs_job *job, const char *reason,
                    const char *format, ...) GS_PRINTF(4, 5);
// A terminal state. The run must be gone.
void gs_job_end(gs_coordinator *coordinator, gs_job *job, gs_job_state state, const char *reason,
                const char *format, ...) GS_PRINTF(5, 6);
// Asks for the end: graceful drains, now kills. `outcome` is the terminal state to reach.
void gs_job_stop(gs_coordinator *coordinator, gs_job *job, bool now, gs_job_state outcome,
                 const char *reason, double grace_seconds);

// Methods.
void gs_create_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request);
void gs_stop_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                 const gs_json *request);
void gs_delete_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request);

#endif
