#include "rpc/schema/model_params.h"

#include <stdint.h>
#include <stdlib.h>

// What the models take at most; more layers, channels or dims never become a model.
#define MAX_LAYERS 256
#define MAX_CHANNELS (INT32_MAX / 4)
#define MLP_PARAMS_PER_LAYER 4
#define GPT2_LAYER_PARAMS 12
#define GPT2_OUTER_PARAMS 4

// A weight and, right behind it, its bias. Columns 0: a norm.
typedef struct weight_kind {
    const char *name;
    int64_t rows, cols;
} weight_kind;

static size_t list_gpt2_layer(gs_param_spec *params, int64_t layer, int64_t channels) {
    const weight_kind kinds[] = {
        {"ln_1", channels, 0},
        {"attn.c_attn", 3 * channels, channels},
        {"attn.c_proj", channels, channels},
        {"ln_2", channels, 0},
        {"mlp.c_fc", 4 * channels, channels},
        {"mlp.c_proj", channels, 4 * channels},
    };
    const size_t num_kinds = sizeof kinds / sizeof *kinds;
    for (size_t k = 0; k < num_kinds; k++) {
        params[2 * k] = gs_param_spec_make(GS_FP32, kinds[k].rows, kinds[k].cols, "h.%lld.%s.weight",
                                           (long long)layer, kinds[k].name);
        params[2 * k + 1] = gs_param_spec_make(GS_FP32, kinds[k].rows, 0, "h.%lld.%s.bias",
                                               (long long)layer, kinds[k].name);
    }
    return 2 * num_kinds;
}

static gs_status list_gpt2(gs_param_spec **params, size_t *num_params, const gs_job_spec *spec) {
    int64_t layers = spec->model.gpt2.layers, channels = spec->model.gpt2.channels;
    if (layers < 1 || layers > MAX_LAYERS)
        return gs_error(GS_INVALID_ARGUMENT, "model.gpt2.layers: %lld, wanted 1 to %d",
                        (long long)layers, MAX_LAYERS);
    if (channels < 1 || channels > MAX_CHANNELS)
        return gs_error(GS_INVALID_ARGUMENT, "model.gpt2.channels: %lld, wanted 1 to %d",
                        (long long)channels, MAX_CHANNELS);
    gs_param_spec *list = calloc((size_t)layers * GPT2_LAYER_PARAMS + GPT2_OUTER_PARAMS, sizeof *list);
    if (!list) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters of gpt2: out of memory");
    size_t count = 0;
    list[count++] = gs_param_spec_make(GS_FP32, spec->model.gpt2.vocab, channels, "wte.weight");
    list[count++] = gs_param_spec_make(GS_FP32, spec->model.gpt2.context, channels, "wpe.weight");
    for (int64_t layer = 0; layer < layers; layer++)
        count += list_gpt2_layer(&list[count], layer, channels);
    list[count++] = gs_param_spec_make(GS_FP32, channels, 0, "ln_f.weight");
    list[count++] = gs_param_spec_make(GS_FP32, channels, 0, "ln_f.bias");
    *params = list;
    *num_params = count;
    return gs_ok();
}

// A hidden layer with batch norm has no bias of its own: the norm's does its work.
static gs_status list_mlp(gs_param_spec **params, size_t *num_params, const gs_job_spec *spec) {
    const int64_t *dims = spec->model.mlp.dims;
    int num_layers = spec->model.mlp.num_dims - 1;
    if (num_layers < 1 || num_layers >= GS_SPEC_MAX_DIMS)
        return gs_error(GS_INVALID_ARGUMENT, "model.mlp.dims: %d of them, wanted 2 to %d",
                        num_layers + 1, GS_SPEC_MAX_DIMS);
    gs_param_spec *list = calloc((size_t)num_layers * MLP_PARAMS_PER_LAYER, sizeof *list);
    if (!list) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters of mlp: out of memory");
    size_t count = 0;
    for (int i = 1; i <= num_layers; i++) {
        bool has_norm = i < num_layers && spec->model.mlp.batch_norm != GS_BATCH_NORM_NONE;
        const char *vectors = has_norm ? "bn" : "fc";
        list[count++] = gs_param_spec_make(GS_FP32, dims[i], dims[i - 1], "fc%d.weight", i);
        if (has_norm) list[count++] = gs_param_spec_make(GS_FP32, dims[i], 0, "bn%d.weight", i);
        list[count++] = gs_param_spec_make(GS_FP32, dims[i], 0, "%s%d.bias", vectors, i);
    }
    *params = list;
    *num_params = count;
    return gs_ok();
}

gs_status gs_model_params_of_spec(gs_param_spec **params, size_t *num_params,
                                  const gs_job_spec *spec) {
    gs_param_spec *list = NULL;
    size_t count = 0;
    switch (spec->model.kind) {
    case GS_MODEL_GPT2: GS_TRY(list_gpt2(&list, &count, spec)); break;
    case GS_MODEL_MLP: GS_TRY(list_mlp(&list, &count, spec)); break;
    default: return gs_error(GS_INVALID_ARGUMENT, "model.kind: unknown");
    }
    static const gs_dtype dtypes[] = {[GS_PRECISION_FP32] = GS_FP32,
                                      [GS_PRECISION_BF16] = GS_BF16,
                                      [GS_PRECISION_FP16] = GS_FP16,
                                      [GS_PRECISION_TF32] = GS_FP32};
    for (size_t i = 0; i < count; i++) list[i].dtype = dtypes[spec->model.precision];
    gs_status status = gs_param_specs_check(list, count);
    if (status.code) {
        free(list);
        return status;
    }
    *params = list;
    *num_params = count;
    return gs_ok();
}
