#include "tests/support/hook_trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "gradsync/comm/device_arena.h"
#include "tests/support/device_memory.h"
#include "tests/support/soon.h"
#include "tests/support/test_device.h"

#define MAX_WORLD 8

static void describe_params(gs_param_spec params[HOOK_TRIAL_PARAMS]) {
    params[0] = gs_param_spec_make(GS_FP32, 24, 40, "a");
    params[1] = gs_param_spec_make(GS_FP32, 24, 0, "a.bias");
    params[2] =
        (gs_param_spec){.name = "conv", .dtype = GS_FP32, .num_dims = 4, .shape = {16, 3, 5, 5}};
    params[3] = gs_param_spec_make(GS_FP64, 30, 31, "wide");
    params[4] = gs_param_spec_make(GS_FP32, 4, 4, "small");
    params[5] = gs_param_spec_make(GS_FP32, 0, 0, "scalar");
    params[6] = gs_param_spec_make(GS_FP64, 7, 0, "wide.bias");
    params[7] = gs_param_spec_make(GS_FP32, 33, 17, "odd");
}

static size_t count_of(const hook_trial *trial, size_t param) {
    return gs_param_spec_count(&trial->params[param]);
}

double hook_trial_drawn(const hook_trial *trial, int64_t step, int shard, size_t param,
                        size_t index) {
    const gs_random_key key = {.seed = 31,
                               .stream = gs_random_stream((uint64_t)step, (uint64_t)shard, param)};
    (void)trial;
    return (double)(float)(gs_random_uniform(key, index) - 0.5);
}

static double value_of(const hook_trial *trial, int64_t step, int shard, size_t param,
                       size_t index) {
    return (trial->value ? trial->value : hook_trial_drawn)(trial, step, shard, param, index);
}

static gs_status connect_ranks(gs_comm **comm, const hook_trial *trial) {
    static const int first[MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};
    gs_comm_options options = {.rank = trial->env->rank,
                               .world_size = trial->world_size,
                               .ranks = trial->world_size < trial->env->world_size ? first : NULL,
                               .generation = trial->generation,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = trial->env->exchange,
                               .arena = trial->arena,
                               .device = trial->device};
    GS_TRY(gs_reducer_lanes(&options.num_lanes, &trial->options));
    return gs_comm_create(comm, &options, soon());
}

gs_status hook_trial_open(hook_trial *trial, const gs_rank_env *env, const gs_hook_choice *choice,
                          const char *isa) {
    *trial = (hook_trial){.env = env,
                          .isa = isa,
                          .world_size = env->world_size,
                          .num_shards = env->world_size,
                          .generation = 1};
    describe_params(trial->params);
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++)
        trial->sums[p] = calloc(count_of(trial, p), sizeof *trial->sums[p]);
    trial->digest = gs_digest_stream_create();
    const bool on_host = strcmp(gs_test_device_name(), "cpu") == 0;
    GS_TRY(gs_device_open(&trial->device, gs_test_device_name(),
                          on_host ? &(gs_device_options){.isa = isa} : NULL));
    GS_TRY(gs_bucket_plan_parity(&trial->plans[0], trial->params, HOOK_TRIAL_PARAMS, 1, 1, NULL));
    GS_TRY(gs_bucket_plan_parity(&trial->plans[1], trial->params, HOOK_TRIAL_PARAMS, 4000, 9000,
                                 NULL));
    trial->options = (gs_reducer_options){.params = trial->params,
                                          .num_params = HOOK_TRIAL_PARAMS,
                                          .plan = &trial->plans[0],
                                          .shards = {.num_shards = trial->num_shards,
                                                     .world_size = env->world_size,
                                                     .rank = env->rank},
                                          .hooks = choice,
                                          .num_hooks = 1,
                                          .device = trial->device};
    size_t bytes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &trial->options));
    GS_TRY(gs_arena_create_on(&trial->arena, bytes, trial->device));
    trial->options.arena = trial->arena;
    GS_TRY(connect_ranks(&trial->comm, trial));
    return gs_reducer_create(&trial->reducer, &trial->options, trial->comm, soon());
}

void hook_trial_close(hook_trial *trial) {
    gs_reducer_destroy(trial->reducer);
    gs_comm_destroy(trial->comm);
    gs_arena_destroy(trial->arena);
    gs_device_close(trial->device);
    gs_bucket_plan_release(&trial->plans[0]);
    gs_bucket_plan_release(&trial->plans[1]);
    gs_digest_stream_destroy(trial->digest);
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++) free(trial->sums[p]);
}

gs_status hook_trial_reset(hook_trial *trial, int world_size) {
    gs_comm *next;
    GS_TRY(gs_comm_wait_ended(trial->comm, soon()));
    trial->world_size = world_size;
    trial->generation++;
    trial->options.shards.world_size = world_size;
    GS_TRY(connect_ranks(&next, trial));
    GS_TRY(gs_reducer_reset(trial->reducer, next, soon()));
    gs_comm_destroy(trial->comm);
    trial->comm = next;
    return gs_ok();
}

// Numbers of the parameter's type, of this shard added to what `into` holds.
static void add_values(const hook_trial *trial, void *into, bool adds, int64_t step, int shard,
                       size_t param) {
    for (size_t i = 0; i < count_of(trial, param); i++) {
        const double value = value_of(trial, step, shard, param, i);
        if (trial->params[param].dtype == GS_FP64)
            ((double *)into)[i] = (adds ? ((double *)into)[i] : 0) + value;
        else
            ((float *)into)[i] = (adds ? ((float *)into)[i] : 0) + (float)value;
    }
}

static gs_status run_pass(hook_trial *trial, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(trial->reducer, &pass, 1));
    for (size_t p = HOOK_TRIAL_PARAMS; p-- > 0;) {
        const size_t bytes = gs_param_spec_bytes(&trial->params[p]);
        void *grad = calloc(1, bytes);
        if (pass.accumulate) device_memory_read(trial->device, grad, pass.grads[p], bytes);
        add_values(trial, grad, pass.accumulate, step, pass.shard, p);
        device_memory_write(trial->device, pass.grads[p], grad, bytes);
        free(grad);
        GS_TRY(gs_reducer_mark_ready(trial->reducer, p));
    }
    return gs_reducer_end_pass(trial->reducer);
}

gs_status hook_trial_reduce(hook_trial *trial, int64_t step, gs_reduce_result *result) {
    const int num_passes = gs_logical_shards_count(&trial->options.shards);
    GS_TRY(gs_reducer_begin(trial->reducer, step));
    for (int i = 0; i < num_passes; i++) GS_TRY(run_pass(trial, step));
    return gs_reducer_finish(trial->reducer, result, soon());
}

// A tensor of device memory as doubles, into `out`.
static void read_numbers(const hook_trial *trial, double *out, const void *data, size_t count,
                         gs_dtype dtype) {
    void *host = calloc(count, sizeof(double));
    device_memory_read(trial->device, host, data, count * gs_dtype_bytes(dtype));
    for (size_t i = 0; i < count; i++)
        out[i] = dtype == GS_FP64 ? ((double *)host)[i] : (double)((float *)host)[i];
    free(host);
}

static gs_status take_result(hook_trial *trial, size_t param, int64_t step) {
    const size_t count = count_of(trial, param);
    double *result = calloc(count, sizeof *result);
    gs_status status = gs_ok();
    read_numbers(trial, result, gs_reducer_grads(trial->reducer)[param], count,
                 trial->params[param].dtype);
    gs_digest_stream_add(trial->digest, result, count * sizeof *result);
    for (size_t i = 0; i < count; i++) {
        double mean = 0;
        for (int s = 0; s < trial->num_shards; s++)
            mean += value_of(trial, step, s, param, i) / trial->num_shards;
        trial->sums[param][i] += mean - result[i];
        if (!status.code && !isfinite(result[i]))
            status = gs_error(GS_INTERNAL, "rank %d, step %d: %s[%zu] is %g", trial->env->rank,
                              (int)step, trial->params[param].name, i, result[i]);
    }
    free(result);
    return status;
}

gs_status hook_trial_take(hook_trial *trial, int64_t step) {
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++) GS_TRY(take_result(trial, p, step));
    return gs_reducer_commit(trial->reducer);
}

gs_status hook_trial_step(hook_trial *trial, int64_t step) {
    gs_reduce_result result;
    GS_TRY(hook_trial_reduce(trial, step, &result));
    return hook_trial_take(trial, step);
}

uint64_t hook_trial_digest(hook_trial *trial) {
    gs_hook_state_tensor state;
    for (size_t i = 0; gs_reducer_hook_state(&state, trial->reducer, i); i++) {
        const gs_hook_tensor *tensor = &state.tensor;
        const size_t bytes = tensor->count * gs_dtype_bytes(tensor->dtype);
        void *host = calloc(1, bytes);
        if (tensor->is_on_host)
            memcpy(host, tensor->data, bytes);
        else
            device_memory_read(trial->device, host, tensor->data, bytes);
        if (!tensor->is_own) gs_digest_stream_add(trial->digest, host, bytes);
        free(host);
    }
    return gs_digest_fold(gs_digest_stream_value(trial->digest));
}

// Adds this rank's own tensors to `out`, by parameter.
static void add_owed(const hook_trial *trial, double *out[HOOK_TRIAL_PARAMS]) {
    gs_hook_state_tensor state;
    for (size_t i = 0; gs_reducer_hook_state(&state, trial->reducer, i); i++) {
        const gs_hook_tensor *tensor = &state.tensor;
        if (!tensor->is_own) continue;
        double *numbers = calloc(tensor->count, sizeof *numbers);
        read_numbers(trial, numbers, tensor->data, tensor->count, tensor->dtype);
        for (size_t k = 0; k < tensor->count; k++) out[tensor->param][k] += numbers[k];
        free(numbers);
    }
}

double hook_trial_owed(const hook_trial *trial) {
    double *owed[HOOK_TRIAL_PARAMS], squares = 0;
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++)
        owed[p] = calloc(count_of(trial, p), sizeof *owed[p]);
    add_owed(trial, owed);
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++) {
        for (size_t i = 0; i < count_of(trial, p); i++) squares += owed[p][i] * owed[p][i];
        free(owed[p]);
    }
    return sqrt(squares);
}

static gs_status check_param(hook_trial *trial, size_t param, double *owed, double tolerance) {
    GS_TRY(gs_comm_run(trial->comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = owed,
                                        .recv = owed,
                                        .count = count_of(trial, param),
                                        .dtype = GS_FP64,
                                        .bucket = -1},
                       soon()));
    for (size_t i = 0; i < count_of(trial, param); i++) {
        if (!(fabs(trial->sums[param][i] - owed[i]) <= tolerance))
            return gs_error(GS_INTERNAL, "%s[%zu]: results lack %g, ranks owe %g",
                            trial->params[param].name, i, trial->sums[param][i], owed[i]);
    }
    return gs_ok();
}

gs_status hook_trial_check(hook_trial *trial, double tolerance) {
    double *owed[HOOK_TRIAL_PARAMS];
    uint64_t digest = hook_trial_digest(trial), all[MAX_WORLD] = {0};
    gs_status status = gs_ok();
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++)
        owed[p] = calloc(count_of(trial, p), sizeof *owed[p]);
    add_owed(trial, owed);
    for (size_t p = 0; p < HOOK_TRIAL_PARAMS; p++) {
        if (!status.code) status = check_param(trial, p, owed[p], tolerance);
        free(owed[p]);
    }
    GS_TRY(status);
    GS_TRY(gs_comm_run(trial->comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = &digest,
                                        .recv = all,
                                        .count = 1,
                                        .dtype = GS_I64,
                                        .bucket = -1},
                       soon()));
    for (int r = 0; r < trial->world_size; r++) {
        if (all[r] != digest)
            return gs_error(GS_INTERNAL, "rank %d has other bits than rank %d", trial->env->rank,
                            r);
    }
    return gs_ok();
}
