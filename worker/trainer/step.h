// The step of a session, which is a transaction.
//
// run_step leaves parameters, optimizer, buffers and position untouched whatever happens: it
// computes and reduces gradients, writes buffers beside, and lets all ranks commit. apply then does
// the update, from reduced buckets alone. After an abort apply still works when the step is
// complete here (rule F2). A rank that is alone may have its parameters updated before it has asked itself
// (update_ahead.h): such a step is applied whatever else becomes of it.
#ifndef WORKER_TRAINER_STEP_H
#define WORKER_TRAINER_STEP_H

#include <stdbool.h>

#include "core/status.h"
#include "worker/telemetry/step_facts.h"

typedef struct gs_session gs_session;

typedef struct gs_step_votes {
    bool drain, checkpoint, orphaned;
    const struct gs_saves *saves;  // asked when the step is reduced
} gs_step_votes;

// Computes, reduces, commits. Ok: all ranks have committed, and each must apply now.
// Any error ends the session: nothing of this step was applied here.
GS_NODISCARD gs_status gs_session_run_step(gs_session *session, gs_step_facts *facts,
                                           const gs_step_votes *votes);
// The digest of the step's first parameters is taken, if it was not: before any of them changes.
void gs_session_end_digest(gs_session *session);
// The step in flight has changed parameters and optimizer: apply comes next, also after an error.
bool gs_session_has_updated(const gs_session *session);
// The step in flight is reduced to the last bucket and not applied yet.
bool gs_session_complete(const gs_session *session);
// Takes back what the step in flight has updated so far (optimizer.in_backward), when it is not to be applied:
// before anybody looks at the state.
void gs_session_discard(gs_session *session);
// Adopts buffers, clips, updates, advances the position. Only after run_step, or when complete.
GS_NODISCARD gs_status gs_session_apply(gs_session *session, gs_step_facts *facts);
// Of a sharded state: parameters that others own are on their way since apply, and are here now. Before anybody reads
// them but the next step, which waits itself. An error ends the session, and leaves a part of the update.
GS_NODISCARD gs_status gs_session_await_params(gs_session *session);
// None is on its way.
bool gs_session_has_params(const gs_session *session);
// Behind apply, on all ranks: the average that is due where ranks train apart; `whole`: all that they hold is to be
// the same now, for it is saved. An error ends the session, and leaves ranks apart.
GS_NODISCARD gs_status gs_session_average(gs_session *session, gs_step_facts *facts, bool whole);

#endif
