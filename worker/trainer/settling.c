#include "worker/trainer/settling.h"

#include "core/log.h"

void gs_settling_report_fault(gs_run_loop *loop, gs_status why) {
    gs_control *control = loop->control;
    gs_device *device = loop->state->device;
    if (gs_mailbox_aborted(&control->mailbox)) return;  // who ended the generation knows why
    gs_fault fault = gs_fault_of(why, gs_session_comm(loop->session), gs_session_unreached(loop->session));
    fault.generation = gs_session_generation(loop->session);
    fault.rank = gs_session_rank(loop->session);
    fault.step = loop->state->position.step;
    bool on_gpu = !gs_device_is_host(device);
    if (on_gpu && why.code == GS_RESOURCE_EXHAUSTED) fault.kind = GS_FAULT_NO_DEVICE_MEMORY;
    if (gs_device_is_lost(device)) fault.kind = GS_FAULT_DEVICE_LOST;
    if (loop->diverged) fault.kind = GS_FAULT_DIVERGENCE;
    if (gs_run_loop_skips_for_ever(loop)) fault.kind = GS_FAULT_NUMERICS;
    control->ops->fault(control->ctx, &fault);
}

// The step in flight is applied when the others have it, too, and not before: what was applied
// could not be taken back without a second copy of the state. Where there is one, of what was updated early, it
// serves until then.
void gs_settling_run(gs_run_loop *loop) {
    gs_control *control = loop->control;
    if (!gs_session_has_params(loop->session)) loop->state_is_broken = true;
    gs_settlement mine = {.generation = gs_session_generation(loop->session),
                          .rank = gs_session_rank(loop->session),
                          .applied_step = loop->state->position.step,
                          .complete = gs_session_complete(loop->session) && !loop->state_is_broken,
                          .apart = gs_trainer_state_is_apart(loop->state)};
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
    bool applies = verdict.apply && mine.complete;
    if (!applies) gs_session_discard(loop->session);
    status = applies ? gs_run_loop_apply(loop, &facts) : gs_ok();
    atomic_store(&control->progress.applied_step, loop->state->position.step);
    gs_run_loop_log_digest(loop);
    const gs_place place = gs_session_place(loop->session);
    // Of ranks that train apart, or have parts of it, no single one has the state of the job: that is its last
    // checkpoint.
    bool is_apart = gs_trainer_state_is_apart(loop->state);
    bool is_part = !gs_trainer_state_is_whole(loop->state);
    if (verdict.save && (is_apart || is_part))
        gs_log_info(is_part ? "not saved: this rank has a part of the state"
                            : "not saved: ranks were apart",
                    "job=%s rank=%d step=%lld", loop->job, mine.rank,
                    (long long)loop->state->position.step);
    if (verdict.save && !is_apart && !is_part && !loop->state_is_broken && !status.code)
        status = gs_saves_alone(loop->saves, reason, &place);
    if (status.code) {
        gs_log_warn("settling failed", "job=%s rank=%d reason=\"%s\"", loop->job, mine.rank,
                    status.message);
    }
}
