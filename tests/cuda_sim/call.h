// What every call of the runtime begins and ends with: the machine's lock, the thread's device, the
// error that the thread will be told by cudaGetLastError.
#ifndef TESTS_CUDA_SIM_CALL_H
#define TESTS_CUDA_SIM_CALL_H

#include "tests/cuda_sim/capture.h"
#include "tests/cuda_sim/stream.h"

namespace sim {

// Of the calling thread.
int &current_device();
cudaError_t keep_error(cudaError_t error);  // returns it

// Holds the lock. `error` is set where no call can succeed: no driver, no device, a device that
// broke.
struct call {
    machine &self;
    machine_lock hold;
    int device;
    cudaError_t error;

    call();
    device_state &state() { return *self.devices[static_cast<size_t>(device)]; }
    CUstream_st *find(cudaStream_t handle) { return stream_find(self, handle, device); }
    // Nothing is wrong so far, and no capture forbids calls that may wait or allocate.
    cudaError_t check_safe();
    // Waits until all is done; the device's error after that.
    cudaError_t wait(const std::vector<completion_ptr> &wanted);
};

}  // namespace sim
#endif
