// Kernels of 16-bit training: activations and weights of bf16 or fp16, everything that adds up in fp32.
//
// One table for each type; a model written against it runs on both. Shapes as in kernels.h; gs_half is the
// bits of a number of the table's type. Statistics, losses and gradients of parameters are fp32. kernels/cpu
// is the specification: each kernel computes in fp32 from its 16-bit inputs and rounds once, to nearest
// even, when it stores a gs_half. A device's kernels may add up in another order and so differ by roundings.
//
// What a GPU fuses is one slot here: a matrix product with its bias, GELU or GELU's derivative; residual and
// norm; loss and gradient.
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

typedef uint16_t gs_half;

// What is done to op(A) · op(B) before it is stored.
typedef enum gs_epilogue {
    GS_EPILOGUE_NONE = 0,
    GS_EPILOGUE_BIAS,       // + bias (n)
    GS_EPILOGUE_BIAS_GELU,  // aux (m, n) = product + bias, stored; c = gelu(aux)
    GS_EPILOGUE_DGELU       // c = product · gelu'(aux); aux is read
} gs_epilogue;

// C (m×n) = epilogue(alpha · op(A) (m×k) · op(B) (k×n)) + beta · C. Row-major; strides as in gs_matmul.
// With an epilogue alpha is 1 and beta 0; aux and residual have the stride of C. With GS_EPILOGUE_BIAS `residual` may be
// a matrix, not C, that is added before C is rounded.
typedef struct gs_half_matmul {
    gs_matmul shape;
    gs_epilogue epilogue;
    const gs_half *bias;
    gs_half *aux;
    const gs_half *residual;  // NULL: none
} gs_half_matmul;

typedef struct gs_half_kernels {
    const char *name;  // "cuda/bf16"
    gs_dtype dtype;

    // C of 16 bits: activations and their gradients
    void (*matmul)(gs_stream *stream, gs_half *c, const gs_half *a, const gs_half *b,
                   const gs_half_matmul *product);
    // C of fp32: gradients of weights, with beta 1 where they add up; no epilogue
    void (*matmul_grad)(gs_stream *stream, float *c, const gs_half *a, const gs_half *b,
                        const gs_matmul *shape);
    // What a linear layer's two parameters get: matmul_grad of dy (k×m, rows one behind the other) and x, transpose_a, and
    // Σ over rows of dy in dbias (m). Both are added to what is there where beta is 1, which else is 0.
    void (*linear_grads)(gs_stream *stream, float *dweight, float *dbias, const gs_half *dy,
                         const gs_half *x, const gs_matmul *shape);
    // dbias (cols) = or += Σ over rows of dy
    void (*bias_backward)(gs_stream *stream, float *dbias, const gs_half *dy, size_t rows,
                          size_t cols, bool accumulate);

    void (*embedding)(gs_stream *stream, gs_half *out, const int32_t *tokens, const gs_half *wte,
                      const gs_half *wpe, size_t batch, size_t positions, size_t channels,
                      size_t vocab);
    void (*embedding_backward)(gs_stream *stream, float *dwte, float *dwpe, const gs_half *dout,
                               const int32_t *tokens, size_t batch, size_t positions,
                               size_t channels, size_t vocab, bool accumulate);

    void (*layernorm)(gs_stream *stream, gs_half *out, float *mean, float *rstd, const gs_half *x,
                      const gs_half *weight, const gs_half *bias, size_t rows, size_t channels);
    // residual = a + b, rounded; out = layernorm of what was rounded
    void (*residual_layernorm)(gs_stream *stream, gs_half *residual, gs_half *out, float *mean,
                               float *rstd, const gs_half *a, const gs_half *b,
                               const gs_half *weight, const gs_half *bias, size_t rows,
                               size_t channels);
    // dx += …, overwritten when `first`; dweight, dbias by `accumulate`. scratch: 2·64·C floats
    void (*layernorm_backward)(gs_stream *stream, gs_half *dx, float *dweight, float *dbias,
                               float *scratch, const gs_half *dy, const gs_half *x,
                               const gs_half *weight, const float *mean, const float *rstd,
                               size_t rows, size_t channels, bool first, bool accumulate);

    void (*attention)(gs_stream *stream, gs_half *out, float *logsumexp, const gs_half *qkv,
                      const gs_attention *shape);
    void (*attention_backward)(gs_stream *stream, gs_half *dqkv, const gs_half *dout,
                               const gs_half *qkv, const gs_half *out, const float *logsumexp,
                               const gs_attention *shape);

    // As in kernels.h; the gradient replaces the logits.
    void (*softmax_loss)(gs_stream *stream, float *losses, gs_half *logits, int64_t *num_correct,
                         const int32_t *targets, size_t rows, size_t classes, size_t stride,
                         float dloss, bool gradient);
} gs_half_kernels;

#endif
