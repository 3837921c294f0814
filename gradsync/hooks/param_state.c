#include "gradsync/hooks/param_state.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

typedef struct gs_kept_tensor {
    char *copies[2];
    size_t count;
    int holding;
    bool is_written;
} gs_kept_tensor;

static size_t count_of(const gs_param_state_options *options, const gs_hook_param *param) {
    return options->count ? options->count(options->ctx, param) : param->count;
}

size_t gs_param_state_bytes(const gs_param_state_options *options) {
    size_t total = 0, bytes;
    for (size_t i = 0; i < options->num_params; i++) {
        const gs_hook_param *param = &options->params[i];
        if (!gs_bytes_of(&bytes, count_of(options, param), gs_dtype_bytes(param->dtype)) ||
            !gs_add_padded(&total, bytes) || !gs_add_padded(&total, bytes))
            return SIZE_MAX;
    }
    return total;
}

gs_status gs_param_state_init(gs_param_state *state, const gs_param_state_options *options,
                              gs_device *device, void *memory) {
    *state = (gs_param_state){.name = options->name,
                              .is_own = options->is_own,
                              .is_on_host = gs_device_is_host(device),
                              .params = options->params,
                              .num_params = options->num_params};
    state->tensors = calloc(options->num_params + 1, sizeof *state->tensors);
    if (!state->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    char *at = memory;
    for (size_t i = 0; i < options->num_params; i++) {
        gs_kept_tensor *tensor = &state->tensors[i];
        tensor->count = count_of(options, &options->params[i]);
        for (int c = 0; c < 2 && tensor->count; c++) {
            tensor->copies[c] = at;
            at += gs_round_up(tensor->count * gs_dtype_bytes(options->params[i].dtype),
                              GS_LINE_BYTES);
        }
    }
    return gs_ok();
}

void gs_param_state_release(gs_param_state *state) {
    free(state->tensors);
    *state = (gs_param_state){0};
}

void *gs_param_state_held(const gs_param_state *state, size_t param) {
    const gs_kept_tensor *tensor = &state->tensors[param];
    return tensor->copies[tensor->holding];
}

void *gs_param_state_write(gs_param_state *state, size_t param) {
    gs_kept_tensor *tensor = &state->tensors[param];
    tensor->is_written = true;
    return tensor->copies[!tensor->holding];
}

size_t gs_param_state_count(const gs_param_state *state, size_t param) {
    return state->tensors[param].count;
}

void gs_param_state_commit(gs_param_state *state) {
    for (size_t i = 0; i < state->num_params; i++) {
        state->tensors[i].holding ^= state->tensors[i].is_written;
        state->tensors[i].is_written = false;
    }
}

void gs_param_state_rollback(gs_param_state *state) {
    for (size_t i = 0; i < state->num_params; i++) state->tensors[i].is_written = false;
}

size_t gs_param_state_num_tensors(const gs_param_state *state) {
    size_t num_tensors = 0;
    for (size_t i = 0; i < state->num_params; i++) num_tensors += state->tensors[i].count != 0;
    return num_tensors;
}

bool gs_param_state_tensor(const gs_param_state *state, size_t index, gs_hook_tensor *out) {
    for (size_t i = 0; i < state->num_params; i++) {
        const gs_kept_tensor *tensor = &state->tensors[i];
        if (!tensor->count || index--) continue;
        *out = (gs_hook_tensor){.param = (int64_t)i,
                                .dtype = state->params[i].dtype,
                                .count = tensor->count,
                                .data = tensor->copies[tensor->holding],
                                .is_on_host = state->is_on_host,
                                .is_own = state->is_own,
                                .beside =
                                    tensor->is_written ? tensor->copies[!tensor->holding] : NULL};
        memcpy(out->name, state->name, strnlen(state->name, GS_HOOK_NAME_LEN - 1));
        return true;
    }
    return false;
}
