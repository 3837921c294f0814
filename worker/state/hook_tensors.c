#include "worker/state/hook_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t num_hook_tensors(const gs_trainer_state *state) {
    return state->num_tensors - state->num_model_tensors;
}

static gs_copy_run *run_of(const gs_trainer_state *state, size_t index) {
    return &state->runs[state->num_model_tensors + index];
}

static gs_state_tensor *tensor_of(const gs_trainer_state *state, size_t index) {
    return &state->tensors[state->num_model_tensors + index];
}

// A tensor more, nowhere yet.
static gs_status append(gs_trainer_state *state, const gs_state_tensor *tensor) {
    size_t count = state->num_tensors + 1;
    gs_state_tensor *tensors = realloc(state->tensors, count * sizeof *tensors);
    if (tensors) state->tensors = tensors;
    gs_copy_run *runs = realloc(state->runs, count * sizeof *runs);
    if (runs) state->runs = runs;
    void **resting = realloc(state->resting, count * sizeof *resting);
    if (resting) state->resting = resting;
    if (!tensors || !runs || !resting)
        return gs_error(GS_RESOURCE_EXHAUSTED, "state of hooks: out of memory");
    tensors[count - 1] = *tensor;
    runs[count - 1] = (gs_copy_run){.bytes = tensor->bytes, .is_on_host = true};
    resting[count - 1 - state->num_model_tensors] = NULL;
    state->num_tensors = count;
    return gs_ok();
}

static gs_status make_room(gs_trainer_state *state, size_t index) {
    gs_copy_run *run = run_of(state, index);
    void *memory = calloc(1, run->bytes ? run->bytes : 1);
    if (!memory) return gs_error(GS_RESOURCE_EXHAUSTED, "state of hooks: out of memory");
    state->resting[index] = run->data = memory;
    run->is_on_host = true;
    return gs_ok();
}

gs_status gs_hook_tensors_add(gs_trainer_state *state, const gs_state_tensor *tensor) {
    GS_TRY(append(state, tensor));
    gs_status status = make_room(state, num_hook_tensors(state) - 1);
    if (status.code) state->num_tensors--;
    return status;
}

void gs_hook_tensors_forget(gs_trainer_state *state) {
    for (size_t i = 0; i < num_hook_tensors(state); i++) free(state->resting[i]);
    state->num_tensors = state->num_model_tensors;
}

static gs_status describe(gs_state_tensor *out, const gs_hook_state_tensor *hooks) {
    const gs_hook_tensor *tensor = &hooks->tensor;
    *out = (gs_state_tensor){.dtype = tensor->dtype,
                             .num_dims = 1,
                             .shape = {(int64_t)tensor->count},
                             .bytes = tensor->count * gs_dtype_bytes(tensor->dtype)};
    int length = snprintf(out->name, sizeof out->name, GS_HOOK_TENSOR_PREFIX "%s", hooks->name);
    if (length >= (int)sizeof out->name)
        return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\": its name is too long", hooks->name);
    return gs_ok();
}

static size_t find_tensor(const gs_trainer_state *state, const char *name) {
    size_t index = 0;
    while (index < num_hook_tensors(state) && strcmp(tensor_of(state, index)->name, name) != 0)
        index++;
    return index;
}

static void point_at(gs_trainer_state *state, size_t index, const gs_hook_tensor *tensor) {
    gs_copy_run *run = run_of(state, index);
    run->data = tensor->data;
    run->is_on_host = tensor->is_on_host;
}

static void fill(void *ctx, void *bytes, size_t num_bytes) {
    const char **at = ctx;
    if (num_bytes) memcpy(bytes, *at, num_bytes);
    *at += num_bytes;
}

// What rests here goes to where the hook has it.
static gs_status hand_over(gs_trainer_state *state, size_t index, const gs_hook_tensor *tensor) {
    point_at(state, index, tensor);
    const char *at = state->resting[index];
    gs_status status = gs_device_copy_write(state->copy, run_of(state, index), 1, fill, &at);
    free(state->resting[index]);
    state->resting[index] = NULL;
    return status;
}

static gs_status take_tensor(gs_trainer_state *state, const gs_hook_state_tensor *hooks,
                             bool is_first) {
    gs_state_tensor wanted;
    GS_TRY(describe(&wanted, hooks));
    if (is_first) {
        GS_TRY(append(state, &wanted));
        point_at(state, num_hook_tensors(state) - 1, &hooks->tensor);
        return gs_ok();
    }
    size_t index = find_tensor(state, wanted.name);
    if (index == num_hook_tensors(state))
        return gs_error(GS_INVALID_ARGUMENT, "the state has no tensor \"%s\"", wanted.name);
    const gs_state_tensor *found = tensor_of(state, index);
    if (found->dtype != wanted.dtype || found->bytes != wanted.bytes)
        return gs_error(GS_INVALID_ARGUMENT, "tensor \"%s\" is %zu bytes of %s, not %zu of %s",
                        wanted.name, wanted.bytes, gs_dtype_name(wanted.dtype), found->bytes,
                        gs_dtype_name(found->dtype));
    return hand_over(state, index, &hooks->tensor);
}

gs_status gs_hook_tensors_attach(gs_trainer_state *state, gs_reducer *reducer, gs_comm *comm) {
    bool is_first = num_hook_tensors(state) == 0;
    gs_hook_state_tensor hooks;
    for (size_t i = 0; gs_reducer_hook_state(&hooks, reducer, i); i++)
        if (!hooks.tensor.is_own) GS_TRY(take_tensor(state, &hooks, is_first));
    for (size_t k = 0; k < num_hook_tensors(state); k++) {
        if (state->resting[k])
            return gs_error(GS_INVALID_ARGUMENT, "no hook of this job has the tensor \"%s\"",
                            tensor_of(state, k)->name);
    }
    if (num_hook_tensors(state) && !is_first) GS_TRY(gs_reducer_hook_state_loaded(reducer));
    return gs_own_tensors_attach(&state->own, reducer, comm);
}

void gs_hook_tensors_follow(gs_trainer_state *state, gs_reducer *reducer) {
    gs_hook_state_tensor hooks;
    if (!num_hook_tensors(state)) return;
    for (size_t i = 0; gs_reducer_hook_state(&hooks, reducer, i); i++) {
        char name[GS_STATE_NAME_LEN];
        if (hooks.tensor.is_own) continue;
        snprintf(name, sizeof name, GS_HOOK_TENSOR_PREFIX "%s", hooks.name);
        point_at(state, find_tensor(state, name), &hooks.tensor);
    }
}

static void take(void *ctx, const void *bytes, size_t num_bytes) {
    char **at = ctx;
    if (num_bytes) memcpy(*at, bytes, num_bytes);
    *at += num_bytes;
}

static gs_status bring_back(gs_trainer_state *state, size_t index) {
    const gs_copy_run from = *run_of(state, index);
    GS_TRY(make_room(state, index));
    char *at = state->resting[index];
    return gs_device_copy_read(state->copy, &from, 1, take, &at);
}

gs_status gs_hook_tensors_detach(gs_trainer_state *state) {
    gs_status status =
        gs_own_tensors_detach(&state->own, state->copy, state->position.step);
    for (size_t i = 0; i < num_hook_tensors(state) && !status.code; i++)
        if (!state->resting[i]) status = bring_back(state, i);
    if (status.code) gs_hook_tensors_forget(state);
    return status;
}
