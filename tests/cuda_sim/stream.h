// Streams, events and the order in which their work runs.
//
// An operation is at the head of its stream and all that it waits for is done: then it may run. In
// strict mode nothing runs by itself: whoever queries or waits lets some stream do its next
// operation, drawn by the seed. In async mode each stream has a thread, which dawdles between
// operations, drawn by the seed too.
#ifndef TESTS_CUDA_SIM_STREAM_H
#define TESTS_CUDA_SIM_STREAM_H

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda_sim/machine.h"

namespace sim {

// That something is over. Without the lock only `done` may be read.
struct completion {
    std::atomic<bool> done{false};
    int64_t at_ns = 0;
};
using completion_ptr = std::shared_ptr<completion>;

// What an event handle stands for; graphs hold it too.
struct capture;
struct event_state {
    int device = 0;
    bool timed = false;
    completion_ptr recorded;          // nullptr: never
    std::weak_ptr<capture> captured;  // recorded there, not in a stream's own work
    std::vector<size_t> captured_nodes;
    uint64_t captured_in = 0;  // id of the capture; 0: none
};
using event_ptr = std::shared_ptr<event_state>;

// What a stream can be given. Copyable: a graph's launches give it again.
struct task {
    std::string name;
    // Device memory is open inside; FAILED with a sentence in *why ends the device's life.
    std::function<gs_sim_progress(std::string *why)> run;  // empty: nothing to do
    bool on_host = false;  // a host function: device memory stays shut
    bool repeatable = true;
    event_ptr records;  // when it is done
    event_ptr waits;    // for what this event recorded last, at the time of submission
};

struct operation {
    task what;
    std::vector<completion_ptr> after;  // besides what is before it in its stream
    completion_ptr finished;
};

}  // namespace sim

// The names behind the runtime's opaque handles.
struct CUstream_st {
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    uint64_t id = 0;
    bool legacy = false;
    bool destroyed = false;
    bool busy = false;  // its first operation runs
    std::deque<sim::operation> queue;
    sim::completion_ptr tail;  // of the last operation
    std::shared_ptr<sim::capture> capturing;
    std::vector<size_t> capture_tips;  // nodes that the next one comes after
};

struct CUevent_st {
    sim::event_ptr state;
};

namespace sim {

enum machine_mode { STRICT_MODE = 0, ASYNC_MODE };

struct device_state {
    int ordinal = 0;                   // physical
    cudaError_t broken = cudaSuccess;  // sticks: nothing works any more
    completion_ptr legacy_tail;
};

// One for the process, never destroyed: threads of streams may outlive main.
struct machine {
    std::mutex lock;
    std::condition_variable changed;  // an operation ended, or there are new ones
    machine_mode mode = STRICT_MODE;
    bool no_driver = false;
    uint64_t seed = 1, draws = 0;
    std::vector<std::unique_ptr<device_state>> devices;  // visible ones
    std::vector<CUstream_st *> streams;                  // destroyed ones too, until they are empty
    std::string last_failure;
    uint64_t next_id = 1;
    gs_sim_counters counters = {};
    std::vector<std::shared_ptr<capture>> captures;  // going on
};

machine &the_machine();        // starts it, with the environment's settings
uint64_t draw(machine &self);  // under the lock

using machine_lock = std::unique_lock<std::mutex>;

// The stream behind a handle; nullptr: no such one. `device` says whose legacy stream 0 is.
CUstream_st *stream_find(machine &self, cudaStream_t handle, int device);
CUstream_st *stream_add(machine &self, int device, unsigned flags, int priority);
void stream_retire(machine &self, CUstream_st *stream);

// Gives the stream a task, now or, when it is capturing, to the graph. Under the lock.
cudaError_t stream_submit(machine &self, CUstream_st *stream, const task &what);

enum let_run { UNTIL_DONE = 0, A_LITTLE };

// Lets streams run until all of `wanted` is done, or for a little while. False: it is not done yet.
// A broken device counts as done. Gives the lock back in between.
bool machine_run(machine &self, machine_lock &hold, const std::vector<completion_ptr> &wanted,
                 let_run how);

// All that the device's streams have been given. Under the lock.
std::vector<completion_ptr> device_tails(machine &self, int device);

int64_t now_ns();

}  // namespace sim
#endif
