#include "worker/trainer/run_loop.h"

#include "core/log.h"
#include "worker/pass/kernel_log.h"
#include "worker/trainer/evaluation.h"
#include "worker/trainer/step_opening.h"

// Updates left out one after the other because of gradients that are not finite, before giving up.
#define MOST_SKIPPED_IN_A_ROW 100
#define MOST_SKIPPED_WHILE_SCALING 1000
_Static_assert(GS_SPEC_MAX_HYSTERESIS < MOST_SKIPPED_IN_A_ROW,
               "a scale falls before a run gives up");

void gs_run_loop_log_digest(const gs_run_loop *loop) {
    if (!loop->logs_digests || loop->state_is_broken) return;
    char digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, gs_trainer_state_digest(loop->state));
    gs_log_debug("step digest", "job=%s rank=%d step=%lld digest=%s", loop->job,
                 gs_session_rank(loop->session), (long long)loop->state->position.step, digest);
}

bool gs_run_loop_report(gs_run_loop *loop) {
    const gs_control *control = loop->control;
    const gs_step_report report =
        gs_telemetry_report(&loop->telemetry, gs_session_writes_files(loop->session));
    bool heard = control->ops->report(control->ctx, &report);
    gs_telemetry_note_heard(&loop->telemetry, heard);
    return heard;
}

bool gs_run_loop_report_rest(gs_run_loop *loop) {
    if (!loop->session || loop->telemetry.totals.steps == 0) return true;
    bool heard = true;
    while (heard && gs_telemetry_waits(&loop->telemetry)) heard = gs_run_loop_report(loop);
    return heard;
}

static bool evaluation_is_due(const gs_run_loop *loop) {
    int64_t step = loop->state->position.step;
    if (!gs_session_can_evaluate(loop->session)) return false;
    bool due = step % loop->spec->data.eval_every_steps == 0,
         ends = step == loop->spec->steps.target;
    return loop->inputs_ended ? !due : due || ends;
}

static gs_status evaluate_when_due(gs_run_loop *loop) {
    if (!evaluation_is_due(loop)) return gs_ok();
    gs_evaluation evaluation;
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_session_evaluate(loop->session, &evaluation));
    gs_timeline_add(loop->control->progress.timeline, GS_SPAN_EVALUATE, begin_ns);
    loop->telemetry.evaluation = evaluation;
    loop->telemetry.has_evaluation = true;
    return gs_ok();
}

gs_status gs_run_loop_apply(gs_run_loop *loop, gs_step_facts *facts) {
    gs_status status = gs_session_apply(loop->session, facts);
    if (status.code) loop->state_is_broken = true;
    return status;
}

static gs_step_votes collect_votes(const gs_run_loop *loop) {
    gs_step_votes votes = {.saves = loop->saves};
    bool save_asked;
    votes.drain = gs_mailbox_drains(&loop->control->mailbox, &save_asked);
    votes.checkpoint = votes.drain && save_asked && loop->spec->checkpoint.on_stop;
    votes.orphaned = atomic_load(&loop->control->mailbox.orphaned);
    return votes;
}

static void log_switch(const gs_run_loop *loop, const gs_step_facts *facts) {
    if (!facts->plan_revision || !gs_session_writes_files(loop->session)) return;
    gs_log_info("plan switched", "job=%s rank=0 step=%lld revision=%d buckets=%zu seconds=%.6f",
                loop->job, (long long)facts->step, facts->plan_revision, facts->stats->num_buckets,
                facts->switch_seconds);
}

// What it took to come to work: the communicator, the state, and a step in which libraries make their choices.
static void log_first_step(const gs_run_loop *loop, const gs_step_facts *facts) {
    const gs_session *session = loop->session;
    if (loop->telemetry.totals.steps != 1) return;
    gs_log_info("first step", "job=%s rank=%d step=%lld generation=%u backend=%s "
                "connect_seconds=%.3f seconds=%.3f", loop->job,
                gs_session_rank(session), (long long)facts->step, gs_session_generation(session),
                gs_session_backend(session), gs_session_connect_seconds(session),
                gs_session_seconds_since_connecting(session));
}

// A loss scale that is above 1, and above the job's smallest, finds its place yet: from the largest
// float down are 128 halvings, behind fewer overflows that hysteresis forgives than a run without
// a scale may skip. Where it falls no further it helps no more.
bool gs_run_loop_skips_for_ever(const gs_run_loop *loop) {
    const gs_position *position = &loop->state->position;
    float scale = position->loss_scale.scale;
    bool is_scaling = scale > 1 && scale > loop->state->loss_scaling.min_scale;
    int64_t most = is_scaling ? MOST_SKIPPED_WHILE_SCALING : MOST_SKIPPED_IN_A_ROW;
    return position->skipped_in_a_row >= most;
}

static gs_status check_skipped(const gs_run_loop *loop, int64_t step) {
    if (!gs_run_loop_skips_for_ever(loop)) return gs_ok();
    return gs_error(GS_OUT_OF_RANGE, "step %lld: gradients were not finite %lld times in a row",
                    (long long)step, (long long)loop->state->position.skipped_in_a_row);
}

// A rank has no data left: the job stops here, and no step begins.
static gs_status end_inputs(gs_run_loop *loop, gs_step_facts *facts, gs_status why) {
    int64_t step = facts->step;
    char text[300];
    gs_log_info("data ended", "job=%s rank=%d step=%lld reason=%s", loop->job,
                gs_session_rank(loop->session), (long long)step,
                gs_log_quote(text, sizeof text, why.message));
    GS_TRY(gs_session_await_params(loop->session));  // that the last step sent
    GS_TRY(gs_session_average(loop->session, facts, true));
    return evaluate_when_due(loop);
}

static void save_when_due(gs_run_loop *loop, const gs_step_facts *facts) {
    const gs_place place = gs_session_place(loop->session);
    double seconds = gs_saves_when_due(loop->saves, facts->saving_ranks, &place);
    if (seconds > 0) gs_telemetry_add_checkpoint(&loop->telemetry, seconds);
}

// Between this step and the next: what is behind the last one does.
static bool reads_params(const gs_run_loop *loop) {
    bool is_last = loop->drained || loop->orphaned || loop->state->position.step >= loop->spec->steps.target;
    return is_last || loop->logs_digests || evaluation_is_due(loop) ||
           gs_saves_come_next(loop->saves);
}

// Whatever becomes of this, the step is done.
static gs_status follow_step(gs_run_loop *loop, const gs_step_facts *facts) {
    if (reads_params(loop)) GS_TRY(gs_session_await_params(loop->session));
    GS_TRY(gs_session_finish_epoch(loop->session));
    gs_run_loop_log_digest(loop);
    GS_TRY(check_skipped(loop, facts->step));
    GS_TRY(evaluate_when_due(loop));
    save_when_due(loop, facts);
    gs_timeline_finish(loop->control->progress.timeline, facts->samples, facts->nonfinite_ranks == 0);
    loop->telemetry.report_every_ns = gs_mailbox_report_every_ns(&loop->control->mailbox);
    if (gs_telemetry_is_due(&loop->telemetry)) gs_run_loop_report(loop);
    return gs_ok();
}

// What is behind the step now is saved, or the job's last.
static bool saves_next(const gs_run_loop *loop, const gs_step_facts *facts) {
    return facts->checkpoint || facts->orphaned || gs_saves_are_due(loop->saves) ||
           loop->state->position.step >= loop->spec->steps.target;
}

// What is looked at fails no step.
static void begin_kernel_log(const gs_run_loop *loop) {
    gs_status status = gs_kernel_log_begin(loop->state->device, loop->state->position.step);
    if (status.code) gs_log_warn("kernels are not timed", "job=%s reason=\"%s\"", loop->job, status.message);
}

static void end_kernel_log(const gs_run_loop *loop, const gs_step_facts *facts) {
    gs_status status = gs_kernel_log_end(loop->state->device, &(gs_kernel_log_place){loop->job, gs_session_rank(loop->session), facts->step});
    if (status.code) gs_log_warn("no times of kernels", "job=%s reason=\"%s\"", loop->job, status.message);
}

static gs_status run_step(gs_run_loop *loop) {
    int64_t begin_ns = gs_now_ns();
    gs_timeline_begin(loop->control->progress.timeline, loop->state->position.step);
    gs_step_votes votes = collect_votes(loop);
    gs_step_facts facts;
    begin_kernel_log(loop);
    gs_status status = gs_session_run_step(loop->session, &facts, &votes);
    loop->diverged = facts.diverged;
    loop->state_is_broken = facts.diverged || facts.state_is_broken;
    loop->inputs_ended = facts.inputs_ended;
    if (facts.inputs_ended) return end_inputs(loop, &facts, status);
    // What was updated already is behind this step, whatever has kept a rank that is alone from committing it.
    bool applies = !status.code || (gs_session_has_updated(loop->session) && !loop->state_is_broken);
    gs_status applied = applies ? gs_run_loop_apply(loop, &facts) : gs_ok();
    if (status.code) return status;
    GS_TRY(applied);
    GS_TRY(gs_session_average(loop->session, &facts, saves_next(loop, &facts)));
    end_kernel_log(loop, &facts);
    log_switch(loop, &facts);
    atomic_store(&loop->control->progress.applied_step, loop->state->position.step);
    gs_telemetry_observe(&loop->telemetry, &facts, gs_now_ns() - begin_ns);
    log_first_step(loop, &facts);
    loop->drained = facts.drain;
    loop->stop_saves = facts.checkpoint;
    loop->orphaned = facts.orphaned;
    if (facts.save_is_due) gs_saves_note_due(loop->saves);
    return follow_step(loop, &facts);
}

gs_status gs_run_loop_run(gs_run_loop *loop) {
    const gs_job_spec *spec = loop->spec;
    while (loop->state->position.step < spec->steps.target && !loop->drained && !loop->orphaned &&
           !loop->inputs_ended) {
        GS_TRY(gs_mailbox_check(&loop->control->mailbox));
        GS_TRY(gs_lead_await(&loop->control->lead, &loop->control->mailbox));
        if (spec->debug.step_delay_ms) gs_sleep_ns(spec->debug.step_delay_ms * GS_NS_PER_MS);
        GS_TRY(run_step(loop));
    }
    return gs_ok();
}

void gs_run_loop_leave_session(gs_run_loop *loop) {
    loop->session = NULL;
    loop->drained = loop->stop_saves = loop->orphaned = loop->inputs_ended = loop->diverged = false;
}
