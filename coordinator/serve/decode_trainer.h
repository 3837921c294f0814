// What trainers say, as events. A request that is wrong becomes its event's refusal: the engine answers. Numbers are
// cut to what can be; what is not told is the event's value for that.
#ifndef COORDINATOR_SERVE_DECODE_TRAINER_H
#define COORDINATOR_SERVE_DECODE_TRAINER_H

#include "coordinator/engine/base/event.h"
#include "rpc/json/json.h"
#include "rpc/schema/step_report.h"

// Texts are borrowed from the request.
void gs_decode_hello(gs_engine_event *event, const gs_json *request);
void gs_decode_ready(gs_engine_event *event, const gs_json *request);  // or a page of its parameters
void gs_decode_exchange(gs_engine_event *event, const gs_json *request);
void gs_decode_comm_up(gs_engine_event *event, const gs_json *request);
void gs_decode_heartbeat(gs_engine_event *event, const gs_json *request);
void gs_decode_step(gs_engine_event *event, const gs_step_report *report);
void gs_decode_settle(gs_engine_event *event, const gs_json *request);
void gs_decode_checkpointed(gs_engine_event *event, const gs_json *request);
void gs_decode_bye(gs_engine_event *event, const gs_json *request);
void gs_decode_ready_order(gs_engine_event *event, const gs_json *request);
// The event points at `facts`.
void gs_decode_fault(gs_engine_event *event, gs_fault_facts *facts, const gs_json *request);

#endif
