#include "tests/conformance/job_step.h"

#include <stdlib.h>
#include <string.h>

#include "gradsync/bucket/grad_norm.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/replica_shards.h"
#include "tests/support/soon.h"

#define MAX_GRADS 64

typedef struct machine {
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_optimizer *optimizer;
    replica_shards shards;
    void *params[MAX_GRADS];  // while sharded
} machine;

static void close_machine(machine *self) {
    gs_optimizer_destroy(self->optimizer);
    gs_reducer_destroy(self->reducer);
    replica_shards_close(&self->shards);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_device_close(self->device);
}

static gs_status open_reducer(machine *self, gs_reducer_options *options, const job_step *step) {
    const gs_rank_env *env = step->env;
    size_t bytes = 0;
    options->device = self->device;
    if (step->owners) GS_TRY(replica_shards_open(&self->shards, options,
                                   &(replica_shards_options){.owners = step->owners}));
    GS_TRY(gs_reducer_arena_bytes(&bytes, options));
    size_t param_bytes = replica_shards_bytes(&self->shards);
    GS_TRY(gs_arena_create_on(&self->arena, bytes + param_bytes, self->device));
    options->arena = self->arena;
    GS_TRY(gs_comm_create(&self->comm,
                          &(gs_comm_options){.backend = env ? conformance_backend() : "self",
                                             .rank = options->shards.rank,
                                             .world_size = options->shards.world_size,
                                             .generation = 1,
                                             .exchange = env ? gs_rank_exchange : NULL,
                                             .exchange_ctx = env ? env->exchange : NULL,
                                             .arena = self->arena,
                                             .device = self->device,
                                             .num_lanes = REPLICA_SHARDS_LANES},
                          soon()));
    GS_TRY(gs_reducer_create(&self->reducer, options, self->comm, soon()));
    char *memory = (char *)gs_arena_data(self->arena) + bytes;
    memset(memory, 0, param_bytes);
    return replica_shards_connect(&self->shards, self->params, memory, self->reducer, self->comm,
                                  soon());
}

// The ranks' gradients are added, not averaged: in the vectors each belongs to one rank.
static gs_status open_machine(machine *self, const job_step *step) {
    gs_param_spec params[MAX_GRADS];
    bool decays[MAX_GRADS] = {false};
    gs_bucket_plan plan;
    int world_size = step->env ? step->env->world_size : 1, rank = step->env ? step->env->rank : 0;
    if (step->num_grads > MAX_GRADS) return gs_error(GS_INVALID_ARGUMENT, "too many gradients");
    for (size_t i = 0; i < step->num_grads; i++)
        params[i] = gs_param_spec_make(GS_FP32, (int64_t)step->counts[i], 0, "g%zu", i);
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){0}));
    const gs_plan_request layout = {.limits_bytes = (const uint64_t[]){64, 256},
                                    .num_limits = 2,
                                    .reverse = true};
    GS_TRY(gs_bucket_plan_of_owned(&plan, &layout, step->owners, params, step->num_grads));
    gs_reducer_options options = {
        .params = params,
        .num_params = step->num_grads,
        .plan = &plan,
        .shards = {.num_shards = world_size, .world_size = world_size, .rank = rank},
        .passes_per_shard = 1,
        .op = GS_SUM};
    gs_optimizer_options optimizer = {.kind = "sgd"};
    gs_status status = open_reducer(self, &options, step);
    replica_shards_choose(&self->shards, &optimizer);
    if (!status.code)
        status = gs_optimizer_create(&self->optimizer, &optimizer, params, decays, step->num_grads,
                                     self->device);
    gs_bucket_plan_release(&plan);
    return status;
}

static gs_status reduce(gs_reduce_result *reduced, machine *self, const job_step *step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(self->reducer, 0));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    for (size_t i = step->num_grads; i-- > 0;) {
        if (!step->grads[i]) continue;
        memcpy(pass.grads[i], step->grads[i], step->counts[i] * sizeof(float));
        GS_TRY(gs_reducer_mark_ready(self->reducer, i));
    }
    GS_TRY(gs_reducer_end_pass(self->reducer));
    return gs_reducer_finish(self->reducer, reduced, soon());
}

// Of the parameters that are this rank's, and those of others as they come; or of all of them.
static gs_status update(machine *self, void *const *params, const job_step *step,
                        const gs_reduce_result *reduced, float factor) {
    if (!step->owners)
        return gs_optimizer_step(self->optimizer, params, gs_reducer_grads(self->reducer),
                                 reduced->used, 1, factor);
    GS_TRY(replica_shards_step(&self->shards, self->optimizer, reduced->used, 0, 1, factor));
    GS_TRY(replica_shards_await(&self->shards, soon()));
    for (size_t i = 0; i < step->num_grads; i++)
        memcpy(params[i], self->params[i], step->counts[i] * sizeof(float));
    return gs_ok();
}

static gs_status apply(job_step_result *result, machine *self, const job_step *step,
                       const gs_reduce_result *reduced) {
    void *params[MAX_GRADS];
    size_t count = 0;
    for (size_t i = 0; i < step->num_grads; i++) count += step->counts[i];
    result->applied = calloc(count + 1, sizeof *result->applied);
    if (!result->applied) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (reduced->nonfinite) return gs_ok();
    for (size_t i = 0, at = 0; i < step->num_grads; at += step->counts[i++])
        params[i] = result->applied + at;
    // As in worker/trainer/step.c: clipped by the unscaled norm, and unscaled.
    double norm = reduced->grad_norm / (double)gs_grad_scaler_scale(&step->scaler);
    float factor =
        gs_grad_clip_factor(norm, step->max_norm) * gs_grad_scaler_inverse(&step->scaler);
    GS_TRY(update(self, params, step, reduced, factor));
    for (size_t i = 0; i < count; i++) result->applied[i] = -result->applied[i];
    return gs_ok();
}

gs_status job_step_run(job_step_result *result, const job_step *step) {
    machine self = {0};
    gs_reduce_result reduced;
    *result = (job_step_result){0};
    gs_status status = open_machine(&self, step);
    if (!status.code) status = reduce(&reduced, &self, step);
    if (!status.code) status = apply(result, &self, step, &reduced);
    if (!status.code) {
        result->grad_norm = reduced.grad_norm;
        result->nonfinite = reduced.nonfinite;
    }
    close_machine(&self);
    return status;
}

void job_step_release(job_step_result *result) {
    free(result->applied);
    result->applied = NULL;
}
