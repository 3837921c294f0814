// One step after the other until the target, a drain, the end of the data or an error: the step
// itself, then all that is done between two steps: evaluation, saves, reports. Compute thread.
#ifndef WORKER_TRAINER_RUN_LOOP_H
#define WORKER_TRAINER_RUN_LOOP_H

#include <stdbool.h>

#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/control/control.h"
#include "worker/state/trainer_state.h"
#include "worker/telemetry/telemetry.h"
#include "worker/trainer/saves.h"
#include "worker/trainer/session.h"
#include "worker/trainer/step.h"

// Made of its first group of fields alone.
typedef struct gs_run_loop {
    // Borrowed.
    const gs_job_spec *spec;
    gs_control *control;
    const char *job;
    gs_trainer_state *state;
    gs_saves *saves;
    bool logs_digests;

    gs_session *session;     // borrowed; NULL before a place was taken
    gs_telemetry telemetry;  // since the session was connected
    bool drained, stop_saves;
    bool orphaned;         // nobody directs the ranks any more: they save and stop
    bool inputs_ended;     // a rank has no data left, and the job stops then
    bool diverged;         // replicas differ
    bool state_is_broken;  // that, or an update failed half-way, here or where a part of it was: never to be saved
} gs_run_loop;

GS_NODISCARD gs_status gs_run_loop_run(gs_run_loop *loop);
// What was found out in a session that is over; a broken state stays one.
void gs_run_loop_leave_session(gs_run_loop *loop);

// The update of the step that the session has reduced. A failure leaves a broken state.
GS_NODISCARD gs_status gs_run_loop_apply(gs_run_loop *loop, gs_step_facts *facts);
// Too many updates one after the other were left out.
bool gs_run_loop_skips_for_ever(const gs_run_loop *loop);
void gs_run_loop_log_digest(const gs_run_loop *loop);

// False: nobody was there to hear it.
bool gs_run_loop_report(gs_run_loop *loop);
// All that waits; false: nobody was there, and it still waits.
bool gs_run_loop_report_rest(gs_run_loop *loop);

#endif
