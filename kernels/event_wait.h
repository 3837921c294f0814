// The host's wait for a point of a stream. It polls: a thread that sleeps in the driver could not be
// called back by a deadline.
#ifndef KERNELS_EVENT_WAIT_H
#define KERNELS_EVENT_WAIT_H

#include "core/clock.h"
#include "core/status.h"
#include "kernels/device.h"

// DEADLINE_EXCEEDED names `what`.
GS_NODISCARD gs_status gs_event_wait(gs_event *event, const char *what, gs_deadline deadline);

// What the stream was given before `point` was recorded there is done: as gs_stream_wait, but for what came later. The
// first error that stuck so far is returned and taken off, also of a kernel.
GS_NODISCARD gs_status gs_stream_wait_until(gs_stream *stream, gs_event *point, const char *what,
                                            gs_deadline deadline);

#endif
