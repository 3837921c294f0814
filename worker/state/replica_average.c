#include "worker/state/replica_average.h"

#include <stdlib.h>
#include <string.h>

#include "gradsync/step/averager.h"

struct gs_replica_average {
    gs_trainer_state *state;
    gs_comm *comm;
    gs_averager *averager;  // of the parameters
    gs_tensor_view *params;
    bool has_period;
    // By parameter: it, or its optimizer state, is not that of the last average.
    uint8_t *moved, *optimizer_moved;
};

static gs_status check_state(const gs_trainer_state *state) {
    if (!state->params)
        return gs_error(GS_UNIMPLEMENTED, "reducer.hook: masters in halves have no average");
    return gs_ok();
}

static gs_status alloc(gs_replica_average *self) {
    const gs_trainer_state *state = self->state;
    self->params = calloc(state->num_params, sizeof *self->params);
    self->moved = calloc(state->num_params, 1);
    self->optimizer_moved = calloc(state->num_params, 1);
    if (!self->params || !self->moved || !self->optimizer_moved)
        return gs_error(GS_RESOURCE_EXHAUSTED, "average of replicas: out of memory");
    for (size_t i = 0; i < state->num_params; i++)
        self->params[i] = (gs_tensor_view){state->params[i],
                                           gs_param_spec_count(&state->param_specs[i]), GS_FP32};
    return gs_ok();
}

_Static_assert(GS_MAX_GROUP_AVERAGES < GS_AVERAGER_MAX_LEVELS, "all ranks are a level, too");

// Groups, then all ranks. Without a period nobody asks whose turn it is.
static size_t list_levels(gs_average_level *levels, const gs_job_hook *hook) {
    size_t count = (size_t)hook->num_group_averages;
    for (size_t i = 0; i < count; i++)
        levels[i] = (gs_average_level){.period = hook->group_averages[i].period,
                                       .num_ranks = (int)hook->group_averages[i].group_size};
    levels[count] = (gs_average_level){.period = gs_job_hook_has(hook, "period") ? hook->period
                                                                                 : INT64_MAX};
    return count + 1;
}

static gs_status prepare(gs_replica_average *self, const gs_job_hook *hook, gs_deadline deadline) {
    self->has_period = gs_job_hook_has(hook, "period");
    gs_status status = check_state(self->state);
    if (!status.code) status = alloc(self);
    if (status.code) {
        // The others go on to what is collective.
        gs_comm_let_go(self->comm, status.message);
        return status;
    }
    gs_average_level levels[GS_MAX_GROUP_AVERAGES + 1];
    const gs_averager_options options = {.levels = levels,
                                         .num_levels = list_levels(levels, hook),
                                         .start_step = hook->start_step,
                                         .tensors = self->params,
                                         .num_tensors = self->state->num_params,
                                         .comm = self->comm};
    return gs_averager_create(&self->averager, &options, deadline);
}

gs_status gs_replica_average_create(gs_replica_average **out, const gs_job_hook *hook,
                                    gs_trainer_state *state, gs_comm *comm, gs_deadline deadline) {
    *out = NULL;
    if (!gs_job_hook_trains_apart(hook)) return gs_ok();
    gs_replica_average *self = calloc(1, sizeof *self);
    if (!self) {
        gs_comm_let_go(comm, "average of replicas: out of memory");
        return gs_error(GS_RESOURCE_EXHAUSTED, "average of replicas: out of memory");
    }
    self->state = state;
    self->comm = comm;
    gs_status status = prepare(self, hook, deadline);
    if (status.code) {
        gs_replica_average_destroy(self);
        return status;
    }
    *out = self;
    return gs_ok();
}

void gs_replica_average_destroy(gs_replica_average *average) {
    if (!average) return;
    gs_averager_destroy(average->averager);
    free(average->params);
    free(average->moved);
    free(average->optimizer_moved);
    free(average);
}

void gs_replica_average_note(gs_replica_average *average, const uint8_t *used) {
    gs_trainer_state *state = average->state;
    for (size_t i = 0; i < state->num_params; i++) {
        if (!gs_optimizer_moves(state->optimizer, i, used)) continue;
        average->moved[i] = 1;
        average->optimizer_moved[i] = 1;
    }
    state->params_apart = true;
    state->optimizer_apart = gs_optimizer_state_count(state->optimizer) > 0;
}

static void note_averaged(gs_replica_average *self) {
    memset(self->moved, 0, self->state->num_params);
    self->state->params_apart = false;
    gs_trainer_state_refresh(self->state);
}

gs_status gs_replica_average_run(gs_replica_average *average, int64_t step, gs_deadline deadline) {
    int num_ranks;
    if (!average->has_period || !average->state->params_apart) return gs_ok();
    GS_TRY(gs_averager_run(average->averager, step, average->moved, &num_ranks, deadline));
    if (num_ranks == gs_comm_world_size(average->comm)) note_averaged(average);
    else if (num_ranks > 1) gs_trainer_state_refresh(average->state);
    return gs_ok();
}

// In place: a rank that dies meanwhile leaves the others apart, and nobody asks what they held.
static gs_status average_optimizer(gs_replica_average *self, int64_t step, gs_deadline deadline) {
    const gs_trainer_state *state = self->state;
    int num_kinds = gs_optimizer_state_count(state->optimizer);
    for (int kind = 0; kind < num_kinds; kind++) {
        for (size_t i = 0; i < state->num_params; i++) {
            if (!self->optimizer_moved[i]) continue;
            float *data = gs_optimizer_state(state->optimizer, kind, i);
            GS_TRY(gs_comm_run(self->comm,
                               &(gs_collective){.kind = GS_ALLREDUCE,
                                                .send = data,
                                                .recv = data,
                                                .count = self->params[i].count,
                                                .dtype = GS_FP32,
                                                .op = GS_OP_SUM,
                                                .scale = 1.0 / gs_comm_world_size(self->comm),
                                                .step = step,
                                                .bucket = -1},
                               deadline));
        }
    }
    return gs_ok();
}

gs_status gs_replica_average_run_whole(gs_replica_average *average, int64_t step,
                                       gs_deadline deadline) {
    gs_trainer_state *state = average->state;
    if (state->params_apart) {
        GS_TRY(gs_averager_run_all(average->averager, step, average->moved, deadline));
        note_averaged(average);
    }
    if (!state->optimizer_apart) return gs_ok();
    GS_TRY(gs_status_prefix(average_optimizer(average, step, deadline),
                            "average of optimizer state, step %lld", (long long)step));
    memset(average->optimizer_moved, 0, state->num_params);
    state->optimizer_apart = false;
    return gs_ok();
}
