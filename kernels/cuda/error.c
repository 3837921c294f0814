// Errors of the CUDA runtime as statuses, and the two waits that all parts use.
#include <stdio.h>

#include "kernels/cuda/error.h"

#define TURNS_BEFORE_SLEEP 200
#define SLEEP_FIRST_NS INT64_C(20000)
#define SLEEP_MOST_NS INT64_C(200000)

// After these the context is gone: every later call in this process fails the same way.
static bool is_sticky(cudaError_t error) {
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
        return true;
    default:
        return false;
    }
}

static gs_code code_of(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
        return GS_RESOURCE_EXHAUSTED;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorMpsConnectionFailed:
        return GS_UNAVAILABLE;
    default:
        return GS_INTERNAL;
    }
}

gs_status gs_cuda_error(int ordinal, cudaError_t error, const char *call) {
    if (error == cudaSuccess) return gs_ok();
    (void)cudaGetLastError();
    return gs_error(code_of(error), "device cuda:%d: %s: %s (%s)", ordinal, call,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}

static gs_status read_broken(gs_cuda_device *device) {
    pthread_mutex_lock(&device->lock);
    gs_status broken = device->broken;
    pthread_mutex_unlock(&device->lock);
    return broken;
}

gs_status gs_cuda_check(gs_cuda_device *device, cudaError_t error, const char *call) {
    if (error == cudaSuccess) return gs_ok();
    gs_status status = gs_cuda_error(device->ordinal, error, call);
    if (!is_sticky(error)) return status;
    pthread_mutex_lock(&device->lock);
    if (device->broken.code == GS_OK)
        device->broken =
            gs_error(GS_INTERNAL, "%s; the device is lost to this process", status.message);
    status = device->broken;
    pthread_mutex_unlock(&device->lock);
    return status;
}

void gs_cuda_stream_check(gs_stream *stream, cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    gs_stream_fail(stream, gs_cuda_check(gs_cuda_stream_of(stream)->device, error, call));
}

gs_status gs_cuda_make_current(gs_cuda_device *device) {
    GS_TRY(read_broken(device));
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == device->ordinal) return gs_ok();
    return gs_cuda_check(device, cudaSetDevice(device->ordinal), "cudaSetDevice");
}

gs_status gs_cuda_refuse_capture(gs_cuda_device *device, const char *what) {
    pthread_mutex_lock(&device->lock);
    bool here = device->capturing && pthread_equal(device->capturing_thread, pthread_self());
    pthread_mutex_unlock(&device->lock);
    if (!here) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "device cuda:%d: %s between graph_begin and graph_end",
                    device->ordinal, what);
}

void gs_cuda_pause_once(gs_cuda_pause *pause) {
    if (pause->num_turns < TURNS_BEFORE_SLEEP) {
        pause->num_turns++;
        return;
    }
    pause->sleep_ns = pause->sleep_ns ? pause->sleep_ns * 3 / 2 : SLEEP_FIRST_NS;
    if (pause->sleep_ns > SLEEP_MOST_NS) pause->sleep_ns = SLEEP_MOST_NS;
    gs_sleep_ns(pause->sleep_ns);
}
