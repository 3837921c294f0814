#include "tests/support/reduce_runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "gradsync/bucket/grad_norm.h"
#include "gradsync/comm/device_arena.h"
#include "tests/support/device_memory.h"
#include "tests/support/phased_hook.h"
#include "tests/support/reduce_reference.h"

#define STALE 77.0  // what a tensor holds that no step has written

typedef struct runner {
    const reduce_case *model;
    const gs_rank_env *env;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_separate_grad tensors[REDUCE_CASE_MAX_PARAMS];  // data owned, on the device
    gs_hook_number tokens;
    reduce_reference *reference;
    // Of each hook: itself, a wrapper around it, phases before it.
    gs_hook_choice inner[REDUCE_CASE_MAX_HOOKS], wrapped[REDUCE_CASE_MAX_HOOKS],
        hooks[REDUCE_CASE_MAX_HOOKS];
    uint64_t digest;
    gs_deadline deadline;
} runner;

static double load(const void *data, gs_dtype dtype, size_t i) {
    switch (dtype) {
    case GS_FP64:
        return ((const double *)data)[i];
    case GS_FP16:
        return (double)gs_fp16_to_fp32(((const uint16_t *)data)[i]);
    case GS_BF16:
        return (double)gs_bf16_to_fp32(((const uint16_t *)data)[i]);
    default:
        return (double)((const float *)data)[i];
    }
}

static void store(void *data, gs_dtype dtype, size_t i, double value) {
    switch (dtype) {
    case GS_FP64:
        ((double *)data)[i] = value;
        break;
    case GS_FP16:
        ((uint16_t *)data)[i] = gs_fp32_to_fp16((float)value);
        break;
    case GS_BF16:
        ((uint16_t *)data)[i] = gs_fp32_to_bf16((float)value);
        break;
    default:
        ((float *)data)[i] = (float)value;
        break;
    }
}

static gs_dtype main_dtype(const reduce_case *model, size_t param) {
    return model->params[param].dtype == GS_FP64 ? GS_FP64 : GS_FP32;
}

static void choose_hooks(runner *self) {
    const reduce_case *model = self->model;
    self->tokens = (gs_hook_number){"tokens", model->num_tokens};
    for (size_t i = 0; i < model->num_hooks; i++) {
        gs_dtype wrap = model->hooks[i].wrap;
        self->inner[i] = reduce_case_choice(model, i);
        self->wrapped[i] = (gs_hook_choice){
            .hook = gs_comm_hook_find(wrap == GS_FP16 ? "wrap_fp16" : "wrap_bf16"),
            .inner = &self->inner[i]};
        const gs_hook_choice *own = wrap ? &self->wrapped[i] : &self->inner[i];
        self->hooks[i] = model->num_tokens ? (gs_hook_choice){.hook = &phased_hook,
                                                              .numbers = &self->tokens,
                                                              .num_numbers = 1,
                                                              .inner = own}
                                           : *own;
    }
}

static gs_status open_runner(runner *self) {
    const reduce_case *model = self->model;
    gs_reducer_options options = {.params = model->params,
                                  .num_params = model->num_params,
                                  .plan = &model->plans[0],
                                  .shards = {.num_shards = model->num_shards,
                                             .world_size = model->world_size,
                                             .rank = self->env->rank,
                                             .exact = model->exact},
                                  .passes_per_shard = model->passes_per_shard,
                                  .op = model->op,
                                  .static_graph = model->static_graph,
                                  .separate = model->separate ? self->tensors : NULL,
                                  .wire_dtype = model->wire_dtype,
                                  .tally = model->tally};
    choose_hooks(self);
    if (model->names_hooks || model->num_tokens) {
        options.hooks = self->hooks;
        options.num_hooks = model->num_hooks;
    }
    GS_TRY(test_device_try(&self->device, 1));
    for (size_t p = 0; p < model->num_params; p++) {
        self->tensors[p].dtype = model->tensor_dtypes[p];
        self->tensors[p].data = device_memory_alloc(
            self->device, gs_param_spec_count(&model->params[p]) * sizeof(double) + 8);
    }
    size_t bytes;
    int num_lanes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_reducer_lanes(&num_lanes, &options));
    GS_TRY(gs_arena_create_on(&self->arena, bytes, self->device));
    GS_TRY(gs_comm_create(&self->comm,
                          &(gs_comm_options){.rank = self->env->rank,
                                             .world_size = model->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = self->env->exchange,
                                             .arena = self->arena,
                                             .device = self->device,
                                             .helper = model->helper,
                                             .num_lanes = num_lanes},
                          self->deadline));
    options.arena = self->arena;
    options.device = self->device;
    return gs_reducer_create(&self->reducer, &options, self->comm, self->deadline);
}

static void close_runner(runner *self) {
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    if (!self->device) return;
    for (size_t p = 0; p < self->model->num_params; p++)
        device_memory_free(self->device, self->tensors[p].data);
    test_device_close(self->device);
}

// A host copy of a tensor, to be freed: what is there, or nothing in particular.
static void *copy_of(const runner *self, const void *tensor, size_t count, gs_dtype dtype,
                     bool reads) {
    void *copy = calloc(count + 1, sizeof(double));
    if (!copy) abort();
    if (reads) device_memory_read(self->device, copy, tensor, count * gs_dtype_bytes(dtype));
    return copy;
}

static void put_back(const runner *self, void *tensor, void *copy, size_t count, gs_dtype dtype) {
    device_memory_write(self->device, tensor, copy, count * gs_dtype_bytes(dtype));
    free(copy);
}

// One of the parts of a parameter's gradient, as the layers that share it would leave them: the
// first one writes or adds as the reducer says, later ones add an eighth each.
static void write_part(const runner *self, const gs_reducer_pass *pass, size_t param,
                       reduce_place place, int part) {
    const reduce_case *model = self->model;
    gs_dtype dtype = model->separate ? model->tensor_dtypes[param] : main_dtype(model, param);
    bool adds = part > 0 || gs_reducer_pass_adds(self->reducer, param);
    double others = (reduce_case_num_marks(model, param) - 1) / 8.0;
    size_t count = gs_param_spec_count(&model->params[param]);
    void *grad = copy_of(self, pass->grads[param], count, dtype, adds);
    for (size_t i = 0; i < count; i++) {
        double value = part ? 0.125 : reduce_case_value(model, param, place, i) - others;
        value *= (double)pass->grad_factor;
        store(grad, dtype, i, adds ? load(grad, dtype, i) + value : value);
    }
    put_back(self, pass->grads[param], grad, count, dtype);
}

// What a pass that was to write leaves behind where it does not: anything.
static void leave_junk(const runner *self, const gs_reducer_pass *pass, size_t param, int64_t step) {
    if (self->model->separate || pass->accumulate) return;
    // Of frozen ones nobody writes, but where nothing is read either.
    if (!reduce_case_trains(self->model, param, step) && !reduce_case_rests(self->model, param, step))
        return;
    double junk;
    gs_dtype dtype = main_dtype(self->model, param);
    store(&junk, dtype, 0, (double)NAN);
    if (gs_param_spec_count(&self->model->params[param]))
        device_memory_write(self->device, pass->grads[param], &junk, gs_dtype_bytes(dtype));
}

static gs_status touch_param(runner *self, const gs_reducer_pass *pass, size_t param,
                             reduce_place place, int part) {
    const reduce_case *model = self->model;
    if (reduce_case_uses(model, param, place)) {
        if (part >= reduce_case_num_marks(model, param)) return gs_ok();
        write_part(self, pass, param, place, part);
        return gs_reducer_mark_ready(self->reducer, param);
    }
    if (part > 0 || !reduce_case_says_unused(model, param, place)) return gs_ok();
    return gs_reducer_mark_unused(self->reducer, param);
}

static gs_status run_pass(runner *self, reduce_place place) {
    const reduce_case *model = self->model;
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, reduce_case_samples(model, place)));
    if (pass.shard != place.shard || pass.pass != place.pass)
        return gs_error(GS_INTERNAL, "shard %d pass %d, expected %d and %d", pass.shard, pass.pass,
                        place.shard, place.pass);
    size_t order[REDUCE_CASE_MAX_PARAMS];
    reduce_case_order(model, order, (uint64_t)(place.step * 10000 + place.shard * 10 + place.pass));
    for (size_t p = 0; p < model->num_params; p++) {
        if (!reduce_case_uses(model, p, place)) leave_junk(self, &pass, p, place.step);
    }
    for (int part = 0; part < REDUCE_CASE_MAX_MARKS; part++) {
        for (size_t i = 0; i < model->num_params; i++)
            GS_TRY(touch_param(self, &pass, order[i], place, part));
    }
    return gs_reducer_end_pass(self->reducer);
}

static gs_status run_passes(runner *self, int64_t step) {
    const reduce_case *model = self->model;
    gs_logical_shards shards = {
        .num_shards = model->num_shards, .world_size = model->world_size, .rank = self->env->rank};
    int first = gs_logical_shards_first(&shards, self->env->rank);
    for (int s = first; s < first + gs_logical_shards_count(&shards); s++) {
        for (int pass = 0; pass < model->passes_per_shard; pass++)
            GS_TRY(run_pass(self, (reduce_place){step, s, pass}));
    }
    return gs_ok();
}

static gs_status set_trainable(runner *self, int64_t step) {
    const reduce_case *model = self->model;
    bool trainable[REDUCE_CASE_MAX_PARAMS], changes = false, changed;
    if (!model->freezes) return gs_ok();
    for (size_t p = 0; p < model->num_params; p++) {
        trainable[p] = reduce_case_trains(model, p, step);
        changes |= trainable[p] != (step == 0 || reduce_case_trains(model, p, step - 1));
    }
    GS_TRY(gs_reducer_set_trainable(self->reducer, trainable, &changed, self->deadline));
    if (changed != changes)
        return gs_error(GS_INTERNAL, "trainable parameters changed: %d, expected %d", changed, changes);
    return gs_ok();
}

static gs_status begin_step(runner *self, int64_t step) {
    const reduce_case *model = self->model;
    if (!model->uneven) return gs_reducer_begin(self->reducer, step);
    gs_join_round round;
    bool has_data = reduce_case_has_data(model, self->env->rank, step);
    GS_TRY(gs_join_announce(&round, self->comm, has_data, model->divisor, step, self->deadline));
    return gs_reducer_begin_uneven(self->reducer, step, &round);
}

static gs_status check_values(const runner *self, size_t param, const void *got, gs_dtype dtype,
                              const reduce_expected *expected) {
    const reduce_case *model = self->model;
    const double *grads = reduce_reference_grads(self->reference, param);
    const double *slack = reduce_reference_slack(self->reference, param);
    for (size_t i = 0; i < gs_param_spec_count(&model->params[param]); i++) {
        double value = load(got, dtype, i);
        double tolerance = reduce_case_tolerance(model, param, expected->magnitude[i]) + slack[i];
        if (!(fabs(value - grads[i]) <= tolerance))
            return gs_error(GS_INTERNAL, "element %zu is %.17g, expected %.17g, at most %.3g off",
                            i, value, grads[i], tolerance);
    }
    return gs_ok();
}

static gs_status check_stale(const void *data, gs_dtype dtype, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (load(data, dtype, i) != STALE)
            return gs_error(GS_INTERNAL, "used by nobody, yet element %zu was touched", i);
    }
    return gs_ok();
}

static void add_digest(runner *self, const void *data, size_t bytes) {
    self->digest = gs_hash64(data, bytes, self->digest);
}

static gs_status check_param(runner *self, const gs_reduce_result *result, size_t param,
                             int64_t step, double *squares) {
    const reduce_case *model = self->model;
    size_t count = gs_param_spec_count(&model->params[param]);
    double *memory = malloc((2 * count + 1) * sizeof *memory);
    if (!memory) return gs_error(GS_RESOURCE_EXHAUSTED, "reference: out of memory");
    reduce_expected expected = {.grads = memory, .magnitude = memory + count};
    reduce_case_expect(model, &expected, param, step);
    gs_dtype dtype = main_dtype(model, param);
    void *grad = copy_of(self, gs_reducer_grads(self->reducer)[param], count, dtype, true);
    bool trains = reduce_case_trains(model, param, step);
    gs_status status = trains ? check_values(self, param, grad, dtype, &expected) : gs_ok();
    if (!status.code && (bool)result->used[param] != expected.used)
        status = gs_error(GS_INTERNAL, "used is %d", result->used[param]);
    gs_dtype own_dtype = self->tensors[param].dtype;
    void *own = copy_of(self, self->tensors[param].data, count, own_dtype, model->separate);
    if (!status.code && model->separate && expected.used)
        status = check_values(self, param, own, own_dtype, &expected);
    // A rank that used it in no pass must find its old gradient when nobody else did either.
    if (!status.code && model->separate && !expected.used)
        status = check_stale(own, own_dtype, count);
    for (size_t i = 0; i < count && trains; i++)
        *squares += load(grad, dtype, i) * load(grad, dtype, i);
    if (trains) add_digest(self, grad, count * gs_dtype_bytes(dtype));
    if (model->separate) add_digest(self, own, count * gs_dtype_bytes(own_dtype));
    free(own);
    free(grad);
    free(memory);
    return gs_status_prefix(status, "parameter %zu", param);
}

static gs_status check_result(runner *self, const gs_reduce_result *result, int64_t step) {
    const reduce_case *model = self->model;
    double squares = 0;
    size_t num_unused = 0;
    reduce_reference_run(self->reference, step);
    for (size_t p = 0; p < model->num_params; p++) {
        GS_TRY(check_param(self, result, p, step, &squares));
        num_unused += !result->used[p] && reduce_case_trains(model, p, step);
    }
    int64_t samples = reduce_case_total_samples(model, step);
    if (result->samples != samples)
        return gs_error(GS_INTERNAL, "%lld samples, expected %lld", (long long)result->samples,
                        (long long)samples);
    if (result->active_ranks != reduce_case_num_active(model, step))
        return gs_error(GS_INTERNAL, "%d active ranks", result->active_ranks);
    if (result->num_unused != num_unused)
        return gs_error(GS_INTERNAL, "%zu unused, expected %zu", result->num_unused, num_unused);
    if (result->nonfinite ||
        !(fabs(result->grad_norm - sqrt(squares)) <= 1e-5 * fmax(1, sqrt(squares))))
        return gs_error(GS_INTERNAL, "norm %.9g, expected %.9g", result->grad_norm, sqrt(squares));
    add_digest(self, &result->grad_norm, sizeof result->grad_norm);
    add_digest(self, result->used, model->num_params);
    return gs_ok();
}

// A GPU may have what finish finds before the host has; squares that are not added up there are fp64's, and those apart.
static bool goes_ahead(const runner *self, int64_t step) {
    const reduce_case *model = self->model;
    if (gs_device_is_host(self->device) || step % 2 || model->tally == GS_TALLY_APART) return false;
    for (size_t p = 0; p < model->num_params; p++)
        if (model->params[p].dtype == GS_FP64) return false;
    return true;
}

// The factor that a kernel makes of the squares, enqueued behind the buckets, is that of finish.
static gs_status finish_ahead(runner *self, gs_reduce_result *result) {
    const gs_grad_clip clip = {.max_norm = 0.5, .loss_scale = 1, .unscaling = 1};
    const double *squares;
    gs_grad_factor *factor = device_memory_alloc(self->device, sizeof *factor), got;
    GS_TRY(gs_reducer_finish_buckets(self->reducer, &squares, self->deadline));
    gs_device_kernels(self->device)
        ->grad_factor(gs_device_stream(self->device), factor, squares, self->model->num_params, &clip);
    gs_status status = gs_reducer_finish(self->reducer, result, self->deadline);
    device_memory_read(self->device, &got, factor, sizeof got);
    device_memory_free(self->device, factor);
    GS_TRY(status);
    float want = gs_grad_clip_factor(result->grad_norm, clip.max_norm);
    if (result->nonfinite == !got.applies && (result->nonfinite || got.value == want)) return gs_ok();
    return gs_error(GS_INTERNAL, "a factor of %.9g (applies: %u), must be %.9g (nonfinite: %d)", (double)got.value,
                    got.applies, (double)want, result->nonfinite);
}

static gs_status run_step(runner *self, int64_t step) {
    const reduce_case *model = self->model;
    for (size_t p = 0; p < model->num_params; p++) {
        const gs_separate_grad *tensor = &self->tensors[p];
        size_t count = gs_param_spec_count(&model->params[p]);
        void *stale = copy_of(self, NULL, count, tensor->dtype, false);
        for (size_t i = 0; i < count; i++) store(stale, tensor->dtype, i, STALE);
        put_back(self, tensor->data, stale, count, tensor->dtype);
    }
    if (step == model->replan_step)
        GS_TRY(gs_reducer_set_plan(self->reducer, &model->plans[1], self->deadline));
    GS_TRY(set_trainable(self, step));
    GS_TRY(begin_step(self, step));
    if (reduce_case_has_data(model, self->env->rank, step)) GS_TRY(run_passes(self, step));
    gs_reduce_result result;
    GS_TRY(goes_ahead(self, step) ? finish_ahead(self, &result)
                                  : gs_reducer_finish(self->reducer, &result, self->deadline));
    return check_result(self, &result, step);
}

gs_status reduce_runner_run(const reduce_case *model, const gs_rank_env *env, uint64_t *digest,
                            gs_deadline deadline) {
    runner self = {.model = model, .env = env, .deadline = deadline, .digest = model->seed};
    self.reference = reduce_reference_create(model);
    gs_status status = open_runner(&self);
    for (int64_t step = 0; step < REDUCE_CASE_STEPS && !status.code; step++)
        status = gs_status_prefix(run_step(&self, step), "step %lld", (long long)step);
    close_runner(&self);
    reduce_reference_destroy(self.reference);
    *digest = self.digest;
    // A status has no room for it.
    if (status.code) fprintf(stderr, "%s\n", model->text);
    return gs_status_prefix(status, "seed %llu world %d", (unsigned long long)model->seed,
                            model->world_size);
}
