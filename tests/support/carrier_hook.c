#include "tests/support/carrier_hook.h"

#include <math.h>
#include <stdlib.h>

#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/param_state.h"

typedef struct carrier {
    gs_param_state residuals;
} carrier;

static gs_param_state_options options_of(const gs_hook_setup *setup) {
    return (gs_param_state_options){.name = "residual",
                                    .is_own = true,
                                    .params = setup->params,
                                    .num_params = setup->num_params};
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    gs_param_state_options options = options_of(setup);
    *needs = (gs_hook_needs){.num_phases = 2, .state_bytes = gs_param_state_bytes(&options)};
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    gs_param_state_options options = options_of(setup);
    carrier *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = gs_param_state_init(&self->residuals, &options, setup->device, setup->state);
    if (status.code) {
        gs_param_state_release(&self->residuals);
        free(self);
        return status;
    }
    *state = self;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    (void)state;
    (void)plan;
    return gs_ok();
}

static gs_status post_sum(gs_hook_work *work, const gs_hook_bucket *bucket, float *data,
                          size_t count, double scale) {
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = data,
                                         .recv = data,
                                         .count = count,
                                         .dtype = GS_FP32,
                                         .op = GS_OP_SUM,
                                         .scale = scale});
}

static void round_off(carrier *self, const gs_hook_bucket *bucket, const gs_hook_param *param) {
    float *grad = (float *)bucket->data + param->first;
    const float *before = gs_param_state_held(&self->residuals, param->index);
    float *after = gs_param_state_write(&self->residuals, param->index);
    for (size_t i = 0; i < param->count; i++) {
        float all = grad[i] * (float)bucket->scale + before[i];
        grad[i] = CARRIER_QUANTUM * rintf(all / CARRIER_QUANTUM);
        after[i] = all - grad[i];
    }
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    carrier *self = state;
    float *data = bucket->data;
    if (!work->phase)
        return post_sum(work, bucket, data + bucket->count, bucket->reserved_count, bucket->scale);
    for (size_t i = 0; i < bucket->num_params; i++)
        if (bucket->params[i].count) round_off(self, bucket, &bucket->params[i]);
    return post_sum(work, bucket, data, bucket->count, 1);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)state;
    (void)bucket;
    (void)result;
    (void)deadline;
    return gs_ok();
}

static void commit(void *state) {
    gs_param_state_commit(&((carrier *)state)->residuals);
}

static void rollback(void *state) {
    gs_param_state_rollback(&((carrier *)state)->residuals);
}

static bool tensor_at(void *state, size_t index, gs_hook_tensor *tensor) {
    return gs_param_state_tensor(&((carrier *)state)->residuals, index, tensor);
}

static void destroy(void *state) {
    carrier *self = state;
    gs_param_state_release(&self->residuals);
    free(self);
}

const gs_comm_hook carrier_hook = {.name = "carrier",
                                   .measure = measure,
                                   .create = create,
                                   .on_plan = on_plan,
                                   .run = run,
                                   .finish = finish,
                                   .commit = commit,
                                   .rollback = rollback,
                                   .tensor = tensor_at,
                                   .loaded = gs_hook_load_nothing,
                                   .destroy = destroy};
