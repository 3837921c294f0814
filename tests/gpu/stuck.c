#include "tests/gpu/stuck.h"

#include <cuda_runtime_api.h>

#include "core/clock.h"
#ifdef GRADSYNC_CUDA_SIM
#include "tests/cuda_sim/machine.h"

// The machine runs streams in the thread that asks for them: what waits must say so and return.
static gs_sim_progress poll_released(void *ctx) {
    return atomic_load((atomic_bool *)ctx) ? GS_SIM_DONE : GS_SIM_AGAIN;
}

static cudaError_t enqueue(cudaStream_t stream, atomic_bool *released) {
    gs_sim_work work = {.name = "stuck", .poll = poll_released, .ctx = released};
    return gs_sim_enqueue(stream, &work);
}

static gs_sim_progress poll_failed(void *ctx) {
    (void)ctx;
    return GS_SIM_FAILED;
}

// The machine ends the process of a kernel that touches what is nobody's; this is its other way to fail.
gs_status fault_begin(gs_device *device) {
    gs_sim_work work = {.name = "fault", .poll = poll_failed};
    cudaError_t error = gs_sim_enqueue(gs_stream_native(gs_device_stream(device)), &work);
    if (error == cudaSuccess) return gs_ok();
    return gs_error(GS_INTERNAL, "fault: %s", cudaGetErrorString(error));
}
#else
static void CUDART_CB wait_released(void *ctx) {
    while (!atomic_load((atomic_bool *)ctx)) gs_sleep_ns(100000);
}

static cudaError_t enqueue(cudaStream_t stream, atomic_bool *released) {
    return cudaLaunchHostFunc(stream, wait_released, released);
}

// An address that no allocation has.
gs_status fault_begin(gs_device *device) {
    gs_device_kernels(device)->fill(gs_device_stream(device), (float *)(uintptr_t)0x10, 1.0f, 100);
    return gs_ok();
}
#endif

gs_status stuck_begin(gs_stream *stream, atomic_bool *released) {
    cudaError_t error = enqueue(gs_stream_native(stream), released);
    if (error == cudaSuccess) return gs_ok();
    return gs_error(GS_INTERNAL, "stuck work: %s", cudaGetErrorString(error));
}
