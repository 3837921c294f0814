#include "worker/pass/backward_update.h"

#include <stdlib.h>

#include "gradsync/optim/early_step.h"

struct gs_backward_update {
    gs_early_step *step;
    const gs_reducer *reducer;  // borrowed
};

static gs_status create_step(gs_backward_update *update, gs_trainer_state *state, bool adds_rows) {
    bool *early = calloc(state->num_params + 1, sizeof *early);
    if (!early) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < state->num_params; i++) early[i] = i > 0 || !adds_rows;
    gs_status status =
        gs_early_step_create(&update->step, &(gs_early_step_options){.optimizer = state->optimizer,
                                                                     .params = state->params,
                                                                     .mixed = state->mixed,
                                                                     .early = early,
                                                                     .device = state->device,
                                                                     .waits_for_release = true});
    free(early);
    return status;
}

gs_status gs_backward_update_create(gs_backward_update **out, const gs_job_spec *spec,
                                    gs_trainer_state *state, const gs_reducer *reducer,
                                    bool adds_rows) {
    *out = NULL;
    if (!spec->optimizer.in_backward) return gs_ok();
    gs_backward_update *update = calloc(1, sizeof *update);
    if (!update) return gs_error(GS_RESOURCE_EXHAUSTED, "optimizer.in_backward: out of memory");
    update->reducer = reducer;
    gs_status status = create_step(update, state, adds_rows);
    if (status.code) {
        gs_backward_update_destroy(update);
        return gs_status_prefix(status, "optimizer.in_backward");
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

void gs_backward_update_bucket(gs_backward_update *update, size_t bucket) {
    if (!update) return;
    const gs_bucket_plan *plan = gs_reducer_plan(update->reducer);
    const gs_plan_bucket *members = &plan->buckets[bucket];
    gs_early_step_bucket(update->step, plan->params + members->first, members->num_params,
                         gs_reducer_grads(update->reducer), gs_reducer_used(update->reducer));
}

void gs_backward_update_release(void *ctx, size_t param) {
    gs_backward_update *update = ctx;
    if (update) gs_early_step_release(update->step, param);
}

void gs_backward_update_end_passes(gs_backward_update *update) {
    if (update) gs_early_step_release_all(update->step);
}

gs_status gs_backward_update_check(const gs_backward_update *update) {
    return update ? gs_early_step_check(update->step) : gs_ok();
}

gs_status gs_backward_update_finish(gs_backward_update *update, const gs_reduce_result *reduced) {
    if (!update) return gs_ok();
    return gs_early_step_finish(update->step, gs_reducer_grads(update->reducer), reduced->used);
}

void gs_backward_update_undo(gs_backward_update *update) {
    if (update && update->step) gs_early_step_undo(update->step);
}
