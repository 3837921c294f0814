// Forward: what each layer computes and keeps. N = sequences · positions, C = channels, V = vocab.
#include "core/clock.h"
#include "worker/models/gpt2.h"

#define DEVICE_WAIT_SECONDS 600.0

// y (rows, out) = x (rows, in) · weightᵀ
static void apply_weight(const gpt2 *model, float *y, const float *x, const float *weight,
                         size_t rows, size_t num_in, size_t num_out) {
    gs_matmul shape = {.transpose_b = true, .m = rows, .n = num_out, .k = num_in, .alpha = 1.0f};
    gs_device_kernels(model->device)->matmul(gs_device_stream(model->device), y, x, weight, &shape);
}

// What a layer, or the embedding, hands on: the residual stream and its norm, which belongs to the next
// kept layer, or to the classifier.
typedef struct trunk_end {
    float *residual, *ln, *mean, *rstd;
    const float *weight, *bias;  // of the norm
} trunk_end;

static trunk_end end_before(const gpt2 *model, const gs_model_pass *pass, int64_t kept_index) {
    if (kept_index == model->num_kept) {
        size_t norm = gpt2_final_norm(model);
        return (trunk_end){model->residual_out, model->ln_f,         model->mean_f,
                           model->rstd_f,       pass->params[norm],  pass->params[norm + 1]};
    }
    const gpt2_layer *next = &model->layer[model->kept[kept_index]];
    size_t norm = gpt2_layer_param(model->kept[kept_index], GPT2_LN_1);
    return (trunk_end){next->residual_in, next->ln_1,         next->mean_1,
                       next->rstd_1,      pass->params[norm], pass->params[norm + 1]};
}

static void forward_layer(const gpt2 *model, int64_t index, const gs_model_pass *pass,
                          const trunk_end *out) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    const gpt2_layer *layer = &model->layer[index];
    void *const *w = pass->params + gpt2_layer_param(index, 0);
    size_t C = (size_t)model->channels, N = pass->batch->rows * pass->batch->positions;
    gs_attention attention = {.batch = pass->batch->rows,
                              .positions = pass->batch->positions,
                              .heads = (size_t)model->heads,
                              .head_channels = C / (size_t)model->heads};

    apply_weight(model, layer->qkv, layer->ln_1, w[GPT2_C_ATTN], N, C, 3 * C);
    k->bias_add(stream, layer->qkv, w[GPT2_C_ATTN + 1], N, 3 * C);
    k->attention(stream, layer->attn, layer->logsumexp, layer->qkv, &attention);
    apply_weight(model, model->branch, layer->attn, w[GPT2_ATTN_PROJ], N, C, C);
    k->residual_layernorm(stream, layer->residual_mid, layer->ln_2, layer->mean_2, layer->rstd_2,
                          layer->residual_in, model->branch, w[GPT2_ATTN_PROJ + 1], w[GPT2_LN_2],
                          w[GPT2_LN_2 + 1], N, C);
    apply_weight(model, layer->fc, layer->ln_2, w[GPT2_C_FC], N, C, 4 * C);
    k->bias_gelu(stream, layer->gelu, layer->fc, w[GPT2_C_FC + 1], N, 4 * C);
    apply_weight(model, model->branch, layer->gelu, w[GPT2_MLP_PROJ], N, 4 * C, C);
    k->residual_layernorm(stream, out->residual, out->ln, out->mean, out->rstd,
                          layer->residual_mid, model->branch, w[GPT2_MLP_PROJ + 1], out->weight,
                          out->bias, N, C);
}

static void choose_layers(gpt2 *model, const gs_model_pass *pass) {
    model->num_kept = 0;
    for (int64_t i = 0; i < model->layers; i++) {
        if (pass->training && gs_layer_drop_skips(&model->layer_drop, pass->step, pass->shard, i))
            continue;
        model->kept[model->num_kept++] = i;
    }
}

// Everything up to the final norm.
static void forward_trunk(gpt2 *model, const gs_model_pass *pass) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    const gs_batch *batch = pass->batch;
    size_t C = (size_t)model->channels, N = batch->rows * batch->positions;
    void *const *params = pass->params;
    choose_layers(model, pass);
    trunk_end end = end_before(model, pass, 0);

    k->embedding(stream, end.residual, batch->tokens, params[GPT2_WTE], params[GPT2_WPE],
                 batch->rows, batch->positions, C, (size_t)model->vocab);
    k->layernorm(stream, end.ln, end.mean, end.rstd, end.residual, end.weight, end.bias, N, C);
    for (int64_t i = 0; i < model->num_kept; i++) {
        end = end_before(model, pass, i + 1);
        forward_layer(model, model->kept[i], pass, &end);
    }
}

gs_status gpt2_forward(void *state, gs_model_pass *pass) {
    gpt2 *model = state;
    GS_TRY(gpt2_check_batch(model, pass->batch));
    if (!pass->batch->targets)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: the batch has no targets");
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    size_t N = pass->batch->rows * pass->batch->positions;
    size_t V = (size_t)model->vocab, C = (size_t)model->channels;

    model->has_dlogits = false;
    forward_trunk(model, pass);
    gs_matmul classifier = {.transpose_b = true,
                            .m = N,
                            .n = V,
                            .k = C,
                            .stride_c = model->logits_stride,
                            .alpha = 1.0f};
    k->matmul(stream, model->logits, model->ln_f, pass->params[GPT2_WTE], &classifier);
    // The gradient of the mean loss replaces the logits at once; grad_factor comes in by backward.
    k->softmax_loss(stream, model->losses, model->logits, NULL, pass->batch->targets, N, V,
                    model->logits_stride, 1.0f / (float)N, pass->training);
    GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(gs_device_download(model->device, model->host_losses, model->losses, N * sizeof(float)));

    double sum = 0.0;
    for (size_t i = 0; i < N; i++) sum += (double)model->host_losses[i];
    pass->loss = sum / (double)N;
    pass->num_correct = 0;
    model->has_dlogits = pass->training;
    return gs_ok();
}

gs_status gpt2_predict(void *state, gs_model_pass *pass, const float **logits,
                       size_t *num_classes) {
    gpt2 *model = state;
    GS_TRY(gpt2_check_batch(model, pass->batch));
    const gs_batch *batch = pass->batch;
    gs_stream *stream = gs_device_stream(model->device);
    size_t V = (size_t)model->vocab, C = (size_t)model->channels;

    model->has_dlogits = false;
    forward_trunk(model, pass);
    // Only the last position of each sequence: one row in every `positions`.
    gs_matmul classifier = {.transpose_b = true,
                            .m = batch->rows,
                            .n = V,
                            .k = C,
                            .stride_a = batch->positions * C,
                            .alpha = 1.0f};
    gs_device_kernels(model->device)
        ->matmul(stream, model->logits, model->ln_f + (batch->positions - 1) * C,
                 pass->params[GPT2_WTE], &classifier);
    GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(gs_device_download(model->device, model->host_logits, model->logits,
                              batch->rows * V * sizeof(float)));
    *logits = model->host_logits;
    *num_classes = V;
    return gs_ok();
}
