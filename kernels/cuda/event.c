// Events of the CUDA device.
#include <stdlib.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/stream.h"

typedef struct cuda_event {
    gs_event base;
    gs_cuda_device *device;  // borrows
    cudaEvent_t native;
} cuda_event;

gs_status gs_cuda_event_create(gs_event **out, gs_device *device, bool timed) {
    gs_cuda_device *cuda = (gs_cuda_device *)device;
    GS_TRY(gs_cuda_make_current(cuda));
    cuda_event *event = calloc(1, sizeof *event);
    if (!event)
        return gs_error(GS_RESOURCE_EXHAUSTED, "device cuda:%d: out of memory", cuda->ordinal);
    event->base.backend = device->backend;
    event->device = cuda;
    unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    gs_status status = gs_cuda_check(cuda, cudaEventCreateWithFlags(&event->native, flags),
                                     "cudaEventCreateWithFlags");
    if (status.code) {
        free(event);
        return status;
    }
    *out = &event->base;
    return gs_ok();
}

void gs_cuda_event_destroy(gs_event *base) {
    cuda_event *event = (cuda_event *)base;
    // What was recorded and not reached yet is the runtime's to release.
    if (cudaEventDestroy(event->native) != cudaSuccess) (void)cudaGetLastError();
    free(event);
}

// Whether the stream captures, or its error stuck to it.
static bool find_capturing(bool *capturing, gs_stream *base) {
    gs_cuda_stream *stream = gs_cuda_stream_of(base);
    gs_status status = gs_cuda_make_current(stream->device);
    if (status.code == GS_OK) status = gs_cuda_is_capturing(capturing, stream);
    gs_stream_fail(base, status);
    return status.code == GS_OK;
}

// In a capture an event is a node of the graph, which each launch records for those outside.
void gs_cuda_event_record(gs_event *base, gs_stream *stream) {
    cuda_event *event = (cuda_event *)base;
    cudaStream_t native = gs_cuda_stream_of(stream)->native;
    bool capturing;
    if (!find_capturing(&capturing, stream)) return;
    unsigned flags = capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
    gs_cuda_stream_check(stream, cudaEventRecordWithFlags(event->native, native, flags),
                         "cudaEventRecordWithFlags");
}

void gs_cuda_event_wait(gs_stream *stream, gs_event *base) {
    cuda_event *event = (cuda_event *)base;
    cudaStream_t native = gs_cuda_stream_of(stream)->native;
    bool capturing;
    if (!find_capturing(&capturing, stream)) return;
    unsigned flags = capturing ? cudaEventWaitExternal : cudaEventWaitDefault;
    gs_cuda_stream_check(stream, cudaStreamWaitEvent(native, event->native, flags),
                         "cudaStreamWaitEvent");
}

gs_status gs_cuda_event_query(gs_event *base, bool *done) {
    cuda_event *event = (cuda_event *)base;
    *done = false;
    GS_TRY(gs_cuda_make_current(event->device));
    cudaError_t error = cudaEventQuery(event->native);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return gs_ok();
    }
    GS_TRY(gs_cuda_check(event->device, error, "cudaEventQuery"));
    *done = true;
    return gs_ok();
}

gs_status gs_cuda_event_elapsed(const gs_event *from_base, const gs_event *to_base, int64_t *ns) {
    const cuda_event *from = (const cuda_event *)from_base, *to = (const cuda_event *)to_base;
    GS_TRY(gs_cuda_make_current(from->device));
    float ms = 0.0f;
    cudaError_t error = cudaEventElapsedTime(&ms, from->native, to->native);
    if (error == cudaErrorNotReady || error == cudaErrorInvalidResourceHandle ||
        error == cudaErrorInvalidValue) {
        (void)cudaGetLastError();
        return gs_error(GS_FAILED_PRECONDITION, "device cuda:%d: elapsed: %s", from->device->ordinal,
                        error == cudaErrorNotReady
                            ? "an event is not done yet"
                            : "an event was never recorded, or made without a clock");
    }
    GS_TRY(gs_cuda_check(from->device, error, "cudaEventElapsedTime"));
    *ns = (int64_t)((double)ms * 1e6);
    return gs_ok();
}
