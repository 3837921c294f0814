// Which slots the CUDA device fills. Each launcher is declared with exactly the type of its slot.
//
// fp32: gs_cuda_<slot>. 16 bits: gs_cuda_bf16_<slot> and gs_cuda_fp16_<slot>. A .cu file includes this
// through launch.cuh, so that its definitions are checked against the slots.
#ifndef KERNELS_CUDA_TABLE_H
#define KERNELS_CUDA_TABLE_H

#include "kernels/half.h"
#include "kernels/kernels.h"

// One line for each; a slot that is not here is NULL.
#define GS_CUDA_LAUNCHERS(X)                                                                       \
    X(fill)                                                                                        \
    X(copy)                                                                                        \
    X(add)                                                                                         \
    X(scale)                                                                                       \
    X(axpy)                                                                                        \
    X(sum_squares)                                                                                 \
    X(count_nonfinite)                                                                             \
    X(clear)                                                                                       \
    X(add_mean)                                                                                    \
    X(cast_many)                                                                                   \
    X(sum_squares_many)                                                                            \
    X(adamw_many)                                                                                  \
    X(split_master)                                                                                \
    X(join_master)                                                                                 \
    X(reduce)                                                                                      \
    X(cast)                                                                                        \
    X(round)                                                                                       \
    X(adamw)                                                                                       \
    X(sgd)                                                                                         \
    X(adamw_beside)                                                                                \
    X(sgd_beside)                                                                                  \
    X(matmul)                                                                                      \
    X(attention)                                                                                   \
    X(attention_backward)                                                                          \
    X(bias_add)                                                                                    \
    X(bias_gelu)                                                                                   \
    X(bias_backward)                                                                               \
    X(gelu_backward)                                                                               \
    X(relu)                                                                                        \
    X(relu_backward)                                                                               \
    X(layernorm)                                                                                   \
    X(residual_layernorm)                                                                          \
    X(layernorm_backward)                                                                          \
    X(embedding)                                                                                   \
    X(embedding_backward)                                                                          \
    X(add_rows)                                                                                    \
    X(softmax_loss)                                                                                \
    X(batchnorm)                                                                                   \
    X(batchnorm_eval)                                                                              \
    X(batchnorm_backward)                                                                          \
    X(batchnorm_measure)                                                                           \
    X(batchnorm_apply)                                                                             \
    X(batchnorm_sums)                                                                              \
    X(batchnorm_backward_apply)                                                                    \
    X(low_rank_project)                                                                            \
    X(low_rank_back_project)                                                                       \
    X(low_rank_rebuild)                                                                            \
    X(orthogonalize_many)                                                                          \
    X(add_residuals)                                                                               \
    X(select_largest)                                                                              \
    X(add_at)                                                                                      \
    X(take_signs)                                                                                  \
    X(add_signs)                                                                                   \
    X(quantize)                                                                                    \
    X(dequantize)

#define GS_CUDA_HALF_LAUNCHERS(X)                                                                  \
    X(matmul)                                                                                      \
    X(matmul_grad)                                                                                 \
    X(linear_grads)                                                                                \
    X(attention)                                                                                   \
    X(attention_backward)                                                                          \
    X(bias_backward)                                                                               \
    X(embedding)                                                                                   \
    X(embedding_backward)                                                                          \
    X(layernorm)                                                                                   \
    X(residual_layernorm)                                                                          \
    X(layernorm_backward)                                                                          \
    X(softmax_loss)

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
