// GPT-2 inside: sizes, the order of its parameters, its activations. For gpt2*.c only.
//
// Activations and the values of parameters are fp32 or 16 bits, by `dtype`; statistics, losses and
// gradients of parameters are fp32. The passes (gpt2_forward.c, gpt2_backward.c) are written once, against
// gpt2_steps.h.
#ifndef WORKER_MODELS_GPT2_H
#define WORKER_MODELS_GPT2_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/step/model.h"
#include "kernels/half.h"
#include "worker/models/layer_drop.h"
#include "worker/models/tensor_block.h"

// Registration order: wte, wpe, 12 tensors for each layer, ln_f weight and bias. A bias follows its
// weight.
enum { GPT2_WTE = 0, GPT2_WPE = 1, GPT2_FIRST_LAYER = 2 };
enum {
    GPT2_LN_1 = 0,
    GPT2_C_ATTN = 2,
    GPT2_ATTN_PROJ = 4,
    GPT2_LN_2 = 6,
    GPT2_C_FC = 8,
    GPT2_MLP_PROJ = 10,
    GPT2_LAYER_PARAMS = 12
};

// What forward keeps of one layer for backward. N = rows of a pass (sequences · positions). void: of the
// model's type.
typedef struct gpt2_layer {
    void *residual_in;              // (N, C); the layer's input
    void *ln_1;                     // (N, C)
    float *mean_1, *rstd_1;         // (N)
    void *qkv;                      // (N, 3C)
    float *logsumexp;               // (sequences, heads, positions)
    void *attn;                     // (N, C)
    void *residual_mid;             // (N, C); after attention
    void *ln_2;                     // (N, C)
    float *mean_2, *rstd_2;         // (N)
    void *fc, *gelu;                // (N, 4C)
} gpt2_layer;

// gpt2_arithmetic.h
typedef struct gpt2_arithmetic gpt2_arithmetic;
extern const gpt2_arithmetic gpt2_fp32, gpt2_half;

typedef struct gpt2 {
    gs_device *device; // borrowed
    gs_dtype dtype;
    const gpt2_arithmetic *math; // of `dtype`
    const gs_half_kernels *half; // of `dtype`; NULL: fp32
    int64_t layers, heads, channels, context, vocab;
    size_t max_rows, max_positions;
    // Of 16 bits: kernels/choice.h
    bool residual_in_product, bias_grad_in_product;
    gs_layer_drop layer_drop;
    size_t logits_stride; // vocab rounded up: aligned rows; columns ≥ vocab mean nothing

    gs_model_param *params; // owned
    size_t num_params;

    gs_tensor_block block; // owns all that follows
    gpt2_layer *layer;     // owned array
    void *residual_out;    // (N, C); of the last layer
    void *ln_f;            // (N, C)
    float *mean_f, *rstd_f;
    void *logits;      // (N, logits_stride); after a training forward what backward starts from
    float *losses;     // (N)
    void *branch;      // (N, C); what a block adds to the residual stream
    void *d_residual;  // (N, C); the running gradient of the residual stream
    void *d_wide;      // (N, 4C); scratch of backward
    void *d_narrow;    // (N, C); scratch of backward
    float *ln_scratch; // 2 · 64 · C

    int64_t *kept;       // owned; layers of the last forward in order, `layers` at most
    int64_t num_kept;
    float *host_losses; // owned; (N)
    float *host_logits; // owned; (max_rows, vocab); of predict
    gs_half *host_half; // owned; the same as they come from the device; NULL: fp32
    bool has_dlogits;   // logits hold the gradient that backward starts from
} gpt2;

static inline size_t gpt2_layer_param(int64_t layer, int which) {
    return (size_t)(GPT2_FIRST_LAYER + layer * GPT2_LAYER_PARAMS + which);
}
static inline size_t gpt2_final_norm(const gpt2 *model) {
    return gpt2_layer_param(model->layers, 0);
}

// INVALID_ARGUMENT for a batch that does not fit the model.
GS_NODISCARD gs_status gpt2_check_batch(const gpt2 *model, const gs_batch *batch);

// The gs_model_ops slots that live in files of their own.
gs_status gpt2_forward(void *state, gs_model_pass *pass);
gs_status gpt2_predict(void *state, gs_model_pass *pass, const float **logits, size_t *num_classes);
gs_status gpt2_backward(void *state, gs_model_pass *pass);

#endif
