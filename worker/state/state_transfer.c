#include "worker/state/state_transfer.h"

#include <stdlib.h>

typedef struct view_list {
    gs_tensor_view *views;
    size_t num_views;
} view_list;

static void add_view(view_list *list, void *data, size_t count, gs_dtype dtype) {
    list->views[list->num_views++] = (gs_tensor_view){data, count, dtype};
}

static void add_optimizer(view_list *list, const gs_trainer_state *state) {
    for (int kind = 0; kind < gs_optimizer_state_count(state->optimizer); kind++) {
        for (size_t i = 0; i < state->num_params; i++)
            add_view(list, gs_optimizer_state(state->optimizer, kind, i),
                     gs_param_spec_count(&state->param_specs[i]), GS_FP32);
    }
    add_view(list, gs_optimizer_num_updates(state->optimizer), state->num_params, GS_I64);
}

static void add_buffers(view_list *list, const gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_buffers; i++)
        add_view(list, gs_buffers_committed(state->buffers)[i],
                 gs_param_spec_count(&state->buffer_specs[i]), state->buffer_specs[i].dtype);
}

// What hooks carry, in the list behind the model's.
static void add_hooks(view_list *list, const gs_trainer_state *state) {
    for (size_t i = state->num_model_tensors; i < state->num_tensors; i++)
        add_view(list, state->runs[i].data,
                 state->runs[i].bytes / gs_dtype_bytes(state->tensors[i].dtype),
                 state->tensors[i].dtype);
}

static size_t most_views(const gs_trainer_state *state) {
    size_t num_kinds = (size_t)gs_optimizer_state_count(state->optimizer);
    size_t num_hooks = state->num_tensors - state->num_model_tensors;
    return 1 + num_kinds * state->num_params + 1 + state->num_buffers + num_hooks;
}

static gs_digest digest_common(void *ctx) {
    return gs_trainer_state_common_digest(ctx);
}

// Nobody can give what it does not hold: whoever comes has a part of its own, of the same step.
static gs_status check_all_have(const gs_state_sync_result *result) {
    if (!result->has_state || !result->num_receivers) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "state of step %lld: it is sharded, and %d ranks have another one",
                    (long long)result->step, result->num_receivers);
}

gs_status gs_state_transfer_run(gs_state_sync_result *result, gs_trainer_state *state,
                                bool has_state, gs_digest digest, gs_comm *comm,
                                gs_deadline deadline) {
    *result = (gs_state_sync_result){0};
    view_list list = {.views = calloc(most_views(state), sizeof *list.views)};
    if (!list.views) {
        // Whoever alone cannot go on must tell the ranks that wait for it.
        gs_comm_let_go(comm, "state: out of memory");
        return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    }
    // Parameters lie in one block, what is between them is zero everywhere.
    add_view(&list, state->memory, state->memory_bytes / sizeof(float), GS_FP32);
    if (!state->is_sharded) add_optimizer(&list, state);
    add_hooks(&list, state);
    size_t num_common = list.num_views;
    add_buffers(&list, state);
    if (!state->buffers_are_local) num_common = list.num_views;
    gs_state_sync_options options = {.tensors = list.views,
                                     .num_tensors = num_common,
                                     .own = list.views + num_common,
                                     .num_own = list.num_views - num_common,
                                     .position = &state->position,
                                     .position_bytes = sizeof state->position,
                                     .has_state = has_state,
                                     .step = state->position.step,
                                     .digest = digest_common,
                                     .digest_ctx = state,
                                     .known = state->buffers_are_local ? (gs_digest){0} : digest};
    gs_status status = gs_state_sync(result, &options, comm, deadline);
    free(list.views);
    if (!status.code && state->is_sharded) status = check_all_have(result);
    if (result->received) {
        state->params_apart = state->optimizer_apart = false;
        gs_trainer_state_refresh(state);
    }
    // No file is to blame.
    if (status.code == GS_DATA_LOSS) status.code = GS_INTERNAL;
    return status;
}
