// The tables of the CUDA device, composed of the lists in table.h.
#include "kernels/cuda/table.h"

#define FILL_SLOT(slot) .slot = gs_cuda_##slot,
#define FILL_BF16(slot) .slot = gs_cuda_bf16_##slot,
#define FILL_FP16(slot) .slot = gs_cuda_fp16_##slot,

const gs_kernels gs_cuda_table = {.name = "cuda", GS_CUDA_LAUNCHERS(FILL_SLOT)};

const gs_half_kernels gs_cuda_bf16_table = {
    .name = "cuda/bf16", .dtype = GS_BF16, GS_CUDA_HALF_LAUNCHERS(FILL_BF16)};

const gs_half_kernels gs_cuda_fp16_table = {
    .name = "cuda/fp16", .dtype = GS_FP16, GS_CUDA_HALF_LAUNCHERS(FILL_FP16)};
