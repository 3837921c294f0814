// From Hello to go: Hello, prepare, Ready, start, Exchange, CommUp.
#ifndef COORDINATOR_ENGINE_RUNS_RENDEZVOUS_H
#define COORDINATOR_ENGINE_RUNS_RENDEZVOUS_H

#include "coordinator/engine/base/mind.h"

void gs_on_hello(gs_engine *engine, gs_engine_event *event);
void gs_member_stream_gone(gs_engine *engine, gs_member *member, bool was_closed);
void gs_on_params(gs_engine *engine, gs_member *member, gs_engine_event *event);
void gs_on_ready(gs_engine *engine, gs_member *member, gs_engine_event *event);
void gs_on_exchange(gs_engine *engine, gs_member *member, gs_engine_event *event);
void gs_on_comm_up(gs_engine *engine, gs_member *member, gs_engine_event *event);
// Forms the generation when all that it needs is there: ranks, their lists, a number.
void gs_rendezvous_try(gs_engine *engine, gs_run *run);
// A generation that an earlier life left goes on when all its ranks are back. Who has said Bye does not come back.
void gs_rendezvous_check_in(gs_engine *engine, gs_run *run);

#endif
