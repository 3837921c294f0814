// The host's wait for a point of a stream. It polls: a thread that sleeps in the driver could not be
// called back by a deadline.
#ifndef KERNELS_EVENT_WAIT_H
#define KERNELS_EVENT_WAIT_H

#include "core/clock.h"
#include "core/status.h"
#include "kernels/device.h"

// DEADLINE_EXCEEDED names `what`.
GS_NODISCARD gs_status gs_event_wait(gs_event *event, const char *what, gs_deadline deadline);

#endif
