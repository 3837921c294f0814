// The CUDA device fills every slot. Each launcher is declared with exactly the type of its slot.
//
// fp32: gs_cuda_<slot>. 16 bits: gs_cuda_bf16_<slot> and gs_cuda_fp16_<slot>. A .cu file includes this
// through launch.cuh, so that its definitions are checked against the slots.
#ifndef KERNELS_CUDA_TABLE_H
#define KERNELS_CUDA_TABLE_H

#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/slots.h"

#define GS_CUDA_LAUNCHERS(X) X(matmul) GS_KERNEL_SLOTS(X)

#define GS_CUDA_HALF_LAUNCHERS(X) GS_HALF_SLOTS(X)

#define GS_CUDA_DECLARE(slot) __typeof__(*((gs_kernels *)0)->slot) gs_cuda_##slot;
#define GS_CUDA_DECLARE_HALF(slot)                                                                 \
    __typeof__(*((gs_half_kernels *)0)->slot) gs_cuda_bf16_##slot;                                 \
    __typeof__(*((gs_half_kernels *)0)->slot) gs_cuda_fp16_##slot;

#ifdef __cplusplus
extern "C" {
#endif
GS_CUDA_LAUNCHERS(GS_CUDA_DECLARE)
GS_CUDA_HALF_LAUNCHERS(GS_CUDA_DECLARE_HALF)

extern const gs_kernels gs_cuda_table;
extern const gs_half_kernels gs_cuda_bf16_table, gs_cuda_fp16_table;
#ifdef __cplusplus
}
#endif

#endif
