// The parts that kernels/cuda/device.c puts into the backend's table (kernels/backend.h). Streams: stream.c,
// events: event.c, graphs: graph.c, copies: staging.c, errors: error.c.
//
// Nothing here waits in the runtime: cudaStreamSynchronize, cudaDeviceSynchronize and copies of pageable
// memory have no deadline, and a collective whose peer has gone never ends. All waiting is polling, and
// memory is freed only when the device has nothing to do.
#ifndef KERNELS_CUDA_PARTS_H
#define KERNELS_CUDA_PARTS_H

#include "kernels/cuda/stream.h"

// error.c
// A status for an error of the runtime: "device cuda:0: cudaMalloc: out of memory". Clears the runtime's
// own copy of it, which libraries would otherwise take for theirs.
GS_NODISCARD gs_status gs_cuda_error(int ordinal, cudaError_t error, const char *call);

// A wait that begins with a few turns of polling and then sleeps, longer each time.
typedef struct gs_cuda_pause {
    int64_t sleep_ns;
    int num_turns;
} gs_cuda_pause;
void gs_cuda_pause_once(gs_cuda_pause *pause);

// Whether the calling thread is between graph_begin and graph_end on this device, where the runtime takes
// no calls that are not part of the graph. FAILED_PRECONDITION names `what` if so.
GS_NODISCARD gs_status gs_cuda_refuse_capture(gs_cuda_device *device, const char *what);

// stream.c
GS_NODISCARD gs_status gs_cuda_stream_create(gs_stream **out, gs_device *device,
                                             gs_stream_priority priority);
void gs_cuda_stream_destroy(gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_stream_wait(gs_stream *stream, gs_deadline deadline);
void *gs_cuda_stream_native(gs_stream *stream);
void gs_cuda_stream_follow(gs_stream *follower, gs_stream *leader);
// Whether all streams of the device have nothing left to do, or are past saving, by the deadline; at once
// where the wait before this one was in vain.
bool gs_cuda_streams_idle(gs_cuda_device *device, gs_deadline deadline);
GS_NODISCARD gs_status gs_cuda_is_capturing(bool *capturing, gs_cuda_stream *stream);

// event.c
GS_NODISCARD gs_status gs_cuda_event_create(gs_event **out, gs_device *device, bool timed);
void gs_cuda_event_destroy(gs_event *event);
void gs_cuda_event_record(gs_event *event, gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_event_query(gs_event *event, bool *done);
GS_NODISCARD gs_status gs_cuda_event_elapsed(const gs_event *from, const gs_event *to, int64_t *ns);
void gs_cuda_event_wait(gs_stream *stream, gs_event *event);

// graph.c
GS_NODISCARD gs_status gs_cuda_graph_begin(gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_graph_end(gs_graph **out, gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_graph_launch(gs_graph *graph, gs_stream *stream);
void gs_cuda_graph_destroy(gs_graph *graph);

// staging.c
struct gs_cuda_staging;
GS_NODISCARD gs_status gs_cuda_staging_create(struct gs_cuda_staging **out, gs_cuda_device *device);
// idle: the device has nothing to do; else the pinned buffers stay, since freeing them would wait for it.
void gs_cuda_staging_destroy(struct gs_cuda_staging *staging, bool idle);
// In the order of the compute stream; done when it returns.
GS_NODISCARD gs_status gs_cuda_transfer(gs_device *device, void *to, const void *from, size_t bytes,
                                        gs_copy_direction direction);

#endif
