// Stream capture and graphs of the runtime. A launch gives its stream the graph's tasks one after
// the other, in an order that keeps to the dependencies and is else drawn by the seed.
#include <algorithm>

#include "tests/cuda_sim/call.h"

using namespace sim;

namespace {

void leave_capture(machine &self, const std::shared_ptr<capture> &ended) {
    for (CUstream_st *stream : ended->streams) {
        // A stream may be gone since it took part.
        if (std::find(self.streams.begin(), self.streams.end(), stream) == self.streams.end())
            continue;
        stream->capturing = nullptr;
        stream->capture_tips.clear();
    }
    self.captures.erase(std::find(self.captures.begin(), self.captures.end(), ended));
}

// Whether all that other streams did in the capture comes before the origin's end.
bool all_joined(const machine &self, const capture &ended) {
    std::vector<bool> reached(ended.nodes.size());
    std::vector<size_t> open = ended.origin->capture_tips;
    while (!open.empty()) {
        size_t node = open.back();
        open.pop_back();
        if (reached[node]) continue;
        reached[node] = true;
        open.insert(open.end(), ended.nodes[node].after.begin(), ended.nodes[node].after.end());
    }
    for (const CUstream_st *stream : ended.streams) {
        if (std::find(self.streams.begin(), self.streams.end(), stream) == self.streams.end())
            continue;
        for (size_t tip : stream->capture_tips) {
            if (!reached[tip]) return false;
        }
    }
    return true;
}

std::vector<size_t> draw_order(machine &self, const std::vector<graph_node> &nodes) {
    std::vector<size_t> order, ready, open(nodes.size());
    std::vector<std::vector<size_t>> next(nodes.size());
    for (size_t i = 0; i < nodes.size(); i++) {
        open[i] = nodes[i].after.size();
        for (size_t before : nodes[i].after) next[before].push_back(i);
        if (!open[i]) ready.push_back(i);
    }
    while (!ready.empty()) {
        size_t which = draw(self) % ready.size(), node = ready[which];
        ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(which));
        order.push_back(node);
        for (size_t behind : next[node]) {
            if (!--open[behind]) ready.push_back(behind);
        }
    }
    return order;
}

cudaError_t launch(call &here, CUgraphExec_st *exec, CUstream_st *stream) {
    task gate;
    gate.name = "graph launch";
    gate.waits = std::make_shared<event_state>();
    gate.waits->recorded = exec->last;
    cudaError_t error = stream_submit(here.self, stream, gate);
    for (size_t node : draw_order(here.self, *exec->nodes)) {
        if (error) return error;
        const task &what = (*exec->nodes)[node].what;
        if (what.name.compare(0, 7, "kernel ") == 0) here.self.counters.launches++;
        error = stream_submit(here.self, stream, what);
    }
    if (!error && !stream->capturing) exec->last = stream->tail;
    here.self.counters.graph_launches++;
    return error;
}

cudaError_t end_capture(call &here, CUstream_st *stream, cudaGraph_t *graph) {
    std::shared_ptr<capture> ended = stream->capturing;
    if (ended->origin != stream) {
        capture_spoil(ended.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureUnmatched;
    }
    bool other_thread = ended->thread != std::this_thread::get_id();
    if (other_thread && ended->mode != cudaStreamCaptureModeRelaxed)
        return cudaErrorStreamCaptureWrongThread;
    cudaError_t error = ended->spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (!error && !all_joined(here.self, *ended)) error = cudaErrorStreamCaptureUnjoined;
    if (!error) {
        CUgraph_st *made = new CUgraph_st();
        made->nodes = std::move(ended->nodes);
        made->device = stream->device;
        *graph = made;
    }
    leave_capture(here.self, ended);
    return error;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    call here;
    if (here.error) return keep_error(here.error);
    CUstream_st *stream = here.find(handle);
    if (!stream) return keep_error(cudaErrorInvalidResourceHandle);
    if (stream->legacy) return keep_error(cudaErrorStreamCaptureUnsupported);
    if (stream->capturing) return keep_error(cudaErrorIllegalState);
    auto begun = std::make_shared<capture>();
    begun->id = here.self.next_id++;
    begun->origin = stream;
    begun->mode = mode;
    begun->thread = std::this_thread::get_id();
    begun->streams.push_back(stream);
    stream->capturing = begun;
    stream->capture_tips.clear();
    here.self.captures.push_back(begun);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    call here;
    if (!graph) return keep_error(cudaErrorInvalidValue);
    *graph = nullptr;
    if (here.error) return keep_error(here.error);
    CUstream_st *stream = here.find(handle);
    if (!stream) return keep_error(cudaErrorInvalidResourceHandle);
    if (!stream->capturing) return keep_error(cudaErrorIllegalState);
    return keep_error(end_capture(here, stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status) {
    call here;
    if (!status) return keep_error(cudaErrorInvalidValue);
    if (here.error) return keep_error(here.error);
    CUstream_st *stream = here.find(handle);
    if (!stream) return keep_error(cudaErrorInvalidResourceHandle);
    if (stream->legacy) {
        cudaError_t error = capture_forbid_legacy(here.self, here.device);
        if (error) return keep_error(error);
    }
    *status = !stream->capturing          ? cudaStreamCaptureStatusNone
              : stream->capturing->spoilt ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *num_dependencies) {
    if (graph || dependencies || edges || num_dependencies)
        return keep_error(cudaErrorNotSupported);
    cudaError_t error = cudaStreamIsCapturing(handle, status);
    if (error) return error;
    call here;
    CUstream_st *stream = here.find(handle);
    if (id && stream->capturing) *id = stream->capturing->id;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *num_nodes) {
    if (!graph || !num_nodes) return keep_error(cudaErrorInvalidValue);
    if (nodes) return keep_error(cudaErrorNotSupported);
    *num_nodes = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                 unsigned long long flags) {
    call here;
    if (here.error) return keep_error(here.error);
    unsigned long long known =
        cudaGraphInstantiateFlagUseNodePriority | cudaGraphInstantiateFlagAutoFreeOnLaunch;
    if (!out || !graph || (flags & ~known)) return keep_error(cudaErrorInvalidValue);
    CUgraphExec_st *exec = new CUgraphExec_st();
    exec->nodes = std::make_shared<std::vector<graph_node>>(graph->nodes);
    exec->device = graph->device;
    *out = exec;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags) {
    return cudaGraphInstantiate(out, graph, flags);
}

static cudaError_t find_launch_stream(call &here, CUstream_st **stream, cudaGraphExec_t exec,
                                      cudaStream_t handle) {
    if (here.error) return here.error;
    *stream = here.find(handle);
    if (!exec) return cudaErrorInvalidValue;
    return *stream && (*stream)->device == exec->device ? cudaSuccess
                                                        : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle) {
    call here;
    CUstream_st *stream;
    return keep_error(find_launch_stream(here, &stream, exec, handle));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
    call here;
    CUstream_st *stream;
    cudaError_t error = find_launch_stream(here, &stream, exec, handle);
    return keep_error(error ? error : launch(here, exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (!graph) return keep_error(cudaErrorInvalidValue);
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    if (!exec) return keep_error(cudaErrorInvalidValue);
    delete exec;
    return cudaSuccess;
}
}
