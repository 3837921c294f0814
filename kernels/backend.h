// What stands behind a device: one constant table for each kind ("cpu", "cuda"). Internal to
// kernels/.
//
// A new kind is one folder with such a table and one line in device.c.
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include <pthread.h>
#include <sys/types.h>

#include "core/clock.h"
#include "core/status.h"
#include "kernels/device_options.h"
#include "kernels/kernels.h"

typedef struct gs_device_backend gs_device_backend;

struct gs_stream {
    const gs_device_backend *backend;
    pthread_mutex_t lock; // of `error`: helper threads may fail too
    gs_status error;      // the first since the last wait
    gs_event *point;      // set_point
    const gs_grad_factor *factor;  // set_factor
    struct gs_launch_notes *notes;  // the device's; NULL: nobody times kernels
};

struct gs_event {
    const gs_device_backend *backend;
};

struct gs_graph {
    const gs_device_backend *backend;
};

struct gs_device {
    const gs_device_backend *backend;
    char name[24];
    int num_threads;
    const gs_kernels *kernels;
    const struct gs_half_kernels *half_kernels[2];  // bf16, fp16; NULL: none
    gs_stream *stream;
    struct gs_launch_notes *notes;  // owned; NULL: nobody times kernels
    bool is_host;
    unsigned choices;  // choice.h
    pid_t owner;       // the process that opened it
};

typedef enum gs_copy_direction { GS_COPY_TO_DEVICE = 0, GS_COPY_TO_HOST } gs_copy_direction;

// open fills everything but name and backend of a device it allocates, its stream with
// gs_stream_init; close takes NULL members. wait: until the work is done, errors of the machine
// only.
struct gs_device_backend {
    const char *name;
    gs_status (*open)(gs_device **out, int ordinal, const gs_device_options *options);
    void (*close)(gs_device *device);
    gs_status (*alloc)(gs_device *device, void **memory, size_t bytes);
    void (*free)(gs_device *device, void *memory);
    gs_status (*copy)(gs_device *device, void *to, const void *from, size_t bytes,
                      gs_copy_direction direction);
    gs_status (*wait)(gs_stream *stream, gs_deadline deadline);
    void (*arithmetic)(const gs_device *device, char *text, size_t text_bytes);
    void (*limit)(const gs_device *device, char *text, size_t text_bytes);  // "": nothing holds it back
    // Where launchers return when their work is done only streams and events are made and destroyed, and
    // events keep times; the other slots are NULL, and device.c has what is left to do.
    // What kernels that have run found wrong with their data sticks to the stream.
    void (*take_reports)(gs_stream *stream);
    bool (*is_device_memory)(gs_device *device, const void *memory);
    bool (*is_lost)(gs_device *device);
    gs_status (*alloc_pinned)(gs_device *device, void **memory, size_t bytes);
    void (*free_pinned)(gs_device *device, void *memory);
    gs_status (*stream_create)(gs_stream **out, gs_device *device, gs_stream_priority priority);
    void (*stream_destroy)(gs_stream *stream);
    void *(*stream_native)(gs_stream *stream);
    void (*follow)(gs_stream *follower, gs_stream *leader);  // behind all of the leader's work
    gs_status (*event_create)(gs_event **out, gs_device *device, bool timed);
    void (*event_destroy)(gs_event *event);
    void (*event_record)(gs_event *event, gs_stream *stream);
    gs_status (*event_query)(gs_event *event, bool *done);
    gs_status (*event_elapsed)(const gs_event *from, const gs_event *to, int64_t *ns);
    void (*wait_event)(gs_stream *stream, gs_event *event);
    gs_status (*graph_begin)(gs_stream *stream);
    gs_status (*graph_end)(gs_graph **out, gs_stream *stream);
    gs_status (*graph_launch)(gs_graph *graph, gs_stream *stream);
    void (*graph_destroy)(gs_graph *graph);
    // Where code of the host runs on the device's threads.
    void (*for_each)(gs_stream *stream, size_t num_items, void (*body)(void *ctx, size_t item),
                     void *ctx);
};

void gs_stream_init(gs_stream *stream, const gs_device_backend *backend);
void gs_stream_release(gs_stream *stream);
bool gs_stream_has_failed(gs_stream *stream);  // an error sticks to it and was not taken yet
// For a launcher that takes no factor: whether one is set, which fails the stream.
bool gs_stream_refuses_factor(gs_stream *stream, const char *kernel);

extern const gs_device_backend gs_cpu_backend;
#ifdef GRADSYNC_CUDA
extern const gs_device_backend gs_cuda_backend;  // kernels/cuda/device.c
#endif

#endif
