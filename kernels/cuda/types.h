// A CUDA device and its streams as the launchers see them. C and C++; internal to kernels/cuda/.
//
// A launcher enqueues on `native` and returns. What it needs beside its arguments is made when the stream
// is: `scratch`, which belongs to one launcher's kernels at a time, in the order of the stream, and the word
// in which a kernel says that it was given bad data.
#ifndef KERNELS_CUDA_TYPES_H
#define KERNELS_CUDA_TYPES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/backend.h"
#include "kernels/choice.h"
#include "kernels/device.h"

// Also the workspace of cuBLASLt, which is 32 MiB where it wants to be fast.
#define GS_CUDA_SCRATCH_BYTES ((size_t)32 << 20)

typedef struct gs_cuda_device gs_cuda_device;

// What a kernel may find wrong with its data. The launcher writes the limit before it launches.
typedef enum gs_cuda_bad_data {
    GS_CUDA_DATA_OK = 0,
    GS_CUDA_BAD_TOKEN,   // embedding, embedding_backward: limit is the vocabulary
    GS_CUDA_BAD_TARGET,  // softmax_loss: limit is the number of classes
    GS_CUDA_NUM_BAD_DATA
} gs_cuda_bad_data;

// What kernels tell the host of bad data (gs_report_bad_data, launch.cuh). The host takes the word when it hears of it, at any
// point that it waits for; the number is the device's alone, so that a kernel later in the stream can still tell that the host
// had not heard when it was enqueued (grad_factor).
typedef struct gs_cuda_reports {
    uint64_t word;   // 0: none that the host has not heard of
    uint64_t count;  // of all so far
} gs_cuda_reports;

typedef struct gs_cuda_stream {
    gs_stream base;
    gs_cuda_device *device;  // borrows
    cudaStream_t native;
    cudaEvent_t behind;       // recorded in the leader's stream by follow
    void *scratch;            // device memory, GS_CUDA_SCRATCH_BYTES, 256-byte aligned, not zeroed
    gs_cuda_reports *reports;       // pinned
    gs_cuda_reports *reports_seen;  // the same where kernels see it
    uint64_t num_heard;             // of its reports, by the host
    size_t bad_data_limits[GS_CUDA_NUM_BAD_DATA];
    bool failed_before_capture;
    struct gs_cuda_products *products;  // the device's; matrix products; NULL beside the compute stream
    struct gs_cuda_stream *next;        // of the device
} gs_cuda_stream;

struct gs_cuda_device {
    gs_device base;
    int ordinal;
    int num_sms;
    int capability;              // 90 is sm_90
    int max_block_shared_bytes;  // with cudaFuncSetAttribute
    int least_priority, greatest_priority;
    bool tf32;
    gs_cuda_stream *compute;         // base.stream
    struct gs_cudnn_attention *attention;  // attention_library.h; NULL: not chosen, or not found
    cudaStream_t service;            // zeroes new memory, behind nobody's work
    struct gs_cuda_staging *staging;  // staging.h
    pthread_mutex_t lock;            // of what follows
    gs_status broken;                // the error after which the device answers nothing else
    gs_cuda_stream *streams;         // all, the compute stream too
    bool stuck;                      // its work did not end within a wait for all of it
    bool capturing;
    pthread_t capturing_thread;
};

static inline gs_cuda_stream *gs_cuda_stream_of(gs_stream *stream) {
    return (gs_cuda_stream *)stream;
}

#ifdef __cplusplus
}
#endif

#endif
