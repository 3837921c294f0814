// Stream capture and graphs: tasks with what each comes after. See graph.cpp for the runtime's
// calls.
#ifndef TESTS_CUDA_SIM_CAPTURE_H
#define TESTS_CUDA_SIM_CAPTURE_H

#include <thread>

#include "tests/cuda_sim/stream.h"

namespace sim {

struct graph_node {
    task what;
    std::vector<size_t> after;
};

struct capture {
    uint64_t id = 0;
    CUstream_st *origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    cudaError_t spoilt = cudaSuccess;
    std::vector<graph_node> nodes;
    std::vector<CUstream_st *> streams;  // that take part, the origin too
};

// Adds the task to the graph that the stream captures, behind what the stream has there.
cudaError_t capture_add(CUstream_st *stream, const task &what);
// An event that was recorded in a capture: the stream takes part and comes after it.
cudaError_t capture_join(machine &self, CUstream_st *stream, const event_ptr &event);
void capture_spoil(capture *self, cudaError_t why);

// What the calling thread may not do while streams are captured: cudaErrorStreamCaptureUnsupported,
// and the capture is spoilt. Under the lock.
cudaError_t capture_forbid_unsafe(machine &self);
// Work on the legacy stream would have to wait for a capturing one.
cudaError_t capture_forbid_legacy(machine &self, int device);

}  // namespace sim

struct CUgraph_st {
    std::vector<sim::graph_node> nodes;
    int device = 0;
};

struct CUgraphExec_st {
    std::shared_ptr<const std::vector<sim::graph_node>> nodes;
    int device = 0;
    sim::completion_ptr last;  // launches of one graph come one after the other
};
#endif
