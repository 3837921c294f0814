#include "worker/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "worker/models/registry.h"

#define PARAM_BOUNDARY_BYTES 64

// Parameters of different tensors never share a cache line; what lies between them stays zero.
static gs_status make_params(gs_trainer_state *state) {
    size_t total = 0;
    for (size_t i = 0; i < state->num_params; i++) {
        total += gs_round_up(gs_param_spec_bytes(&state->param_specs[i]), PARAM_BOUNDARY_BYTES);
    }
    GS_TRY(gs_device_alloc(state->device, &state->memory, total));
    state->memory_bytes = total;
    state->params = calloc(state->num_params, sizeof *state->params);
    if (!state->params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    uint8_t *at = state->memory;
    for (size_t i = 0; i < state->num_params; i++) {
        state->params[i] = at;
        at += gs_round_up(gs_param_spec_bytes(&state->param_specs[i]), PARAM_BOUNDARY_BYTES);
    }
    return gs_ok();
}

// CPU kernels read fp32: of the forms of a 16-bit parameter only its fp32 value is kept.
static gs_status make_precision(gs_trainer_state *state, const gs_job_spec *spec) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP16};
    gs_dtype dtype = dtypes[spec->model.precision];
    state->values = state->params;
    if (dtype == GS_FP32) return gs_ok();
    for (size_t i = 0; i < state->num_params; i++) state->param_specs[i].dtype = dtype;
    bool one_pass = spec->logical_shards == 1 || spec->exact;
    const gs_mixed_precision_options options = {
        .dtype = dtype,
        .params = state->param_specs,
        .num_params = state->num_params,
        .masters = (float *const *)state->params,
        .keeps_values = true,
        .adds_passes = !one_pass || gs_job_spec_passes_per_shard(spec) > 1,
        .device = state->device};
    GS_TRY(gs_mixed_precision_create(&state->mixed, &options));
    state->values = gs_mixed_precision_values(state->mixed);
    if (dtype != GS_FP16) return gs_ok();
    state->loss_scaling =
        (gs_grad_scaler_options){.init_scale = (float)spec->optimizer.loss_scale.init,
                                 .growth_factor = spec->optimizer.loss_scale.growth_factor,
                                 .backoff_factor = spec->optimizer.loss_scale.backoff_factor,
                                 .growth_interval = spec->optimizer.loss_scale.growth_interval};
    return gs_status_prefix(gs_grad_scaler_init(&state->position.loss_scale, &state->loss_scaling),
                            "optimizer.loss_scale");
}

void gs_trainer_state_refresh(gs_trainer_state *state) {
    if (state->mixed) gs_mixed_precision_write_back(state->mixed);
}

static gs_optimizer_options optimizer_options(const gs_job_spec *spec) {
    static const char *const kinds[] = {"adamw", "adam", "sgd"};
    return (gs_optimizer_options){
        .kind = kinds[spec->optimizer.kind],
        .beta1 = (float)spec->optimizer.beta1,
        .beta2 = (float)spec->optimizer.beta2,
        .eps = (float)spec->optimizer.eps,
        .weight_decay = (float)spec->optimizer.weight_decay,
        .momentum = (float)spec->optimizer.momentum,
        .nesterov = spec->optimizer.nesterov,
        .unused_is_zero = spec->optimizer.zero_grad == GS_ZERO_GRAD_ZERO,
    };
}

static gs_status make_optimizer(gs_trainer_state *state, const gs_job_spec *spec) {
    size_t num_params;
    const gs_model_param *params = state->model.ops->params(state->model.state, &num_params);
    bool *decays = calloc(num_params, sizeof *decays);
    state->param_specs = calloc(num_params, sizeof *state->param_specs);
    if (!decays || !state->param_specs) {
        free(decays);
        return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    }
    state->num_params = num_params;
    for (size_t i = 0; i < num_params; i++) {
        state->param_specs[i] = params[i].spec;
        decays[i] = params[i].decays;
    }
    gs_status status = gs_param_specs_check(state->param_specs, num_params);
    gs_optimizer_options options = optimizer_options(spec);
    if (!status.code) {
        status = gs_optimizer_create(&state->optimizer, &options, state->param_specs, decays,
                                     num_params, state->device);
    }
    free(decays);
    return status;
}

static void add_tensor(gs_trainer_state *state, const gs_param_spec *spec, const char *prefix) {
    gs_state_tensor *tensor = &state->tensors[state->num_tensors++];
    snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, spec->name);
    tensor->dtype = spec->dtype;
    tensor->num_dims = spec->num_dims;
    memcpy(tensor->shape, spec->shape, sizeof tensor->shape);
    tensor->bytes = gs_param_spec_bytes(spec);
}

// In this order: parameters; for each kind of optimizer state all parameters; counts; buffers.
static gs_status list_tensors(gs_trainer_state *state) {
    int num_kinds = gs_optimizer_state_count(state->optimizer);
    size_t most = state->num_params * (size_t)(1 + num_kinds) + 1 + state->num_buffers;
    state->tensors = calloc(most, sizeof *state->tensors);
    if (!state->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    for (size_t i = 0; i < state->num_params; i++) {
        gs_param_spec spec = state->param_specs[i];
        spec.dtype = GS_FP32;  // masters, whatever the precision
        add_tensor(state, &spec, "");
    }
    for (int kind = 0; kind < num_kinds; kind++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "optimizer.%s.",
                 gs_optimizer_state_name(state->optimizer, kind));
        for (size_t i = 0; i < state->num_params; i++) {
            gs_param_spec spec = state->param_specs[i];
            spec.dtype = GS_FP32;
            add_tensor(state, &spec, prefix);
        }
    }
    gs_param_spec counts = gs_param_spec_make(GS_I64, (int64_t)state->num_params, 0, "num_updates");
    add_tensor(state, &counts, "optimizer.");
    for (size_t i = 0; i < state->num_buffers; i++) {
        add_tensor(state, &state->buffer_specs[i], "buffer.");
    }
    return gs_ok();
}

gs_status gs_trainer_state_init(gs_trainer_state *state, const gs_job_spec *spec,
                                gs_device *device) {
    *state = (gs_trainer_state){.device = device};
    gs_status status = gs_model_create(&state->model, spec, gs_job_spec_most_rows(spec), device);
    if (!status.code) status = make_optimizer(state, spec);
    if (!status.code) status = make_params(state);
    if (!status.code) status = make_precision(state, spec);
    if (!status.code) {
        state->buffer_specs = state->model.ops->buffers(state->model.state, &state->num_buffers);
        static const gs_buffers_policy policies[] = {
            [GS_SPEC_BUFFERS_BROADCAST] = GS_BUFFERS_BROADCAST,
            [GS_SPEC_BUFFERS_NONE] = GS_BUFFERS_LOCAL,
            [GS_SPEC_BUFFERS_AVERAGE] = GS_BUFFERS_AVERAGE};
        gs_buffers_policy policy = policies[spec->reducer.buffers];
        status = gs_buffers_create(&state->buffers, state->buffer_specs, state->num_buffers, policy,
                                   spec->exact, device);
    }
    if (!status.code) status = list_tensors(state);
    if (!status.code) {
        status = state->model.ops->init(state->model.state, state->params,
                                        gs_buffers_committed(state->buffers),
                                        (uint64_t)spec->model.seed);
    }
    if (status.code)
        gs_trainer_state_release(state);
    else
        gs_trainer_state_refresh(state);
    return status;
}

void gs_trainer_state_release(gs_trainer_state *state) {
    gs_optimizer_destroy(state->optimizer);
    gs_buffers_destroy(state->buffers);
    gs_model_destroy(&state->model);
    gs_mixed_precision_destroy(state->mixed);
    if (state->memory) gs_device_free(state->device, state->memory);
    free(state->params);
    free(state->param_specs);
    free(state->tensors);
    *state = (gs_trainer_state){0};
}

void *gs_trainer_state_data(const gs_trainer_state *state, size_t index) {
    size_t num_params = state->num_params;
    size_t num_kinds = (size_t)gs_optimizer_state_count(state->optimizer);
    if (index < num_params) return state->params[index];
    index -= num_params;
    if (index < num_kinds * num_params) {
        return gs_optimizer_state(state->optimizer, (int)(index / num_params), index % num_params);
    }
    index -= num_kinds * num_params;
    if (index == 0) return gs_optimizer_num_updates(state->optimizer);
    return gs_buffers_committed(state->buffers)[index - 1];
}

size_t gs_trainer_state_bytes(const gs_trainer_state *state) {
    size_t bytes = 0;
    for (size_t i = 0; i < state->num_tensors; i++) bytes += state->tensors[i].bytes;
    return bytes;
}

size_t gs_trainer_state_total_elements(const gs_trainer_state *state) {
    size_t count = 0;
    for (size_t i = 0; i < state->num_params; i++) {
        count += gs_param_spec_count(&state->param_specs[i]);
    }
    return count;
}

gs_digest gs_trainer_state_params_digest(const gs_trainer_state *state, int part, int num_parts) {
    size_t begin = state->memory_bytes * (size_t)part / (size_t)num_parts;
    size_t end = state->memory_bytes * (size_t)(part + 1) / (size_t)num_parts;
    return gs_digest_of((const uint8_t *)state->memory + begin, end - begin);
}

static void add_position(gs_digest_stream *stream, const gs_position *position) {
    int64_t words[] = {position->step, position->consumed, position->skipped_steps,
                       position->skipped_in_a_row};
    gs_digest_stream_add(stream, words, sizeof words);
    const gs_grad_scaler *loss_scale = &position->loss_scale;
    if (!(loss_scale->scale > 0)) return;
    gs_digest_stream_add(stream, &loss_scale->scale, sizeof loss_scale->scale);
    gs_digest_stream_add(stream, &loss_scale->growth_tracker, sizeof loss_scale->growth_tracker);
}

static gs_digest take_digest(gs_digest_stream *stream) {
    gs_digest digest = gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    return digest;
}

gs_digest gs_trainer_state_digest(const gs_trainer_state *state) {
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    for (size_t i = 0; i < state->num_tensors; i++) {
        gs_digest_stream_add(stream, gs_trainer_state_data(state, i), state->tensors[i].bytes);
    }
    add_position(stream, &state->position);
    return take_digest(stream);
}

gs_status gs_state_snapshot_init(gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    *snapshot = (gs_state_snapshot){.tensors = state->tensors,
                                    .num_tensors = state->num_tensors,
                                    .num_params = state->num_params,
                                    .params_bytes = state->memory_bytes};
    snapshot->offsets = calloc(state->num_tensors, sizeof *snapshot->offsets);
    for (size_t i = 0; i < state->num_tensors && snapshot->offsets; i++) {
        snapshot->offsets[i] = snapshot->bytes;
        snapshot->bytes += gs_round_up(state->tensors[i].bytes, PARAM_BOUNDARY_BYTES);
    }
    snapshot->memory = gs_alloc_aligned(snapshot->bytes, PARAM_BOUNDARY_BYTES);
    if (snapshot->offsets && snapshot->memory) return gs_ok();
    size_t bytes = snapshot->bytes;
    gs_state_snapshot_release(snapshot);
    return gs_error(GS_RESOURCE_EXHAUSTED, "snapshot: no memory for %zu bytes", bytes);
}

void gs_state_snapshot_release(gs_state_snapshot *snapshot) {
    free(snapshot->memory);
    free(snapshot->offsets);
    *snapshot = (gs_state_snapshot){0};
}

gs_status gs_state_snapshot_take(gs_state_snapshot *snapshot, const gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        GS_TRY(gs_device_download(state->device, snapshot->memory + snapshot->offsets[i],
                                  gs_trainer_state_data(state, i), state->tensors[i].bytes));
    }
    snapshot->position = state->position;
    return gs_ok();
}

gs_status gs_state_snapshot_restore(const gs_state_snapshot *snapshot, gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_tensors; i++) {
        GS_TRY(gs_device_upload(state->device, gs_trainer_state_data(state, i),
                                snapshot->memory + snapshot->offsets[i], state->tensors[i].bytes));
    }
    state->position = snapshot->position;
    gs_trainer_state_refresh(state);
    return gs_ok();
}

gs_digest gs_state_snapshot_digest(const gs_state_snapshot *snapshot) {
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    for (size_t i = 0; i < snapshot->num_tensors; i++) {
        gs_digest_stream_add(stream, snapshot->memory + snapshot->offsets[i],
                             snapshot->tensors[i].bytes);
    }
    add_position(stream, &snapshot->position);
    return take_digest(stream);
}

// Parameters come first and lie in a snapshot as they do in the state: padding is zero in both.
gs_digest gs_state_snapshot_params_digest(const gs_state_snapshot *snapshot) {
    return gs_digest_of(snapshot->memory, snapshot->params_bytes);
}
