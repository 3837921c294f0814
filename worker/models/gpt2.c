// GPT-2: pre-norm transformer, learned positions, tanh GELU, classifier tied to the token
// embedding, no dropout. Parameters, their first values, memory; the passes are in gpt2_forward.c
// and gpt2_backward.c, made of gpt2_steps.h, in the arithmetic of gpt2_fp32.c or gpt2_half.c.
//
// Source: Radford et al. 2019; names as in nanoGPT without "transformer.", linear weights (out,
// in).
#include "worker/models/gpt2.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/memory.h"
#include "core/random.h"
#include "kernels/choice.h"
#include "worker/models/registry.h"

#define INIT_DEVIATION 0.02f
#define MAX_LAYERS 256
// Matrix products count in int: 4·C columns, and logits in rows of vocab rounded up.
#define MAX_SIZE INT32_MAX
#define MAX_CHANNELS (INT32_MAX / 4)
#define MAX_VOCAB (INT32_MAX - 8)

static void set_param(gpt2 *model, size_t at, int64_t rows, int64_t cols, const char *prefix,
                      int64_t layer, const char *name) {
    gs_model_param *param = &model->params[at];
    if (layer >= 0)
        param->spec =
            gs_param_spec_make(GS_FP32, rows, cols, "%s.%lld.%s", prefix, (long long)layer, name);
    else
        param->spec = gs_param_spec_make(GS_FP32, rows, cols, "%s.%s", prefix, name);
    param->decays = cols > 0;
    param->opens_early = at == GPT2_WTE;  // the classifier writes it first, the embedding last
}

static void list_params(gpt2 *model) {
    int64_t C = model->channels;
    const struct {
        int which;
        const char *weight, *bias;
        int64_t rows, cols;  // cols 0: a norm
    } kinds[] = {
        {GPT2_LN_1, "ln_1.weight", "ln_1.bias", C, 0},
        {GPT2_C_ATTN, "attn.c_attn.weight", "attn.c_attn.bias", 3 * C, C},
        {GPT2_ATTN_PROJ, "attn.c_proj.weight", "attn.c_proj.bias", C, C},
        {GPT2_LN_2, "ln_2.weight", "ln_2.bias", C, 0},
        {GPT2_C_FC, "mlp.c_fc.weight", "mlp.c_fc.bias", 4 * C, C},
        {GPT2_MLP_PROJ, "mlp.c_proj.weight", "mlp.c_proj.bias", C, 4 * C},
    };
    set_param(model, GPT2_WTE, model->vocab, C, "wte", -1, "weight");
    set_param(model, GPT2_WPE, model->context, C, "wpe", -1, "weight");
    for (int64_t layer = 0; layer < model->layers; layer++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            size_t at = gpt2_layer_param(layer, kinds[k].which);
            set_param(model, at, kinds[k].rows, kinds[k].cols, "h", layer, kinds[k].weight);
            set_param(model, at + 1, kinds[k].rows, 0, "h", layer, kinds[k].bias);
        }
    set_param(model, gpt2_final_norm(model), C, 0, "ln_f", -1, "weight");
    set_param(model, gpt2_final_norm(model) + 1, C, 0, "ln_f", -1, "bias");
}

// (rows, cols) of the model's type.
#define ADD_TENSOR(model, place, rows, cols)                                                       \
    gs_tensor_block_add_of(&(model)->block, &(place), (model)->dtype, rows, cols)

static void list_layer_tensors(gpt2 *model, gpt2_layer *layer, size_t N, size_t C) {
    gs_tensor_block *block = &model->block;
    ADD_TENSOR(model, layer->residual_in, N, C);
    ADD_TENSOR(model, layer->ln_1, N, C);
    gs_tensor_block_add(block, &layer->mean_1, N, 1);
    gs_tensor_block_add(block, &layer->rstd_1, N, 1);
    ADD_TENSOR(model, layer->qkv, N, 3 * C);
    gs_tensor_block_add(block, &layer->logsumexp, N, (size_t)model->heads);
    ADD_TENSOR(model, layer->attn, N, C);
    ADD_TENSOR(model, layer->residual_mid, N, C);
    ADD_TENSOR(model, layer->ln_2, N, C);
    gs_tensor_block_add(block, &layer->mean_2, N, 1);
    gs_tensor_block_add(block, &layer->rstd_2, N, 1);
    ADD_TENSOR(model, layer->fc, N, 4 * C);
    ADD_TENSOR(model, layer->gelu, N, 4 * C);
}

static gs_status alloc_activations(gpt2 *model) {
    gs_tensor_block *block = &model->block;
    size_t N = model->max_rows * model->max_positions, C = (size_t)model->channels;
    for (int64_t i = 0; i < model->layers; i++) list_layer_tensors(model, &model->layer[i], N, C);
    ADD_TENSOR(model, model->residual_out, N, C);
    ADD_TENSOR(model, model->ln_f, N, C);
    gs_tensor_block_add(block, &model->mean_f, N, 1);
    gs_tensor_block_add(block, &model->rstd_f, N, 1);
    ADD_TENSOR(model, model->logits, N, model->logits_stride);
    gs_tensor_block_add(block, &model->losses, N, 1);
    ADD_TENSOR(model, model->branch, N, C);
    ADD_TENSOR(model, model->d_residual, N, C);
    ADD_TENSOR(model, model->d_wide, N, 4 * C);
    ADD_TENSOR(model, model->d_narrow, N, C);
    gs_tensor_block_add(block, &model->ln_scratch, 2 * 64, C);
    GS_TRY(gs_tensor_block_alloc(block, model->device, "gpt2 activations"));

    size_t num_logits = model->max_rows * (size_t)model->vocab;
    model->host_losses = calloc(N, sizeof *model->host_losses);
    model->host_logits = calloc(num_logits, sizeof *model->host_logits);
    if (model->half) model->host_half = calloc(num_logits, sizeof *model->host_half);
    if (!model->host_losses || !model->host_logits || (model->half && !model->host_half))
        return gs_error(GS_RESOURCE_EXHAUSTED, "gpt2: out of memory");
    return gs_ok();
}

static const gs_model_param *list_of_params(void *state, size_t *num_params) {
    const gpt2 *model = state;
    *num_params = model->num_params;
    return model->params;
}

static const gs_param_spec *list_of_buffers(void *state, size_t *num_buffers) {
    (void)state;
    *num_buffers = 0;
    return NULL;
}

// Norm weights one, biases zero, matrices normal; what writes into the residual stream starts
// smaller.
static void draw_param(const gpt2 *model, size_t at, float *values, uint64_t seed) {
    const gs_param_spec *spec = &model->params[at].spec;
    size_t count = gs_param_spec_count(spec);
    bool is_bias = strstr(spec->name, ".bias") != NULL;
    if (spec->num_dims == 1) {
        for (size_t i = 0; i < count; i++) values[i] = is_bias ? 0.0f : 1.0f;
        return;
    }
    float deviation = INIT_DEVIATION;
    if (strstr(spec->name, "c_proj.weight")) deviation /= sqrtf(2.0f * (float)model->layers);
    gs_random_key key = {seed, gs_hash64(spec->name, strlen(spec->name), 0)};
    gs_random_fill_normal(values, count, key, 0, 0.0f, deviation);
}

static gs_status init_params(void *state, void *const *params, void *const *buffers,
                             uint64_t seed) {
    (void)buffers;
    gpt2 *model = state;
    size_t largest = 0;
    for (size_t i = 0; i < model->num_params; i++) {
        size_t bytes = gs_param_spec_bytes(&model->params[i].spec);
        if (bytes > largest) largest = bytes;
    }
    float *values = malloc(largest);
    if (!values) return gs_error(GS_RESOURCE_EXHAUSTED, "gpt2: out of memory");
    gs_status status = gs_ok();
    for (size_t i = 0; i < model->num_params && !status.code; i++) {
        draw_param(model, i, values, seed);
        status = gs_device_upload(model->device, params[i], values,
                                  gs_param_spec_bytes(&model->params[i].spec));
    }
    free(values);
    return status;
}

gs_status gpt2_check_batch(const gpt2 *model, const gs_batch *batch) {
    if (!batch || !batch->tokens)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: the batch has no tokens");
    if (batch->rows < 1 || batch->rows > model->max_rows)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: a batch of %zu rows, made for 1 to %zu",
                        batch->rows, model->max_rows);
    if (batch->positions < 1 || batch->positions > model->max_positions)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: %zu positions, made for 1 to %zu",
                        batch->positions, model->max_positions);
    return gs_ok();
}

static size_t activation_bytes(void *state) {
    const gpt2 *model = state;
    return model->block.bytes;
}

// Weight products 6 flops for each weight and token, causal attention half a square; of a full
// sample.
static double flops_per_sample(void *state) {
    const gpt2 *model = state;
    double L = (double)model->layers, C = (double)model->channels, V = (double)model->vocab;
    double T = (double)model->max_positions;
    return 6.0 * (12.0 * L * C * C + V * C) * T + 6.0 * L * C * T * T;
}

// layer_drop draws its layers anew in each step.
static bool repeats(void *state, const gs_model_pass *pass) {
    (void)pass;
    const gpt2 *model = state;
    return model->layer_drop.probability <= 0;
}

static void destroy_model(void *state) {
    gpt2 *model = state;
    if (!model) return;
    gs_tensor_block_release(&model->block);
    free(model->layer);
    free(model->kept);
    free(model->params);
    free(model->host_losses);
    free(model->host_logits);
    free(model->host_half);
    free(model);
}

static const gs_model_ops gpt2_ops = {
    .name = "gpt2",
    .params = list_of_params,
    .buffers = list_of_buffers,
    .init = init_params,
    .forward = gpt2_forward,
    .backward = gpt2_backward,
    .predict = gpt2_predict,
    .activation_bytes = activation_bytes,
    .flops_per_sample = flops_per_sample,
    .repeats = repeats,
    .destroy = destroy_model,
};

static gs_status check_options(const gs_gpt2_options *options) {
    const struct {
        const char *name;
        int64_t value, most;
    } limits[] = {
        {"layers", options->layers, MAX_LAYERS},
        {"heads", options->heads, MAX_SIZE},
        {"channels", options->channels, MAX_CHANNELS},
        {"context", options->context, MAX_SIZE},
        {"vocab", options->vocab, MAX_VOCAB},
        {"micro_batch", options->micro_batch, MAX_SIZE},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < 1 || limits[i].value > limits[i].most)
            return gs_error(GS_INVALID_ARGUMENT, "gpt2: %s is %lld, wanted 1 to %lld",
                            limits[i].name, (long long)limits[i].value, (long long)limits[i].most);
    if (options->channels % options->heads)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: %lld channels do not divide among %lld heads",
                        (long long)options->channels, (long long)options->heads);
    if (options->positions < 0 || options->positions > options->context)
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: %lld positions in a context of %lld",
                        (long long)options->positions, (long long)options->context);
    if (!(options->layer_drop >= 0 && options->layer_drop < 1))
        return gs_error(GS_INVALID_ARGUMENT, "gpt2: layer_drop is %g, wanted 0 to below 1",
                        options->layer_drop);
    return gs_ok();
}

static gs_status choose_type(gpt2 *model, gs_dtype dtype) {
    model->dtype = dtype == GS_DTYPE_UNSET ? GS_FP32 : dtype;
    model->math = model->dtype == GS_FP32 ? &gpt2_fp32 : &gpt2_half;
    if (model->dtype == GS_FP32) return gs_ok();
    model->residual_in_product =
        gs_device_chooses(model->device, GS_CHOICE_RESIDUAL_IN_PRODUCT);
    model->bias_grad_in_product =
        gs_device_chooses(model->device, GS_CHOICE_BIAS_GRAD_IN_PRODUCT);
    model->half = gs_device_half_kernels(model->device, dtype);
    if (model->half) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "gpt2: device %s has no kernels of %s",
                    gs_device_name(model->device), gs_dtype_name(dtype));
}

gs_status gs_gpt2_create(gs_model *out, const gs_gpt2_options *options, gs_device *device) {
    GS_TRY(check_options(options));
    gpt2 *model = calloc(1, sizeof *model);
    if (!model) return gs_error(GS_RESOURCE_EXHAUSTED, "gpt2: out of memory");
    model->device = device;
    model->layers = options->layers;
    model->heads = options->heads;
    model->channels = options->channels;
    model->context = options->context;
    model->vocab = options->vocab;
    model->layer_drop = (gs_layer_drop){options->layer_drop, options->seed};
    model->max_rows = (size_t)options->micro_batch;
    model->max_positions = (size_t)(options->positions ? options->positions : options->context);
    model->logits_stride = gs_round_up((size_t)options->vocab, 8);
    model->num_params = gpt2_final_norm(model) + 2;
    model->params = calloc(model->num_params, sizeof *model->params);
    model->layer = calloc((size_t)model->layers, sizeof *model->layer);
    model->kept = calloc((size_t)model->layers, sizeof *model->kept);
    gs_status status = choose_type(model, options->dtype);
    if (!status.code && (!model->params || !model->layer || !model->kept))
        status = gs_error(GS_RESOURCE_EXHAUSTED, "gpt2: out of memory");
    if (!status.code) {
        list_params(model);
        status = alloc_activations(model);
    }
    if (status.code) {
        destroy_model(model);
        return status;
    }
    *out = (gs_model){.ops = &gpt2_ops, .state = model, .dtype = model->dtype};
    return gs_ok();
}
