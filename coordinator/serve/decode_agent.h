// What agents say, as events. A request that is wrong becomes its event's refusal: the engine answers.
#ifndef COORDINATOR_SERVE_DECODE_AGENT_H
#define COORDINATOR_SERVE_DECODE_AGENT_H

#include "coordinator/engine/base/event.h"
#include "rpc/json/json.h"

// Texts are borrowed from the request.
// What any peer says in its Hello of the coordinators that it has heard.
gs_seen_life gs_decode_seen_life(const gs_json *request);
void gs_decode_agent_hello(gs_engine_event *event, const gs_json *request);
void gs_decode_described(gs_engine_event *event, const gs_json *request);
void gs_decode_agent_heartbeat(gs_engine_event *event, const gs_json *request);
void gs_decode_exited(gs_engine_event *event, const gs_json *request);

#endif
