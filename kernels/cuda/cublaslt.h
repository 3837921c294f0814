// cuBLASLt, looked up while the program runs. Only what matmul_plan.c calls.
#ifndef KERNELS_CUDA_CUBLASLT_H
#define KERNELS_CUDA_CUBLASLT_H

#include <cublasLt.h>

#include "core/library.h"
#include "core/status.h"

// Every function that is looked up, with the type of its declaration.
#define GS_CUBLASLT_FUNCTIONS(X)                                                                   \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusName)                                                                       \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmul)

typedef struct gs_cublaslt {
    gs_library *library;  // owns
#define GS_CUBLASLT_DECLARE(function) __typeof__(function) *function;
    GS_CUBLASLT_FUNCTIONS(GS_CUBLASLT_DECLARE)
#undef GS_CUBLASLT_DECLARE
} gs_cublaslt;

// UNAVAILABLE, UNIMPLEMENTED or FAILED_PRECONDITION (another major version than this build's headers) with
// the reason. The environment's GRADSYNC_CUBLASLT names the file.
GS_NODISCARD gs_status gs_cublaslt_open(gs_cublaslt *out);
void gs_cublaslt_close(gs_cublaslt *lt);

// "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (the functionality requested is not supported)"
GS_NODISCARD gs_status gs_cublaslt_check(const gs_cublaslt *lt, cublasStatus_t error,
                                         const char *call);

#endif
