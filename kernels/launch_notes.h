// The launches of a device while its kernels are timed: which, what they move and compute, and the events around each.
// Internal to kernels/; kernel_times.h is what it is for. Calls the device's backend alone.
#ifndef KERNELS_LAUNCH_NOTES_H
#define KERNELS_LAUNCH_NOTES_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/clock.h"
#include "core/status.h"
#include "kernels/device_options.h"
#include "kernels/half.h"

typedef enum gs_launch_form { GS_LAUNCH_PLAIN = 0, GS_LAUNCH_PRODUCT, GS_LAUNCH_ATTENTION } gs_launch_form;

typedef struct gs_launch_shape {
    gs_launch_form form;
    bool transpose_a, transpose_b, adds;
    gs_epilogue epilogue;
    size_t sizes[4];
} gs_launch_shape;

typedef struct gs_launch_cost {
    double bytes, flops;
    gs_launch_shape shape;
} gs_launch_cost;

typedef struct gs_launch_note {
    const char *kernel;
    gs_dtype dtype;
    gs_launch_cost cost;
    gs_event *from, *to;  // owned by the list
} gs_launch_note;

typedef struct gs_launch_notes {
    gs_device *device;
    int64_t step;
    const gs_kernels *kernels;             // the device's own
    const gs_half_kernels *half_kernels[2];
    gs_kernels timed;
    gs_half_kernels timed_half[2];
    atomic_bool is_running;
    atomic_int num_open;   // launches between their note and its end
    pthread_mutex_t lock;  // of what follows
    gs_launch_note *notes;
    size_t num_notes, max_notes;
    gs_event *begin, *end;
    gs_status error;  // the first launch that was not noted
} gs_launch_notes;

// Around a launch. NULL: it is not noted, and `end` takes that.
gs_event *gs_launch_notes_add(gs_launch_notes *notes, gs_stream *stream, const char *kernel, gs_dtype dtype,
                              const gs_launch_cost *cost);
void gs_launch_notes_end(gs_launch_notes *notes, gs_event *end, gs_stream *stream);

// What was noted, while nothing more is; false: a launch of another thread has not ended by the deadline.
bool gs_launch_notes_stop(gs_launch_notes *notes, gs_deadline deadline);
// Stops, and forgets all. Takes NULL.
void gs_launch_notes_drop(gs_launch_notes *notes);
void gs_launch_notes_destroy(gs_launch_notes *notes);  // takes NULL; events are gone by then

#endif
