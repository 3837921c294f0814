// Threads that wait for disks, so that the loop never does, and so that nobody waits for what another one is about:
// a commit that takes seconds holds no start of a job, and a file that is read whole holds no line of a log.
//
// Writes go in as small objects whose `run` happens on the thread of their lane and whose `done` happens on the loop.
// Those of one lane keep their order; others may overtake them, unless they ask for it (is_behind_looks). Rows that are waiting together are committed together.
#ifndef COORDINATOR_STORE_WRITER_H
#define COORDINATOR_STORE_WRITER_H

#include <stdatomic.h>

#include "coordinator/store/transaction.h"
#include "core/status.h"

typedef struct gs_trace gs_trace;  // trace.h
typedef struct gs_writer gs_writer;

// Takes the store: closed by stop. `wake_fd` (an eventfd, borrowed) is written when something is done.
// `trace` (borrowed, may be NULL) is told what came back.
GS_NODISCARD gs_status gs_writer_start(gs_writer **out, gs_job_store *store, int wake_fd,
                                       gs_trace *trace);
// Takes the write. When it cannot be taken (too many wait in its lane, or too large ones), done is called at once with the
// error.
void gs_writer_submit(gs_writer *writer, gs_write *write);
uint64_t gs_writer_num_refused(const gs_writer *writer);  // so
size_t gs_writer_waiting_bytes(const gs_writer *writer, gs_write_lane lane);
// Calls done of everything that is finished. Loop only.
void gs_writer_collect(gs_writer *writer);
const atomic_bool *gs_writer_stopping(const gs_writer *writer);  // any thread: it ends
// Finishes what is queued, but for trees that it has not begun (CANCELLED), calls its done, closes the store. NULL is fine.
void gs_writer_stop(gs_writer *writer);

#endif
