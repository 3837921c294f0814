// What the software CUDA machine offers beside the CUDA runtime: work of its own kind on a stream,
// for the stand-ins of NVIDIA's libraries, and counts of what a program asked for, for tests.
#ifndef TESTS_CUDA_SIM_MACHINE_H
#define TESTS_CUDA_SIM_MACHINE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gs_sim_progress { GS_SIM_DONE = 0, GS_SIM_AGAIN, GS_SIM_FAILED } gs_sim_progress;

// Work that runs in its turn on a stream. Device memory is open to the host inside `poll` only.
typedef struct gs_sim_work {
    const char *name;  // copied
    // AGAIN: not yet, the stream stays where it is and asks later. FAILED: a launch failure that
    // sticks.
    gs_sim_progress (*poll)(void *ctx);
    void (*drop)(void *ctx);  // once, when nobody will ask again; may be NULL
    void *ctx;
    bool repeatable;  // may be captured; polled again by each launch of the graph
} gs_sim_work;

cudaError_t gs_sim_enqueue(cudaStream_t stream, const gs_sim_work *work);

// Since the process started.
typedef struct gs_sim_counters {
    uint64_t launches;  // of kernels, those of graphs included
    uint64_t graph_launches;
    uint64_t copies;  // asynchronous ones included
    uint64_t
        pageable_copies;      // asynchronous copies from or to memory that is not pinned: they wait
    uint64_t mallocs, frees;  // of device and pinned memory
    uint64_t host_waits;      // synchronise calls and synchronous copies
    uint64_t library_calls;   // gs_sim_enqueue
} gs_sim_counters;

gs_sim_counters gs_sim_count(void);

// Whether all of [memory, memory + bytes) is memory of a device that was allocated and not freed.
bool gs_sim_is_device_memory(const void *memory, size_t bytes);
// The text of the last failure on the device: kernel, block, thread, what was wrong. "" when there
// was none.
const char *gs_sim_last_failure(void);

#ifdef __cplusplus
}
#endif
#endif
