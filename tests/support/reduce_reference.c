#include "tests/support/reduce_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/bucket/bucket.h"
#include "gradsync/bucket/main_grad.h"

struct reduce_reference {
    const reduce_case *model;
    void *states[REDUCE_CASE_MAX_HOOKS];
    double *grads[REDUCE_CASE_MAX_PARAMS], *slack[REDUCE_CASE_MAX_PARAMS];
};

static void *must_have(size_t count, size_t bytes) {
    void *memory = calloc(count + 1, bytes);
    if (!memory) abort();
    return memory;
}

reduce_reference *reduce_reference_create(const reduce_case *model) {
    reduce_reference *self = must_have(1, sizeof *self);
    self->model = model;
    for (size_t p = 0; p < model->num_params; p++) {
        size_t count = gs_param_spec_count(&model->params[p]);
        self->grads[p] = must_have(count, sizeof(double));
        self->slack[p] = must_have(count, sizeof(double));
    }
    return self;
}

void reduce_reference_destroy(reduce_reference *self) {
    if (!self) return;
    for (size_t i = 0; i < self->model->num_hooks; i++) {
        const hook_reference *reference = self->model->hooks[i].reference;
        if (reference->release) reference->release(self->states[i]);
    }
    for (size_t p = 0; p < self->model->num_params; p++) {
        free(self->grads[p]);
        free(self->slack[p]);
    }
    free(self);
}

// A bucket of the plan: where its members lie, and all that its reference writes.
typedef struct scene {
    reference_bucket bucket;
    gs_hook_param params[REDUCE_CASE_MAX_PARAMS];
    double *in[REDUCE_CASE_MAX_WORLD];
} scene;

static void open_scene(scene *self, const reduce_case *model, const gs_bucket_plan *plan,
                       size_t index, int64_t step) {
    const gs_plan_bucket *planned = &plan->buckets[index];
    size_t count = 0;
    for (size_t i = 0; i < planned->num_params; i++) {
        size_t param = plan->params[planned->first + i];
        const gs_param_spec *spec = &model->params[param];
        self->params[i] = (gs_hook_param){.index = param,
                                          .spec = spec,
                                          .dtype = gs_main_grad_dtype(spec->dtype),
                                          .count = gs_param_spec_count(spec),
                                          .room = gs_bucket_room(spec),
                                          .first = count};
        count += self->params[i].room;
    }
    for (int r = 0; r < model->world_size; r++) {
        self->in[r] = must_have(count, sizeof(double));
        for (size_t i = 0; i < planned->num_params; i++)
            reduce_case_local(model, self->in[r] + self->params[i].first, self->params[i].index, r,
                              step);
    }
    self->bucket = (reference_bucket){.step = step,
                                      .world_size = model->world_size,
                                      .scale = reduce_case_hook_scale(model, step),
                                      .dtype = self->params[0].dtype,
                                      .count = count,
                                      .params = self->params,
                                      .num_params = planned->num_params,
                                      .in = self->in,
                                      .wire_dtype = model->hooks[planned->hook].wrap,
                                      .out = must_have(count, sizeof(double)),
                                      .slack = must_have(count, sizeof(double))};
}

static void close_scene(scene *self) {
    for (int r = 0; r < self->bucket.world_size; r++) free(self->in[r]);
    free(self->bucket.out);
    free(self->bucket.slack);
}

// A static graph leaves out what nobody used in its first step.
static bool travels(const reduce_case *model, const scene *of) {
    if (reduce_case_rests(model, of->params[0].index, of->bucket.step)) return false;
    if (!model->static_graph || of->bucket.step == 0) return true;
    for (size_t i = 0; i < of->bucket.num_params; i++) {
        for (int at = 0; at < model->num_shards * model->passes_per_shard; at++) {
            reduce_place place = {0, at / model->passes_per_shard, at % model->passes_per_shard};
            if (reduce_case_uses(model, of->params[i].index, place)) return true;
        }
    }
    return false;
}

// What a wrapper does before the hook, and what may come of it: a number between two goes either way.
static void round_inputs(const reference_bucket *bucket) {
    for (int r = 0; r < bucket->world_size; r++) {
        for (size_t i = 0; i < bucket->count; i++) {
            double value = bucket->in[r][i], rounded = reference_round(bucket->wire_dtype, value);
            bucket->in[r][i] = rounded;
            bucket->slack[i] += 2 * fabs(value - rounded) * bucket->scale;
        }
    }
}

static void round_results(const reference_bucket *bucket) {
    double epsilon = reference_epsilon(bucket->wire_dtype);
    double least = bucket->wire_dtype == GS_FP16 ? 0x1p-25 : 0;
    for (size_t i = 0; i < bucket->count; i++)
        bucket->slack[i] += epsilon * (fabs(bucket->out[i]) + bucket->slack[i]) + least;
}

static void run_bucket(reduce_reference *self, scene *of, int hook) {
    const reduce_case *model = self->model;
    const gs_hook_choice choice = reduce_case_choice(model, (size_t)hook);
    const reference_bucket *bucket = &of->bucket;
    // What is left to do behind the hook: a mean over samples divides once they are known.
    double later = reduce_case_scale(model, bucket->step) / bucket->scale;
    if (bucket->wire_dtype) round_inputs(bucket);
    model->hooks[hook].reference->run(&self->states[hook], &choice, bucket);
    if (bucket->wire_dtype) round_results(bucket);
    // Where a result is not near its gradients, tolerances for those leave no room to scale it.
    double epsilon = later == 1 ? 0 : 4 * reference_epsilon(bucket->dtype);
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_hook_param *param = &bucket->params[i];
        for (size_t k = 0; k < param->count; k++) {
            self->grads[param->index][k] = bucket->out[param->first + k] * later;
            self->slack[param->index][k] = bucket->slack[param->first + k] * later +
                                           epsilon * fabs(self->grads[param->index][k]);
        }
    }
}

void reduce_reference_run(reduce_reference *self, int64_t step) {
    const reduce_case *model = self->model;
    const gs_bucket_plan *plan = &model->plans[step >= model->replan_step];
    for (size_t b = 0; b < plan->num_buckets; b++) {
        scene of;
        open_scene(&of, model, plan, b, step);
        if (travels(model, &of)) {
            run_bucket(self, &of, plan->buckets[b].hook);
        } else {
            for (size_t i = 0; i < of.bucket.num_params; i++) {
                memset(self->grads[of.params[i].index], 0, of.params[i].count * sizeof(double));
                memset(self->slack[of.params[i].index], 0, of.params[i].count * sizeof(double));
            }
        }
        close_scene(&of);
    }
}

const double *reduce_reference_grads(const reduce_reference *self, size_t param) {
    return self->grads[param];
}

const double *reduce_reference_slack(const reduce_reference *self, size_t param) {
    return self->slack[param];
}
