#include "worker/models/gpt2_steps.h"

gpt2_walk gpt2_walk_make(const gpt2 *model, const gs_model_pass *pass) {
    return (gpt2_walk){.model = model,
                       .math = model->math,
                       .pass = pass,
                       .kernels = gs_device_kernels(model->device),
                       .stream = gs_device_stream(model->device),
                       .rows = pass->batch->rows * pass->batch->positions,
                       .channels = (size_t)model->channels};
}

// `rows` rows of `cols` elements into a tensor of the model's type.
static const void *skip_rows(const gpt2_walk *at, const void *tensor, size_t rows, size_t cols) {
    return (const char *)tensor + rows * cols * gs_dtype_bytes(at->model->dtype);
}

static gs_attention attention_of(const gpt2_walk *at) {
    return (gs_attention){.batch = at->pass->batch->rows,
                          .positions = at->pass->batch->positions,
                          .heads = (size_t)at->model->heads,
                          .head_channels = at->channels / (size_t)at->model->heads};
}

static gpt2_weights weights_of(const gpt2_walk *at, size_t weight) {
    return (gpt2_weights){at->pass->params[weight], at->pass->params[weight + 1]};
}

// y (rows, out) = x (rows, in) · weightᵀ
static gs_matmul forward_shape(const gpt2_walk *at, size_t num_in, size_t num_out) {
    return (gs_matmul){
        .transpose_b = true, .m = at->rows, .n = num_out, .k = num_in, .alpha = 1.0f};
}

void gpt2_linear(const gpt2_walk *at, void *y, const void *x, size_t weight, size_t num_in,
                 size_t num_out) {
    gs_matmul shape = forward_shape(at, num_in, num_out);
    at->math->linear(at, y, x, weights_of(at, weight), &shape);
}

void gpt2_linear_gelu(const gpt2_walk *at, void *gelu, void *fc, const void *x, size_t weight,
                      size_t num_in, size_t num_out) {
    gs_matmul shape = forward_shape(at, num_in, num_out);
    at->math->linear_gelu(at, gelu, fc, x, weights_of(at, weight), &shape);
}

void gpt2_add_branch(const gpt2_walk *at, const gpt2_joint *out, const void *residual,
                     const void *x, size_t weight, size_t num_in) {
    gs_matmul shape = forward_shape(at, num_in, at->channels);
    at->math->add_branch(at, out, residual, x, weights_of(at, weight), &shape);
}

void gpt2_attend(const gpt2_walk *at, const gpt2_layer *layer) {
    gs_attention shape = attention_of(at);
    at->math->attend(at, layer, &shape);
}

// Columns of the classifier that go in one product.
typedef struct part {
    size_t first, count;
} part;

// The last columns of a vocabulary that is no multiple go by themselves. Returns how many parts
// there are.
static int cut_vocab(const gpt2_walk *at, part parts[2]) {
    size_t V = (size_t)at->model->vocab, whole = V - V % at->math->vocab_multiple;
    int count = 0;
    if (whole) parts[count++] = (part){0, whole};
    if (V > whole) parts[count++] = (part){whole, V - whole};
    return count;
}

void gpt2_classify(const gpt2_walk *at, size_t rows, size_t first, size_t step, size_t stride) {
    size_t C = at->channels;
    const void *x = skip_rows(at, at->model->ln_f, first, C);
    part parts[2];
    int num_parts = cut_vocab(at, parts);
    for (int i = 0; i < num_parts; i++) {
        gs_matmul shape = {.transpose_b = true,
                           .m = rows,
                           .n = parts[i].count,
                           .k = C,
                           .stride_a = step * C,
                           .stride_c = stride,
                           .alpha = 1.0f};
        at->math->multiply(at, (void *)skip_rows(at, at->model->logits, parts[i].first, 1), x,
                           skip_rows(at, at->pass->params[GPT2_WTE], parts[i].first, C), &shape);
    }
}

static float classifier_factor(const gpt2_walk *at) {
    float factor = at->pass->grad_factor;
    return at->math->sums_losses ? factor / (float)at->rows : factor;
}

// dW (out, in) from dy (rows, out) and x (rows, in)
static gs_matmul weight_shape(const gpt2_walk *at, size_t num_in, size_t num_out) {
    return (gs_matmul){.transpose_a = true,
                       .m = num_out,
                       .n = num_in,
                       .k = at->rows,
                       .alpha = 1.0f,
                       .beta = at->pass->accumulate ? 1.0f : 0.0f};
}

void gpt2_weight_grad(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                      size_t num_in, size_t num_out) {
    gs_matmul shape = weight_shape(at, num_in, num_out);
    at->math->multiply_grad(at, at->pass->grads[weight], dy, x, &shape);
}

void gpt2_linear_grads(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                       size_t num_in, size_t num_out) {
    gs_matmul shape = weight_shape(at, num_in, num_out);
    at->math->linear_grads(at, at->pass->grads[weight], at->pass->grads[weight + 1], dy, x,
                           &shape);
}

static gs_matmul backward_shape(const gpt2_walk *at, size_t num_in, size_t num_out) {
    return (gs_matmul){.m = at->rows, .n = num_in, .k = num_out, .alpha = 1.0f};
}

void gpt2_input_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight, size_t num_in,
                     size_t num_out) {
    gs_matmul shape = backward_shape(at, num_in, num_out);
    at->math->multiply(at, dx, dy, at->pass->params[weight], &shape);
}

void gpt2_input_gelu_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight,
                          const void *fc, size_t num_in, size_t num_out) {
    gs_matmul shape = backward_shape(at, num_in, num_out);
    at->math->gelu_grad(at, dx, dy, at->pass->params[weight], fc, &shape);
}

void gpt2_attend_grad(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer) {
    gs_attention shape = attention_of(at);
    at->math->attend_grad(at, dqkv, dout, layer, &shape);
}

void gpt2_classifier_weight_grad(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    size_t C = at->channels;
    part parts[2];
    int num_parts = cut_vocab(at, parts);
    for (int i = 0; i < num_parts; i++) {
        gs_matmul shape = {.transpose_a = true,
                           .m = parts[i].count,
                           .n = C,
                           .k = at->rows,
                           .stride_a = model->logits_stride,
                           .alpha = classifier_factor(at),
                           .beta = at->pass->accumulate ? 1.0f : 0.0f};
        at->math->multiply_grad(at, (float *)at->pass->grads[GPT2_WTE] + parts[i].first * C,
                                skip_rows(at, model->logits, parts[i].first, 1), model->ln_f,
                                &shape);
    }
}

void gpt2_classifier_input_grad(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    size_t C = at->channels;
    part parts[2];
    int num_parts = cut_vocab(at, parts);
    // The small part first: what is rounded before the rest comes on top is small.
    for (int i = num_parts - 1; i >= 0; i--) {
        const void *dlogits = skip_rows(at, model->logits, parts[i].first, 1);
        const void *wte = skip_rows(at, at->pass->params[GPT2_WTE], parts[i].first, C);
        gs_matmul shape = {.m = at->rows,
                           .n = C,
                           .k = parts[i].count,
                           .stride_a = model->logits_stride,
                           .alpha = classifier_factor(at),
                           .beta = i + 1 < num_parts ? 1.0f : 0.0f};
        at->math->multiply(at, model->d_narrow, dlogits, wte, &shape);
    }
}
