// A sharded state in the memory of a generation: what of it lies where.
#include <stdlib.h>

#include "core/memory.h"
#include "worker/state/trainer_state_parts.h"

// In the order in which their gradients lie.
static void find_places(gs_trainer_state *state, void *memory, void **places) {
    state->memory = memory;
    for (size_t i = 0; i < state->num_params; i++)
        places[i] = (uint8_t *)memory + gs_shards_param_offset(state->shards->partition, i);
}

static gs_status place_sharded(gs_trainer_state *state, void *memory, void **places) {
    find_places(state, memory, places);
    state->memory_bytes = gs_shards_param_bytes(state->shards->partition);
    gs_device_kernels(state->device)
        ->fill(gs_device_stream(state->device), memory, 0.0f, state->memory_bytes / sizeof(float));
    state->own_params = calloc(state->shards->num_own + 1, sizeof *state->own_params);
    if (!state->own_params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    return gs_ok();
}

static void point_own_params(gs_trainer_state *state) {
    const gs_state_shards *shards = state->shards;
    gs_shards_point(state->own_params, shards->partition, shards->rank, state->params,
                    sizeof(float));
}

static gs_status place_sharded_params(gs_trainer_state *state, void *memory) {
    if (!state->params) state->params = calloc(state->num_params, sizeof *state->params);
    if (!state->params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    GS_TRY(place_sharded(state, memory, state->params));
    state->values = state->params;
    point_own_params(state);
    return gs_ok();
}

// fp32, each on a boundary of its own.
static gs_status make_masters(gs_trainer_state *state) {
    const gs_state_shards *shards = state->shards;
    size_t bytes = 0;
    for (size_t i = 0; i < shards->num_own; i++)
        bytes += gs_round_up(shards->own[i].count * sizeof(float), GS_PARAM_BOUNDARY_BYTES);
    GS_TRY(gs_device_alloc(state->device, &state->masters, bytes + GS_PARAM_BOUNDARY_BYTES));
    uint8_t *at = state->masters;
    for (size_t i = 0; i < shards->num_own; i++) {
        state->own_params[i] = at;
        at += gs_round_up(shards->own[i].count * sizeof(float), GS_PARAM_BOUNDARY_BYTES);
    }
    return gs_ok();
}

// The 16 bits of all parameters lie where gathers have them, and masters of what is owned beside.
static gs_status make_sharded_mixed(gs_trainer_state *state, const gs_job_spec *spec,
                                    void *const *places) {
    gs_mixed_precision_options options = gs_state_mixed_options(state, spec);
    if (options.splits_masters) {
        free(state->own_params);
        state->own_params = NULL;
    } else {
        GS_TRY(make_masters(state));
    }
    options.masters = (float *const *)state->own_params;
    options.keeps_params = true;
    options.segments = state->shards->own;
    options.num_segments = state->shards->num_own;
    options.places = places;
    return gs_state_make_mixed(state, &options);
}

static gs_status place_sharded_halves(gs_trainer_state *state, const gs_job_spec *spec,
                                      void *memory) {
    void **places = calloc(state->num_params + 1, sizeof *places);
    if (!state->halves) state->halves = calloc(state->num_params + 1, sizeof *state->halves);
    gs_status status = places && state->halves
                           ? place_sharded(state, memory, places)
                           : gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < state->num_params && !status.code; i++)
        state->halves[i] =
            (gs_copy_run){.data = places[i], .bytes = gs_param_spec_bytes(&state->param_specs[i])};
    if (!status.code) status = make_sharded_mixed(state, spec, places);
    free(places);
    return status;
}

static gs_status fill_sharded(gs_trainer_state *state, const gs_job_spec *spec) {
    const gs_state_source *source = &state->source;
    state->position = (gs_position){0};
    if (gs_precision_dtype(spec) == GS_FP16) GS_TRY(gs_state_make_loss_scale(state, spec));
    if (!source->fill || source->is_drawn) GS_TRY(gs_state_draw_params(state, spec));
    return source->fill ? source->fill(source->ctx, state) : gs_ok();
}

static gs_status lay_out(gs_trainer_state *state, const gs_job_spec *spec, void *memory) {
    gs_optimizer *last = state->optimizer;
    gs_status status =
        gs_state_make_optimizer(state, spec, state->shards->own, state->shards->num_own);
    if (status.code) {
        state->optimizer = last;
        return status;
    }
    gs_optimizer_destroy(last);
    gs_mixed_precision_destroy(state->mixed);
    state->mixed = NULL;
    gs_state_free_own_params(state);
    GS_TRY(gs_precision_dtype(spec) == GS_FP32 ? place_sharded_params(state, memory)
                                               : place_sharded_halves(state, spec, memory));
    gs_trainer_state_find(state);
    return fill_sharded(state, spec);
}

static gs_status move_halves(gs_trainer_state *state, void *memory) {
    void **places = calloc(state->num_params + 1, sizeof *places);
    if (!places) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    find_places(state, memory, places);
    for (size_t i = 0; i < state->num_params; i++) state->halves[i].data = places[i];
    gs_mixed_precision_move(state->mixed, places);
    free(places);
    return gs_ok();
}

gs_status gs_trainer_state_move_params(gs_trainer_state *state, void *memory) {
    if (state->halves) {
        GS_TRY(move_halves(state, memory));
    } else {
        find_places(state, memory, state->params);
        point_own_params(state);
    }
    gs_trainer_state_find(state);
    return gs_ok();
}

void gs_trainer_state_take_down(gs_trainer_state *state) {
    gs_state_shards_destroy(state->shards);
    state->shards = NULL;
}

gs_status gs_trainer_state_lay_out(gs_trainer_state *state, const gs_job_spec *spec,
                                   gs_state_shards *shards, void *memory) {
    gs_trainer_state_take_down(state);
    state->shards = shards;
    gs_status status = lay_out(state, spec, memory);
    if (status.code) gs_trainer_state_take_down(state);
    return status;
}
