#include "worker/state/trainer_state.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_COUNT ((size_t)1 << 20)  // of masters in host memory, on their way

// What others have the masters of comes from where its 16 bits lie.
void gs_trainer_state_refresh(gs_trainer_state *state) {
    if (!state->mixed) return;
    gs_mixed_precision_write_back(state->mixed);
    for (size_t i = 0; i < state->num_params && state->halves; i++)
        gs_mixed_precision_take_param(state->mixed, i);
}

gs_status gs_trainer_state_step(gs_trainer_state *state, void *const *grads, const uint8_t *used, float lr,
                                float grad_scale) {
    if (state->mixed)
        return gs_mixed_precision_step(state->mixed, state->optimizer, grads, used, lr, grad_scale);
    return gs_optimizer_step(state->optimizer, state->params, grads, used, lr, grad_scale);
}

// Of which kind of optimizer state tensor `index` is, and of which parameter; false: it is none.
static bool find_kind(const gs_trainer_state *state, size_t index, int *kind, size_t *param) {
    size_t num_params = state->num_params;
    size_t num_kinds = (size_t)gs_optimizer_state_count(state->optimizer);
    if (index < num_params || index >= num_params * (1 + num_kinds)) return false;
    *kind = (int)((index - num_params) / num_params);
    *param = index % num_params;
    return true;
}

static gs_copy_run find_optimizer_run(const gs_trainer_state *state, int kind, size_t param) {
    size_t segment = state->shards ? state->shards->places[param] : param, num_segments;
    const gs_segment *segments = gs_optimizer_segments(state->optimizer, &num_segments);
    if (segment >= num_segments) return (gs_copy_run){0};
    return (gs_copy_run){.data = gs_optimizer_state(state->optimizer, kind, segment),
                         .bytes = segments[segment].count * sizeof(float),
                         .is_on_host = gs_optimizer_state_is_on_host(state->optimizer)};
}

// The master of a segment that is here.
static gs_copy_run find_master_run(const gs_trainer_state *state, size_t param) {
    const gs_state_shards *shards = state->shards;
    size_t segment = shards->places[param];
    if (segment == shards->num_own) return (gs_copy_run){0};
    gs_copy_run run = {.bytes = shards->own[segment].count * sizeof(float)};
    if (state->own_params) {
        run.data = state->own_params[segment];
    } else {
        run.value = gs_mixed_precision_uppers(state->mixed)[segment];
        run.remainder = gs_mixed_precision_remainders(state->mixed)[segment];
    }
    return run;
}

static gs_copy_run find_param_run(const gs_trainer_state *state, size_t param) {
    gs_copy_run run = {.bytes = state->tensors[param].bytes};
    if (state->is_sharded && !state->shards) return (gs_copy_run){0};
    if (state->halves) return find_master_run(state, param);
    if (state->params) {
        run.data = state->params[param];
    } else {
        run.value = gs_mixed_precision_params(state->mixed)[param];
        run.remainder = gs_mixed_precision_remainders(state->mixed)[param];
    }
    return run;
}

// Where lies what is here of tensor `index`.
static gs_copy_run find_run(const gs_trainer_state *state, size_t index) {
    int kind;
    size_t param, first_buffer = state->num_model_tensors - state->num_buffers;
    if (index < state->num_params) return find_param_run(state, index);
    if (find_kind(state, index, &kind, &param)) return find_optimizer_run(state, kind, param);
    gs_copy_run run = {.bytes = state->tensors[index].bytes};
    run.is_on_host = index + 1 == first_buffer;
    run.data = run.is_on_host ? (void *)gs_optimizer_num_updates(state->optimizer)
                              : gs_buffers_committed(state->buffers)[index - first_buffer];
    return run;
}

void gs_trainer_state_find(gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_model_tensors; i++) state->runs[i] = find_run(state, i);
}

gs_segment gs_trainer_state_held(const gs_trainer_state *state, size_t index) {
    const gs_state_tensor *tensor = &state->tensors[index];
    gs_segment all = {.tensor = index, .count = tensor->bytes / gs_dtype_bytes(tensor->dtype)};
    int kind;
    size_t param = index;
    bool is_master = state->halves && index < state->num_params;
    if (!state->is_sharded || (!is_master && !find_kind(state, index, &kind, &param))) return all;
    if (!state->shards) return (gs_segment){.tensor = index};
    gs_segment own = gs_state_shards_of_param(state->shards, param);
    own.tensor = index;
    return own;
}

// What all have alike and nobody owns is rank 0's.
gs_segment gs_trainer_state_saved(const gs_trainer_state *state, size_t index) {
    if (state->shards && index < state->num_params)
        return gs_state_shards_of_param(state->shards, index);
    int kind;
    size_t param;
    gs_segment held = gs_trainer_state_held(state, index);
    bool is_common = state->shards && !find_kind(state, index, &kind, &param);
    if (is_common && state->shards->rank != 0) held.count = 0;
    return held;
}

void *gs_trainer_state_data(const gs_trainer_state *state, size_t index) {
    const gs_copy_run *run = &state->runs[index];
    return run->is_on_host || gs_device_is_host(state->device) ? run->data : NULL;
}

// How far a transfer is in host memory.
static void take_bytes(void *ctx, const void *bytes, size_t num_bytes) {
    char **at = ctx;
    if (num_bytes) memcpy(*at, bytes, num_bytes);
    *at += num_bytes;
}

static void fill_bytes(void *ctx, void *bytes, size_t num_bytes) {
    const char **at = ctx;
    if (num_bytes) memcpy(bytes, *at, num_bytes);
    *at += num_bytes;
}

gs_status gs_trainer_state_read(const gs_trainer_state *state, size_t index, void *host) {
    char *at = host;
    return gs_device_copy_read(state->copy, &state->runs[index], 1, take_bytes, &at);
}

gs_status gs_trainer_state_write(gs_trainer_state *state, size_t index, const void *host) {
    const char *at = host;
    return gs_device_copy_write(state->copy, &state->runs[index], 1, fill_bytes, &at);
}

// How far what lies here has been taken.
typedef struct taking {
    const gs_whole_tensor *from;
    size_t next_byte;
    gs_status status;
} taking;

static void take_next(void *ctx, void *bytes, size_t num_bytes) {
    taking *at = ctx;
    if (!at->status.code)
        at->status = at->from->read(at->from->ctx, bytes, at->next_byte, num_bytes);
    at->next_byte += num_bytes;
}

// Elements `piece` of a parameter, masters in `host`.
static gs_status put_masters(gs_trainer_state *state, gs_segment piece, const float *host) {
    gs_segment own =
        gs_segment_intersect(piece, gs_state_shards_of_param(state->shards, piece.tensor));
    GS_TRY(
        gs_mixed_precision_put_param(state->mixed, piece.tensor, piece.first, host, piece.count));
    if (!own.count) return gs_ok();
    return gs_mixed_precision_write(state->mixed, own.tensor, own.first,
                                    host + (own.first - piece.first), own.count);
}

static gs_status take_halves(gs_trainer_state *state, size_t param, const gs_whole_tensor *from) {
    size_t count = gs_param_spec_count(&state->param_specs[param]);
    gs_segment piece = {.tensor = param};
    gs_status status = gs_ok();
    float *host = malloc((count < PIECE_COUNT ? count : PIECE_COUNT) * sizeof *host + 1);
    if (!host) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (; piece.first < count && !status.code; piece.first += piece.count) {
        size_t rest = count - piece.first;
        piece.count = rest < PIECE_COUNT ? rest : PIECE_COUNT;
        status =
            from->read(from->ctx, host, piece.first * sizeof *host, piece.count * sizeof *host);
        if (!status.code) status = put_masters(state, piece, host);
    }
    free(host);
    return status;
}

gs_status gs_trainer_state_take(gs_trainer_state *state, size_t index,
                                const gs_whole_tensor *from) {
    if (state->halves && index < state->num_params) return take_halves(state, index, from);
    size_t element_bytes = gs_dtype_bytes(state->tensors[index].dtype);
    taking at = {.from = from,
                 .next_byte = gs_trainer_state_held(state, index).first * element_bytes};
    GS_TRY(gs_device_copy_write(state->copy, &state->runs[index], 1, take_next, &at));
    return at.status;
}

size_t gs_trainer_state_total_elements(const gs_trainer_state *state) {
    size_t count = 0;
    for (size_t i = 0; i < state->num_params; i++) {
        count += gs_param_spec_count(&state->param_specs[i]);
    }
    return count;
}
