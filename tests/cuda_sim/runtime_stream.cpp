// Streams, events, host functions and launches of the runtime.
#include <algorithm>
#include <map>

#include "tests/cuda_sim/block.h"
#include "tests/cuda_sim/call.h"
#include "tests/cuda_sim/device_syntax.h"
#include "tests/cuda_sim/memory.h"

using namespace sim;

namespace {

const size_t default_shared_bytes = 48 << 10, most_shared_bytes = 227 << 10;

// What cudaFuncSetAttribute allowed, by device and kernel. Under the machine's lock.
std::map<std::pair<int, const void *>, size_t> &shared_limits() {
    static auto *limits = new std::map<std::pair<int, const void *>, size_t>();
    return *limits;
}

cudaError_t check_event(const CUevent_st *event, const CUstream_st *stream) {
    if (!event || !stream || event->state->device != stream->device)
        return cudaErrorInvalidResourceHandle;
    return cudaSuccess;
}

cudaError_t record_event(call &here, cudaEvent_t event, cudaStream_t handle, unsigned flags) {
    if (here.error) return here.error;
    CUstream_st *stream = here.find(handle);
    cudaError_t error = check_event(event, stream);
    if (error) return error;
    if (flags != cudaEventRecordDefault && flags != cudaEventRecordExternal)
        return cudaErrorInvalidValue;
    bool external = flags == cudaEventRecordExternal;
    if (external && !stream->capturing) return cudaErrorInvalidValue;
    event_state &state = *event->state;
    if (stream->capturing && !external) {
        if (stream->capturing->spoilt) return cudaErrorStreamCaptureInvalidated;
        state.captured = stream->capturing;
        state.captured_nodes = stream->capture_tips;
        state.captured_in = stream->capturing->id;
        return cudaSuccess;
    }
    state.captured_in = 0;
    task what;
    what.name = "event record";
    what.records = event->state;
    return stream_submit(here.self, stream, what);
}

cudaError_t wait_event(call &here, cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    if (here.error) return here.error;
    CUstream_st *stream = here.find(handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault && flags != cudaEventWaitExternal)
        return cudaErrorInvalidValue;
    bool external = flags == cudaEventWaitExternal;
    if (external && !stream->capturing) return cudaErrorInvalidValue;
    if (event->state->captured_in && !external)
        return capture_join(here.self, stream, event->state);
    if (stream->capturing && !external) {
        if (!event->state->recorded) return cudaSuccess;
        capture_spoil(stream->capturing.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureIsolation;
    }
    task what;
    what.name = "event wait";
    what.waits = event->state;
    return stream_submit(here.self, stream, what);
}

// Whether a stream may be asked how far it is.
cudaError_t check_askable(call &here, CUstream_st *stream) {
    if (here.error) return here.error;
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capturing) {
        capture_spoil(stream->capturing.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureUnsupported;
    }
    if (stream->legacy) {
        cudaError_t error = capture_forbid_legacy(here.self, here.device);
        if (error) return error;
    }
    return capture_forbid_unsafe(here.self);
}

cudaError_t check_askable(call &here, const CUevent_st *event) {
    if (here.error) return here.error;
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->state->captured_in) {
        if (auto theirs = event->state->captured.lock())
            capture_spoil(theirs.get(), cudaErrorStreamCaptureInvalidated);
        return cudaErrorCapturedEvent;
    }
    return capture_forbid_unsafe(here.self);
}

std::vector<completion_ptr> tails_behind(call &here, CUstream_st *stream) {
    std::vector<completion_ptr> tails = {stream->tail};
    if (!stream->legacy) return tails;
    for (CUstream_st *other : here.self.streams) {
        if (other->device == stream->device && !(other->flags & cudaStreamNonBlocking))
            tails.push_back(other->tail);
    }
    return tails;
}

cudaError_t query(call &here, const std::vector<completion_ptr> &wanted) {
    bool done = machine_run(here.self, here.hold, wanted, A_LITTLE);
    if (here.state().broken) return here.state().broken;
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t check_shape(call &here, const void *function, dim3 grid, dim3 block, size_t shared) {
    bool grid_fits = grid.x - 1 < 0x7fffffffu && grid.y - 1 < 65535u && grid.z - 1 < 65535u;
    bool block_fits = block.x - 1 < 1024u && block.y - 1 < 1024u && block.z - 1 < 64u &&
                      uint64_t(block.x) * block.y * block.z <= 1024;
    if (!grid_fits || !block_fits) return cudaErrorInvalidConfiguration;
    auto allowed = shared_limits().find({here.device, function});
    size_t limit = allowed == shared_limits().end() ? default_shared_bytes : allowed->second;
    return shared > std::max(limit, default_shared_bytes) ? cudaErrorInvalidValue : cudaSuccess;
}

// "" or which argument no kernel could follow.
std::string check_pointers(const std::vector<const void *> &pointers, int device) {
    for (size_t i = 0; i < pointers.size(); i++) {
        if (!pointers[i]) continue;
        memory_range range = memory_find(pointers[i]);
        char text[128];
        if (range.kind == HOST_MEMORY) {
            snprintf(text, sizeof text,
                     "pointer argument %zu, %p, is host memory that is not pinned", i, pointers[i]);
        } else if (!range.base) {
            snprintf(text, sizeof text,
                     "pointer argument %zu, %p, is device memory that is not allocated", i,
                     pointers[i]);
        } else if (range.kind == DEVICE_MEMORY && range.device != device) {
            snprintf(text, sizeof text, "pointer argument %zu, %p, is memory of device %d", i,
                     pointers[i], range.device);
        } else {
            continue;
        }
        return text;
    }
    return "";
}

}  // namespace

cudaError_t gs_sim_launch(const char *name, const void *function, dim3 grid, dim3 block,
                          size_t shared, cudaStream_t handle, std::function<void()> body,
                          const void *const *pointers, size_t num_pointers) {
    static std::atomic<uint64_t> turn{0};
    call here;
    if (here.error) return keep_error(here.error);
    CUstream_st *stream = here.find(handle);
    if (!stream || stream->device != here.device) return keep_error(cudaErrorInvalidResourceHandle);
    cudaError_t error = check_shape(here, function, grid, block, shared);
    if (error) return keep_error(error);
    grid_launch launch = {name, grid, block, shared, std::move(body)};
    std::vector<const void *> kept(pointers, pointers + num_pointers);
    uint64_t seed = here.self.seed;
    int device = here.device;
    task what;
    what.name = std::string("kernel ") + name;
    what.run = [launch, kept, seed, device](std::string *why) {
        *why = check_pointers(kept, device);
        if (!why->empty())
            *why = "kernel " + launch.name + ": " + *why;
        else
            *why = run_grid(launch, seed * 0x2545f4914f6cdd1du + turn++);
        return why->empty() ? GS_SIM_DONE : GS_SIM_FAILED;
    };
    here.self.counters.launches++;
    return keep_error(stream_submit(here.self, stream, what));
}

extern "C" {

cudaError_t gs_sim_enqueue(cudaStream_t handle, const gs_sim_work *work) {
    struct held_work {
        gs_sim_work work;
        ~held_work() {
            if (work.drop) work.drop(work.ctx);
        }
    };
    // Dropped on the way out, without the lock, if the stream does not take it.
    std::shared_ptr<held_work> held(new held_work{*work});
    call here;
    if (here.error) return keep_error(here.error);
    CUstream_st *stream = here.find(handle);
    if (!stream) return keep_error(cudaErrorInvalidResourceHandle);
    task what;
    what.name = work->name;
    what.repeatable = work->repeatable;
    what.run = [held, name = what.name](std::string *why) {
        gs_sim_progress progress = held->work.poll(held->work.ctx);
        if (progress == GS_SIM_FAILED) *why = name + " failed";
        return progress;
    };
    here.self.counters.library_calls++;
    return keep_error(stream_submit(here.self, stream, what));
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
    call here;
    if (here.error) return keep_error(here.error);
    if (!function) return keep_error(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    bool fits = value >= 0 && static_cast<size_t>(value) <= most_shared_bytes;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || !fits)
        return keep_error(cudaErrorInvalidValue);
    shared_limits()[{here.device, function}] = static_cast<size_t>(value);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *ctx) {
    call here;
    if (here.error) return keep_error(here.error);
    CUstream_st *stream = here.find(handle);
    if (!stream) return keep_error(cudaErrorInvalidResourceHandle);
    if (!function) return keep_error(cudaErrorInvalidValue);
    task what;
    what.name = "host function";
    what.on_host = true;
    what.run = [function, ctx](std::string *) {
        function(ctx);
        return GS_SIM_DONE;
    };
    return keep_error(stream_submit(here.self, stream, what));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    call here;
    if (here.error) return keep_error(here.error);
    if (!out || (flags & ~cudaStreamNonBlocking)) return keep_error(cudaErrorInvalidValue);
    *out = stream_add(here.self, here.device, flags, std::max(-5, std::min(0, priority)));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    call here;
    if (here.error == cudaErrorNoDevice || here.error == cudaErrorInsufficientDriver)
        return keep_error(here.error);
    CUstream_st *stream = handle ? here.find(handle) : nullptr;
    if (!stream || stream->legacy) return keep_error(cudaErrorInvalidResourceHandle);
    if (stream->capturing)
        capture_spoil(stream->capturing.get(), cudaErrorStreamCaptureInvalidated);
    stream_retire(here.self, stream);
    return keep_error(here.error);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    call here;
    CUstream_st *stream = here.error ? nullptr : here.find(handle);
    if (!stream || !priority)
        return keep_error(here.error ? here.error : cudaErrorInvalidResourceHandle);
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
    call here;
    CUstream_st *stream = here.error ? nullptr : here.find(handle);
    if (!stream || !flags)
        return keep_error(here.error ? here.error : cudaErrorInvalidResourceHandle);
    *flags = stream->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device) {
    call here;
    CUstream_st *stream = here.error ? nullptr : here.find(handle);
    if (!stream || !device)
        return keep_error(here.error ? here.error : cudaErrorInvalidResourceHandle);
    *device = stream->device;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    call here;
    CUstream_st *stream = here.error ? nullptr : here.find(handle);
    cudaError_t error = check_askable(here, stream);
    return keep_error(error ? error : query(here, tails_behind(here, stream)));
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    call here;
    CUstream_st *stream = here.error ? nullptr : here.find(handle);
    cudaError_t error = check_askable(here, stream);
    return keep_error(error ? error : here.wait(tails_behind(here, stream)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    call here;
    return keep_error(wait_event(here, stream, event, flags));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    call here;
    if (here.error) return keep_error(here.error);
    unsigned known = cudaEventBlockingSync | cudaEventDisableTiming;
    if (!out || (flags & ~known)) return keep_error(cudaErrorInvalidValue);
    CUevent_st *event = new CUevent_st();
    event->state = std::make_shared<event_state>();
    event->state->device = here.device;
    event->state->timed = !(flags & cudaEventDisableTiming);
    *out = event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    call here;
    if (!event) return keep_error(cudaErrorInvalidResourceHandle);
    delete event;
    return keep_error(here.error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    call here;
    return keep_error(record_event(here, event, stream, cudaEventRecordDefault));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    call here;
    return keep_error(record_event(here, event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    call here;
    cudaError_t error = check_askable(here, event);
    return keep_error(error ? error : query(here, {event->state->recorded}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    call here;
    cudaError_t error = check_askable(here, event);
    return keep_error(error ? error : here.wait({event->state->recorded}));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    call here;
    if (here.error) return keep_error(here.error);
    if (!ms || !start || !end) return keep_error(cudaErrorInvalidResourceHandle);
    const event_state &from = *start->state, &to = *end->state;
    bool usable =
        from.timed && to.timed && from.recorded && to.recorded && from.device == to.device;
    if (!usable) return keep_error(cudaErrorInvalidResourceHandle);
    if (!from.recorded->done || !to.recorded->done) return keep_error(cudaErrorNotReady);
    *ms = static_cast<float>(static_cast<double>(to.recorded->at_ns - from.recorded->at_ns) / 1e6);
    return cudaSuccess;
}
}
