// Digests of a state, of all that it holds or of what ranks have alike.
#include "worker/state/trainer_state.h"

#include "core/memory.h"

static void digest_bytes(void *ctx, const void *bytes, size_t num_bytes) {
    gs_digest_stream_add(ctx, bytes, num_bytes);
}

// What a digest has come to, or {0}.
static gs_digest take_digest(gs_digest_stream *stream, gs_status status) {
    gs_digest digest = status.code ? (gs_digest){0} : gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    return digest;
}

void gs_trainer_state_begin_params_digest(gs_trainer_state *state, int part, int num_parts) {
    size_t begin = state->memory_bytes * (size_t)part / (size_t)num_parts;
    size_t end = state->memory_bytes * (size_t)(part + 1) / (size_t)num_parts;
    state->digested =
        (gs_copy_run){.data = (uint8_t *)state->memory + begin, .bytes = end - begin};
    if (!gs_device_is_host(state->device))
        gs_device_copy_begin_read(state->copy, &state->digested, 1);
}

gs_digest gs_trainer_state_end_params_digest(gs_trainer_state *state) {
    if (gs_device_is_host(state->device))
        return gs_digest_of(state->digested.data, state->digested.bytes);
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    return take_digest(stream, gs_device_copy_end_read(state->copy, digest_bytes, stream));
}

void gs_position_digest(gs_digest_stream *stream, const gs_position *position) {
    int64_t words[] = {position->step, position->consumed, position->skipped_steps,
                       position->skipped_in_a_row};
    gs_digest_stream_add(stream, words, sizeof words);
    const gs_grad_scaler *loss_scale = &position->loss_scale;
    if (!(loss_scale->scale > 0)) return;
    gs_digest_stream_add(stream, &loss_scale->scale, sizeof loss_scale->scale);
    gs_digest_stream_add(stream, &loss_scale->growth_tracker, sizeof loss_scale->growth_tracker);
    // As it was before there was any.
    if (loss_scale->num_forgiven)
        gs_digest_stream_add(stream, &loss_scale->num_forgiven, sizeof loss_scale->num_forgiven);
}

// Of parameters, where they lie as all ranks have them.
static const gs_copy_run *common_runs(const gs_trainer_state *state) {
    return state->halves ? state->halves : state->runs;
}

// Of all but the last `num_left_out` of the model's, and but what each rank has another part of.
static gs_digest digest_tensors(const gs_trainer_state *state, size_t num_left_out) {
    if (state->is_sharded && !state->shards) return (gs_digest){0};
    size_t num_model = state->num_model_tensors;
    size_t first_count = num_model - state->num_buffers - 1;  // behind the optimizer's tensors
    size_t num_first = state->is_sharded ? state->num_params : first_count;
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    gs_status status = gs_device_copy_read(state->copy, common_runs(state), num_first,
                                           digest_bytes, stream);
    if (!status.code)
        status = gs_device_copy_read(state->copy, state->runs + first_count,
                                     num_model - first_count - num_left_out, digest_bytes, stream);
    if (!status.code)
        status = gs_device_copy_read(state->copy, state->runs + num_model,
                                     state->num_tensors - num_model, digest_bytes, stream);
    gs_position_digest(stream, &state->position);
    return take_digest(stream, status);
}

// Each on its boundary, zeros between them.
gs_digest gs_trainer_state_params_digest(const gs_trainer_state *state) {
    static const uint8_t zeros[GS_PARAM_BOUNDARY_BYTES];
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    gs_status status = gs_ok();
    for (size_t i = 0; i < state->num_params && !status.code; i++) {
        size_t bytes = common_runs(state)[i].bytes;
        status = gs_device_copy_read(state->copy, &common_runs(state)[i], 1, digest_bytes, stream);
        gs_digest_stream_add(stream, zeros, gs_round_up(bytes, GS_PARAM_BOUNDARY_BYTES) - bytes);
    }
    return take_digest(stream, status);
}

gs_digest gs_trainer_state_digest(const gs_trainer_state *state) {
    return digest_tensors(state, 0);
}

// Buffers are the model's last.
gs_digest gs_trainer_state_common_digest(const gs_trainer_state *state) {
    size_t num_local = state->buffers_are_local ? state->num_buffers : 0;
    return digest_tensors(state, num_local);
}
