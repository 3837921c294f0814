#include "worker/pass/backward_update.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "gradsync/optim/early_step.h"

struct gs_backward_update {
    gs_early_step *step;
    gs_trainer_state *state;    // borrowed
    const gs_reducer *reducer;  // borrowed
    void *const *own_grads;     // borrowed; NULL: the state is not sharded
    bool in_passes;             // else when they have ended
};

static gs_status create_step(gs_backward_update *update, const gs_backward_update_options *options) {
    gs_trainer_state *state = options->state;
    bool *early = calloc(state->num_params + 1, sizeof *early);
    if (!early) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < state->num_params; i++) early[i] = i > 0 || !options->adds_rows;
    gs_status status = gs_early_step_create(
        &update->step,
        &(gs_early_step_options){.optimizer = state->optimizer,
                                 .params = options->own_grads ? state->own_params : state->params,
                                 .mixed = state->mixed,
                                 .early = early,
                                 .device = state->device,
                                 .waits_for_release = true});
    free(early);
    return status;
}

static bool is_wanted(const gs_job_spec *spec) {
    return spec->optimizer.in_backward || spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF;
}

// Why all updates come at the end in this job and on this rank; NULL: they do not.
static const char *find_obstacle(const gs_backward_update_options *options) {
    const char *chosen = getenv("GRADSYNC_EARLY_UPDATES");
    bool travels =
        gs_comm_world_size(options->comm) > 1 || !gs_device_is_host(options->state->device);
    if (options->spec->optimizer.grad_clip_norm > 0) return "clipping takes the norm of all gradients";
    if (!travels) return "one rank sends nothing";
    if (chosen && strcmp(chosen, "0") == 0) return "GRADSYNC_EARLY_UPDATES is 0";
    if ((chosen && *chosen) || gs_comm_moves_alone(options->comm)) return NULL;
    return "no core to spare: nothing would travel beside an update";
}

bool gs_backward_update_is_early(const gs_backward_update_options *options) {
    return is_wanted(options->spec) && !find_obstacle(options);
}

gs_status gs_backward_update_create(gs_backward_update **out,
                                    const gs_backward_update_options *options) {
    const gs_job_spec *spec = options->spec;
    const char *what = spec->optimizer.in_backward ? "optimizer.in_backward" : "reducer.zero_overlap";
    *out = NULL;
    if (!is_wanted(spec)) return gs_ok();
    const char *obstacle = find_obstacle(options);
    if (obstacle) {
        gs_log_info("updates come at the end of steps", "rank=%d what=%s reason=\"%s\"",
                    gs_comm_rank(options->comm), what, obstacle);
        return gs_ok();
    }
    gs_backward_update *update = calloc(1, sizeof *update);
    if (!update) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", what);
    update->state = options->state;
    update->reducer = options->reducer;
    update->own_grads = options->own_grads;
    update->in_passes = spec->reducer.zero_overlap != GS_ZERO_OVERLAP_STEP;
    gs_status status = create_step(update, options);
    if (status.code) {
        gs_backward_update_destroy(update);
        return gs_status_prefix(status, "%s", what);
    }
    *out = update;
    return gs_ok();
}

void gs_backward_update_destroy(gs_backward_update *update) {
    if (!update) return;
    gs_backward_update_undo(update);
    gs_early_step_destroy(update->step);
    free(update);
}

void gs_backward_update_begin(gs_backward_update *update, float lr, float grad_scale) {
    if (update) gs_early_step_begin(update->step, lr, grad_scale);
}

static void *const *grads_of(const gs_backward_update *update) {
    return update->own_grads ? update->own_grads : gs_reducer_grads(update->reducer);
}

void gs_backward_update_bucket(gs_backward_update *update, size_t bucket) {
    if (!update) return;
    const gs_bucket_plan *plan = gs_reducer_plan(update->reducer);
    const gs_plan_bucket *members = &plan->buckets[bucket];
    gs_early_step_bucket(update->step, plan->params + members->first, members->num_params,
                         grads_of(update), gs_reducer_used(update->reducer));
}

void gs_backward_update_release(void *ctx, size_t param) {
    gs_backward_update *update = ctx;
    if (update && update->in_passes) gs_early_step_release(update->step, param);
}

void gs_backward_update_end_passes(gs_backward_update *update) {
    if (update) gs_early_step_release_all(update->step);
}

gs_status gs_backward_update_check(const gs_backward_update *update) {
    return update ? gs_early_step_check(update->step) : gs_ok();
}

gs_status gs_backward_update_finish(gs_backward_update *update, const gs_reduce_result *reduced) {
    if (!update) return gs_ok();
    GS_TRY(gs_early_step_finish(update->step, grads_of(update), reduced->used));
    gs_trainer_state_find(update->state);
    return gs_ok();
}

void gs_backward_update_undo(gs_backward_update *update) {
    if (update && update->step) gs_early_step_undo(update->step);
}
