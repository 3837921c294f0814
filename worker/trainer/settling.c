#include "worker/trainer/settling.h"

#include "core/log.h"
#include "worker/state/state_snapshot.h"

void gs_settling_report_fault(gs_run_loop *loop, gs_status why) {
    gs_control *control = loop->control;
    gs_device *device = loop->state->device;
    if (atomic_load(&control->aborted)) return;  // who ended the generation knows why
    gs_fault fault = gs_fault_of(why);
    fault.generation = gs_session_generation(loop->session);
    fault.rank = gs_session_rank(loop->session);
    fault.step = loop->state->position.step;
    bool on_gpu = !gs_device_is_host(device);
    if (on_gpu && why.code == GS_RESOURCE_EXHAUSTED) fault.kind = "no_device_memory";
    if (gs_device_is_lost(device)) fault.kind = "device_lost";
    if (loop->diverged) fault.kind = "divergence";
    if (gs_run_loop_skips_for_ever(loop)) fault.kind = "numerics";
    control->ops->fault(control->ctx, &fault);
}

// A step that is reduced here is applied at once, so that its digest can be told; the snapshot
// takes it back when the others did without it. False: it could not be tried, the state is as it
// was.
static bool try_complete_step(gs_run_loop *loop, gs_state_snapshot *before) {
    if (!gs_session_complete(loop->session) || loop->state_is_broken) return false;
    gs_status status = gs_state_snapshot_init(before, loop->state);
    if (!status.code) status = gs_state_snapshot_take(before, loop->state);
    if (status.code) return false;
    gs_step_facts facts = {0};
    return gs_run_loop_apply(loop, &facts).code == GS_OK;
}

void gs_settling_run(gs_run_loop *loop) {
    gs_control *control = loop->control;
    gs_state_snapshot before = {0};
    gs_settlement mine = {.generation = gs_session_generation(loop->session),
                          .rank = gs_session_rank(loop->session),
                          .applied_step = loop->state->position.step,
                          .complete = gs_session_complete(loop->session) && !loop->state_is_broken,
                          .state_digest = gs_trainer_state_digest(loop->state)};
    bool tried = try_complete_step(loop, &before);
    if (tried) mine.next_digest = gs_trainer_state_digest(loop->state);

    gs_settle_verdict verdict = {0};
    gs_status status = control->ops->settle(control->ctx, &verdict, &mine);
    const char *reason = "settled";
    if (status.code) {
        // Nobody can decide. What this rank knows for certain is the step that it had applied.
        gs_log_warn("settled alone", "job=%s rank=%d step=%lld reason=\"%s\"", loop->job, mine.rank,
                    (long long)mine.applied_step, status.message);
        verdict = (gs_settle_verdict){.save = true};
        reason = "orphaned";
    }
    gs_step_facts facts = {0};
    if (tried && !verdict.apply)
        status = gs_state_snapshot_restore(&before, loop->state);
    else if (!tried && verdict.apply && mine.complete)
        status = gs_run_loop_apply(loop, &facts);
    else
        status = gs_ok();
    gs_state_snapshot_release(&before);
    atomic_store(&control->applied_step, loop->state->position.step);
    gs_run_loop_log_digest(loop);
    if (verdict.save && !loop->state_is_broken && !status.code)
        status = gs_saves_now(loop->saves, reason, gs_session_world_size(loop->session));
    if (status.code) {
        gs_log_warn("settling failed", "job=%s rank=%d reason=\"%s\"", loop->job, mine.rank,
                    status.message);
    }
}
