// What stands behind a device: one constant table for each kind ("cpu", "cuda"). Internal to
// kernels/.
//
// A new kind is one folder with such a table and one line in device.c.
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include <pthread.h>

#include "kernels/device.h"

typedef struct gs_device_backend gs_device_backend;

struct gs_stream {
    const gs_device_backend *backend;
    pthread_mutex_t lock; // of `error`: helper threads may fail too
    gs_status error;      // the first since the last wait
};

struct gs_device {
    const gs_device_backend *backend;
    char name[24];
    int num_threads;
    const gs_kernels *kernels;
    gs_stream *stream;
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
};

void gs_stream_init(gs_stream *stream, const gs_device_backend *backend);
void gs_stream_release(gs_stream *stream);

extern const gs_device_backend gs_cpu_backend;

#endif
