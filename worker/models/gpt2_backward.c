// Backward: each gradient is marked ready right after the kernel that finishes it, and weights come
// before inputs, so that a bucket starts as early as it can. The tied embedding is last: its
// classifier half is there first, its embedding half at the very end. With a sink for rows the embedding
// half goes there, and the classifier half is ready first of all.
//
// The order of readiness: ln_f; then from the last layer to the first mlp.c_proj, c_fc, ln_2,
// attn.c_proj, c_attn, ln_1; then wpe, wte. Layers left out are skipped before that.
#include "worker/models/gpt2.h"

typedef struct walk {
    const gpt2 *model;
    const gs_model_pass *pass;
    const gs_kernels *kernels;
    gs_stream *stream;
    size_t rows; // sequences · positions
} walk;

static void mark_ready(const walk *at, size_t param) {
    if (at->pass->ready) at->pass->ready(at->pass->ready_ctx, param);
}

// Weight and bias of a linear layer: dW (out, in) from dy (rows, out) and x (rows, in).
static void backward_weight(const walk *at, size_t weight, const float *dy, const float *x,
                            size_t num_in, size_t num_out) {
    gs_matmul shape = {.transpose_a = true,
                       .m = num_out,
                       .n = num_in,
                       .k = at->rows,
                       .alpha = 1.0f,
                       .beta = at->pass->accumulate ? 1.0f : 0.0f};
    at->kernels->matmul(at->stream, at->pass->grads[weight], dy, x, &shape);
    mark_ready(at, weight);
    at->kernels->bias_backward(at->stream, at->pass->grads[weight + 1], dy, at->rows, num_out,
                               at->pass->accumulate);
    mark_ready(at, weight + 1);
}

// dx (rows, in) = dy (rows, out) · W
static void backward_input(const walk *at, float *dx, const float *dy, size_t weight, size_t num_in,
                           size_t num_out) {
    gs_matmul shape = {.m = at->rows, .n = num_in, .k = num_out, .alpha = 1.0f};
    at->kernels->matmul(at->stream, dx, dy, at->pass->params[weight], &shape);
}

// Adds into the gradient of the residual stream.
static void backward_norm(const walk *at, size_t weight, const float *dy, const float *x,
                          const float *mean, const float *rstd) {
    const gpt2 *model = at->model;
    at->kernels->layernorm_backward(at->stream, model->d_residual, at->pass->grads[weight],
                                    at->pass->grads[weight + 1], model->ln_scratch, dy, x,
                                    at->pass->params[weight], mean, rstd, at->rows,
                                    (size_t)model->channels, at->pass->accumulate);
    mark_ready(at, weight);
    mark_ready(at, weight + 1);
}

static void backward_layer(const walk *at, int64_t index) {
    const gpt2 *model = at->model;
    const gpt2_layer *layer = &model->layer[index];
    size_t C = (size_t)model->channels, first = gpt2_layer_param(index, 0);
    float *dres = model->d_residual, *wide = model->d_wide, *narrow = model->d_narrow;
    gs_attention attention = {.batch = at->pass->batch->rows,
                              .positions = at->pass->batch->positions,
                              .heads = (size_t)model->heads,
                              .head_channels = C / (size_t)model->heads};

    backward_weight(at, first + GPT2_MLP_PROJ, dres, layer->gelu, 4 * C, C);
    backward_input(at, wide, dres, first + GPT2_MLP_PROJ, 4 * C, C);
    at->kernels->gelu_backward(at->stream, wide, wide, layer->fc, at->rows * 4 * C);
    backward_weight(at, first + GPT2_C_FC, wide, layer->ln_2, C, 4 * C);
    backward_input(at, narrow, wide, first + GPT2_C_FC, C, 4 * C);
    backward_norm(at, first + GPT2_LN_2, narrow, layer->residual_mid, layer->mean_2, layer->rstd_2);

    backward_weight(at, first + GPT2_ATTN_PROJ, dres, layer->attn, C, C);
    backward_input(at, narrow, dres, first + GPT2_ATTN_PROJ, C, C);
    at->kernels->attention_backward(at->stream, wide, narrow, layer->qkv, layer->attn,
                                    layer->logsumexp, &attention);
    backward_weight(at, first + GPT2_C_ATTN, wide, layer->ln_1, C, 3 * C);
    backward_input(at, narrow, wide, first + GPT2_C_ATTN, C, 3 * C);
    backward_norm(at, first + GPT2_LN_1, narrow, layer->residual_in, layer->mean_1, layer->rstd_1);
}

// logits hold d mean loss / d logits; grad_factor scales everything from here on, since all is
// linear.
static void backward_classifier(const walk *at) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    size_t C = (size_t)model->channels, V = (size_t)model->vocab;
    gs_matmul weight = {.transpose_a = true,
                        .m = V,
                        .n = C,
                        .k = at->rows,
                        .stride_a = model->logits_stride,
                        .alpha = pass->grad_factor,
                        .beta = pass->accumulate ? 1.0f : 0.0f};
    at->kernels->matmul(at->stream, pass->grads[GPT2_WTE], model->logits, model->ln_f, &weight);
    gs_matmul input = {.m = at->rows,
                       .n = C,
                       .k = V,
                       .stride_a = model->logits_stride,
                       .alpha = pass->grad_factor};
    if (pass->sparse) mark_ready(at, GPT2_WTE);
    at->kernels->matmul(at->stream, model->d_narrow, model->logits, pass->params[GPT2_WTE], &input);
}

static void backward_embedding(const walk *at) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    const gs_batch *batch = pass->batch;
    size_t C = (size_t)model->channels, context = (size_t)model->context;
    float *dwpe = pass->grads[GPT2_WPE];
    if (!pass->accumulate && batch->positions < context) // positions that this pass does not have
        at->kernels->fill(at->stream, dwpe + batch->positions * C, 0.0f,
                          (context - batch->positions) * C);
    const gs_row_sink *sink = pass->sparse;
    at->kernels->embedding_backward(at->stream, sink ? NULL : pass->grads[GPT2_WTE], dwpe,
                                    model->d_residual, batch->tokens, batch->rows,
                                    batch->positions, C, (size_t)model->vocab, pass->accumulate);
    mark_ready(at, GPT2_WPE);
    if (sink) sink->add(sink->ctx, GPT2_WTE, batch->tokens, model->d_residual, at->rows);
    else mark_ready(at, GPT2_WTE);
}

// Parameters of the layers that forward left out.
static void skip_layers(const walk *at) {
    const gpt2 *model = at->model;
    const gs_model_pass *pass = at->pass;
    int64_t next_kept = 0;
    for (int64_t layer = 0; layer < model->layers; layer++) {
        if (next_kept < model->num_kept && model->kept[next_kept] == layer) {
            next_kept++;
            continue;
        }
        for (int i = 0; i < GPT2_LAYER_PARAMS; i++) {
            size_t param = gpt2_layer_param(layer, i);
            if (pass->skipped)
                pass->skipped(pass->skipped_ctx, param);
            else if (!pass->accumulate)
                at->kernels->fill(at->stream, pass->grads[param], 0.0f,
                                  gs_param_spec_count(&model->params[param].spec));
        }
    }
}

gs_status gpt2_backward(void *state, gs_model_pass *pass) {
    gpt2 *model = state;
    GS_TRY(gpt2_check_batch(model, pass->batch));
    if (!model->has_dlogits)
        return gs_error(GS_FAILED_PRECONDITION,
                        "gpt2: backward without a training forward before it");
    walk at = {.model = model,
               .pass = pass,
               .kernels = gs_device_kernels(model->device),
               .stream = gs_device_stream(model->device),
               .rows = pass->batch->rows * pass->batch->positions};

    if (pass->sparse)
        pass->sparse->touch(pass->sparse->ctx, GPT2_WTE, pass->batch->tokens, at.rows);
    skip_layers(&at);
    backward_classifier(&at);
    at.kernels->fill(at.stream, model->d_residual, 0.0f, at.rows * (size_t)model->channels);
    backward_norm(&at, gpt2_final_norm(model), model->d_narrow, model->residual_out, model->mean_f,
                  model->rstd_f);
    for (int64_t i = model->num_kept - 1; i >= 0; i--) backward_layer(&at, model->kept[i]);
    backward_embedding(&at);
    return gs_ok();
}
