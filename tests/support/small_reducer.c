#include "tests/support/small_reducer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "gradsync/comm/device_arena.h"
#include "tests/support/device_memory.h"
#include "tests/support/soon.h"

#define MOST_COUNT 256

void small_reducer_prepare(small_reducer *small) {
    memset(small, 0, sizeof *small);
    for (size_t i = 0; i < SMALL_PARAMS; i++)
        small->params[i] = gs_param_spec_make(GS_FP32, SMALL_COUNT, 0, "fc%zu", i);
}

// Pairs of fp32, last first; other types have keys of their own.
static gs_status make_plan(small_reducer *small) {
    gs_plan_tensor tensors[SMALL_PARAMS];
    size_t order[SMALL_PARAMS];
    for (size_t i = 0; i < SMALL_PARAMS; i++) {
        tensors[i] = (gs_plan_tensor){.count = gs_param_spec_count(&small->params[i]),
                                      .dtype = small->params[i].dtype,
                                      .sparse = small->params[i].sparse};
        order[i] = SMALL_PARAMS - 1 - i;
    }
    const uint64_t limit_bytes = 2 * SMALL_COUNT * sizeof(float);
    return gs_bucket_plan_assign(&small->plan, &(gs_plan_request){.tensors = tensors,
                                                                  .num_tensors = SMALL_PARAMS,
                                                                  .limits_bytes = &limit_bytes,
                                                                  .num_limits = 1,
                                                                  .order = order});
}

gs_status small_reducer_connect(gs_comm **comm, small_reducer *small, const gs_rank_env *env,
                                uint32_t generation) {
    const gs_comm_options options = {.backend = env && small->world_size > 1 ? "auto" : "self",
                                     .rank = small->rank,
                                     .world_size = small->world_size,
                                     .generation = generation,
                                     .exchange = env ? gs_rank_exchange : NULL,
                                     .exchange_ctx = env ? env->exchange : NULL,
                                     .arena = small->arena,
                                     .device = small->device,
                                     .helper = small->helper,
                                     .num_lanes = small->num_lanes};
    return gs_comm_create(comm, &options, soon());
}

static gs_status build(small_reducer *small, const gs_reducer_options *wanted,
                       const gs_rank_env *env) {
    gs_reducer_options options = *wanted;
    size_t bytes;
    GS_TRY(make_plan(small));
    options.params = small->params;
    options.num_params = SMALL_PARAMS;
    options.plan = &small->plan;
    options.shards.rank = small->rank;
    options.shards.world_size = small->world_size;
    if (!options.shards.num_shards) options.shards.num_shards = small->world_size;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    if (!small->num_lanes) GS_TRY(gs_reducer_lanes(&small->num_lanes, &options));
    if (!small->device) GS_TRY(test_device_try(&small->device, 1));
    GS_TRY(gs_arena_create_on(&small->arena, bytes + small->extra_bytes, small->device));
    GS_TRY(small_reducer_connect(&small->comm, small, env, 1));
    options.arena = small->arena;
    options.device = small->device;
    return gs_reducer_create(&small->reducer, &options, small->comm, soon());
}

gs_status small_reducer_open(small_reducer *small, const gs_reducer_options *options,
                             const gs_rank_env *env) {
    small->rank = env ? env->rank : 0;
    small->world_size = env ? env->world_size : 1;
    gs_status status = build(small, options, env);
    if (status.code) small_reducer_close(small);
    return status;
}

void small_reducer_close(small_reducer *small) {
    gs_reducer_destroy(small->reducer);
    gs_comm_destroy(small->comm);
    gs_arena_destroy(small->arena);
    test_device_close(small->device);
    gs_bucket_plan_release(&small->plan);
    *small = (small_reducer){0};
}

void small_reducer_write(const small_reducer *small, const gs_reducer_pass *pass, size_t param,
                         double value) {
    const gs_param_spec *spec = &small->params[param];
    union {
        float narrow[MOST_COUNT];
        double wide[MOST_COUNT];
    } grad;
    bool is_wide = spec->dtype == GS_FP64;
    size_t count = gs_param_spec_count(spec), bytes = count * (is_wide ? 8 : 4);
    if (!pass->grads[param]) return;
    assert(count <= MOST_COUNT);
    value *= (double)pass->grad_factor;
    bool adds = gs_reducer_pass_adds(small->reducer, param);
    if (adds) device_memory_read(small->device, &grad, pass->grads[param], bytes);
    for (size_t i = 0; i < count; i++) {
        if (is_wide)
            grad.wide[i] = adds ? grad.wide[i] + value : value;
        else
            grad.narrow[i] = adds ? grad.narrow[i] + (float)value : (float)value;
    }
    device_memory_write(small->device, pass->grads[param], &grad, bytes);
}

gs_status small_reducer_run_pass(small_reducer *small, const double *values, int64_t samples) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(small->reducer, &pass, samples));
    for (size_t p = SMALL_PARAMS; p-- > 0;) {
        if (isnan(values[p])) continue;
        small_reducer_write(small, &pass, p, values[p]);
        GS_TRY(gs_reducer_mark_ready(small->reducer, p));
    }
    return gs_reducer_end_pass(small->reducer);
}

gs_status small_reducer_run_step(small_reducer *small, int64_t step, const double *values,
                                 gs_reduce_result *result) {
    *result = (gs_reduce_result){0};
    GS_TRY(gs_reducer_begin(small->reducer, step));
    GS_TRY(small_reducer_run_pass(small, values, 1));
    return gs_reducer_finish(small->reducer, result, soon());
}

double small_reducer_grad(const small_reducer *small, size_t param, size_t at) {
    const float *grad = gs_reducer_grads(small->reducer)[param];
    float narrow;
    double wide;
    if (small->params[param].dtype == GS_FP64) {
        device_memory_read(small->device, &wide, (const double *)(const void *)grad + at,
                           sizeof wide);
        return wide;
    }
    device_memory_read(small->device, &narrow, grad + at, sizeof narrow);
    return (double)narrow;
}
