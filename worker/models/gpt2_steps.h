// The steps of a pass, in fp32 or 16 bits: what gpt2_forward.c and gpt2_backward.c string together. Each
// is the kernels that the type has for it: where 16 bits have a fused one (bias and GELU in the product,
// GELU's derivative in another), fp32 has two in a row.
//
// Tensors are of the model's type where void, N rows; parameters are indices, a weight's bias is the next
// one. Nothing here marks a gradient ready.
#ifndef WORKER_MODELS_GPT2_STEPS_H
#define WORKER_MODELS_GPT2_STEPS_H

#include "worker/models/gpt2.h"

typedef struct gpt2_walk {
    const gpt2 *model;
    const gs_model_pass *pass;
    const gs_kernels *kernels;
    const gs_half_kernels *half;  // NULL: fp32
    gs_stream *stream;
    size_t rows;  // N = sequences · positions
} gpt2_walk;

gpt2_walk gpt2_walk_make(const gpt2 *model, const gs_model_pass *pass);

// The residual stream between two blocks and its norm, which belongs to the next one.
typedef struct gpt2_joint {
    void *residual, *ln;
    float *mean, *rstd;
    size_t norm;  // parameter
} gpt2_joint;

// residual = token and position embeddings, ln = its norm
void gpt2_embed(const gpt2_walk *at, const gpt2_joint *out);
// y (N, out) = x (N, in) · Wᵀ + b
void gpt2_linear(const gpt2_walk *at, void *y, const void *x, size_t weight, size_t num_in,
                 size_t num_out);
// fc = x · Wᵀ + b, gelu of it
void gpt2_linear_gelu(const gpt2_walk *at, void *gelu, void *fc, const void *x, size_t weight,
                      size_t num_in, size_t num_out);
// out.residual = residual + x (N, in) · Wᵀ + b, out.ln = its norm
void gpt2_add_branch(const gpt2_walk *at, const gpt2_joint *out, const void *residual,
                     const void *x, size_t weight, size_t num_in);
void gpt2_attend(const gpt2_walk *at, const gpt2_layer *layer);
// logits (rows, V), `stride` apart, of rows of ln_f that lie `step` rows apart, from row `first` on
void gpt2_classify(const gpt2_walk *at, size_t rows, size_t first, size_t step, size_t stride);
// losses; when training, logits become the gradient
void gpt2_lose(const gpt2_walk *at);

// dW, by pass->accumulate, from dy (N, out) and x (N, in); its bias's, likewise
void gpt2_weight_grad(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                      size_t num_in, size_t num_out);
void gpt2_bias_grad(const gpt2_walk *at, size_t bias, const void *dy, size_t num_out);
// dx (N, in) = dy (N, out) · W; through GELU: times gelu'(fc)
void gpt2_input_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight, size_t num_in,
                     size_t num_out);
void gpt2_input_gelu_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight,
                          const void *fc, size_t num_in, size_t num_out);
// d_residual += the norm's dx, from dy and `of`; overwritten when first. The norm's own gradients.
void gpt2_norm_grad(const gpt2_walk *at, const gpt2_joint *of, const void *dy, bool first);
void gpt2_attend_grad(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer);
// Of the classifier, from logits: dwte, and d ln_f in d_narrow
void gpt2_classifier_weight_grad(const gpt2_walk *at);
void gpt2_classifier_input_grad(const gpt2_walk *at);
// dwpe, and dwte unless NULL, from d_residual
void gpt2_embed_grad(const gpt2_walk *at, float *dwte, float *dwpe);
// d_residual as fp32: itself, or a copy in d_wide, which is free by then
const float *gpt2_residual_grad(const gpt2_walk *at);

#endif
