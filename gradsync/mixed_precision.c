#include "gradsync/mixed_precision.h"

#include <stdlib.h>

#include "core/memory.h"

#define TENSOR_BYTES ((size_t)64)  // no two tensors share a cache line

// One block for all tensors, and where each lies.
typedef struct tensor_block {
    void *memory;    // NULL: not kept
    void **tensors;  // num_params of them
} tensor_block;

struct gs_mixed_precision {
    gs_mixed_precision_options options;
    size_t *counts;
    tensor_block params, values, pass_grads;
};

static gs_status make_block(tensor_block *block, const gs_mixed_precision *mixed,
                            size_t element_bytes) {
    size_t total = 0, num_params = mixed->options.num_params;
    for (size_t i = 0; i < num_params; i++) {
        size_t bytes;
        if (!gs_bytes_of(&bytes, mixed->counts[i], element_bytes) ||
            bytes > SIZE_MAX - TENSOR_BYTES ||
            __builtin_add_overflow(total, gs_round_up(bytes, TENSOR_BYTES), &total))
            return gs_error(GS_RESOURCE_EXHAUSTED, "parameter %zu \"%.100s\": no memory for it", i,
                            mixed->options.params[i].name);
    }
    block->tensors = calloc(num_params + 1, sizeof *block->tensors);
    if (!block->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    GS_TRY(gs_device_alloc(mixed->options.device, &block->memory, total + TENSOR_BYTES));
    char *at = block->memory;
    for (size_t i = 0; i < num_params; i++) {
        block->tensors[i] = at;
        at += gs_round_up(mixed->counts[i] * element_bytes, TENSOR_BYTES);
    }
    return gs_ok();
}

static void release_block(tensor_block *block, gs_device *device) {
    if (block->memory) gs_device_free(device, block->memory);
    free(block->tensors);
}

static gs_status make_blocks(gs_mixed_precision *mixed) {
    const gs_mixed_precision_options *options = &mixed->options;
    mixed->counts = calloc(options->num_params + 1, sizeof *mixed->counts);
    if (!mixed->counts) return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    for (size_t i = 0; i < options->num_params; i++)
        mixed->counts[i] = gs_param_spec_count(&options->params[i]);
    if (options->keeps_params)
        GS_TRY(make_block(&mixed->params, mixed, gs_dtype_bytes(options->dtype)));
    if (options->keeps_values) GS_TRY(make_block(&mixed->values, mixed, sizeof(float)));
    if (options->adds_passes) GS_TRY(make_block(&mixed->pass_grads, mixed, sizeof(float)));
    return gs_ok();
}

gs_status gs_mixed_precision_create(gs_mixed_precision **out,
                                    const gs_mixed_precision_options *options) {
    *out = NULL;
    if (options->dtype != GS_FP16 && options->dtype != GS_BF16)
        return gs_error(GS_INVALID_ARGUMENT, "mixed precision: %s, must be fp16 or bf16",
                        gs_dtype_name(options->dtype));
    GS_TRY(gs_param_specs_check(options->params, options->num_params));
    gs_mixed_precision *mixed = calloc(1, sizeof *mixed);
    if (!mixed) return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    mixed->options = *options;
    gs_status status = make_blocks(mixed);
    mixed->options.params = NULL;
    if (status.code) {
        gs_mixed_precision_destroy(mixed);
        return status;
    }
    *out = mixed;
    return gs_ok();
}

void gs_mixed_precision_destroy(gs_mixed_precision *mixed) {
    if (!mixed) return;
    release_block(&mixed->params, mixed->options.device);
    release_block(&mixed->values, mixed->options.device);
    release_block(&mixed->pass_grads, mixed->options.device);
    free(mixed->counts);
    free(mixed);
}

gs_dtype gs_mixed_precision_dtype(const gs_mixed_precision *mixed) {
    return mixed->options.dtype;
}

void *const *gs_mixed_precision_params(const gs_mixed_precision *mixed) {
    return mixed->params.tensors;
}

void *const *gs_mixed_precision_values(const gs_mixed_precision *mixed) {
    return mixed->values.tensors;
}

void gs_mixed_precision_write_back(gs_mixed_precision *mixed) {
    const gs_mixed_precision_options *options = &mixed->options;
    const gs_kernels *kernels = gs_device_kernels(options->device);
    gs_stream *stream = gs_device_stream(options->device);
    for (size_t i = 0; i < options->num_params; i++) {
        size_t count = mixed->counts[i];
        if (!count) continue;
        if (options->keeps_params)
            kernels->cast(stream, mixed->params.tensors[i], options->dtype, options->masters[i],
                          GS_FP32, 1.0f, count);
        if (options->keeps_values)
            kernels->round(stream, mixed->values.tensors[i], options->masters[i], options->dtype,
                           count, false);
    }
}

float *const *gs_mixed_precision_pass_grads(const gs_mixed_precision *mixed,
                                            float *const *main_grads, bool accumulate) {
    return accumulate ? (float *const *)mixed->pass_grads.tensors : main_grads;
}

void gs_mixed_precision_finish_grad(const gs_mixed_precision *mixed, float *const *main_grads,
                                    bool accumulate, size_t param) {
    const gs_mixed_precision_options *options = &mixed->options;
    float *const *pass_grads = gs_mixed_precision_pass_grads(mixed, main_grads, accumulate);
    gs_device_kernels(options->device)
        ->round(gs_device_stream(options->device), main_grads[param], pass_grads[param],
                options->dtype, mixed->counts[param], accumulate);
}
