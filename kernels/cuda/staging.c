// Copies between the host's memory and the device's, through two pinned buffers: while one travels, the
// host fills or empties the other.
//
// A copy of pageable memory would be one call less, but it waits in the runtime, without a deadline, for
// what the stream was given before.
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/staging.h"

#define BUFFER_BYTES ((size_t)4 << 20)
#define NUM_BUFFERS 2
// For the work before a copy and one buffer's way over the bus.
#define COPY_SECONDS 60.0

typedef struct staging_buffer {
    void *memory;  // pinned
    cudaEvent_t done;
    void *to_host;  // where a download's bytes belong when it is done
    size_t bytes;
} staging_buffer;

struct gs_cuda_staging {
    gs_cuda_device *device;  // borrows
    staging_buffer buffers[NUM_BUFFERS];
};

gs_status gs_cuda_staging_create(struct gs_cuda_staging **out, gs_cuda_device *device) {
    struct gs_cuda_staging *staging = calloc(1, sizeof *staging);
    if (!staging)
        return gs_error(GS_RESOURCE_EXHAUSTED, "device cuda:%d: out of memory", device->ordinal);
    staging->device = device;
    gs_status status = gs_ok();
    for (int i = 0; i < NUM_BUFFERS && !status.code; i++) {
        staging_buffer *buffer = &staging->buffers[i];
        status = gs_cuda_check(device,
                               cudaHostAlloc(&buffer->memory, BUFFER_BYTES, cudaHostAllocDefault),
                               "cudaHostAlloc");
        if (status.code == GS_OK)
            status = gs_cuda_check(device,
                                   cudaEventCreateWithFlags(&buffer->done, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags");
    }
    if (status.code) {
        gs_cuda_staging_destroy(staging, true);
        return status;
    }
    *out = staging;
    return gs_ok();
}

void gs_cuda_staging_destroy(struct gs_cuda_staging *staging, bool idle) {
    if (!staging) return;
    for (int i = 0; i < NUM_BUFFERS; i++) {
        if (idle && staging->buffers[i].memory) (void)cudaFreeHost(staging->buffers[i].memory);
        if (staging->buffers[i].done) (void)cudaEventDestroy(staging->buffers[i].done);
    }
    (void)cudaGetLastError();
    free(staging);
}

// The buffer's last copy is done and a download's bytes are where they belong.
static gs_status empty_buffer(struct gs_cuda_staging *staging, staging_buffer *buffer,
                              const char *direction) {
    gs_deadline deadline = gs_deadline_in_seconds(COPY_SECONDS);
    gs_cuda_pause pause = {0};
    cudaError_t error;
    while ((error = cudaEventQuery(buffer->done)) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "device cuda:%d: copy %s: the work before it was not done within %g s",
                            staging->device->ordinal, direction, COPY_SECONDS);
        gs_cuda_pause_once(&pause);
    }
    GS_TRY(gs_cuda_check(staging->device, error, "cudaEventQuery"));
    if (buffer->to_host) memcpy(buffer->to_host, buffer->memory, buffer->bytes);
    buffer->to_host = NULL;
    return gs_ok();
}

static gs_status enqueue_piece(struct gs_cuda_staging *staging, staging_buffer *buffer, char *to,
                               const char *from, size_t bytes, gs_copy_direction direction) {
    gs_cuda_device *device = staging->device;
    cudaStream_t native = device->compute->native;
    bool to_device = direction == GS_COPY_TO_DEVICE;
    if (to_device) memcpy(buffer->memory, from, bytes);
    cudaError_t error =
        cudaMemcpyAsync(to_device ? to : buffer->memory, to_device ? buffer->memory : from, bytes,
                        to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, native);
    GS_TRY(gs_cuda_check(device, error, "cudaMemcpyAsync"));
    GS_TRY(gs_cuda_check(device, cudaEventRecord(buffer->done, native), "cudaEventRecord"));
    buffer->to_host = to_device ? NULL : to;
    buffer->bytes = bytes;
    return gs_ok();
}

static gs_status copy_pieces(struct gs_cuda_staging *staging, char *to, const char *from, size_t bytes,
                             gs_copy_direction direction) {
    const char *name = direction == GS_COPY_TO_DEVICE ? "to the device" : "to the host";
    int next = 0;
    for (size_t at = 0; at < bytes; at += BUFFER_BYTES) {
        staging_buffer *buffer = &staging->buffers[next];
        size_t piece = bytes - at < BUFFER_BYTES ? bytes - at : BUFFER_BYTES;
        GS_TRY(empty_buffer(staging, buffer, name));
        GS_TRY(enqueue_piece(staging, buffer, to + at, from + at, piece, direction));
        next = (next + 1) % NUM_BUFFERS;
    }
    for (int i = 0; i < NUM_BUFFERS; i++) {
        GS_TRY(empty_buffer(staging, &staging->buffers[next], name));
        next = (next + 1) % NUM_BUFFERS;
    }
    return gs_ok();
}

gs_status gs_cuda_transfer(gs_device *base, void *to, const void *from, size_t bytes,
                       gs_copy_direction direction) {
    gs_cuda_device *device = (gs_cuda_device *)base;
    GS_TRY(gs_cuda_make_current(device));
    GS_TRY(gs_cuda_refuse_capture(device, "memory is copied"));
    gs_status status = copy_pieces(device->staging, to, from, bytes, direction);
    // A copy that is given up has no host memory to come back to.
    if (status.code)
        for (int i = 0; i < NUM_BUFFERS; i++) device->staging->buffers[i].to_host = NULL;
    return status;
}
