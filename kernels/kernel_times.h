// How long each kernel of a device takes, launch by launch, between begin and end.
//
// GRADSYNC_KERNEL_TIMES in the environment makes each device that is opened hand out tables whose launchers note where they
// begin and end (timed_table.h); without it the tables are the device's own, and no launch asks anything. On a CPU
// a launch's time is the clock's; on a GPU that between two events around it, work that a stream has to
// wait for from the host included: what is shorter than the host takes to hand it out looks longer than it is.
// Launches of all streams of the device count, so that times of streams beside each other add up to more than the span.
// Graphs are launched as a whole: who wants times of kernels hands them out one by one (worker/pass/pass_graph.h).
//
// Threads: begin and end are the device's thread's; launches may come from any.
#ifndef KERNELS_KERNEL_TIMES_H
#define KERNELS_KERNEL_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "kernels/device_options.h"

// All launches of one kernel; of products and attention, of one shape.
typedef struct gs_kernel_time {
    const char *kernel;  // as its slot is called; constant
    gs_dtype dtype;      // of its table: GS_FP32, GS_BF16, GS_FP16
    char shape[64];      // "m=… n=… k=…" of a product, else "" or what matters
    int64_t calls, ns;
    double bytes, flops;  // of all calls, as the kernel's inputs and outputs say; 0: not known
} gs_kernel_time;

typedef struct gs_kernel_table {
    gs_kernel_time *rows;  // owned; the longest first
    size_t num_rows;
    int64_t ns;       // of all rows
    int64_t span_ns;  // from begin to end on the compute stream
} gs_kernel_table;

// The step that the environment named when the device was opened, as its reader counts; -1: it hands out its own tables.
int64_t gs_kernel_times_step_of(const gs_device *device);
bool gs_kernel_times_running(const gs_device *device);

// Launches from here on; what was begun and not ended is dropped. FAILED_PRECONDITION of a device without timed tables.
GS_NODISCARD gs_status gs_kernel_times_begin(gs_device *device);
// Waits for the launches. *out is empty on failure.
GS_NODISCARD gs_status gs_kernel_times_end(gs_kernel_table *out, gs_device *device, gs_deadline deadline);
void gs_kernel_table_release(gs_kernel_table *table);

#endif
