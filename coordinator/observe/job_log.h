// The log lines of a job's ranks: segments on disk, cursors that survive restarts, follow.
//
// Segments are DATA/jobs/ID/log-N.ndjson, one record a line, its cursor inside; above the cap of a job
// the oldest segment is dropped. A thread of the writer owns all files; the loop holds followers.
#ifndef COORDINATOR_OBSERVE_JOB_LOG_H
#define COORDINATOR_OBSERVE_JOB_LOG_H

#include "coordinator/observe/observer.h"

typedef struct gs_job_log gs_job_log;

gs_job_log *gs_job_log_create(gs_observer *observer, gs_job *job);  // NULL: out of memory
void gs_job_log_destroy(gs_job_log *log);  // once the writer is idle
// Files of a deleted job, then the object itself.
void gs_job_log_remove(gs_observer *observer, gs_job *job);
// Followers look again: lines came, or the job ended.
void gs_job_log_wake(gs_observer *observer, gs_job *job);
void gs_job_log_tick(gs_observer *observer, gs_job *job);
// The file is closed, and what is remembered of its lines goes, until somebody writes or reads.
void gs_job_log_rest(gs_observer *observer, gs_job *job);

void gs_log_records(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);
void gs_read_logs(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request);

#endif
