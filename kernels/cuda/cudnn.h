// cuDNN's graphs, looked up while the program runs. Only what attention_graph.c and attention_library.c call; in
// builds without its headers (GRADSYNC_CUDNN) there is none.
#ifndef KERNELS_CUDA_CUDNN_H
#define KERNELS_CUDA_CUDNN_H

#include <cudnn_graph.h>

#include "core/library.h"
#include "core/status.h"

// Every function that is looked up, with the type of its declaration.
#define GS_CUDNN_FUNCTIONS(X)                                                                      \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

typedef struct gs_cudnn {
    gs_library *library;  // owns
#define GS_CUDNN_DECLARE(function) __typeof__(function) *function;
    GS_CUDNN_FUNCTIONS(GS_CUDNN_DECLARE)
#undef GS_CUDNN_DECLARE
} gs_cudnn;

// UNAVAILABLE, UNIMPLEMENTED or FAILED_PRECONDITION (another major version than this build's headers) with
// the reason. The environment's GRADSYNC_CUDNN names the file.
GS_NODISCARD gs_status gs_cudnn_open(gs_cudnn *out);
void gs_cudnn_close(gs_cudnn *dnn);

// "cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED"
GS_NODISCARD gs_status gs_cudnn_check(const gs_cudnn *dnn, cudnnStatus_t error, const char *call);

#endif
