// The writer thread: owns the store and all files, so that the loop never waits for a disk.
//
// Writes go in as small objects whose `run` happens on the writer thread and whose `done` happens on
// the loop, in the order of submission. Store writes that are waiting together are committed together.
#ifndef COORDINATOR_STORE_WRITER_H
#define COORDINATOR_STORE_WRITER_H

#include "coordinator/store/transaction.h"
#include "core/status.h"

typedef struct gs_trace gs_trace;  // trace.h
typedef struct gs_writer gs_writer;

// Takes the store: closed by stop. `wake_fd` (an eventfd, borrowed) is written when something is done.
// `trace` (borrowed, may be NULL) is told what came back.
GS_NODISCARD gs_status gs_writer_start(gs_writer **out, gs_job_store *store, int wake_fd,
                                       gs_trace *trace);
// Takes the write. When it cannot be taken (the queue is full), done is called at once with the error.
void gs_writer_submit(gs_writer *writer, gs_write *write);
// Calls done of everything that is finished. Loop only.
void gs_writer_collect(gs_writer *writer);
// Finishes what is queued, calls its done, closes the store. NULL is fine.
void gs_writer_stop(gs_writer *writer);

#endif
