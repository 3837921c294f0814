// The evaluation of a session: the same bits for every world size.
#ifndef WORKER_TRAINER_EVALUATION_H
#define WORKER_TRAINER_EVALUATION_H

#include <stdbool.h>

#include "core/status.h"
#include "worker/telemetry/step_facts.h"

typedef struct gs_session gs_session;

bool gs_session_can_evaluate(const gs_session *session);
// Collective: the mean over all ranks' evaluation batches; the same bits for every world size.
GS_NODISCARD gs_status gs_session_evaluate(gs_session *session, gs_evaluation *evaluation);

#endif
