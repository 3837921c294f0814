// A record of a run at its edges: what came in (requests, callers that left, results of writes, timers,
// numbers drawn), when, and what went out (answers, items of streams, rows of the store). Enough to play the
// run again against another build and compare. One JSON line for each; docs/operations.md has the format.
//
// Off unless a file is named. Every function takes a NULL trace and does nothing then. Lines are written at
// the end of a turn of the loop, which waits for the disk; a file that cannot be written, or is full, ends
// the record and not the run.
#ifndef COORDINATOR_STORE_TRACE_H
#define COORDINATOR_STORE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "coordinator/store/job_store.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/server/rpc_tap.h"

typedef struct gs_trace gs_trace;

// ALREADY_EXISTS when there is such a file.
GS_NODISCARD gs_status gs_trace_open(gs_trace **out, const char *path);
void gs_trace_close(gs_trace *trace);
// Where it starts from: all rows, and from now on those that are written. The store borrows the trace.
GS_NODISCARD gs_status gs_trace_begin(gs_trace *trace, gs_job_store *store,
                                      const gs_store_start *start, const char *data_dir,
                                      const char *checkpoints_dir);
gs_rpc_tap gs_trace_tap(gs_trace *trace);

// Of the loop's thread.
void gs_trace_turn(gs_trace *trace);                     // one begins
void gs_trace_event(gs_trace *trace, const char *name);  // "tick", "drain", "close"
// A write came back, the one that was given to the writer as number `number`.
void gs_trace_written(gs_trace *trace, uint64_t number, gs_status status);
void gs_trace_drawn(gs_trace *trace, uint64_t number);
void gs_trace_missing(gs_trace *trace, const char *path);  // a checkpoint's manifest
// Of any thread: what a look at the parts of a checkpoint found.
void gs_trace_found(gs_trace *trace, const char *path, gs_status status, const gs_json *manifest,
                    uint64_t bytes);

#endif
