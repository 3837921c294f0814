// Log lines written by a thread of their own: whoever logs never waits for a pipe that nobody reads, a terminal that is held,
// or a disk. What waits is bounded; what does not fit is left out, counted, and told of when there is room again.
// A process that crashes waits a second for its last lines.
#ifndef CORE_LOG_THREAD_H
#define CORE_LOG_THREAD_H

#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"

typedef struct gs_log_thread gs_log_thread;

// Becomes the sink of gs_log. One at a time. `file` is borrowed.
GS_NODISCARD gs_status gs_log_thread_start(gs_log_thread **out, int file);
// Until all that was logged before is written.
void gs_log_thread_flush(gs_log_thread *thread, gs_deadline deadline);
// Writes what waits as long as somebody takes it, at most until the deadline; the default sink is back. NULL is fine.
void gs_log_thread_stop(gs_log_thread *thread, gs_deadline deadline);
// Of this process, so far.
uint64_t gs_log_lines_dropped(void);

#endif
