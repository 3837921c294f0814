// What members say between go and their end: heartbeats, steps, faults, how to settle, good-bye.
#ifndef COORDINATOR_ENGINE_RUNS_REPORTS_H
#define COORDINATOR_ENGINE_RUNS_REPORTS_H

#include "coordinator/engine/base/mind.h"

void gs_on_heartbeat(gs_engine *engine, gs_member *member, const gs_engine_event *event);
void gs_on_step(gs_engine *engine, gs_member *member, gs_engine_event *event);
void gs_on_fault(gs_engine *engine, gs_member *member, const gs_engine_event *event);
void gs_on_settle(gs_engine *engine, gs_member *member, const gs_engine_event *event);
void gs_on_bye(gs_engine *engine, gs_member *member, const gs_engine_event *event);

#endif
