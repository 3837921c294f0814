// Errors of the CUDA runtime as statuses, and the two waits that all parts use. C and C++; internal to
// kernels/cuda/.
//
// Nothing in this folder waits in the runtime: cudaStreamSynchronize, cudaDeviceSynchronize and copies of
// pageable memory have no deadline, and a collective whose peer has gone never ends. All waiting is
// polling, and memory is freed only when the device has nothing to do.
#ifndef KERNELS_CUDA_ERROR_H
#define KERNELS_CUDA_ERROR_H

#include "kernels/cuda/types.h"

#ifdef __cplusplus
extern "C" {
#endif

// Turns an error of the runtime into a status and remembers those after which nothing works any more.
//   call  "cudaMemcpyAsync"
GS_NODISCARD gs_status gs_cuda_check(gs_cuda_device *device, cudaError_t error, const char *call);
// The same, stuck to the stream, for launchers. `call` may be a kernel's name.
void gs_cuda_stream_check(gs_stream *stream, cudaError_t error, const char *call);
// The calling thread's device becomes this one; launches and events depend on it.
GS_NODISCARD gs_status gs_cuda_make_current(gs_cuda_device *device);

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

#ifdef __cplusplus
}
#endif

#endif
