// When a GPU did what the host gave it: a timed event at each turn of a step, read after the one wait
// in which the step's results come and put on the host's clock. The phases and the timeline then say
// what the device did, not when it was told to. On CPUs none of this is needed, and nothing is made.
//
// The update of the parameters runs on when the step is over: it is seen with the next one.
#ifndef WORKER_PASS_DEVICE_TIMES_H
#define WORKER_PASS_DEVICE_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/device.h"
#include "worker/telemetry/timeline.h"

typedef struct gs_device_times gs_device_times;

// *out stays NULL where the host's own clock tells; all functions below take NULL and do nothing.
GS_NODISCARD gs_status gs_device_times_create(gs_device_times **out, gs_device *device);
void gs_device_times_destroy(gs_device_times *times);

// Between the last mark and this one the compute stream does work of this kind; GS_SPAN_UNSET: of none
// that counts. Marks behind the first few hundred of a step are left out.
void gs_device_times_mark(gs_device_times *times, gs_span_kind kind);
typedef struct gs_device_phases {
    double forward, backward, optimizer;  // seconds; the optimizer's of the step before
} gs_device_phases;

// The last mark of a step, before the wait for its results.
void gs_device_times_mark_end(gs_device_times *times);
// Right after that wait. Spans go into the timeline; the next step starts with what was marked behind the end.
GS_NODISCARD gs_status gs_device_times_read(gs_device_times *times, gs_device_phases *phases,
                                            gs_timeline *timeline);

#endif
