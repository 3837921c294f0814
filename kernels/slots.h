// The slots of gs_kernels and gs_half_kernels, once: what declares, fills and compares tables goes through these. A
// slot that is missing here is NULL in every table, and `gpu_kernels --slots` fails for it.
#ifndef KERNELS_SLOTS_H
#define KERNELS_SLOTS_H

// All but matmul, which is not compiled for each instruction set of a CPU.
#define GS_KERNEL_SLOTS(X)                                                                         \
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
    X(grad_factor)                                                                                 \
    X(adamw_many)                                                                                  \
    X(split_master)                                                                                \
    X(join_master)                                                                                 \
    X(reduce)                                                                                      \
    X(cast)                                                                                        \
    X(round)                                                                                       \
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
    X(attention)                                                                                   \
    X(attention_backward)                                                                          \
    X(softmax_loss)                                                                                \
    X(batchnorm)                                                                                   \
    X(batchnorm_eval)                                                                              \
    X(batchnorm_backward)                                                                          \
    X(batchnorm_measure)                                                                           \
    X(batchnorm_apply)                                                                             \
    X(batchnorm_sums)                                                                              \
    X(batchnorm_backward_apply)                                                                    \
    X(adamw)                                                                                       \
    X(sgd)                                                                                         \
    X(adamw_beside)                                                                                \
    X(sgd_beside)                                                                                  \
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

#define GS_HALF_SLOTS(X)                                                                           \
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

#endif
