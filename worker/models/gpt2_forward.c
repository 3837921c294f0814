// Forward: what each layer computes and keeps. N = sequences · positions, C = channels, V = vocab.
#include "core/clock.h"
#include "worker/models/gpt2_steps.h"

#define DEVICE_WAIT_SECONDS 600.0

// What a layer, or the embedding, hands on: its norm belongs to the next kept layer, or to the classifier.
static gpt2_joint joint_before(const gpt2 *model, int64_t kept_index) {
    if (kept_index == model->num_kept)
        return (gpt2_joint){model->residual_out, model->ln_f, model->mean_f, model->rstd_f,
                            gpt2_final_norm(model)};
    const gpt2_layer *next = &model->layer[model->kept[kept_index]];
    return (gpt2_joint){next->residual_in, next->ln_1, next->mean_1, next->rstd_1,
                        gpt2_layer_param(model->kept[kept_index], GPT2_LN_1)};
}

static void forward_layer(const gpt2_walk *at, int64_t index, const gpt2_joint *out) {
    const gpt2_layer *layer = &at->model->layer[index];
    size_t C = at->channels, first = gpt2_layer_param(index, 0);
    gpt2_joint middle = {layer->residual_mid, layer->ln_2, layer->mean_2, layer->rstd_2,
                         first + GPT2_LN_2};

    gpt2_linear(at, layer->qkv, layer->ln_1, first + GPT2_C_ATTN, C, 3 * C);
    gpt2_attend(at, layer);
    gpt2_add_branch(at, &middle, layer->residual_in, layer->attn, first + GPT2_ATTN_PROJ, C);
    gpt2_linear_gelu(at, layer->gelu, layer->fc, layer->ln_2, first + GPT2_C_FC, C, 4 * C);
    gpt2_add_branch(at, out, layer->residual_mid, layer->gelu, first + GPT2_MLP_PROJ, 4 * C);
}

static void choose_layers(gpt2 *model, const gs_model_pass *pass) {
    model->num_kept = 0;
    for (int64_t i = 0; i < model->layers; i++) {
        if (pass->training && gs_layer_drop_skips(&model->layer_drop, pass->step, pass->shard, i))
            continue;
        model->kept[model->num_kept++] = i;
    }
}

// The weight and the bias of the norm at a joint, which stand behind each other as a layer's parameters do.
static gs_status read_norm(const gpt2_walk *at, const gpt2_joint *joint) {
    return gs_model_reads(at->pass, joint->norm, 2);
}

// Everything up to the final norm.
static gs_status forward_trunk(gpt2 *model, const gpt2_walk *at) {
    choose_layers(model, at->pass);
    gpt2_joint joint = joint_before(model, 0);
    GS_TRY(gs_model_reads(at->pass, GPT2_WTE, GPT2_FIRST_LAYER - GPT2_WTE));
    GS_TRY(read_norm(at, &joint));
    at->math->embed(at, &joint);
    for (int64_t i = 0; i < model->num_kept; i++) {
        size_t first = gpt2_layer_param(model->kept[i], 0);
        joint = joint_before(model, i + 1);
        GS_TRY(gs_model_reads(at->pass, first, gpt2_layer_param(model->kept[i] + 1, 0) - first));
        GS_TRY(read_norm(at, &joint));
        forward_layer(at, model->kept[i], &joint);
    }
    return gs_ok();
}

// The mean of the losses, either onto what the caller waits for or here and now.
static gs_status take_loss(const gpt2_walk *at, gs_model_pass *pass) {
    const gpt2 *model = at->model;
    pass->loss = 0.0;
    pass->num_correct = 0;
    if (pass->loss_sum) {
        at->kernels->add_mean(at->stream, pass->loss_sum, model->losses, at->rows);
        return gs_ok();
    }
    GS_TRY(gs_stream_wait(at->stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(gs_device_download(model->device, model->host_losses, model->losses,
                              at->rows * sizeof(float)));
    double sum = 0.0;
    for (size_t i = 0; i < at->rows; i++) sum += (double)model->host_losses[i];
    pass->loss = sum / (double)at->rows;
    return gs_ok();
}

gs_status gpt2_forward(void *state, gs_model_pass *pass) {
    gpt2 *model = state;
    GS_TRY(gpt2_check_batch(model, pass->batch));
    if (!pass->batch->targets)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: the batch has no targets");
    gpt2_walk at = gpt2_walk_make(model, pass);
    model->has_dlogits = false;
    GS_TRY(forward_trunk(model, &at));
    gpt2_classify(&at, at.rows, 0, 1, model->logits_stride);
    at.math->lose(&at);
    GS_TRY(take_loss(&at, pass));
    model->has_dlogits = pass->training;
    return gs_ok();
}

gs_status gpt2_predict(void *state, gs_model_pass *pass, const float **logits,
                       size_t *num_classes) {
    gpt2 *model = state;
    GS_TRY(gpt2_check_batch(model, pass->batch));
    const gs_batch *batch = pass->batch;
    gpt2_walk at = gpt2_walk_make(model, pass);
    size_t V = (size_t)model->vocab;
    model->has_dlogits = false;
    GS_TRY(forward_trunk(model, &at));
    // Only the last position of each sequence: one row in every `positions`.
    gpt2_classify(&at, batch->rows, batch->positions - 1, batch->positions, V);
    GS_TRY(gs_stream_wait(at.stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(at.math->download_logits(model, batch->rows * V));
    *logits = model->host_logits;
    *num_classes = V;
    return gs_ok();
}
