#include "worker/models/gpt2_arithmetic.h"

static const gs_half_kernels *half_of(const gpt2_walk *at) {
    return at->model->half;
}

static void multiply(const gpt2_walk *at, void *c, const void *a, const void *b,
                     const gs_matmul *shape) {
    gs_half_matmul product = {.shape = *shape};
    half_of(at)->matmul(at->stream, c, a, b, &product);
}

static void multiply_grad(const gpt2_walk *at, float *grad, const void *dy, const void *x,
                          const gs_matmul *shape) {
    half_of(at)->matmul_grad(at->stream, grad, dy, x, shape);
}

static void bias_grad(const gpt2_walk *at, float *grad, const void *dy, size_t num_out) {
    half_of(at)->bias_backward(at->stream, grad, dy, at->rows, num_out, at->pass->accumulate);
}

static void linear_grads(const gpt2_walk *at, float *dweight, float *dbias, const void *dy,
                         const void *x, const gs_matmul *shape) {
    half_of(at)->linear_grads(at->stream, dweight, dbias, dy, x, shape);
}

static void linear(const gpt2_walk *at, void *y, const void *x, gpt2_weights by,
                   const gs_matmul *shape) {
    gs_half_matmul product = {*shape, GS_EPILOGUE_BIAS, .bias = by.bias};
    half_of(at)->matmul(at->stream, y, x, by.weight, &product);
}

static void linear_gelu(const gpt2_walk *at, void *gelu, void *fc, const void *x, gpt2_weights by,
                        const gs_matmul *shape) {
    gs_half_matmul product = {*shape, GS_EPILOGUE_BIAS_GELU, .bias = by.bias, .aux = fc};
    half_of(at)->matmul(at->stream, gelu, x, by.weight, &product);
}

static void gelu_grad(const gpt2_walk *at, void *dx, const void *dy, const void *weight,
                      const void *fc, const gs_matmul *shape) {
    // DGELU reads aux.
    gs_half_matmul product = {*shape, GS_EPILOGUE_DGELU, .aux = (gs_half *)fc};
    half_of(at)->matmul(at->stream, dx, dy, weight, &product);
}

static void embed(const gpt2_walk *at, const gpt2_joint *out) {
    const gs_batch *batch = at->pass->batch;
    void *const *params = at->pass->params;
    half_of(at)->embedding(at->stream, out->residual, batch->tokens, params[GPT2_WTE],
                           params[GPT2_WPE], batch->rows, batch->positions, at->channels,
                           (size_t)at->model->vocab);
    half_of(at)->layernorm(at->stream, out->ln, out->mean, out->rstd, out->residual,
                           params[out->norm], params[out->norm + 1], at->rows, at->channels);
}

static void embed_grad(const gpt2_walk *at, float *dwte, float *dwpe) {
    const gs_batch *batch = at->pass->batch;
    half_of(at)->embedding_backward(at->stream, dwte, dwpe, at->model->d_residual, batch->tokens,
                                    batch->rows, batch->positions, at->channels,
                                    (size_t)at->model->vocab, at->pass->accumulate);
}

static void add_branch(const gpt2_walk *at, const gpt2_joint *out, const void *residual,
                       const void *x, gpt2_weights by, const gs_matmul *shape) {
    void *const *params = at->pass->params, *branch = at->model->branch;
    if (at->model->residual_in_product) {
        gs_half_matmul sum = {*shape, GS_EPILOGUE_BIAS, .bias = by.bias, .residual = residual};
        half_of(at)->matmul(at->stream, out->residual, x, by.weight, &sum);
        half_of(at)->layernorm(at->stream, out->ln, out->mean, out->rstd, out->residual,
                               params[out->norm], params[out->norm + 1], at->rows, at->channels);
        return;
    }
    linear(at, branch, x, by, shape);
    half_of(at)->residual_layernorm(at->stream, out->residual, out->ln, out->mean, out->rstd,
                                    residual, branch, params[out->norm], params[out->norm + 1],
                                    at->rows, at->channels);
}

static void norm_grad(const gpt2_walk *at, const gpt2_joint *of, const void *dy, bool first) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    half_of(at)->layernorm_backward(at->stream, model->d_residual, gpt2_norm_grad(at, of, 0),
                                    gpt2_norm_grad(at, of, 1), model->ln_scratch, dy, of->residual,
                                    pass->params[of->norm], of->mean, of->rstd, at->rows,
                                    at->channels, first, pass->accumulate);
}

static const float *residual_grad(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    at->kernels->cast(at->stream, model->d_wide, GS_FP32, model->d_residual, model->dtype, 1.0f,
                      at->rows * at->channels);
    return model->d_wide;
}

static void attend(const gpt2_walk *at, const gpt2_layer *layer, const gs_attention *shape) {
    half_of(at)->attention(at->stream, layer->attn, layer->logsumexp, layer->qkv, shape);
}

static void attend_grad(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer,
                        const gs_attention *shape) {
    half_of(at)->attention_backward(at->stream, dqkv, dout, layer->qkv, layer->attn,
                                    layer->logsumexp, shape);
}

static void lose(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    half_of(at)->softmax_loss(at->stream, model->losses, model->logits, NULL,
                              at->pass->batch->targets, at->rows, (size_t)model->vocab,
                              model->logits_stride, 1.0f, at->pass->training);
}

static gs_status download_logits(const gpt2 *model, size_t count) {
    GS_TRY(gs_device_download(model->device, model->host_half, model->logits,
                              count * sizeof *model->host_half));
    for (size_t i = 0; i < count; i++)
        model->host_logits[i] = model->dtype == GS_BF16 ? gs_bf16_to_fp32(model->host_half[i])
                                                        : gs_fp16_to_fp32(model->host_half[i]);
    return gs_ok();
}

// Tensor cores take 16-bit rows by eights, and a product whose extents are none runs without them.
const gpt2_arithmetic gpt2_half = {
    .vocab_multiple = 8,
    .sums_losses = true,
    .multiply = multiply,
    .multiply_grad = multiply_grad,
    .bias_grad = bias_grad,
    .linear_grads = linear_grads,
    .linear = linear,
    .linear_gelu = linear_gelu,
    .gelu_grad = gelu_grad,
    .embed = embed,
    .embed_grad = embed_grad,
    .add_branch = add_branch,
    .norm_grad = norm_grad,
    .residual_grad = residual_grad,
    .attend = attend,
    .attend_grad = attend_grad,
    .lose = lose,
    .download_logits = download_logits,
};
