#include "worker/models/gpt2_steps.h"

gpt2_walk gpt2_walk_make(const gpt2 *model, const gs_model_pass *pass) {
    return (gpt2_walk){.model = model,
                       .pass = pass,
                       .kernels = gs_device_kernels(model->device),
                       .half = model->half,
                       .stream = gs_device_stream(model->device),
                       .rows = pass->batch->rows * pass->batch->positions};
}

// `rows` rows of `cols` elements into a tensor of the model's type.
static const void *skip_rows(const gpt2_walk *at, const void *tensor, size_t rows, size_t cols) {
    return (const char *)tensor + rows * cols * gs_dtype_bytes(at->model->dtype);
}

static size_t channels_of(const gpt2_walk *at) {
    return (size_t)at->model->channels;
}

static gs_attention attention_of(const gpt2_walk *at) {
    return (gs_attention){.batch = at->pass->batch->rows,
                          .positions = at->pass->batch->positions,
                          .heads = (size_t)at->model->heads,
                          .head_channels = channels_of(at) / (size_t)at->model->heads};
}

// y (rows, out) = x (rows, in) · weightᵀ
static gs_matmul forward_shape(const gpt2_walk *at, size_t num_in, size_t num_out) {
    return (gs_matmul){
        .transpose_b = true, .m = at->rows, .n = num_out, .k = num_in, .alpha = 1.0f};
}

// Without an epilogue.
static void multiply(const gpt2_walk *at, void *c, const void *a, const void *b,
                     const gs_matmul *shape) {
    if (!at->half) {
        at->kernels->matmul(at->stream, c, a, b, shape);
        return;
    }
    gs_half_matmul product = {.shape = *shape};
    at->half->matmul(at->stream, c, a, b, &product);
}

void gpt2_embed(const gpt2_walk *at, const gpt2_joint *out) {
    const gs_batch *batch = at->pass->batch;
    void *const *params = at->pass->params;
    const void *weight = params[out->norm], *bias = params[out->norm + 1];
    size_t C = channels_of(at), V = (size_t)at->model->vocab;
    if (at->half) {
        at->half->embedding(at->stream, out->residual, batch->tokens, params[GPT2_WTE],
                            params[GPT2_WPE], batch->rows, batch->positions, C, V);
        at->half->layernorm(at->stream, out->ln, out->mean, out->rstd, out->residual, weight, bias,
                            at->rows, C);
        return;
    }
    at->kernels->embedding(at->stream, out->residual, batch->tokens, params[GPT2_WTE],
                           params[GPT2_WPE], batch->rows, batch->positions, C, V);
    at->kernels->layernorm(at->stream, out->ln, out->mean, out->rstd, out->residual, weight, bias,
                           at->rows, C);
}

void gpt2_linear(const gpt2_walk *at, void *y, const void *x, size_t weight, size_t num_in,
                 size_t num_out) {
    void *const *params = at->pass->params + weight;
    gs_matmul shape = forward_shape(at, num_in, num_out);
    if (at->half) {
        gs_half_matmul product = {shape, GS_EPILOGUE_BIAS, .bias = params[1]};
        at->half->matmul(at->stream, y, x, params[0], &product);
        return;
    }
    at->kernels->matmul(at->stream, y, x, params[0], &shape);
    at->kernels->bias_add(at->stream, y, params[1], at->rows, num_out);
}

void gpt2_linear_gelu(const gpt2_walk *at, void *gelu, void *fc, const void *x, size_t weight,
                      size_t num_in, size_t num_out) {
    void *const *params = at->pass->params + weight;
    gs_matmul shape = forward_shape(at, num_in, num_out);
    if (at->half) {
        gs_half_matmul product = {shape, GS_EPILOGUE_BIAS_GELU, .bias = params[1], .aux = fc};
        at->half->matmul(at->stream, gelu, x, params[0], &product);
        return;
    }
    at->kernels->matmul(at->stream, fc, x, params[0], &shape);
    at->kernels->bias_gelu(at->stream, gelu, fc, params[1], at->rows, num_out);
}

void gpt2_add_branch(const gpt2_walk *at, const gpt2_joint *out, const void *residual,
                     const void *x, size_t weight, size_t num_in) {
    void *const *params = at->pass->params, *branch = at->model->branch;
    const void *norm_weight = params[out->norm], *norm_bias = params[out->norm + 1];
    size_t C = channels_of(at);
    if (at->half) {
        gpt2_linear(at, branch, x, weight, num_in, C);
        at->half->residual_layernorm(at->stream, out->residual, out->ln, out->mean, out->rstd,
                                     residual, branch, norm_weight, norm_bias, at->rows, C);
        return;
    }
    gs_matmul shape = forward_shape(at, num_in, C);
    at->kernels->matmul(at->stream, branch, x, params[weight], &shape);
    at->kernels->residual_layernorm(at->stream, out->residual, out->ln, out->mean, out->rstd,
                                    residual, branch, params[weight + 1], norm_weight, norm_bias,
                                    at->rows, C);
}

void gpt2_attend(const gpt2_walk *at, const gpt2_layer *layer) {
    gs_attention shape = attention_of(at);
    if (at->half)
        at->half->attention(at->stream, layer->attn, layer->logsumexp, layer->qkv, &shape);
    else
        at->kernels->attention(at->stream, layer->attn, layer->logsumexp, layer->qkv, &shape);
}

// Columns of the classifier that go in one product.
typedef struct part {
    size_t first, count;
} part;

// Tensor cores take 16-bit rows by eights, and a product whose extents are none runs without them: the last
// columns of an odd vocabulary go by themselves. fp32 has one part. Returns how many there are.
static int cut_vocab(const gpt2_walk *at, part parts[2]) {
    size_t V = (size_t)at->model->vocab, whole = at->half ? V - V % 8 : V;
    int count = 0;
    if (whole) parts[count++] = (part){0, whole};
    if (V > whole) parts[count++] = (part){whole, V - whole};
    return count;
}

void gpt2_classify(const gpt2_walk *at, size_t rows, size_t first, size_t step, size_t stride) {
    size_t C = channels_of(at);
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
        multiply(at, (void *)skip_rows(at, at->model->logits, parts[i].first, 1), x,
                 skip_rows(at, at->pass->params[GPT2_WTE], parts[i].first, C), &shape);
    }
}

// fp32: the gradient of the mean loss, and grad_factor comes in by backward. In 16 bits 1/N may be less
// than fp16 has digits for: there it is the gradient of the sum, and 1/N comes in by backward too.
static float classifier_factor(const gpt2_walk *at) {
    return at->half ? at->pass->grad_factor / (float)at->rows : at->pass->grad_factor;
}

void gpt2_lose(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    if (at->half)
        at->half->softmax_loss(at->stream, model->losses, model->logits, NULL, pass->batch->targets,
                               at->rows, (size_t)model->vocab, model->logits_stride, 1.0f,
                               pass->training);
    else
        at->kernels->softmax_loss(at->stream, model->losses, model->logits, NULL,
                                  pass->batch->targets, at->rows, (size_t)model->vocab,
                                  model->logits_stride, 1.0f / (float)at->rows, pass->training);
}

static void multiply_grad(const gpt2_walk *at, float *grad, const void *dy, const void *x,
                          const gs_matmul *shape) {
    if (at->half)
        at->half->matmul_grad(at->stream, grad, dy, x, shape);
    else
        at->kernels->matmul(at->stream, grad, dy, x, shape);
}

void gpt2_weight_grad(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                      size_t num_in, size_t num_out) {
    gs_matmul shape = {.transpose_a = true,
                       .m = num_out,
                       .n = num_in,
                       .k = at->rows,
                       .alpha = 1.0f,
                       .beta = at->pass->accumulate ? 1.0f : 0.0f};
    multiply_grad(at, at->pass->grads[weight], dy, x, &shape);
}

void gpt2_bias_grad(const gpt2_walk *at, size_t bias, const void *dy, size_t num_out) {
    float *grad = at->pass->grads[bias];
    if (at->half)
        at->half->bias_backward(at->stream, grad, dy, at->rows, num_out, at->pass->accumulate);
    else
        at->kernels->bias_backward(at->stream, grad, dy, at->rows, num_out, at->pass->accumulate);
}

static gs_matmul backward_shape(const gpt2_walk *at, size_t num_in, size_t num_out) {
    return (gs_matmul){.m = at->rows, .n = num_in, .k = num_out, .alpha = 1.0f};
}

void gpt2_input_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight, size_t num_in,
                     size_t num_out) {
    gs_matmul shape = backward_shape(at, num_in, num_out);
    multiply(at, dx, dy, at->pass->params[weight], &shape);
}

void gpt2_input_gelu_grad(const gpt2_walk *at, void *dx, const void *dy, size_t weight,
                          const void *fc, size_t num_in, size_t num_out) {
    gs_matmul shape = backward_shape(at, num_in, num_out);
    if (at->half) {
        // DGELU reads aux.
        gs_half_matmul product = {shape, GS_EPILOGUE_DGELU, .aux = (gs_half *)fc};
        at->half->matmul(at->stream, dx, dy, at->pass->params[weight], &product);
        return;
    }
    at->kernels->matmul(at->stream, dx, dy, at->pass->params[weight], &shape);
    at->kernels->gelu_backward(at->stream, dx, dx, fc, at->rows * num_in);
}

void gpt2_norm_grad(const gpt2_walk *at, const gpt2_joint *of, const void *dy, bool first) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    size_t C = channels_of(at);
    float *dweight = pass->grads[of->norm], *dbias = pass->grads[of->norm + 1];
    const void *weight = pass->params[of->norm];
    if (at->half) {
        at->half->layernorm_backward(at->stream, model->d_residual, dweight, dbias,
                                     model->ln_scratch, dy, of->residual, weight, of->mean,
                                     of->rstd, at->rows, C, first, pass->accumulate);
        return;
    }
    if (first) at->kernels->fill(at->stream, model->d_residual, 0.0f, at->rows * C);
    at->kernels->layernorm_backward(at->stream, model->d_residual, dweight, dbias,
                                    model->ln_scratch, dy, of->residual, weight, of->mean, of->rstd,
                                    at->rows, C, pass->accumulate);
}

void gpt2_attend_grad(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer) {
    gs_attention shape = attention_of(at);
    if (at->half)
        at->half->attention_backward(at->stream, dqkv, dout, layer->qkv, layer->attn,
                                     layer->logsumexp, &shape);
    else
        at->kernels->attention_backward(at->stream, dqkv, dout, layer->qkv, layer->attn,
                                        layer->logsumexp, &shape);
}

void gpt2_classifier_weight_grad(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    size_t C = channels_of(at);
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
        multiply_grad(at, at->pass->grads[GPT2_WTE] + parts[i].first * C,
                      skip_rows(at, model->logits, parts[i].first, 1), model->ln_f, &shape);
    }
}

void gpt2_classifier_input_grad(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    size_t C = channels_of(at);
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
        multiply(at, model->d_narrow, dlogits, wte, &shape);
    }
}

void gpt2_embed_grad(const gpt2_walk *at, float *dwte, float *dwpe) {
    const gpt2 *model = at->model;
    const gs_batch *batch = at->pass->batch;
    size_t C = channels_of(at), V = (size_t)model->vocab;
    if (at->half)
        at->half->embedding_backward(at->stream, dwte, dwpe, model->d_residual, batch->tokens,
                                     batch->rows, batch->positions, C, V, at->pass->accumulate);
    else
        at->kernels->embedding_backward(at->stream, dwte, dwpe, model->d_residual, batch->tokens,
                                        batch->rows, batch->positions, C, V, at->pass->accumulate);
}

const float *gpt2_residual_grad(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    if (!at->half) return model->d_residual;
    at->kernels->cast(at->stream, model->d_wide, GS_FP32, model->d_residual, model->dtype, 1.0f,
                      at->rows * channels_of(at));
    return model->d_wide;
}
