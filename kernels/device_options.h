// What is asked of a device, and the names of its parts: what its users (device.h) and the kinds of
// devices (backend.h) share.
//
// Threads: a device with its streams, events and graphs serves one at a time, any, from open to close (device.h).
#ifndef KERNELS_DEVICE_OPTIONS_H
#define KERNELS_DEVICE_OPTIONS_H

#include <stdbool.h>

#include "core/abi.h"

GS_BEGIN_DECLS

typedef struct gs_device gs_device;
typedef struct gs_event gs_event;  // a point of a stream
typedef struct gs_graph gs_graph;  // work of a stream, kept to be launched again

typedef struct gs_device_options {
    int num_threads;  // CPU: compute threads, matrix products included; 0: one
    const char *isa;  // CPU: "baseline", "avx2", "avx512"; NULL: the best the machine has
    bool tf32;        // CUDA: fp32 matrix products on tensor cores, operands rounded to TF32
    bool same_bits;   // CUDA: matrix products take no algorithm by timing; the same in every process
    char reserved[6];  // 0
} gs_device_options;

typedef enum gs_stream_priority { GS_STREAM_NORMAL = 0, GS_STREAM_HIGH } gs_stream_priority;

GS_END_DECLS

#endif
