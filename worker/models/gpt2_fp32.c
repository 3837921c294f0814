#include "worker/models/gpt2_arithmetic.h"

static void multiply(const gpt2_walk *at, void *c, const void *a, const void *b,
                     const gs_matmul *shape) {
    at->kernels->matmul(at->stream, c, a, b, shape);
}

static void multiply_grad(const gpt2_walk *at, float *grad, const void *dy, const void *x,
                          const gs_matmul *shape) {
    at->kernels->matmul(at->stream, grad, dy, x, shape);
}

static void bias_grad(const gpt2_walk *at, float *grad, const void *dy, size_t num_out) {
    at->kernels->bias_backward(at->stream, grad, dy, at->rows, num_out, at->pass->accumulate);
}

static void linear_grads(const gpt2_walk *at, float *dweight, float *dbias, const void *dy,
                         const void *x, const gs_matmul *shape) {
    multiply_grad(at, dweight, dy, x, shape);
    bias_grad(at, dbias, dy, shape->m);
}

static void linear(const gpt2_walk *at, void *y, const void *x, gpt2_weights by,
                   const gs_matmul *shape) {
    at->kernels->matmul(at->stream, y, x, by.weight, shape);
    at->kernels->bias_add(at->stream, y, by.bias, at->rows, shape->n);
}

static void linear_gelu(const gpt2_walk *at, void *gelu, void *fc, const void *x, gpt2_weights by,
                        const gs_matmul *shape) {
    at->kernels->matmul(at->stream, fc, x, by.weight, shape);
    at->kernels->bias_gelu(at->stream, gelu, fc, by.bias, at->rows, shape->n);
}

static void gelu_grad(const gpt2_walk *at, void *dx, const void *dy, const void *weight,
                      const void *fc, const gs_matmul *shape) {
    at->kernels->matmul(at->stream, dx, dy, weight, shape);
    at->kernels->gelu_backward(at->stream, dx, dx, fc, at->rows * shape->n);
}

static void embed(const gpt2_walk *at, const gpt2_joint *out) {
    const gs_batch *batch = at->pass->batch;
    void *const *params = at->pass->params;
    at->kernels->embedding(at->stream, out->residual, batch->tokens, params[GPT2_WTE],
                           params[GPT2_WPE], batch->rows, batch->positions, at->channels,
                           (size_t)at->model->vocab);
    at->kernels->layernorm(at->stream, out->ln, out->mean, out->rstd, out->residual,
                           params[out->norm], params[out->norm + 1], at->rows, at->channels);
}

static void embed_grad(const gpt2_walk *at, float *dwte, float *dwpe) {
    const gs_batch *batch = at->pass->batch;
    at->kernels->embedding_backward(at->stream, dwte, dwpe, at->model->d_residual, batch->tokens,
                                    batch->rows, batch->positions, at->channels,
                                    (size_t)at->model->vocab, at->pass->accumulate);
}

// The branch's bias is added on the way into the residual stream.
static void add_branch(const gpt2_walk *at, const gpt2_joint *out, const void *residual,
                       const void *x, gpt2_weights by, const gs_matmul *shape) {
    void *const *params = at->pass->params, *branch = at->model->branch;
    at->kernels->matmul(at->stream, branch, x, by.weight, shape);
    at->kernels->residual_layernorm(at->stream, out->residual, out->ln, out->mean, out->rstd,
                                    residual, branch, by.bias, params[out->norm],
                                    params[out->norm + 1], at->rows, at->channels);
}

static void norm_grad(const gpt2_walk *at, const gpt2_joint *of, const void *dy, bool first) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    if (first) at->kernels->fill(at->stream, model->d_residual, 0.0f, at->rows * at->channels);
    at->kernels->layernorm_backward(at->stream, model->d_residual, gpt2_norm_grad(at, of, 0),
                                    gpt2_norm_grad(at, of, 1), model->ln_scratch, dy, of->residual,
                                    pass->params[of->norm], of->mean, of->rstd, at->rows,
                                    at->channels, pass->accumulate);
}

static const float *residual_grad(const gpt2_walk *at) {
    return at->model->d_residual;
}

static void attend(const gpt2_walk *at, const gpt2_layer *layer, const gs_attention *shape) {
    at->kernels->attention(at->stream, layer->attn, layer->logsumexp, layer->qkv, shape);
}

static void attend_grad(const gpt2_walk *at, void *dqkv, const void *dout, const gpt2_layer *layer,
                        const gs_attention *shape) {
    at->kernels->attention_backward(at->stream, dqkv, dout, layer->qkv, layer->attn,
                                    layer->logsumexp, shape);
}

static void lose(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    at->kernels->softmax_loss(at->stream, model->losses, model->logits, NULL,
                              at->pass->batch->targets, at->rows, (size_t)model->vocab,
                              model->logits_stride, 1.0f / (float)at->rows, at->pass->training);
}

static gs_status download_logits(const gpt2 *model, size_t count) {
    return gs_device_download(model->device, model->host_logits, model->logits,
                              count * sizeof *model->host_logits);
}

const gpt2_arithmetic gpt2_fp32 = {
    .vocab_multiple = 1,
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
