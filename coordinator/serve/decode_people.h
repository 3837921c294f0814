// What people ask of jobs, as events. A wrong request is its caller's to answer: the engine never sees it.
#ifndef COORDINATOR_SERVE_DECODE_PEOPLE_H
#define COORDINATOR_SERVE_DECODE_PEOPLE_H

#include "coordinator/engine/base/event.h"
#include "core/digest.h"
#include "rpc/json/json.h"

// Texts are borrowed from the request, and the event points at `fingerprint`.
// INVALID_ARGUMENT with *details of the members that are wrong, or NULL.
GS_NODISCARD gs_status gs_decode_create_job(gs_engine_event *event, char fingerprint[GS_DIGEST_TEXT_LEN],
                                            gs_json **details, const gs_json *request);
// INVALID_ARGUMENT names the member; the event names the job also then.
GS_NODISCARD gs_status gs_decode_stop_job(gs_engine_event *event, const gs_json *request);
void gs_decode_delete_job(gs_engine_event *event, const gs_json *request);
void gs_decode_replan_job(gs_engine_event *event, const gs_json *request);
void gs_decode_adopt_job(gs_engine_event *event, const gs_json *request);
void gs_decode_release_job(gs_engine_event *event, const gs_json *request);

#endif
