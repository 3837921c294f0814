#include "tests/cuda_sim/stream.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/cuda_sim/capture.h"
#include "tests/cuda_sim/memory.h"

namespace sim {

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

uint64_t draw(machine &self) {
    uint64_t x = self.seed + ++self.draws * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void complete(const completion_ptr &what) {
    what->at_ns = now_ns();
    what->done.store(true, std::memory_order_release);
}

// Host access to device memory for a run of operations: rights change slowly.
struct open_session {
    bool open = false;
    void begin() {
        if (!open) memory_open();
        open = true;
    }
    void end() {
        if (open) memory_close();
        open = false;
    }
    ~open_session() { end(); }
};

// The device is dead: nothing that it was given will run. What falls out of queues goes to
// `dropped`.
static void break_device(machine &self, std::vector<operation> *dropped, int device,
                         const std::string &why) {
    device_state &state = *self.devices[static_cast<size_t>(device)];
    if (state.broken == cudaSuccess) {
        state.broken = cudaErrorLaunchFailure;
        self.last_failure = why;
        fprintf(stderr, "cuda_sim: %s\n", why.c_str());
    }
    for (CUstream_st *stream : self.streams) {
        if (stream->device != device) continue;
        while (stream->queue.size() > (stream->busy ? 1 : 0)) {
            complete(stream->queue.back().finished);
            dropped->push_back(std::move(stream->queue.back()));
            stream->queue.pop_back();
        }
    }
}

static bool is_ready(const CUstream_st *stream) {
    if (stream->busy || stream->queue.empty()) return false;
    for (const completion_ptr &each : stream->queue.front().after) {
        if (!each->done.load(std::memory_order_acquire)) return false;
    }
    return true;
}

static gs_sim_progress run_task(const task &what, open_session *session, std::string *why) {
    if (what.on_host) {
        session->end();
        return what.run(why);
    }
    session->begin();
    gs_sim_progress progress = what.run(why);
    std::string damage = progress == GS_SIM_DONE ? memory_check_ends() : "";
    if (damage.empty()) return progress;
    *why = what.name + ": " + damage;
    return GS_SIM_FAILED;
}

// Runs the head of the stream without the lock. False: it wants to be asked again.
static bool run_head(machine &self, machine_lock &hold, CUstream_st *stream,
                     open_session *session) {
    const cudaError_t &broken = self.devices[static_cast<size_t>(stream->device)]->broken;
    stream->busy = true;
    const operation &head = stream->queue.front();  // others only push behind it
    gs_sim_progress progress = GS_SIM_DONE;
    std::string why;
    if (head.what.run && !broken) {
        hold.unlock();
        progress = run_task(head.what, session, &why);
        hold.lock();
    }
    stream->busy = false;
    if (progress == GS_SIM_AGAIN && !broken) return false;
    std::vector<operation> dropped;
    dropped.push_back(std::move(stream->queue.front()));
    stream->queue.pop_front();
    complete(dropped[0].finished);
    if (progress == GS_SIM_FAILED) break_device(self, &dropped, stream->device, why);
    self.changed.notify_all();
    // What tasks hold may call back into the machine when it goes.
    hold.unlock();
    dropped.clear();
    hold.lock();
    return true;
}

static bool all_done(const std::vector<completion_ptr> &wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [](const completion_ptr &each) {
        return !each || each->done.load(std::memory_order_acquire);
    });
}

static void drop_retired(machine &self) {
    for (size_t i = 0; i < self.streams.size();) {
        CUstream_st *stream = self.streams[i];
        if (stream->destroyed && !stream->busy && stream->queue.empty() &&
            self.mode == STRICT_MODE) {
            self.streams.erase(self.streams.begin() + static_cast<std::ptrdiff_t>(i));
            delete stream;
        } else {
            i++;
        }
    }
}

// One operation of some stream that is ready. False: none is, or all that are said AGAIN.
static bool run_any(machine &self, machine_lock &hold, open_session *session) {
    std::vector<CUstream_st *> candidates;
    for (CUstream_st *stream : self.streams) {
        if (is_ready(stream)) candidates.push_back(stream);
    }
    while (!candidates.empty()) {
        size_t which = draw(self) % candidates.size();
        CUstream_st *stream = candidates[which];
        candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(which));
        // The lock was given back since they were listed.
        bool known =
            std::find(self.streams.begin(), self.streams.end(), stream) != self.streams.end();
        if (known && is_ready(stream) && run_head(self, hold, stream, session)) return true;
    }
    return false;
}

static bool run_strict(machine &self, machine_lock &hold, const std::vector<completion_ptr> &wanted,
                       let_run how) {
    // A query lets a few operations run, so that pollers see work that is not done yet.
    uint64_t budget = 1 + draw(self) % 24;
    open_session session;
    while (!all_done(wanted)) {
        if (how == A_LITTLE && budget-- == 0) break;
        if (run_any(self, hold, &session)) continue;
        if (how == A_LITTLE) break;
        if (all_done(wanted)) break;
        // Another thread runs it, or it waits for another process.
        session.end();
        self.changed.wait_for(hold, std::chrono::microseconds(50));
    }
    drop_retired(self);
    return all_done(wanted);
}

bool machine_run(machine &self, machine_lock &hold, const std::vector<completion_ptr> &wanted,
                 let_run how) {
    if (self.mode == ASYNC_MODE) {
        while (how == UNTIL_DONE && !all_done(wanted)) {
            self.changed.wait_for(hold, std::chrono::milliseconds(20));
        }
        return all_done(wanted);
    }
    return run_strict(self, hold, wanted, how);
}

// Async mode: the life of a stream.
static void serve(machine *self, CUstream_st *stream) {
    machine_lock hold(self->lock);
    for (;;) {
        if (!is_ready(stream)) {
            if (stream->destroyed && stream->queue.empty()) break;
            self->changed.wait_for(hold, std::chrono::milliseconds(20));
            continue;
        }
        // Mostly prompt, at times so late that everybody else is done.
        uint64_t dice = draw(*self), delay_us = dice % 8 == 0  ? dice / 8 % 2000
                                                : dice % 8 < 4 ? dice / 8 % 50
                                                               : 0;
        if (delay_us) {
            stream->busy = true;
            hold.unlock();
            std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
            hold.lock();
            stream->busy = false;
            if (!is_ready(stream)) continue;
        }
        open_session session;
        if (!run_head(*self, hold, stream, &session))
            self->changed.wait_for(hold, std::chrono::microseconds(50));
    }
    self->streams.erase(std::find(self->streams.begin(), self->streams.end(), stream));
    hold.unlock();
    delete stream;
}

CUstream_st *stream_add(machine &self, int device, unsigned flags, int priority) {
    CUstream_st *stream = new CUstream_st();
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = self.next_id++;
    self.streams.push_back(stream);
    if (self.mode == ASYNC_MODE) std::thread(serve, &self, stream).detach();
    return stream;
}

// Its capture is spoilt already; without its origin nobody can end it.
static void leave_capture(machine &self, CUstream_st *stream) {
    std::shared_ptr<capture> theirs = std::move(stream->capturing);
    stream->capturing = nullptr;
    if (!theirs) return;
    auto &streams = theirs->streams;
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    if (theirs->origin != stream) return;
    for (CUstream_st *other : streams) other->capturing = nullptr;
    self.captures.erase(std::find(self.captures.begin(), self.captures.end(), theirs));
}

void stream_retire(machine &self, CUstream_st *stream) {
    leave_capture(self, stream);
    stream->destroyed = true;
    self.changed.notify_all();
    drop_retired(self);
}

CUstream_st *stream_find(machine &self, cudaStream_t handle, int device) {
    if (!handle || handle == cudaStreamLegacy) {
        for (CUstream_st *stream : self.streams) {
            if (stream->legacy && stream->device == device) return stream;
        }
        CUstream_st *made = stream_add(self, device, cudaStreamDefault, 0);
        made->legacy = true;
        return made;
    }
    for (CUstream_st *stream : self.streams) {
        if (stream == handle && !stream->destroyed) return stream;
    }
    return nullptr;
}

// The legacy stream waits for all blocking streams, and they for it.
static void order_with_legacy(machine &self, CUstream_st *stream, operation *added) {
    device_state &device = *self.devices[static_cast<size_t>(stream->device)];
    if (stream->legacy) {
        for (CUstream_st *other : self.streams) {
            bool blocking =
                !(other->flags & cudaStreamNonBlocking) && other->device == stream->device;
            if (other != stream && blocking && other->tail) added->after.push_back(other->tail);
        }
        device.legacy_tail = added->finished;
    } else if (!(stream->flags & cudaStreamNonBlocking) && device.legacy_tail) {
        added->after.push_back(device.legacy_tail);
    }
}

cudaError_t stream_submit(machine &self, CUstream_st *stream, const task &what) {
    if (stream->capturing) return capture_add(stream, what);
    if (!(stream->flags & cudaStreamNonBlocking)) {
        cudaError_t error =
            stream->legacy ? capture_forbid_legacy(self, stream->device) : cudaSuccess;
        if (error) return error;
    }
    operation added;
    added.what = what;
    added.finished = std::make_shared<completion>();
    if (what.waits && what.waits->recorded) added.after.push_back(what.waits->recorded);
    if (what.records) what.records->recorded = added.finished;
    order_with_legacy(self, stream, &added);
    stream->tail = added.finished;
    stream->queue.push_back(std::move(added));
    self.changed.notify_all();
    return cudaSuccess;
}

std::vector<completion_ptr> device_tails(machine &self, int device) {
    std::vector<completion_ptr> tails;
    for (CUstream_st *stream : self.streams) {
        if (stream->device == device && stream->tail) tails.push_back(stream->tail);
    }
    return tails;
}

}  // namespace sim
