#include "worker/state/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "worker/models/registry.h"

#define DEVICE_WAIT_SECONDS 120.0
#define PIECE_COUNT ((size_t)1 << 20)  // of masters in host memory, on their way

// Parameters of different tensors never share a cache line; what lies between them stays zero.
static void measure_params(gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_params; i++) {
        size_t bytes = gs_param_spec_count(&state->param_specs[i]) * sizeof(float);
        state->params_bytes += gs_round_up(bytes, GS_PARAM_BOUNDARY_BYTES);
    }
}

// fp32 views, one after the other.
static void place_params(const gs_trainer_state *state, void *memory, void **params) {
    uint8_t *at = memory;
    for (size_t i = 0; i < state->num_params; i++) {
        params[i] = at;
        at += gs_round_up(gs_param_spec_count(&state->param_specs[i]) * sizeof(float),
                          GS_PARAM_BOUNDARY_BYTES);
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

static gs_status make_loss_scale(gs_trainer_state *state, const gs_job_spec *spec) {
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
    return dtype_of(spec) == GS_BF16 && state->model.dtype == GS_BF16 &&
           gs_optimizer_takes_halves(&optimizer);
}

// A model of fp32 kernels reads the fp32 value of a 16-bit parameter, and its gradients are rounded to 16
// bits afterwards. One of 16-bit kernels reads the parameter itself and sums in fp32. In windows each pass has
// gradients of its own.
static gs_mixed_precision_options mixed_options(const gs_trainer_state *state,
                                                const gs_job_spec *spec) {
    gs_dtype dtype = dtype_of(spec);
    bool one_pass = spec->logical_shards == 1 || spec->exact;
    bool adds = (!one_pass || gs_job_spec_passes_per_shard(spec) > 1) &&
                spec->reducer.sharding != GS_SHARDING_GRADIENTS;
    bool is_half = state->model.dtype == dtype;
    return (gs_mixed_precision_options){
        .dtype = dtype,
        .params = state->param_specs,
        .num_params = state->num_params,
        .masters = (float *const *)state->params,
        .splits_masters = splits_masters(state, spec),
        .keeps_params = is_half,
        .keeps_values = !is_half,
        .adds_passes = !is_half && adds,
        .device = state->device};
}

static gs_status make_mixed(gs_trainer_state *state, const gs_mixed_precision_options *options) {
    GS_TRY(gs_mixed_precision_create(&state->mixed, options));
    state->rounds_grads = options->keeps_values;
    state->values = options->keeps_values ? gs_mixed_precision_values(state->mixed)
                                          : gs_mixed_precision_params(state->mixed);
    return gs_ok();
}

static gs_status make_precision(gs_trainer_state *state, const gs_job_spec *spec) {
    gs_dtype dtype = dtype_of(spec);
    measure_params(state);
    for (size_t i = 0; i < state->num_params; i++) state->param_specs[i].dtype = dtype;
    if (dtype == GS_FP16) GS_TRY(make_loss_scale(state, spec));
    if (state->is_sharded) return gs_ok();
    if (!splits_masters(state, spec)) GS_TRY(make_params(state));
    state->values = state->params;
    if (dtype == GS_FP32) return gs_ok();
    const gs_mixed_precision_options options = mixed_options(state, spec);
    GS_TRY(make_mixed(state, &options));
    if (options.splits_masters)
        state->memory = gs_mixed_precision_halves(state->mixed, &state->memory_bytes);
    return gs_ok();
}

// What others have the masters of comes from where its 16 bits lie.
void gs_trainer_state_refresh(gs_trainer_state *state) {
    if (!state->mixed) return;
    gs_mixed_precision_write_back(state->mixed);
    for (size_t i = 0; i < state->num_params && state->halves; i++)
        gs_mixed_precision_take_param(state->mixed, i);
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
    gs_param_spec *masters = calloc(num_params, sizeof *masters);
    gs_status status = decays && masters
                           ? gs_ok()
                           : gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
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

static gs_status make_runs(gs_trainer_state *state) {
    state->runs = calloc(state->num_tensors, sizeof *state->runs);
    if (!state->runs) return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    gs_trainer_state_find(state);
    return gs_device_copy_create(&state->copy, state->device);
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
        place_params(state, memory, params);
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

static gs_status draw_params(gs_trainer_state *state, const gs_job_spec *spec) {
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

static void free_own_params(gs_trainer_state *state) {
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
    free_own_params(state);
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
    gs_mixed_precision_options options = mixed_options(state, spec);
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
    return make_mixed(state, &options);
}

static gs_status place_sharded_halves(gs_trainer_state *state, const gs_job_spec *spec,
                                      void *memory) {
    void **places = calloc(state->num_params + 1, sizeof *places);
    if (!state->halves) state->halves = calloc(state->num_params + 1, sizeof *state->halves);
    gs_status status = places && state->halves
                           ? place_sharded(state, memory, places)
                           : gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < state->num_params && !status.code; i++)
        state->halves[i] = (gs_copy_run){.data = places[i],
                                         .bytes = gs_param_spec_bytes(&state->param_specs[i])};
    if (!status.code) status = make_sharded_mixed(state, spec, places);
    free(places);
    return status;
}

static gs_status fill_sharded(gs_trainer_state *state, const gs_job_spec *spec) {
    const gs_state_source *source = &state->source;
    state->position = (gs_position){0};
    if (dtype_of(spec) == GS_FP16) GS_TRY(make_loss_scale(state, spec));
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
    gs_mixed_precision_destroy(state->mixed);
    state->mixed = NULL;
    free_own_params(state);
    GS_TRY(dtype_of(spec) == GS_FP32 ? place_sharded_params(state, memory)
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
    gs_segment own = gs_segment_intersect(piece, gs_state_shards_of_param(state->shards, piece.tensor));
    GS_TRY(gs_mixed_precision_put_param(state->mixed, piece.tensor, piece.first, host, piece.count));
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
        status = from->read(from->ctx, host, piece.first * sizeof *host, piece.count * sizeof *host);
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
