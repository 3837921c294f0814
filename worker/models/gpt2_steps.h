// The steps of a pass: what gpt2_forward.c and gpt2_backward.c string together. Each gives the
// model's arithmetic (gpt2_arithmetic.h) its parameters and shapes.
//
// Tensors are of the model's type where void, N rows; parameters are indices, a weight's bias is
// the next one. Nothing here marks a gradient ready.
#ifndef WORKER_MODELS_GPT2_STEPS_H
#define WORKER_MODELS_GPT2_STEPS_H

#include "worker/models/gpt2_arithmetic.h"

gpt2_walk gpt2_walk_make(const gpt2 *model, const gs_model_pass *pass);

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

// dW, by pass->accumulate, from dy (N, out) and x (N, in)
void gpt2_weight_grad(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                      size_t num_in, size_t num_out);
// The same and db
void gpt2_linear_grads(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                       size_t num_in, size_t num_out);
// dx (N, in) = dy (N, out) · W; through GELU: times gelu'(fc)
void gpt2_input_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight, size_t num_in,
                     size_t num_out);
void gpt2_input_gelu_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight,
                          const void *fc, size_t num_in, size_t num_out);
void gpt2_attend_grad(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer);
// Of the classifier, from logits: dwte, and d ln_f in d_narrow
void gpt2_classifier_weight_grad(const gpt2_walk *at);
void gpt2_classifier_input_grad(const gpt2_walk *at);

#endif
