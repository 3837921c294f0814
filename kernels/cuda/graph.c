// Graphs: what a stream is given between begin and end, kept and launched as one.
//
// The mode of a capture is the thread's: other threads go on working with their own streams.
#include <stdlib.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/graph.h"

typedef struct cuda_graph {
    gs_graph base;
    gs_cuda_device *device;  // borrows
    cudaGraphExec_t exec;
} cuda_graph;

static bool has_failed(gs_cuda_stream *stream) {
    pthread_mutex_lock(&stream->base.lock);
    bool failed = stream->base.error.code != GS_OK;
    pthread_mutex_unlock(&stream->base.lock);
    return failed;
}

// The error that stuck since begin, which is the graph's alone: it is taken off the stream.
static gs_status take_capture_error(gs_cuda_stream *stream) {
    if (stream->failed_before_capture) return gs_ok();
    pthread_mutex_lock(&stream->base.lock);
    gs_status error = stream->base.error;
    stream->base.error = (gs_status){0};
    pthread_mutex_unlock(&stream->base.lock);
    return error;
}

static void set_capturing(gs_cuda_device *device, bool capturing) {
    pthread_mutex_lock(&device->lock);
    device->capturing = capturing;
    device->capturing_thread = pthread_self();
    pthread_mutex_unlock(&device->lock);
}

gs_status gs_cuda_graph_begin(gs_stream *base) {
    gs_cuda_stream *stream = gs_cuda_stream_of(base);
    gs_cuda_device *device = stream->device;
    GS_TRY(gs_cuda_make_current(device));
    GS_TRY(gs_cuda_refuse_capture(device, "a graph is begun"));
    stream->failed_before_capture = has_failed(stream);
    GS_TRY(gs_cuda_check(device,
                         cudaStreamBeginCapture(stream->native, cudaStreamCaptureModeThreadLocal),
                         "cudaStreamBeginCapture"));
    set_capturing(device, true);
    return gs_ok();
}

static gs_status make_executable(cuda_graph *graph, gs_cuda_stream *stream, cudaGraph_t captured) {
    gs_cuda_device *device = stream->device;
    GS_TRY(gs_cuda_check(device, cudaGraphInstantiate(&graph->exec, captured, 0),
                         "cudaGraphInstantiate"));
    // What the first launch would otherwise have to set up.
    return gs_cuda_check(device, cudaGraphUpload(graph->exec, stream->native), "cudaGraphUpload");
}

static gs_status keep_graph(gs_graph **out, gs_cuda_stream *stream, cudaGraph_t captured) {
    cuda_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return gs_error(GS_RESOURCE_EXHAUSTED, "device cuda:%d: out of memory",
                        stream->device->ordinal);
    graph->base.backend = stream->base.backend;
    graph->device = stream->device;
    gs_status status = make_executable(graph, stream, captured);
    if (status.code) {
        gs_cuda_graph_destroy(&graph->base);
        return status;
    }
    *out = &graph->base;
    return gs_ok();
}

gs_status gs_cuda_graph_end(gs_graph **out, gs_stream *base) {
    gs_cuda_stream *stream = gs_cuda_stream_of(base);
    gs_cuda_device *device = stream->device;
    cudaGraph_t captured = NULL;
    set_capturing(device, false);
    GS_TRY(gs_cuda_make_current(device));
    gs_status ended = gs_cuda_check(device, cudaStreamEndCapture(stream->native, &captured),
                                    "cudaStreamEndCapture");
    // What a launcher found says more than that the capture is spoiled.
    gs_status status = take_capture_error(stream);
    if (status.code == GS_OK) status = ended;
    if (status.code == GS_OK) status = keep_graph(out, stream, captured);
    if (captured) (void)cudaGraphDestroy(captured);
    return status;
}

gs_status gs_cuda_graph_launch(gs_graph *base, gs_stream *stream) {
    cuda_graph *graph = (cuda_graph *)base;
    GS_TRY(gs_cuda_make_current(graph->device));
    return gs_cuda_check(graph->device,
                         cudaGraphLaunch(graph->exec, gs_cuda_stream_of(stream)->native),
                         "cudaGraphLaunch");
}

void gs_cuda_graph_destroy(gs_graph *base) {
    cuda_graph *graph = (cuda_graph *)base;
    if (graph->exec && cudaGraphExecDestroy(graph->exec) != cudaSuccess) (void)cudaGetLastError();
    free(graph);
}
