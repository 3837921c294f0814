// Bodies of answers.
#ifndef COORDINATOR_SERVE_ANSWERS_H
#define COORDINATOR_SERVE_ANSWERS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/model/state.h"
#include "rpc/json/json.h"

// Of a GS_DO_REPLY; NULL: it has none. `round`: reply.round encoded by gs_answer_round; NULL where it has none.
gs_json *gs_answer_body(const gs_state *state, const gs_effect *effect, gs_json *round);
gs_json *gs_answer_round(const gs_exchange_round *round);

#endif
