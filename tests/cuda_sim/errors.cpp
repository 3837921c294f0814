// Names and texts of the runtime's errors.
#include <cuda_runtime_api.h>

namespace {

struct error_word {
    cudaError_t error;
    const char *name, *text;
};

#define WORD(error, text)                                                                          \
    { error, #error, text }
const error_word words[] = {
    WORD(cudaSuccess, "no error"),
    WORD(cudaErrorInvalidValue, "invalid argument"),
    WORD(cudaErrorMemoryAllocation, "out of memory"),
    WORD(cudaErrorInitializationError, "initialization error"),
    WORD(cudaErrorCudartUnloading, "driver shutting down"),
    WORD(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    WORD(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    WORD(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    WORD(cudaErrorInsufficientDriver,
         "CUDA driver version is insufficient for CUDA runtime version"),
    WORD(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    WORD(cudaErrorInvalidDevice, "invalid device ordinal"),
    WORD(cudaErrorInvalidDeviceFunction, "invalid device function"),
    WORD(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    WORD(cudaErrorNotReady, "device not ready"),
    WORD(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    WORD(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    WORD(cudaErrorHostMemoryAlreadyRegistered,
         "part or all of the requested memory range is already mapped"),
    WORD(cudaErrorHostMemoryNotRegistered,
         "pointer does not correspond to a registered memory region"),
    WORD(cudaErrorLaunchFailure, "unspecified launch failure"),
    WORD(cudaErrorNotPermitted, "operation not permitted"),
    WORD(cudaErrorNotSupported, "operation not supported"),
    WORD(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    WORD(cudaErrorStreamCaptureInvalidated,
         "operation failed due to a previous error during capture"),
    WORD(cudaErrorStreamCaptureMerge,
         "operation would result in a merge of separate capture sequences"),
    WORD(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    WORD(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    WORD(cudaErrorStreamCaptureIsolation,
         "dependency created on uncaptured work in another stream"),
    WORD(cudaErrorStreamCaptureImplicit,
         "operation would make the legacy stream depend on a capturing blocking stream"),
    WORD(cudaErrorCapturedEvent,
         "operation not permitted on an event last recorded in a capturing stream"),
    WORD(cudaErrorStreamCaptureWrongThread,
         "attempt to terminate a thread-local capture sequence from another thread"),
    WORD(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    WORD(cudaErrorUnknown, "unknown error"),
};
#undef WORD

const error_word *find_word(cudaError_t error) {
    for (const error_word &word : words) {
        if (word.error == error) return &word;
    }
    return nullptr;
}

}  // namespace

extern "C" const char *cudaGetErrorName(cudaError_t error) {
    const error_word *word = find_word(error);
    return word ? word->name : "unrecognized error code";
}

extern "C" const char *cudaGetErrorString(cudaError_t error) {
    const error_word *word = find_word(error);
    return word ? word->text : "unrecognized error code";
}
