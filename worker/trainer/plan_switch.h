// How a session changes its plan, and tells what the plan should follow. Compute thread.
//
// A plan that is offered waits. Each commit says which plan waits here; when the same one waits on
// every rank, all of them change to it before the next step. Whoever got none, or another one,
// holds the change back, and never a step.
#ifndef WORKER_TRAINER_PLAN_SWITCH_H
#define WORKER_TRAINER_PLAN_SWITCH_H

#include "core/status.h"
#include "worker/trainer/session.h"

// Looks at the mailbox; the folded digest of the plan that waits, for the vote, 0: none.
uint64_t gs_session_waiting_plan(gs_session *session);
// What the commit agreed on is done here, before the first collective of a step.
GS_NODISCARD gs_status gs_session_switch_plan(gs_session *session, gs_step_facts *facts);

// Rank 0, after the communicator is up: begins to watch the order of gradients.
GS_NODISCARD gs_status gs_session_watch_order(gs_session *session);
// After a step's reduction.
void gs_session_observe_order(gs_session *session);

#endif
