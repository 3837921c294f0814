// How a step of a session opens: who has data, whose buffers count, how its passes are dealt to the
// reducer; and what ranks make sure of where an epoch ends. With uneven inputs ranks that ran out
// of data take part in everything with neutral contributions; with synchronised batch norm a rank's
// shards run as one.
#ifndef WORKER_TRAINER_STEP_OPENING_H
#define WORKER_TRAINER_STEP_OPENING_H

#include "core/status.h"
#include "worker/telemetry/step_facts.h"

typedef struct gs_session gs_session;

// Before the communicator, behind it, at destroy.
void gs_session_deal_shards(gs_session *session);
GS_NODISCARD gs_status gs_session_prepare_inputs(gs_session *session);
void gs_session_release_inputs(gs_session *session);

// First in a step.
GS_NODISCARD gs_status gs_session_open_step(gs_session *session, gs_step_facts *facts);

// Collective, after apply: where an epoch of uneven parts ends, ranks that share no buffers
// (buffers none) meet: they take those of the last rank that had data. Elsewhere nothing happens.
GS_NODISCARD gs_status gs_session_finish_epoch(gs_session *session);

#endif
