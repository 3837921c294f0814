// A stream to put work on, and which one: where device memory is not the host's, what must come
// right before a collective goes on the communicator's stream, so that neither waits for the rest
// of the compute stream.
#ifndef GRADSYNC_COMM_WORK_STREAM_H
#define GRADSYNC_COMM_WORK_STREAM_H

#include "gradsync/comm/comm.h"
#include "kernels/device.h"

typedef struct gs_work_stream {
    gs_device *device;
    gs_stream *stream;
} gs_work_stream;

static inline gs_work_stream gs_work_stream_of(gs_device *device) {
    return (gs_work_stream){device, gs_device_stream(device)};
}

// Before all collectives posted later, behind the compute stream's point.
static inline gs_work_stream gs_work_stream_before_post(const gs_comm *comm) {
    gs_work_stream compute = gs_work_stream_of(gs_comm_device(comm));
    gs_stream *stream = gs_comm_stream(comm);
    if (!stream) return compute;
    gs_stream_follow(stream, compute.stream);
    return (gs_work_stream){compute.device, stream};
}

// Before all collectives posted later; for what nothing on the compute stream writes or reads.
static inline gs_work_stream gs_work_stream_beside_compute(const gs_comm *comm) {
    gs_work_stream compute = gs_work_stream_of(gs_comm_device(comm));
    gs_stream *stream = gs_comm_stream(comm);
    return (gs_work_stream){compute.device, stream ? stream : compute.stream};
}

#endif
