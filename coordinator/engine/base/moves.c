#include "coordinator/engine/base/moves.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"

static bool may_move(gs_engine *engine, const gs_job *job, gs_machine machine, const void *subject, int from, int to, const char *why) {
    int row = gs_transition_find(machine, from, to);
    bool may = row >= 0 && gs_transition_may(machine, row, subject);
    if (may) {
        engine->taken[machine][row]++;
        return true;
    }
    const gs_transition_table *table = gs_transitions_of(machine);
    gs_mind_log(engine, GS_SEVERITY_ERROR, "transition refused", "of=%s from=%s to=%s guard=%s job=%s reason=\"%s\"", table->name,
                table->state_name(from), table->state_name(to), row >= 0 ? table->rows[row].guard.name : "none", job->id_text, why);
    assert(!"a row of model/transitions.c");
    return false;
}

static void note(gs_engine *engine, gs_job *job, const gs_member *member, gs_severity severity,
                 const char *reason, const char *message, const gs_fault_facts *fault) {
    gs_note kept = {.severity = severity,
                    .reason = gs_mind_text(engine, "%s", reason),
                    .message = gs_mind_text(engine, "%s", message),
                    .generation = job ? job->generation : 0,
                    .step = job && job->committed ? job->step : -1,
                    .rank = member ? member->rank : -1,
                    .worker = member ? gs_mind_text(engine, "%s", member->worker) : NULL,
                    .fault = fault ? gs_mind_copy(engine, fault, sizeof *fault) : NULL};
    gs_effect *effect = gs_mind_do(engine, GS_DO_NOTE);
    effect->job = job;
    effect->job_id = job ? job->id : 0;
    effect->note = kept;
}

void gs_note_add(gs_engine *engine, gs_job *job, const gs_member *member, gs_severity severity,
                 const char *reason, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    note(engine, job, member, severity, reason, message, NULL);
}

// An API of its own shows its key, and names whose token it was shown.
void gs_note_asker(gs_engine *engine, const gs_origin *from, gs_job *job, const char *what, const char *id_text) {
    const char *key = from->who.principal.is_known ? from->who.principal.name : "", *who = from->asked_by ? from->asked_by : "";
    if (!*who && !*key) return;
    bool both = *who && *key;
    gs_note_add(engine, job, NULL, GS_SEVERITY_INFO, "Requested", "%s job %s was asked for by %s%s%s", what, id_text,
                *who ? who : key, both ? " through " : "", both ? key : "");
}

void gs_note_fault(gs_engine *engine, gs_job *job, const gs_member *member, const char *reason,
                   const char *message, const gs_fault_facts *fault) {
    note(engine, job, member, GS_SEVERITY_WARNING, reason, message, fault);
}

void gs_job_touch(gs_engine *engine, gs_job *job) {
    int64_t now_ns = engine->state.now_ns;
    job->version++;
    if (job->dirty && job->dirty_since_ns <= now_ns) return;
    job->dirty = true;
    job->dirty_since_ns = now_ns;
}

void gs_job_note_progress(gs_engine *engine, gs_job *job) {
    if (job->dirty) return;
    job->dirty = true;
    job->dirty_since_ns = engine->state.now_ns + gs_cadence_progress_ns(gs_state_cadence(&engine->state));
}

void gs_job_mend_progress(gs_engine *engine, gs_job *job) {
    int64_t last_ns = engine->state.now_ns + GS_NS_PER_SEC;
    job->dirty = true;
    if (job->dirty_since_ns > last_ns) job->dirty_since_ns = last_ns;
}

gs_effect *gs_job_write(gs_engine *engine, gs_job *job) {
    job->age_ns = gs_job_age_ns(job, engine->state.now_ns);
    job->aged_ns = engine->state.now_ns;
    job->dirty = false;
    gs_effect *effect = gs_mind_do(engine, GS_DO_WRITE_JOB);
    effect->job = job;
    effect->job_id = job->id;
    return effect;
}

void gs_job_touch_now(gs_engine *engine, gs_job *job) {
    gs_job_touch(engine, job);
    if (!job->held_back) gs_job_write(engine, job);
}

static void show_reason(gs_engine *engine, gs_job *job, const char *reason, const char *message) {
    snprintf(job->reason, sizeof job->reason, "%s", reason);
    snprintf(job->message, sizeof job->message, "%s", message);
    gs_job_touch(engine, job);
    gs_mind_do(engine, GS_DO_SHOW_JOB)->job = job;
}

static void enter(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *message) {
    if (job->state != state) {
        int64_t now_ms = engine->state.wall_ms;
        if (now_ms > job->state_since_ms) job->spent_ms[job->state] += now_ms - job->state_since_ms;
        job->state_since_ms = now_ms;
    }
    job->state = state;
    show_reason(engine, job, reason, message);
}

void gs_job_show(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *message) {
    if (may_move(engine, job, GS_MACHINE_JOB, job, (int)job->state, (int)state, reason)) enter(engine, job, state, reason, message);
}

static bool move(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *message) {
    if (!may_move(engine, job, GS_MACHINE_JOB, job, (int)job->state, (int)state, reason)) return false;
    note(engine, job, NULL,
         state == GS_JOB_FAILED ? GS_SEVERITY_ERROR
         : state == GS_JOB_RECOVERING ? GS_SEVERITY_WARNING : GS_SEVERITY_INFO,
         reason, message, NULL);
    enter(engine, job, state, reason, message);
    return true;
}

void gs_job_move(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *format, ...) {
    char message[sizeof job->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    move(engine, job, state, reason, message);
}

void gs_job_explain(gs_engine *engine, gs_job *job, const char *reason, const char *format, ...) {
    char message[sizeof job->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!strcmp(job->reason, reason) && !strcmp(job->message, message)) return;
    show_reason(engine, job, reason, message);
}

void gs_job_end(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *format, ...) {
    char message[sizeof job->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!move(engine, job, state, reason, message)) return;
    job->ended_ms = engine->state.wall_ms;
    job->ended_ns = engine->state.now_ns;
    gs_job_forget_workers(job);
    gs_complaints_release(&job->complaints);
    gs_mind_do(engine, GS_DO_END_JOB)->job = job;
    engine->state.schedule_needed = true;
}

void gs_run_enter(gs_engine *engine, gs_run *run, gs_run_phase phase, int64_t deadline_ns) {
    if (!may_move(engine, run->job, GS_MACHINE_RUN, run, (int)run->phase, (int)phase, run->cause.reason)) return;
    run->phase = phase;
    run->has_trained |= phase == GS_RUN_TRAINING;
    run->phase_since_ns = engine->state.now_ns;
    run->phase_deadline_ns = deadline_ns ? run->phase_since_ns + deadline_ns : 0;
}

void gs_member_enter(gs_engine *engine, gs_member *member, gs_member_stage stage) {
    if (!may_move(engine, member->job, GS_MACHINE_MEMBER, member, (int)member->stage, (int)stage, member->worker)) return;
    member->stage = stage;
    if (stage == GS_MEMBER_UP) member->was_up = true;
}

void gs_checkpoint_enter(gs_engine *engine, const gs_job *job, gs_checkpoint *checkpoint, gs_checkpoint_state state) {
    if (!may_move(engine, job, GS_MACHINE_CHECKPOINT, checkpoint, (int)checkpoint->state, (int)state, checkpoint->directory)) return;
    checkpoint->state = state;
}
