#include "worker/state/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "worker/models/registry.h"

#define PARAM_BOUNDARY_BYTES 64
#define DEVICE_WAIT_SECONDS 120.0

// Parameters of different tensors never share a cache line; what lies between them stays zero.
static void measure_params(gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_params; i++) {
        size_t bytes = gs_param_spec_count(&state->param_specs[i]) * sizeof(float);
        state->params_bytes += gs_round_up(bytes, PARAM_BOUNDARY_BYTES);
    }
}

// fp32 views, one after the other.
static void place_params(const gs_trainer_state *state, void *memory, void **params) {
    uint8_t *at = memory;
    for (size_t i = 0; i < state->num_params; i++) {
        params[i] = at;
        at += gs_round_up(gs_param_spec_count(&state->param_specs[i]) * sizeof(float),
                          PARAM_BOUNDARY_BYTES);
    }
}

static gs_status make_params(gs_trainer_state *state) {
    GS_TRY(gs_device_alloc(state->device, &state->memory, state->params_bytes));
    state->memory_bytes = state->params_bytes;
    state->owns_memory = true;
    state->params = calloc(state->num_params, sizeof *state->params);
    if (!state->params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    place_params(state, state->memory, state->params);
    return gs_ok();
}

static gs_dtype dtype_of(const gs_job_spec *spec) {
    static const gs_dtype dtypes[] = {[GS_PRECISION_FP32] = GS_FP32,
                                      [GS_PRECISION_BF16] = GS_BF16,
                                      [GS_PRECISION_FP16] = GS_FP16,
                                      [GS_PRECISION_TF32] = GS_FP32};
    return dtypes[spec->model.precision];
}

// A model of fp32 kernels reads the fp32 value of a 16-bit parameter, and its gradients are rounded to 16
// bits afterwards. One of 16-bit kernels reads the parameter itself and sums in fp32.
static gs_status make_mixed(gs_trainer_state *state, const gs_job_spec *spec, gs_dtype dtype,
                            bool splits) {
    bool one_pass = spec->logical_shards == 1 || spec->exact;
    bool is_half = state->model.dtype == dtype;
    const gs_mixed_precision_options options = {
        .dtype = dtype,
        .params = state->param_specs,
        .num_params = state->num_params,
        .masters = (float *const *)state->params,
        .splits_masters = splits,
        .keeps_params = is_half,
        .keeps_values = !is_half,
        .adds_passes = !is_half && (!one_pass || gs_job_spec_passes_per_shard(spec) > 1),
        .device = state->device};
    GS_TRY(gs_mixed_precision_create(&state->mixed, &options));
    state->rounds_grads = !is_half;
    state->values = is_half ? gs_mixed_precision_params(state->mixed)
                            : gs_mixed_precision_values(state->mixed);
    if (splits) state->memory = gs_mixed_precision_halves(state->mixed, &state->memory_bytes);
    return gs_ok();
}

static gs_status make_loss_scale(gs_trainer_state *state, const gs_job_spec *spec) {
    state->loss_scaling =
        (gs_grad_scaler_options){.init_scale = (float)spec->optimizer.loss_scale.init,
                                 .growth_factor = spec->optimizer.loss_scale.growth_factor,
                                 .backoff_factor = spec->optimizer.loss_scale.backoff_factor,
                                 .growth_interval = spec->optimizer.loss_scale.growth_interval};
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
    };
}

static gs_status make_precision(gs_trainer_state *state, const gs_job_spec *spec) {
    gs_dtype dtype = dtype_of(spec);
    gs_optimizer_options optimizer = optimizer_options(spec);
    measure_params(state);
    if (state->is_sharded) return gs_ok();
    bool splits = dtype == GS_BF16 && state->model.dtype == GS_BF16 &&
                  gs_optimizer_takes_halves(&optimizer);
    if (!splits) GS_TRY(make_params(state));
    state->values = state->params;
    if (dtype == GS_FP32) return gs_ok();
    for (size_t i = 0; i < state->num_params; i++) state->param_specs[i].dtype = dtype;
    GS_TRY(make_mixed(state, spec, dtype, splits));
    return dtype == GS_FP16 ? make_loss_scale(state, spec) : gs_ok();
}

void gs_trainer_state_refresh(gs_trainer_state *state) {
    if (state->mixed) gs_mixed_precision_write_back(state->mixed);
}

static gs_status list_params(gs_trainer_state *state) {
    const gs_model_param *params = state->model.ops->params(state->model.state, &state->num_params);
    state->param_specs = calloc(state->num_params, sizeof *state->param_specs);
    if (!state->param_specs) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < state->num_params; i++) state->param_specs[i] = params[i].spec;
    return gs_param_specs_check(state->param_specs, state->num_params);
}

// For all of the parameters, or for segments of them (not NULL, though there may be none).
static gs_status make_optimizer(gs_trainer_state *state, const gs_job_spec *spec,
                                const gs_segment *segments, size_t num_segments) {
    size_t num_params;
    const gs_model_param *params = state->model.ops->params(state->model.state, &num_params);
    bool *decays = calloc(num_params, sizeof *decays);
    if (!decays) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < num_params; i++) decays[i] = params[i].decays;
    gs_optimizer_options options = optimizer_options(spec);
    options.segments = segments;
    options.num_segments = num_segments;
    gs_status status = gs_optimizer_create(&state->optimizer, &options, state->param_specs, decays,
                                           num_params, state->device);
    free(decays);
    return status;
}

// A sharded state's has no segments before a generation says which.
static gs_status make_first_optimizer(gs_trainer_state *state, const gs_job_spec *spec) {
    static const gs_segment nothing;
    return make_optimizer(state, spec, state->is_sharded ? &nothing : NULL, 0);
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

static gs_status make_buffers(gs_trainer_state *state, const gs_job_spec *spec) {
    state->buffer_specs = state->model.ops->buffers(state->model.state, &state->num_buffers);
    static const gs_buffers_policy policies[] = {[GS_SPEC_BUFFERS_BROADCAST] = GS_BUFFERS_BROADCAST,
                                                 [GS_SPEC_BUFFERS_NONE] = GS_BUFFERS_LOCAL,
                                                 [GS_SPEC_BUFFERS_AVERAGE] = GS_BUFFERS_AVERAGE};
    state->buffers_are_local = spec->reducer.buffers == GS_SPEC_BUFFERS_NONE;
    return gs_buffers_create(&state->buffers, state->buffer_specs, state->num_buffers,
                             policies[spec->reducer.buffers], spec->exact, state->device);
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
                         .bytes = segments[segment].count * sizeof(float)};
}

static gs_copy_run find_param_run(const gs_trainer_state *state, size_t param) {
    gs_copy_run run = {.bytes = state->tensors[param].bytes};
    if (state->is_sharded && !state->shards) return (gs_copy_run){0};
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

static void find_runs(gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_model_tensors; i++) state->runs[i] = find_run(state, i);
}

static gs_status make_runs(gs_trainer_state *state) {
    state->runs = calloc(state->num_tensors, sizeof *state->runs);
    if (!state->runs) return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    find_runs(state);
    return gs_device_copy_create(&state->copy, state->device);
}

static gs_status init_model(gs_trainer_state *state, void *const *params, uint64_t seed) {
    return state->model.ops->init(state->model.state, params, gs_buffers_committed(state->buffers),
                                  seed);
}

// Masters in halves are drawn as fp32 and split.
static gs_status draw_split_params(gs_trainer_state *state, uint64_t seed) {
    const gs_kernels *k = gs_device_kernels(state->device);
    gs_stream *stream = gs_device_stream(state->device);
    void *memory = NULL, **params = calloc(state->num_params, sizeof *params);
    if (!params) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    gs_status status = gs_device_alloc(state->device, &memory, state->params_bytes);
    if (!status.code) {
        place_params(state, memory, params);
        status = init_model(state, params, seed);
    }
    for (size_t i = 0; i < state->num_params && !status.code; i++) {
        const gs_copy_run *run = &state->runs[i];
        k->split_master(stream, run->value, run->remainder, params[i], run->bytes / sizeof(float));
    }
    if (!status.code) status = gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS));
    if (memory) gs_device_free(state->device, memory);
    free(params);
    return status;
}

static gs_status draw_params(gs_trainer_state *state, const gs_job_spec *spec) {
    uint64_t seed = (uint64_t)spec->model.seed;
    GS_TRY(state->params ? init_model(state, state->params, seed) : draw_split_params(state, seed));
    gs_trainer_state_refresh(state);
    return gs_ok();
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
    if (!status.code && !state->is_sharded) status = draw_params(state, spec);
    if (status.code) gs_trainer_state_release(state);
    return status;
}

void gs_trainer_state_release(gs_trainer_state *state) {
    gs_own_tensors_release(&state->own);
    gs_trainer_state_give_source(state, &(gs_state_source){0});
    gs_state_shards_destroy(state->shards);
    free(state->own_params);
    gs_device_copy_destroy(state->copy);
    gs_optimizer_destroy(state->optimizer);
    gs_buffers_destroy(state->buffers);
    gs_model_destroy(&state->model);
    gs_mixed_precision_destroy(state->mixed);
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

// In the order in which their gradients lie.
static gs_status place_sharded_params(gs_trainer_state *state, void *memory) {
    const gs_state_shards *shards = state->shards;
    if (!state->params) state->params = calloc(state->num_params, sizeof *state->params);
    free(state->own_params);
    state->own_params = calloc(shards->num_own + 1, sizeof *state->own_params);
    if (!state->params || !state->own_params)
        return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    state->memory = memory;
    state->memory_bytes = gs_shards_param_bytes(shards->partition);
    state->values = state->params;
    gs_device_kernels(state->device)
        ->fill(gs_device_stream(state->device), memory, 0.0f, state->memory_bytes / sizeof(float));
    for (size_t i = 0; i < state->num_params; i++)
        state->params[i] = (uint8_t *)memory + gs_shards_param_offset(shards->partition, i);
    for (size_t i = 0; i < shards->num_own; i++)
        state->own_params[i] = (float *)state->params[shards->own[i].tensor] + shards->own[i].first;
    return gs_ok();
}

static gs_status fill_sharded(gs_trainer_state *state, const gs_job_spec *spec) {
    const gs_state_source *source = &state->source;
    state->position = (gs_position){0};
    if (!source->fill || source->is_drawn) GS_TRY(draw_params(state, spec));
    return source->fill ? source->fill(source->ctx, state) : gs_ok();
}

static gs_status lay_out(gs_trainer_state *state, const gs_job_spec *spec, void *memory) {
    gs_optimizer *last = state->optimizer;
    gs_status status = make_optimizer(state, spec, state->shards->own, state->shards->num_own);
    if (status.code) {
        state->optimizer = last;
        return status;
    }
    gs_optimizer_destroy(last);
    GS_TRY(place_sharded_params(state, memory));
    find_runs(state);
    return fill_sharded(state, spec);
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

gs_segment gs_trainer_state_held(const gs_trainer_state *state, size_t index) {
    const gs_state_tensor *tensor = &state->tensors[index];
    gs_segment all = {.tensor = index, .count = tensor->bytes / gs_dtype_bytes(tensor->dtype)};
    int kind;
    size_t param;
    if (!state->is_sharded || !find_kind(state, index, &kind, &param)) return all;
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

gs_status gs_trainer_state_fill(gs_trainer_state *state, size_t index, gs_copy_fill fill,
                                void *ctx) {
    return gs_device_copy_write(state->copy, &state->runs[index], 1, fill, ctx);
}

size_t gs_trainer_state_total_elements(const gs_trainer_state *state) {
    size_t count = 0;
    for (size_t i = 0; i < state->num_params; i++) {
        count += gs_param_spec_count(&state->param_specs[i]);
    }
    return count;
}

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
}

// Of all but the last `num_left_out` of the model's, and but what each rank has another part of.
static gs_digest digest_tensors(const gs_trainer_state *state, size_t num_left_out) {
    if (state->is_sharded && !state->shards) return (gs_digest){0};
    size_t num_model = state->num_model_tensors;
    size_t first_count = num_model - state->num_buffers - 1;  // behind the optimizer's tensors
    size_t num_first = state->is_sharded ? state->num_params : first_count;
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    gs_status status =
        gs_device_copy_read(state->copy, state->runs, num_first, digest_bytes, stream);
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
    static const uint8_t zeros[PARAM_BOUNDARY_BYTES];
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return (gs_digest){0};
    gs_status status = gs_ok();
    for (size_t i = 0; i < state->num_params && !status.code; i++) {
        size_t bytes = state->tensors[i].bytes;
        status = gs_device_copy_read(state->copy, &state->runs[i], 1, digest_bytes, stream);
        gs_digest_stream_add(stream, zeros, gs_round_up(bytes, PARAM_BOUNDARY_BYTES) - bytes);
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
