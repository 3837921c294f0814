// A state is made, and released.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "worker/models/registry.h"
#include "worker/state/trainer_state_parts.h"

// Parameters of different tensors never share a cache line; what lies between them stays zero.
static void measure_params(gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_params; i++) {
        size_t bytes = gs_param_spec_count(&state->param_specs[i]) * sizeof(float);
        state->params_bytes += gs_round_up(bytes, GS_PARAM_BOUNDARY_BYTES);
    }
}

static gs_status make_params(gs_trainer_state *state) {
    GS_TRY(gs_device_alloc(state->device, &state->memory, state->params_bytes));
    state->memory_bytes = state->params_bytes;
    state->owns_memory = true;
    state->params = calloc(state->num_params, sizeof *state->params);
    if (!state->params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    gs_state_place_params(state, state->memory, state->params);
    return gs_ok();
}

gs_dtype gs_precision_dtype(const gs_job_spec *spec) {
    static const gs_dtype dtypes[] = {[GS_PRECISION_FP32] = GS_FP32,
                                      [GS_PRECISION_BF16] = GS_BF16,
                                      [GS_PRECISION_FP16] = GS_FP16,
                                      [GS_PRECISION_TF32] = GS_FP32};
    return dtypes[spec->model.precision];
}

gs_status gs_state_make_loss_scale(gs_trainer_state *state, const gs_job_spec *spec) {
    state->loss_scaling =
        (gs_grad_scaler_options){.init_scale = (float)spec->optimizer.loss_scale.init,
                                 .growth_factor = spec->optimizer.loss_scale.growth_factor,
                                 .backoff_factor = spec->optimizer.loss_scale.backoff_factor,
                                 .growth_interval = spec->optimizer.loss_scale.growth_interval,
                                 .hysteresis = (int32_t)spec->optimizer.loss_scale.hysteresis,
                                 .min_scale = (float)spec->optimizer.loss_scale.min};
    return gs_status_prefix(gs_grad_scaler_init(&state->position.loss_scale, &state->loss_scaling),
                            "optimizer.loss_scale");
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
        .state_on_host = spec->optimizer.offload,
        .host_threads = (int)spec->world.threads_per_rank,
    };
}

static bool splits_masters(const gs_trainer_state *state, const gs_job_spec *spec) {
    gs_optimizer_options optimizer = optimizer_options(spec);
    return gs_precision_dtype(spec) == GS_BF16 && state->model.dtype == GS_BF16 &&
           gs_optimizer_takes_halves(&optimizer);
}

// A model of fp32 kernels reads the fp32 value of a 16-bit parameter, and its gradients are rounded
// to 16 bits afterwards. One of 16-bit kernels reads the parameter itself and sums in fp32. In
// windows each pass has gradients of its own.
gs_mixed_precision_options gs_state_mixed_options(const gs_trainer_state *state,
                                                  const gs_job_spec *spec) {
    gs_dtype dtype = gs_precision_dtype(spec);
    bool one_pass = spec->logical_shards == 1 || spec->exact;
    bool adds = (!one_pass || gs_job_spec_passes_per_shard(spec) > 1) &&
                spec->reducer.sharding != GS_SHARDING_GRADIENTS;
    bool is_half = state->model.dtype == dtype;
    return (gs_mixed_precision_options){.dtype = dtype,
                                        .params = state->param_specs,
                                        .num_params = state->num_params,
                                        .masters = (float *const *)state->params,
                                        .splits_masters = splits_masters(state, spec),
                                        .keeps_params = is_half,
                                        .keeps_values = !is_half,
                                        .adds_passes = !is_half && adds,
                                        .device = state->device};
}

gs_status gs_state_make_mixed(gs_trainer_state *state, const gs_mixed_precision_options *options) {
    GS_TRY(gs_mixed_precision_create(&state->mixed, options));
    state->rounds_grads = options->keeps_values;
    state->values = options->keeps_values ? gs_mixed_precision_values(state->mixed)
                                          : gs_mixed_precision_params(state->mixed);
    return gs_ok();
}

static gs_status make_precision(gs_trainer_state *state, const gs_job_spec *spec) {
    gs_dtype dtype = gs_precision_dtype(spec);
    measure_params(state);
    for (size_t i = 0; i < state->num_params; i++) state->param_specs[i].dtype = dtype;
    if (dtype == GS_FP16) GS_TRY(gs_state_make_loss_scale(state, spec));
    if (state->is_sharded) return gs_ok();
    if (!splits_masters(state, spec)) GS_TRY(make_params(state));
    state->values = state->params;
    if (dtype == GS_FP32) return gs_ok();
    const gs_mixed_precision_options options = gs_state_mixed_options(state, spec);
    GS_TRY(gs_state_make_mixed(state, &options));
    if (options.splits_masters)
        state->memory = gs_mixed_precision_halves(state->mixed, &state->memory_bytes);
    return gs_ok();
}

static gs_status list_params(gs_trainer_state *state) {
    const gs_model_param *params = state->model.ops->params(state->model.state, &state->num_params);
    state->param_specs = calloc(state->num_params, sizeof *state->param_specs);
    if (!state->param_specs) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < state->num_params; i++) state->param_specs[i] = params[i].spec;
    return gs_param_specs_check(state->param_specs, state->num_params);
}

gs_status gs_state_make_optimizer(gs_trainer_state *state, const gs_job_spec *spec,
                                  const gs_segment *segments, size_t num_segments) {
    size_t num_params;
    const gs_model_param *params = state->model.ops->params(state->model.state, &num_params);
    bool *decays = calloc(num_params, sizeof *decays);
    gs_param_spec *masters = calloc(num_params, sizeof *masters);
    gs_status status =
        decays && masters ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < num_params && !status.code; i++) {
        decays[i] = params[i].decays;
        masters[i] = params[i].spec;
    }
    gs_optimizer_options options = optimizer_options(spec);
    options.segments = segments;
    options.num_segments = num_segments;
    if (!status.code)
        status = gs_optimizer_create(&state->optimizer, &options, masters, decays, num_params,
                                     state->device);
    free(masters);
    free(decays);
    return status;
}

// A sharded state's has no segments before a generation says which.
static gs_status make_first_optimizer(gs_trainer_state *state, const gs_job_spec *spec) {
    static const gs_segment nothing;
    return gs_state_make_optimizer(state, spec, state->is_sharded ? &nothing : NULL, 0);
}

static gs_status make_buffers(gs_trainer_state *state, const gs_job_spec *spec) {
    state->buffer_specs = state->model.ops->buffers(state->model.state, &state->num_buffers);
    static const gs_buffers_policy policies[] = {[GS_SPEC_BUFFERS_BROADCAST] = GS_BUFFERS_BROADCAST,
                                                 [GS_SPEC_BUFFERS_NONE] = GS_BUFFERS_LOCAL,
                                                 [GS_SPEC_BUFFERS_AVERAGE] = GS_BUFFERS_AVERAGE};
    state->buffers_are_local = spec->reducer.buffers == GS_SPEC_BUFFERS_NONE;
    return gs_buffers_create(&state->buffers, state->buffer_specs, state->num_buffers,
                             policies[spec->reducer.buffers], spec->exact, state->device);
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
    state->num_model_tensors = state->num_tensors;
    return gs_ok();
}

static gs_status make_runs(gs_trainer_state *state) {
    state->runs = calloc(state->num_tensors, sizeof *state->runs);
    if (!state->runs) return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    gs_trainer_state_find(state);
    return gs_device_copy_create(&state->copy, state->device);
}

gs_status gs_trainer_state_init(gs_trainer_state *state, const gs_job_spec *spec,
                                gs_device *device) {
    *state = (gs_trainer_state){.device = device,
                                .is_sharded = spec->reducer.sharding != GS_SHARDING_NONE};
    gs_status status = gs_model_create(&state->model, spec, gs_job_spec_most_rows(spec), device);
    if (!status.code) status = list_params(state);
    if (!status.code) status = make_first_optimizer(state, spec);
    if (!status.code) status = make_precision(state, spec);
    if (!status.code) status = make_buffers(state, spec);
    if (!status.code) status = list_tensors(state);
    if (!status.code) status = make_runs(state);
    if (!status.code && !state->is_sharded) status = gs_state_draw_params(state, spec);
    if (status.code) gs_trainer_state_release(state);
    return status;
}

void gs_state_free_own_params(gs_trainer_state *state) {
    free(state->own_params);
    free(state->halves);
    if (state->masters) gs_device_free(state->device, state->masters);
    state->own_params = NULL;
    state->halves = NULL;
    state->masters = NULL;
}

void gs_trainer_state_release(gs_trainer_state *state) {
    gs_own_tensors_release(&state->own);
    gs_trainer_state_give_source(state, &(gs_state_source){0});
    gs_state_shards_destroy(state->shards);
    gs_device_copy_destroy(state->copy);
    gs_optimizer_destroy(state->optimizer);
    gs_buffers_destroy(state->buffers);
    gs_model_destroy(&state->model);
    gs_mixed_precision_destroy(state->mixed);
    gs_state_free_own_params(state);
    if (state->owns_memory) gs_device_free(state->device, state->memory);
    free(state->params);
    free(state->param_specs);
    for (size_t i = state->num_model_tensors; i < state->num_tensors; i++)
        free(state->resting[i - state->num_model_tensors]);
    free(state->resting);
    free(state->tensors);
    free(state->runs);
    *state = (gs_trainer_state){0};
}

void gs_trainer_state_give_source(gs_trainer_state *state, const gs_state_source *source) {
    if (state->source.release) state->source.release(state->source.ctx);
    state->source = *source;
}
