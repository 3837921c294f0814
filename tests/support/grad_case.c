#include "tests/support/grad_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/random.h"
#include "gradsync/comm/device_arena.h"
#include "tests/support/device_memory.h"

#define SAMPLES_PER_PASS 5000

static uint64_t draw(const grad_case *model, uint64_t what, uint64_t a, uint64_t b) {
    return gs_random_u64(
        (gs_random_key){.seed = model->seed, .stream = gs_random_stream(what, a, b)}, 0);
}

void grad_case_init(grad_case *model, uint64_t seed, int num_shards) {
    *model = (grad_case){.seed = seed, .num_shards = num_shards, .unused_percent = 20};
    model->helper = seed % 3 ? GS_HELPER_OFF : GS_HELPER_ON;
    model->num_params = 1 + draw(model, 1, 0, 0) % GRAD_CASE_MAX_PARAMS;
    model->passes_per_shard = 1 + (int)(draw(model, 2, 0, 0) % 3);
    for (size_t i = 0; i < model->num_params; i++) {
        bool large = draw(model, 3, i, 0) % 4 == 0;
        int64_t rows = 1 + (int64_t)(draw(model, 3, i, 1) % 60);
        int64_t cols = large ? 1 + (int64_t)(draw(model, 3, i, 2) % 400) : 0;
        model->params[i] = gs_param_spec_make(GS_FP32, rows, cols, "layer.%zu.weight", i);
    }
    uint64_t cap_bytes = draw(model, 4, 0, 0) % 3 ? 200 + draw(model, 4, 1, 0) % 60000 : 1 << 30;
    size_t order[GRAD_CASE_MAX_PARAMS];
    grad_case_order(model, order, -1, 0);
    gs_status status =
        gs_bucket_plan_parity(&model->plan, model->params, model->num_params, cap_bytes / 8,
                              cap_bytes, draw(model, 5, 0, 0) % 2 ? order : NULL);
    if (status.code) abort();
}

void grad_case_release(grad_case *model) {
    gs_bucket_plan_release(&model->plan);
}

bool grad_case_uses(const grad_case *model, size_t param, int64_t step, int shard, int pass) {
    uint64_t where = (uint64_t)(step * 1000 + shard * 10 + pass);
    // Some parameters are rare: in many steps no rank uses them.
    int percent =
        draw(model, 6, param, 0) % 8 ? model->unused_percent : (model->unused_percent ? 90 : 0);
    return (int)(draw(model, 7, param, where) % 100) >= percent;
}

void grad_case_write(const grad_case *model, float *grad, size_t param, int64_t step, int shard,
                     int pass, bool accumulate) {
    gs_random_key key = {
        .seed = model->seed,
        .stream = gs_random_stream(8, param, (uint64_t)(step * 1000 + shard * 10 + pass))};
    size_t count = gs_param_spec_count(&model->params[param]);
    for (size_t first = 0; first < count; first += 256) {
        float values[256];
        size_t num_values = count - first < 256 ? count - first : 256;
        gs_random_fill_uniform(values, num_values, key, first, -1, 1);
        for (size_t i = 0; i < num_values; i++)
            grad[first + i] = accumulate ? grad[first + i] + values[i] : values[i];
    }
}

void grad_case_order(const grad_case *model, size_t *order, int64_t step, uint64_t which) {
    gs_random_key key = {.seed = model->seed, .stream = gs_random_stream(9, (uint64_t)step, which)};
    for (size_t i = 0; i < model->num_params; i++)
        order[i] = gs_random_permute(key, model->num_params, i);
}

// Adds the passes of `shard` to the sum.
static bool add_shard(const grad_case *model, float *sum, size_t param, int64_t step, int shard) {
    bool used = false;
    for (int pass = 0; pass < model->passes_per_shard; pass++) {
        if (!grad_case_uses(model, param, step, shard, pass)) continue;
        grad_case_write(model, sum, param, step, shard, pass, true);
        used = true;
    }
    return used;
}

static bool sum_tree(const grad_case *model, float *sum, size_t param, int64_t step, int first,
                     int num_shards) {
    size_t count = gs_param_spec_count(&model->params[param]);
    memset(sum, 0, count * sizeof *sum);
    if (num_shards == 1) return add_shard(model, sum, param, step, first);
    int left = 1;
    while (left * 2 < num_shards) left *= 2;
    float *right = malloc(count * sizeof *right);
    bool used = sum_tree(model, sum, param, step, first, left);
    used |= sum_tree(model, right, param, step, first + left, num_shards - left);
    for (size_t i = 0; i < count; i++) sum[i] += right[i];
    free(right);
    return used;
}

static bool sum_ranks(const grad_case *model, float *sum, size_t param, int64_t step,
                      int world_size) {
    size_t count = gs_param_spec_count(&model->params[param]);
    float *own = malloc(count * sizeof *own);
    bool used = false;
    memset(sum, 0, count * sizeof *sum);
    gs_logical_shards shards = {.num_shards = model->num_shards, .world_size = world_size};
    for (int r = 0; r < world_size; r++) {
        memset(own, 0, count * sizeof *own);
        for (int s = gs_logical_shards_first(&shards, r);
             s < gs_logical_shards_first(&shards, r + 1); s++)
            used |= add_shard(model, own, param, step, s);
        for (size_t i = 0; i < count; i++) sum[i] += own[i];
    }
    free(own);
    return used;
}

bool grad_case_reference(const grad_case *model, float *grad, size_t param, int64_t step,
                         int world_size) {
    bool used = model->exact ? sum_tree(model, grad, param, step, 0, model->num_shards)
                             : sum_ranks(model, grad, param, step, world_size);
    if (model->op == GS_SUM) return used;
    double scale = 1.0 / (model->num_shards * model->passes_per_shard);
    for (size_t i = 0; i < gs_param_spec_count(&model->params[param]); i++)
        grad[i] = (float)(grad[i] * scale);
    return used;
}

gs_status grad_rank_open(grad_rank *rank, const grad_case *model, const gs_rank_env *env,
                         const gs_bucket_plan *plan, gs_deadline deadline) {
    *rank = (grad_rank){
        .model = model, .rank = env ? env->rank : 0, .world_size = env ? env->world_size : 1};
    gs_reducer_options options = {.params = model->params,
                                  .num_params = model->num_params,
                                  .plan = plan ? plan : &model->plan,
                                  .shards = {.num_shards = model->num_shards,
                                             .world_size = rank->world_size,
                                             .rank = rank->rank,
                                             .exact = model->exact},
                                  .passes_per_shard = model->passes_per_shard,
                                  .op = model->op,
                                  .unused_is_error = model->unused_is_error,
                                  .static_graph = model->static_graph,
                                  .wire_dtype = model->wire_dtype,
                                  .tally = model->tally,
                                  .hooks = &model->hook,
                                  .num_hooks = 1,
                                  .separate = model->separate};
    size_t bytes;
    int num_lanes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_reducer_lanes(&num_lanes, &options));
    GS_TRY(test_device_try(&rank->device, 1));
    gs_status status = gs_arena_create_on(&rank->arena, bytes, rank->device);
    if (!status.code)
        status = gs_comm_create(&rank->comm,
                                &(gs_comm_options){.backend = model->own_backend ? NULL : env ? "auto" : "self",
                                                   .rank = rank->rank,
                                                   .world_size = rank->world_size,
                                                   .generation = 1,
                                                   .exchange = env ? gs_rank_exchange : NULL,
                                                   .exchange_ctx = env ? env->exchange : NULL,
                                                   .arena = rank->arena,
                                                   .device = rank->device,
                                                   .helper = model->helper,
                                                   .num_lanes = num_lanes,
                                                   .own_backend = model->own_backend},
                                deadline);
    options.arena = rank->arena;
    options.device = rank->device;
    if (!status.code) status = gs_reducer_create(&rank->reducer, &options, rank->comm, deadline);
    if (status.code) grad_rank_close(rank);
    return status;
}

void grad_rank_close(grad_rank *rank) {
    gs_reducer_destroy(rank->reducer);
    gs_comm_destroy(rank->comm);
    gs_arena_destroy(rank->arena);
    test_device_close(rank->device);
    *rank = (grad_rank){0};
}

// The gradient of one parameter into the reducer's memory, or onto what is there.
static void write_grad(const grad_rank *rank, const gs_reducer_pass *pass, size_t param,
                       int64_t step) {
    size_t bytes = gs_param_spec_bytes(&rank->model->params[param]);
    float *grad = malloc(bytes);
    if (!grad) abort();
    if (pass->accumulate) device_memory_read(rank->device, grad, pass->grads[param], bytes);
    grad_case_write(rank->model, grad, param, step, pass->shard, pass->pass, pass->accumulate);
    device_memory_write(rank->device, pass->grads[param], grad, bytes);
    free(grad);
}

static gs_status run_pass(grad_rank *rank, int64_t step, int shard) {
    static const float anything = NAN;
    const grad_case *model = rank->model;
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, SAMPLES_PER_PASS + shard));
    size_t order[GRAD_CASE_MAX_PARAMS];
    grad_case_order(model, order, step, (uint64_t)rank->rank);
    for (size_t i = 0; i < model->num_params; i++) {
        size_t param = order[i];
        if (!grad_case_uses(model, param, step, pass.shard, pass.pass)) {
            // A parameter that this pass should have written anew holds anything.
            if (!pass.accumulate)
                device_memory_write(rank->device, pass.grads[param], &anything, sizeof anything);
            continue;
        }
        write_grad(rank, &pass, param, step);
        GS_TRY(gs_reducer_mark_ready(rank->reducer, param));
    }
    return gs_reducer_end_pass(rank->reducer);
}

gs_status grad_rank_run_passes(grad_rank *rank, int64_t step) {
    gs_logical_shards shards = {
        .num_shards = rank->model->num_shards, .world_size = rank->world_size, .rank = rank->rank};
    int per_shard = rank->model->passes_per_shard;
    int num_passes = gs_logical_shards_count(&shards) * per_shard;
    int first = gs_logical_shards_first(&shards, rank->rank);
    for (int i = 0; i < num_passes; i++) GS_TRY(run_pass(rank, step, first + i / per_shard));
    return gs_ok();
}

static gs_status check_grad(const grad_rank *rank, size_t param, const float *expected) {
    const gs_param_spec *spec = &rank->model->params[param];
    float *got = malloc(gs_param_spec_bytes(spec));
    gs_status status = gs_ok();
    if (!got) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    device_memory_read(rank->device, got, gs_reducer_grads(rank->reducer)[param],
                       gs_param_spec_bytes(spec));
    for (size_t i = 0; i < gs_param_spec_count(spec) && !status.code; i++) {
        if (!(fabsf(got[i] - expected[i]) <= 1e-6f * fmaxf(1, fabsf(expected[i]))))
            status = gs_error(GS_INTERNAL, "parameter %zu: element %zu is %.9g, expected %.9g",
                              param, i, (double)got[i], (double)expected[i]);
    }
    free(got);
    return status;
}

static int64_t count_samples(const grad_case *model) {
    int64_t samples = 0;
    for (int s = 0; s < model->num_shards; s++)
        samples += (int64_t)model->passes_per_shard * (SAMPLES_PER_PASS + s);
    return samples;
}

gs_status grad_rank_check(const grad_rank *rank, int64_t step, const gs_reduce_result *result) {
    const grad_case *model = rank->model;
    size_t num_unused = 0;
    double squares = 0;
    for (size_t p = 0; p < model->num_params; p++) {
        size_t count = gs_param_spec_count(&model->params[p]);
        float *expected = malloc(count * sizeof *expected);
        bool used = grad_case_reference(model, expected, p, step, rank->world_size);
        num_unused += !used;
        for (size_t i = 0; i < count; i++) squares += (double)expected[i] * expected[i];
        gs_status status = check_grad(rank, p, expected);
        free(expected);
        if (status.code) return status;
        if (result->used[p] != used)
            return gs_error(GS_INTERNAL, "parameter %zu: used is %d", p, result->used[p]);
    }
    if (result->num_unused != num_unused)
        return gs_error(GS_INTERNAL, "%zu unused, expected %zu", result->num_unused, num_unused);
    if (result->samples != count_samples(model))
        return gs_error(GS_INTERNAL, "samples: %lld", (long long)result->samples);
    if (result->nonfinite ||
        !(fabs(result->grad_norm - sqrt(squares)) <= 1e-5 * fmax(1, sqrt(squares))))
        return gs_error(GS_INTERNAL, "norm: %.9g, expected %.9g", result->grad_norm, sqrt(squares));
    return gs_ok();
}

gs_status grad_rank_run_step(grad_rank *rank, int64_t step, gs_reduce_result *result,
                             gs_deadline deadline) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(grad_rank_run_passes(rank, step));
    GS_TRY(gs_reducer_finish(rank->reducer, result, deadline));
    return gs_status_prefix(grad_rank_check(rank, step, result), "step %lld", (long long)step);
}

uint64_t grad_rank_digest(const grad_rank *rank) {
    uint64_t digest = 0;
    for (size_t p = 0; p < rank->model->num_params; p++) {
        size_t bytes = gs_param_spec_bytes(&rank->model->params[p]);
        void *grad = malloc(bytes);
        if (!grad) abort();
        device_memory_read(rank->device, grad, gs_reducer_grads(rank->reducer)[p], bytes);
        digest = gs_hash64(grad, bytes, digest);
        free(grad);
    }
    return digest;
}
