// The first values of a state, drawn from the seed: the same bits wherever masters lie.
#include <stdlib.h>

#include "core/clock.h"
#include "core/memory.h"
#include "worker/state/trainer_state_parts.h"

#define DEVICE_WAIT_SECONDS 120.0

void gs_state_place_params(const gs_trainer_state *state, void *memory, void **params) {
    uint8_t *at = memory;
    for (size_t i = 0; i < state->num_params; i++) {
        params[i] = at;
        at += gs_round_up(gs_param_spec_count(&state->param_specs[i]) * sizeof(float),
                          GS_PARAM_BOUNDARY_BYTES);
    }
}

static gs_status init_model(gs_trainer_state *state, void *const *params, uint64_t seed) {
    return state->model.ops->init(state->model.state, params, gs_buffers_committed(state->buffers),
                                  seed);
}

// Drawn as fp32 for the call, where there is no room for all of them, and taken from there.
static gs_status draw_apart(gs_trainer_state *state, uint64_t seed,
                            gs_status (*take)(gs_trainer_state *state, void *const *drawn)) {
    void *memory = NULL, **params = calloc(state->num_params, sizeof *params);
    if (!params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    gs_status status = gs_device_alloc(state->device, &memory, state->params_bytes);
    if (!status.code) {
        gs_state_place_params(state, memory, params);
        status = init_model(state, params, seed);
    }
    if (!status.code) status = take(state, params);
    if (memory) gs_device_free(state->device, memory);
    free(params);
    return status;
}

static gs_status split_drawn(gs_trainer_state *state, void *const *drawn) {
    const gs_kernels *k = gs_device_kernels(state->device);
    gs_stream *stream = gs_device_stream(state->device);
    for (size_t i = 0; i < state->num_params; i++) {
        const gs_copy_run *run = &state->runs[i];
        k->split_master(stream, run->value, run->remainder, drawn[i], run->bytes / sizeof(float));
    }
    return gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS));
}

typedef struct drawn_param {
    gs_device *device;
    const void *data;
} drawn_param;

static gs_status read_drawn(void *ctx, void *to, size_t first_byte, size_t num_bytes) {
    const drawn_param *drawn = ctx;
    return gs_device_download(drawn->device, to, (const char *)drawn->data + first_byte, num_bytes);
}

static gs_status take_drawn(gs_trainer_state *state, void *const *drawn) {
    for (size_t i = 0; i < state->num_params; i++) {
        drawn_param param = {state->device, drawn[i]};
        GS_TRY(gs_trainer_state_take(state, i, &(gs_whole_tensor){read_drawn, &param}));
    }
    return gs_ok();
}

// Where values will lie, or in memory for the draw.
static gs_status draw_sharded_masters(gs_trainer_state *state, uint64_t seed) {
    void *const *values = gs_mixed_precision_values(state->mixed);
    if (!values) return draw_apart(state, seed, take_drawn);
    GS_TRY(init_model(state, values, seed));
    return take_drawn(state, values);
}

gs_status gs_state_draw_params(gs_trainer_state *state, const gs_job_spec *spec) {
    uint64_t seed = (uint64_t)spec->model.seed;
    if (state->halves)
        GS_TRY(draw_sharded_masters(state, seed));
    else if (state->params)
        GS_TRY(init_model(state, state->params, seed));
    else
        GS_TRY(draw_apart(state, seed, split_drawn));
    gs_trainer_state_refresh(state);
    return gs_ok();
}
