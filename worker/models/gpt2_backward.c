// Backward: each gradient is marked ready right after the kernel that finishes it, and weights come
// before inputs, so that a bucket starts as early as it can. The tied embedding is last: its
// classifier half is there first, its embedding half at the very end. With a sink for rows the
// embedding half goes there, and the classifier half is ready first of all.
//
// The order of readiness: ln_f; then from the last layer to the first mlp.c_proj, c_fc, ln_2,
// attn.c_proj, c_attn, ln_1; then wpe, wte. Layers left out are skipped before that.
#include "worker/models/gpt2_steps.h"

static void mark_ready(const gpt2_walk *at, size_t param) {
    if (at->pass->ready && at->pass->grads[param]) at->pass->ready(at->pass->ready_ctx, param);
}

// Backward reads these two no more.
static void release_pair(const gpt2_walk *at, size_t first) {
    const gs_model_pass *pass = at->pass;
    if (!pass->released) return;
    pass->released(pass->released_ctx, first);
    pass->released(pass->released_ctx, first + 1);
}

// Weight and bias of a linear layer. Where the bias comes with the product the weight is ready no earlier.
static gs_status backward_weight(const gpt2_walk *at, size_t weight, const void *dy, const void *x,
                                 size_t num_in, size_t num_out) {
    if (at->model->bias_grad_in_product && at->pass->grads[weight] && at->pass->grads[weight + 1]) {
        GS_TRY(gs_model_writes(at->pass, weight));
        GS_TRY(gs_model_writes(at->pass, weight + 1));
        gpt2_linear_grads(at, weight, dy, x, num_in, num_out);
        mark_ready(at, weight);
        mark_ready(at, weight + 1);
        return gs_ok();
    }
    if (at->pass->grads[weight]) {
        GS_TRY(gs_model_writes(at->pass, weight));
        gpt2_weight_grad(at, weight, dy, x, num_in, num_out);
        mark_ready(at, weight);
    }
    if (!at->pass->grads[weight + 1]) return gs_ok();
    GS_TRY(gs_model_writes(at->pass, weight + 1));
    at->math->bias_grad(at, at->pass->grads[weight + 1], dy, num_out);
    mark_ready(at, weight + 1);
    return gs_ok();
}

static gs_status backward_norm(const gpt2_walk *at, gpt2_joint of, const void *dy, bool first) {
    GS_TRY(gs_model_writes(at->pass, of.norm));
    GS_TRY(gs_model_writes(at->pass, of.norm + 1));
    at->math->norm_grad(at, &of, dy, first);
    release_pair(at, of.norm);
    mark_ready(at, of.norm);
    mark_ready(at, of.norm + 1);
    return gs_ok();
}

static gs_status backward_layer(const gpt2_walk *at, int64_t index) {
    const gpt2 *model = at->model;
    const gpt2_layer *layer = &model->layer[index];
    size_t C = at->channels, first = gpt2_layer_param(index, 0);
    void *dres = model->d_residual, *wide = model->d_wide, *narrow = model->d_narrow;
    gpt2_joint middle = {layer->residual_mid, layer->ln_2, layer->mean_2, layer->rstd_2,
                         first + GPT2_LN_2};
    gpt2_joint begin = {layer->residual_in, layer->ln_1, layer->mean_1, layer->rstd_1,
                        first + GPT2_LN_1};

    GS_TRY(backward_weight(at, first + GPT2_MLP_PROJ, dres, layer->gelu, 4 * C, C));
    gpt2_input_gelu_grad(at, wide, dres, first + GPT2_MLP_PROJ, layer->fc, 4 * C, C);
    release_pair(at, first + GPT2_MLP_PROJ);
    GS_TRY(backward_weight(at, first + GPT2_C_FC, wide, layer->ln_2, C, 4 * C));
    gpt2_input_grad(at, narrow, wide, first + GPT2_C_FC, C, 4 * C);
    release_pair(at, first + GPT2_C_FC);
    GS_TRY(backward_norm(at, middle, narrow, false));

    GS_TRY(backward_weight(at, first + GPT2_ATTN_PROJ, dres, layer->attn, C, C));
    gpt2_input_grad(at, narrow, dres, first + GPT2_ATTN_PROJ, C, C);
    release_pair(at, first + GPT2_ATTN_PROJ);
    gpt2_attend_grad(at, wide, narrow, layer);
    GS_TRY(backward_weight(at, first + GPT2_C_ATTN, wide, layer->ln_1, C, 3 * C));
    gpt2_input_grad(at, narrow, wide, first + GPT2_C_ATTN, C, 3 * C);
    release_pair(at, first + GPT2_C_ATTN);
    return backward_norm(at, begin, narrow, false);
}

static gs_status backward_classifier(const gpt2_walk *at) {
    const gpt2 *model = at->model;
    gpt2_joint end = {model->residual_out, model->ln_f, model->mean_f, model->rstd_f,
                      gpt2_final_norm(model)};
    if (at->pass->grads[GPT2_WTE]) {
        GS_TRY(gs_model_writes(at->pass, GPT2_WTE));
        gpt2_classifier_weight_grad(at);
    }
    if (at->pass->sparse) mark_ready(at, GPT2_WTE);
    gpt2_classifier_input_grad(at);
    return backward_norm(at, end, model->d_narrow, true);
}

static gs_status backward_embedding(const gpt2_walk *at) {
    const gs_model_pass *pass = at->pass;
    const gs_batch *batch = pass->batch;
    const gs_row_sink *sink = pass->sparse;
    size_t C = at->channels, context = (size_t)at->model->context;
    // Of frozen positions it goes where nobody reads.
    float *dwpe = pass->grads[GPT2_WPE] ? pass->grads[GPT2_WPE] : at->model->d_wide;
    GS_TRY(gs_model_writes(at->pass, GPT2_WPE));
    // Positions that this pass does not have.
    if (pass->grads[GPT2_WPE] && !pass->accumulate && batch->positions < context)
        at->kernels->fill(at->stream, dwpe + batch->positions * C, 0.0f,
                          (context - batch->positions) * C);
    at->math->embed_grad(at, sink ? NULL : pass->grads[GPT2_WTE], dwpe);
    release_pair(at, GPT2_WTE);
    mark_ready(at, GPT2_WPE);
    if (sink)
        sink->add(sink->ctx, GPT2_WTE, batch->tokens, at->math->residual_grad(at), at->rows);
    else
        mark_ready(at, GPT2_WTE);
    return gs_ok();
}

// Parameters of the layers that forward left out.
static gs_status skip_layers(const gpt2_walk *at) {
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
            if (!pass->grads[param]) continue;
            if (pass->skipped) {
                pass->skipped(pass->skipped_ctx, param);
            } else if (!pass->accumulate) {
                GS_TRY(gs_model_writes(at->pass, param));
                at->kernels->fill(at->stream, pass->grads[param], 0.0f,
                                  gs_param_spec_count(&model->params[param].spec));
            }
        }
    }
    return gs_ok();
}

// Layers in front of it, and the embedding, are all frozen: backward ends there. -1: the embedding trains.
static int64_t first_layer_that_trains(const gpt2_walk *at) {
    const gs_model_pass *pass = at->pass;
    if (gs_model_trains(pass, GPT2_WPE, 1) || gs_model_trains(pass, GPT2_WTE, 1)) return -1;
    int64_t layer = 0;
    while (layer < at->model->layers &&
           !gs_model_trains(pass, gpt2_layer_param(layer, 0), GPT2_LAYER_PARAMS))
        layer++;
    return layer;
}

gs_status gpt2_backward(void *state, gs_model_pass *pass) {
    gpt2 *model = state;
    GS_TRY(gpt2_check_batch(model, pass->batch));
    if (!model->has_dlogits)
        return gs_error(GS_FAILED_PRECONDITION,
                        "gpt2: backward without a training forward before it");
    gpt2_walk at = gpt2_walk_make(model, pass);
    if (pass->sparse)
        pass->sparse->touch(pass->sparse->ctx, GPT2_WTE, pass->batch->tokens, at.rows);
    GS_TRY(skip_layers(&at));
    GS_TRY(backward_classifier(&at));
    int64_t first = first_layer_that_trains(&at);
    for (int64_t i = model->num_kept - 1; i >= 0 && model->kept[i] >= first; i--)
        GS_TRY(backward_layer(&at, model->kept[i]));
    return first < 0 ? backward_embedding(&at) : gs_ok();
}
