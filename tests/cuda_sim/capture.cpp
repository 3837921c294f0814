#include "tests/cuda_sim/capture.h"

#include <algorithm>

namespace sim {

void capture_spoil(capture *self, cudaError_t why) {
    if (self->spoilt == cudaSuccess) self->spoilt = why;
}

cudaError_t capture_add(CUstream_st *stream, const task &what) {
    capture *self = stream->capturing.get();
    if (self->spoilt) return cudaErrorStreamCaptureInvalidated;
    if (!what.repeatable) {
        capture_spoil(self, cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureUnsupported;
    }
    self->nodes.push_back({what, stream->capture_tips});
    stream->capture_tips.assign(1, self->nodes.size() - 1);
    return cudaSuccess;
}

cudaError_t capture_join(machine &self, CUstream_st *stream, const event_ptr &event) {
    std::shared_ptr<capture> theirs = event->captured.lock();
    bool going_on =
        std::find(self.captures.begin(), self.captures.end(), theirs) != self.captures.end();
    if (!theirs || !going_on) return cudaErrorCapturedEvent;
    if (theirs->spoilt) return cudaErrorStreamCaptureInvalidated;
    if (stream->legacy) {
        capture_spoil(theirs.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureImplicit;
    }
    if (!stream->capturing) {
        stream->capturing = theirs;
        stream->capture_tips.clear();
        theirs->streams.push_back(stream);
    } else if (stream->capturing != theirs) {
        capture_spoil(theirs.get(), cudaErrorStreamCaptureInvalidated);
        capture_spoil(stream->capturing.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureMerge;
    }
    for (size_t node : event->captured_nodes) {
        std::vector<size_t> &tips = stream->capture_tips;
        if (std::find(tips.begin(), tips.end(), node) == tips.end()) tips.push_back(node);
    }
    return cudaSuccess;
}

// cudaThreadExchangeStreamCaptureMode's text says what hinders whom.
cudaError_t capture_forbid_unsafe(machine &self) {
    for (const auto &each : self.captures) {
        bool own = each->thread == std::this_thread::get_id();
        if (each->mode == cudaStreamCaptureModeRelaxed) continue;
        if (!own && each->mode != cudaStreamCaptureModeGlobal) continue;
        capture_spoil(each.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

cudaError_t capture_forbid_legacy(machine &self, int device) {
    for (const auto &each : self.captures) {
        for (const CUstream_st *stream : each->streams) {
            if (stream->device != device || (stream->flags & cudaStreamNonBlocking)) continue;
            capture_spoil(each.get(), cudaErrorStreamCaptureInvalidated);
            return cudaErrorStreamCaptureImplicit;
        }
    }
    return cudaSuccess;
}

}  // namespace sim
