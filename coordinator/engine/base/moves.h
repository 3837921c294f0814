// The only places where a job, a run, a member or a checkpoint changes its state. What no table of
// model/transitions.h has, or its row's guard does not let pass, stops a debug build, and is a line in the log of a release build.
#ifndef COORDINATOR_ENGINE_BASE_MOVES_H
#define COORDINATOR_ENGINE_BASE_MOVES_H

#include "coordinator/engine/base/mind.h"

// An entry of the event log. `job` and `member` may be NULL.
void gs_note_add(gs_engine *engine, gs_job *job, const gs_member *member, gs_severity severity,
                 const char *reason, const char *format, ...) GS_PRINTF(6, 7);
// Who asked for what, where somebody is known; `job` NULL: it is not here, or its own events go with it.
void gs_note_asker(gs_engine *engine, const gs_origin *from, gs_job *job, const char *what, const char *id_text);
// A warning that says as fields what is known of the fault.
void gs_note_fault(gs_engine *engine, gs_job *job, const gs_member *member, const char *reason,
                   const char *message, const gs_fault_facts *fault);

// Its record is written behind, at most timing.flush_ns late, and its version grows.
void gs_job_touch(gs_engine *engine, gs_job *job);
// Progress is written behind, without a new version, and the later the more ranks tell of theirs.
void gs_job_note_progress(gs_engine *engine, gs_job *job);
// It was taken back: that waits for no longer than a second.
void gs_job_mend_progress(gs_engine *engine, gs_job *job);
// As touch, and written with this step: what a restart wants to find.
void gs_job_touch_now(gs_engine *engine, gs_job *job);
// Its record as it is after this step.
gs_effect *gs_job_write(gs_engine *engine, gs_job *job);

// Shows the job in `state` with reason and sentence: event first, then state, then watchers.
void gs_job_move(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *format, ...)
    GS_PRINTF(5, 6);
// The same when the event has been noted already.
void gs_job_show(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *message);
// Another reason within the state; nothing when nothing changes.
void gs_job_explain(gs_engine *engine, gs_job *job, const char *reason, const char *format, ...) GS_PRINTF(4, 5);
// A terminal state. The run must be gone.
void gs_job_end(gs_engine *engine, gs_job *job, gs_job_state state, const char *reason, const char *format, ...)
    GS_PRINTF(5, 6);

void gs_run_enter(gs_engine *engine, gs_run *run, gs_run_phase phase, int64_t deadline_ns);  // 0: no deadline
void gs_member_enter(gs_engine *engine, gs_member *member, gs_member_stage stage);
void gs_checkpoint_enter(gs_engine *engine, const gs_job *job, gs_checkpoint *checkpoint, gs_checkpoint_state state);

#endif
