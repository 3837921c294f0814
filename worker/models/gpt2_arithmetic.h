// The arithmetic of a GPT-2's type: gpt2_fp32.c and gpt2_half.c, chosen once when the model is
// made. Where 16 bits have a fused kernel (bias and GELU in the product, GELU's derivative in
// another), fp32 has two in a row.
//
// Tensors are of the model's type where void; (N, C) are rows and channels of the pass.
#ifndef WORKER_MODELS_GPT2_ARITHMETIC_H
#define WORKER_MODELS_GPT2_ARITHMETIC_H

#include "worker/models/gpt2.h"

typedef struct gpt2_walk {
    const gpt2 *model;
    const gpt2_arithmetic *math;  // the model's
    const gs_model_pass *pass;
    const gs_kernels *kernels;
    gs_stream *stream;
    size_t rows;      // N = sequences · positions
    size_t channels;  // C
} gpt2_walk;

// The residual stream between two blocks and its norm, which belongs to the next one.
typedef struct gpt2_joint {
    void *residual, *ln;
    float *mean, *rstd;
    size_t norm;  // parameter
} gpt2_joint;

// Where the gradient of a norm's weight (0), of its bias (1) goes. Of a frozen one: where nobody reads, d_wide is free
// by then.
static inline float *gpt2_norm_grad(const gpt2_walk *at, const gpt2_joint *of, int which) {
    float *grad = at->pass->grads[of->norm + (size_t)which];
    return grad ? grad : (float *)(void *)at->model->d_wide + (size_t)which * at->channels;
}

// Weight and bias of a linear layer.
typedef struct gpt2_weights {
    const void *weight, *bias;
} gpt2_weights;

struct gpt2_arithmetic {
    // Products run fast by multiples of this many columns of the classifier.
    size_t vocab_multiple;
    // Backward starts from the gradient of the losses' sum, and their mean's 1/N comes in by the
    // classifier: it may be less than the type has digits for.
    bool sums_losses;

    // c = a · b
    void (*multiply)(const gpt2_walk *at, void *c, const void *a, const void *b,
                     const gs_matmul *shape);
    // A parameter's gradient: fp32.
    void (*multiply_grad)(const gpt2_walk *at, float *grad, const void *dy, const void *x,
                          const gs_matmul *shape);
    void (*bias_grad)(const gpt2_walk *at, float *grad, const void *dy, size_t num_out);

    // Of a linear layer's weight and bias, in one.
    void (*linear_grads)(const gpt2_walk *at, float *dweight, float *dbias, const void *dy,
                         const void *x, const gs_matmul *shape);

    void (*linear)(const gpt2_walk *at, void *y, const void *x, gpt2_weights by,
                   const gs_matmul *shape);
    // fc before GELU, for backward
    void (*linear_gelu)(const gpt2_walk *at, void *gelu, void *fc, const void *x, gpt2_weights by,
                        const gs_matmul *shape);
    // dx = (dy · weight) · gelu'(fc)
    void (*gelu_grad)(const gpt2_walk *at, void *dx, const void *dy, const void *weight,
                      const void *fc, const gs_matmul *shape);

    // residual = token and position embeddings, ln = its norm
    void (*embed)(const gpt2_walk *at, const gpt2_joint *out);
    // dwpe, and dwte unless NULL, from d_residual
    void (*embed_grad)(const gpt2_walk *at, float *dwte, float *dwpe);
    // out.residual = residual + linear(x), out.ln = its norm
    void (*add_branch)(const gpt2_walk *at, const gpt2_joint *out, const void *residual,
                       const void *x, gpt2_weights by, const gs_matmul *shape);
    // d_residual += the norm's dx, from dy and `of`; overwritten when first. The norm's own
    // gradients.
    void (*norm_grad)(const gpt2_walk *at, const gpt2_joint *of, const void *dy, bool first);
    // d_residual as fp32: itself, or a copy in d_wide, which is free by then
    const float *(*residual_grad)(const gpt2_walk *at);

    void (*attend)(const gpt2_walk *at, const gpt2_layer *layer, const gs_attention *shape);
    void (*attend_grad)(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer,
                        const gs_attention *shape);

    // losses, times 1/N unless sums_losses; in training logits become their gradient.
    void (*lose)(const gpt2_walk *at);
    // Into host_logits.
    gs_status (*download_logits)(const gpt2 *model, size_t count);
};

#endif
