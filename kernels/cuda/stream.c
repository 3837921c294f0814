// Streams of the CUDA device.
#include <inttypes.h>
#include <stdlib.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/stream.h"

#define DESTROY_SECONDS 10.0

// ---- life

static void link_stream(gs_cuda_stream *stream) {
    pthread_mutex_lock(&stream->device->lock);
    stream->next = stream->device->streams;
    stream->device->streams = stream;
    pthread_mutex_unlock(&stream->device->lock);
}

static void unlink_stream(gs_cuda_stream *stream) {
    pthread_mutex_lock(&stream->device->lock);
    gs_cuda_stream **at = &stream->device->streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (*at) *at = stream->next;
    pthread_mutex_unlock(&stream->device->lock);
}

static gs_status make_natives(gs_cuda_stream *stream, gs_stream_priority priority) {
    gs_cuda_device *device = stream->device;
    int level = priority == GS_STREAM_HIGH ? device->greatest_priority : device->least_priority;
    GS_TRY(gs_cuda_check(device,
                         cudaStreamCreateWithPriority(&stream->native, cudaStreamNonBlocking, level),
                         "cudaStreamCreateWithPriority"));
    GS_TRY(gs_cuda_check(device,
                         cudaEventCreateWithFlags(&stream->behind, cudaEventDisableTiming),
                         "cudaEventCreateWithFlags"));
    GS_TRY(gs_cuda_check(device, cudaMalloc(&stream->scratch, GS_CUDA_SCRATCH_BYTES), "cudaMalloc"));
    void *reports, *seen;
    GS_TRY(gs_cuda_check(device, cudaHostAlloc(&reports, sizeof *stream->reports, cudaHostAllocMapped),
                         "cudaHostAlloc"));
    stream->reports = reports;
    *stream->reports = (gs_cuda_reports){0};
    GS_TRY(gs_cuda_check(device, cudaHostGetDevicePointer(&seen, reports, 0),
                         "cudaHostGetDevicePointer"));
    stream->reports_seen = seen;
    return gs_ok();
}

gs_status gs_cuda_stream_create(gs_stream **out, gs_device *device, gs_stream_priority priority) {
    gs_cuda_device *cuda = (gs_cuda_device *)device;
    GS_TRY(gs_cuda_make_current(cuda));
    GS_TRY(gs_cuda_refuse_capture(cuda, "a stream is created"));
    gs_cuda_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return gs_error(GS_RESOURCE_EXHAUSTED, "device cuda:%d: out of memory", cuda->ordinal);
    gs_stream_init(&stream->base, device->backend);
    stream->device = cuda;
    link_stream(stream);
    gs_status status = make_natives(stream, priority);
    if (status.code) {
        gs_cuda_stream_destroy(&stream->base);
        return status;
    }
    *out = &stream->base;
    return gs_ok();
}

// Behind work that never ends nothing is freed: cudaFree would wait for it.
void gs_cuda_stream_destroy(gs_stream *base) {
    gs_cuda_stream *stream = gs_cuda_stream_of(base);
    gs_cuda_device *device = stream->device;
    bool idle = gs_cuda_make_current(device).code == GS_OK &&
                gs_cuda_streams_idle(device, gs_deadline_in_seconds(DESTROY_SECONDS));
    unlink_stream(stream);
    if (idle) {
        (void)cudaFree(stream->scratch);
        (void)cudaFreeHost(stream->reports);
    }
    if (stream->behind) (void)cudaEventDestroy(stream->behind);
    if (stream->native) (void)cudaStreamDestroy(stream->native);
    (void)cudaGetLastError();
    gs_stream_release(base);
    free(stream);
}

// ---- waiting

gs_status gs_cuda_is_capturing(bool *capturing, gs_cuda_stream *stream) {
    enum cudaStreamCaptureStatus state;
    GS_TRY(gs_cuda_check(stream->device, cudaStreamIsCapturing(stream->native, &state),
                         "cudaStreamIsCapturing"));
    *capturing = state != cudaStreamCaptureStatusNone;
    return gs_ok();
}

static gs_status poll_until_idle(gs_cuda_stream *stream, gs_deadline deadline) {
    gs_cuda_device *device = stream->device;
    gs_cuda_pause pause = {0};
    for (;;) {
        cudaError_t error = cudaStreamQuery(stream->native);
        if (error != cudaErrorNotReady) return gs_cuda_check(device, error, "cudaStreamQuery");
        (void)cudaGetLastError();
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "device cuda:%d: the %s stream's work was not done in time",
                            device->ordinal, stream == device->compute ? "compute" : "side");
        gs_cuda_pause_once(&pause);
    }
}

// What a kernel wrote with gs_report_bad_data.
void gs_cuda_stream_take_reports(gs_stream *base) {
    gs_cuda_stream *stream = gs_cuda_stream_of(base);
    static const char *const formats[GS_CUDA_NUM_BAD_DATA] = {
        [GS_CUDA_BAD_TOKEN] = "embedding: row %" PRIu64 ": token %" PRId32 " is not in [0, %zu)",
        [GS_CUDA_BAD_TARGET] = "softmax_loss: row %" PRIu64 ": target %" PRId32 " is not in [0, %zu)",
    };
    // In this order, which is not the device's: a report of which the word is yet to come is not counted as heard.
    stream->num_heard = __atomic_load_n(&stream->reports->count, __ATOMIC_ACQUIRE);
    uint64_t word = __atomic_exchange_n(&stream->reports->word, 0, __ATOMIC_RELAXED);
    if (!word) return;
    uint64_t kind = word >> 60, row = word >> 32 & 0xfffffff;
    int32_t value = (int32_t)(uint32_t)word;
    if (kind >= GS_CUDA_NUM_BAD_DATA || !formats[kind]) {
        gs_stream_fail(&stream->base, gs_error(GS_INTERNAL, "device cuda:%d: bad data of kind %" PRIu64,
                                               stream->device->ordinal, kind));
        return;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    gs_stream_fail(&stream->base, gs_error(GS_INVALID_ARGUMENT, formats[kind], row, value,
                                           stream->bad_data_limits[kind]));
#pragma GCC diagnostic pop
}

gs_status gs_cuda_stream_wait(gs_stream *base, gs_deadline deadline) {
    gs_cuda_stream *stream = gs_cuda_stream_of(base);
    GS_TRY(gs_cuda_make_current(stream->device));
    bool capturing = false;
    GS_TRY(gs_cuda_is_capturing(&capturing, stream));
    if (capturing)
        return gs_error(GS_FAILED_PRECONDITION,
                        "device cuda:%d: a stream is waited for between graph_begin and graph_end",
                        stream->device->ordinal);
    GS_TRY(poll_until_idle(stream, deadline));
    gs_cuda_stream_take_reports(base);
    return gs_ok();
}

static bool is_idle(cudaStream_t native) {
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(native, &state) == cudaSuccess && state != cudaStreamCaptureStatusNone)
        return true;  // nothing of it runs, and a query would spoil it
    bool idle = cudaStreamQuery(native) != cudaErrorNotReady;
    if (!idle) (void)cudaGetLastError();
    return idle;
}

// Where one wait was in vain the next ones only look: whoever tears down a hundred buffers behind a dead
// collective waits once.
bool gs_cuda_streams_idle(gs_cuda_device *device, gs_deadline deadline) {
    gs_cuda_pause pause = {0};
    for (;;) {
        bool idle = true;
        pthread_mutex_lock(&device->lock);
        for (gs_cuda_stream *stream = device->streams; stream && idle; stream = stream->next)
            idle = !stream->native || is_idle(stream->native);
        bool give_up = !idle && (device->stuck || gs_deadline_passed(deadline));
        if (idle || give_up) device->stuck = give_up;
        pthread_mutex_unlock(&device->lock);
        if (idle || give_up) return idle;
        gs_cuda_pause_once(&pause);
    }
}

// ---- order between streams

void *gs_cuda_stream_native(gs_stream *stream) {
    return gs_cuda_stream_of(stream)->native;
}

// The event is the follower's: it is recorded by the thread that the follower belongs to, and recording it
// anew does not touch the waits before.
void gs_cuda_stream_follow(gs_stream *follower, gs_stream *leader) {
    gs_cuda_stream *behind = gs_cuda_stream_of(follower), *ahead = gs_cuda_stream_of(leader);
    gs_status current = gs_cuda_make_current(behind->device);
    if (current.code) {
        gs_stream_fail(follower, current);
        return;
    }
    cudaError_t error = cudaEventRecord(behind->behind, ahead->native);
    gs_cuda_stream_check(follower, error, "cudaEventRecord");
    if (error != cudaSuccess) return;
    gs_cuda_stream_check(follower, cudaStreamWaitEvent(behind->native, behind->behind, 0),
                         "cudaStreamWaitEvent");
}
