#include "worker/checkpoint/model_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "rpc/checkpoint/safetensors.h"

// The four kinds of matrix that Hugging Face's GPT-2 keeps as Conv1D, (in, out).
static const char *const conv1d_names[] = {".attn.c_attn.weight", ".attn.c_proj.weight",
                                           ".mlp.c_fc.weight", ".mlp.c_proj.weight"};
#define NUM_CONV1D_NAMES (sizeof conv1d_names / sizeof *conv1d_names)

// What wrappers put before a name.
static const char *const wrapper_prefixes[] = {"_orig_mod.", "module.", "transformer."};
#define NUM_WRAPPER_PREFIXES (sizeof wrapper_prefixes / sizeof *wrapper_prefixes)

static const char *skip_wrappers(const char *name) {
    for (size_t i = 0; i < NUM_WRAPPER_PREFIXES;) {
        size_t len = strlen(wrapper_prefixes[i]);
        if (strncmp(name, wrapper_prefixes[i], len) == 0) {
            name += len;
            i = 0;
        } else {
            i++;
        }
    }
    return name;
}

static bool ends_with(const char *text, const char *end) {
    size_t len = strlen(text), end_len = strlen(end);
    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

static bool is_conv1d(const char *name) {
    for (size_t i = 0; i < NUM_CONV1D_NAMES; i++)
        if (ends_with(name, conv1d_names[i])) return true;
    return false;
}

static const gs_safetensor *find_tensor(const gs_safetensors *file, const char *name) {
    const gs_safetensor *tensor = gs_safetensors_find(file, name);
    for (size_t i = 0; !tensor && i < gs_safetensors_count(file); i++) {
        const gs_safetensor *other = gs_safetensors_at(file, i);
        if (strcmp(skip_wrappers(other->name), name) == 0) tensor = other;
    }
    return tensor;
}

static bool has_shape(const gs_safetensor *tensor, const gs_param_spec *spec, bool transposed) {
    if (tensor->num_dims != spec->num_dims) return false;
    for (int i = 0; i < spec->num_dims; i++)
        if (tensor->shape[i] != spec->shape[transposed ? spec->num_dims - 1 - i : i]) return false;
    return true;
}

// An attention projection is square, so its shape does not tell how it is stored; c_attn's does,
// and all four kinds of a file are stored alike.
static bool is_file_transposed(const gs_safetensors *file, const gs_model_param *params,
                               size_t num_params) {
    for (size_t i = 0; i < num_params; i++) {
        const gs_param_spec *spec = &params[i].spec;
        if (!is_conv1d(spec->name) || spec->shape[0] == spec->shape[1]) continue;
        const gs_safetensor *tensor = find_tensor(file, spec->name);
        if (tensor) return has_shape(tensor, spec, true);
    }
    return false;
}

static void format_shape(char *text, size_t text_bytes, int num_dims, const int64_t *shape) {
    size_t len = (size_t)snprintf(text, text_bytes, "[");
    for (int i = 0; i < num_dims && len < text_bytes; i++)
        len += (size_t)snprintf(text + len, text_bytes - len, "%s%lld", i ? "," : "",
                                (long long)shape[i]);
    if (len < text_bytes) snprintf(text + len, text_bytes - len, "]");
}

static float read_float(const uint8_t *from, gs_dtype dtype) {
    uint16_t half;
    double wide;
    float value;
    switch (dtype) {
    case GS_FP16:
        memcpy(&half, from, sizeof half);
        return gs_fp16_to_fp32(half);
    case GS_BF16:
        memcpy(&half, from, sizeof half);
        return gs_bf16_to_fp32(half);
    case GS_FP64:
        memcpy(&wide, from, sizeof wide);
        return (float)wide;
    default:
        memcpy(&value, from, sizeof value);
        return value;
    }
}

static bool is_float(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

static gs_status check_tensor(const gs_safetensor *tensor, const gs_param_spec *spec,
                              bool transposed) {
    char found[96], wanted[96];
    bool fits = spec->dtype == GS_FP32 ? is_float(tensor->dtype) : tensor->dtype == spec->dtype;
    if (!fits)
        return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": dtype %s, wanted %s", tensor->name,
                        tensor->dtype_name, gs_dtype_name(spec->dtype));
    if (has_shape(tensor, spec, transposed)) return gs_ok();
    format_shape(found, sizeof found, tensor->num_dims, tensor->shape);
    format_shape(wanted, sizeof wanted, spec->num_dims, spec->shape);
    return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": shape %s, wanted %s%s", tensor->name,
                    found, wanted, transposed ? " transposed" : "");
}

static void convert_tensor(float *values, const uint8_t *raw, const gs_safetensor *tensor,
                           const gs_param_spec *spec, bool transposed) {
    size_t rows = 1, cols = gs_param_spec_count(spec), bytes = gs_dtype_bytes(tensor->dtype);
    if (transposed) {
        rows = (size_t)spec->shape[0];
        cols = (size_t)spec->shape[1];
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            values[r * cols + c] =
                read_float(raw + (transposed ? c * rows + r : r * cols + c) * bytes, tensor->dtype);
}

static gs_status copy_tensor(void *to, const gs_safetensors *file, const gs_safetensor *tensor,
                             const gs_param_spec *spec, bool transposed) {
    GS_TRY(check_tensor(tensor, spec, transposed));
    if (spec->dtype != GS_FP32 || (tensor->dtype == GS_FP32 && !transposed))
        return gs_status_prefix(gs_safetensors_read(file, tensor, to, 0, tensor->bytes),
                                "tensor \"%s\"", tensor->name);
    uint8_t *raw = malloc(tensor->bytes + 1);
    if (!raw) return gs_error(GS_RESOURCE_EXHAUSTED, "tensor \"%s\": out of memory", tensor->name);
    gs_status status = gs_safetensors_read(file, tensor, raw, 0, tensor->bytes);
    if (!status.code) convert_tensor(to, raw, tensor, spec, transposed);
    free(raw);
    return gs_status_prefix(status, "tensor \"%s\"", tensor->name);
}

// "h.7.ln_1.weight" of a GPT-2, "fc3.weight" of a classifier: one for each layer.
static bool names_a_layer(const char *name) {
    if (strncmp(name, "h.", 2) == 0) return ends_with(name, ".ln_1.weight");
    if (strncmp(name, "fc", 2) != 0) return false;
    size_t digits = strspn(name + 2, "0123456789");
    return digits && strcmp(name + 2 + digits, ".weight") == 0;
}

// A deeper model's file must not pass for ours: every layer in it must be one that we have.
static gs_status check_layers(const gs_safetensors *file, const gs_model_param *params,
                              size_t num_params) {
    for (size_t i = 0; i < gs_safetensors_count(file); i++) {
        const char *name = skip_wrappers(gs_safetensors_at(file, i)->name);
        if (!names_a_layer(name)) continue;
        bool known = false;
        for (size_t p = 0; p < num_params && !known; p++)
            known = strcmp(params[p].spec.name, name) == 0;
        if (!known)
            return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": the model has no such layer",
                            gs_safetensors_at(file, i)->name);
    }
    return gs_ok();
}

// One tensor at a time is in host memory.
typedef struct import {
    const gs_safetensors *file;
    gs_import_take take;
    void *ctx;
} import;

static gs_status import_tensor(const import *to, size_t index, const gs_safetensor *tensor,
                               const gs_param_spec *spec, bool transposed) {
    void *data = malloc(gs_param_spec_bytes(spec) + 1);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "tensor \"%s\": out of memory", tensor->name);
    gs_status status = copy_tensor(data, to->file, tensor, spec, transposed);
    if (!status.code) status = to->take(to->ctx, index, data);
    free(data);
    return status;
}

static gs_status import_all(const gs_model *model, const import *to) {
    size_t num_params, num_buffers;
    const gs_model_param *list = model->ops->params(model->state, &num_params);
    const gs_param_spec *buffers = model->ops->buffers(model->state, &num_buffers);
    GS_TRY(check_layers(to->file, list, num_params));
    bool transposed = is_file_transposed(to->file, list, num_params);
    for (size_t i = 0; i < num_params; i++) {
        const gs_param_spec *spec = &list[i].spec;
        const gs_safetensor *tensor = find_tensor(to->file, spec->name);
        if (!tensor) return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\" is missing", spec->name);
        GS_TRY(import_tensor(to, i, tensor, spec, transposed && is_conv1d(spec->name)));
    }
    for (size_t i = 0; i < num_buffers; i++) {
        const gs_safetensor *tensor = find_tensor(to->file, buffers[i].name);
        if (tensor) GS_TRY(import_tensor(to, num_params + i, tensor, &buffers[i], false));
    }
    return gs_ok();
}

gs_status gs_model_import(const gs_model *model, const char *path, gs_import_take take, void *ctx) {
    gs_safetensors *file;
    GS_TRY(gs_safetensors_open(&file, path));
    gs_status status = import_all(model, &(import){file, take, ctx});
    gs_safetensors_close(file);
    return gs_status_prefix(status, "%s", path);
}
