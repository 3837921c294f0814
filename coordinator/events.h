// What happened: numbered, in memory for lists, in the store for good. Loop thread.
#ifndef COORDINATOR_EVENTS_H
#define COORDINATOR_EVENTS_H

#include "coordinator/coordinator.h"
#include "coordinator/fault.h"
#include "coordinator/run.h"

typedef enum gs_severity { GS_SEVERITY_INFO = 0, GS_SEVERITY_WARNING, GS_SEVERITY_ERROR } gs_severity;

GS_NODISCARD gs_status gs_events_create(gs_events **out, gs_job_store *store,
                                        uint64_t next_sequence);
void gs_events_destroy(gs_events *events);

// `job` and `member` may be NULL.
void gs_event_add(gs_coordinator *coordinator, const gs_job *job, const gs_member *member,
                  gs_severity severity, const char *reason, const char *format, ...)
    GS_PRINTF(6, 7);
void gs_event_add_text(gs_coordinator *coordinator, const gs_job *job, const gs_member *member,
                       gs_severity severity, const char *reason, const char *message);
// A warning that says as fields what is known of the fault.
void gs_event_add_fault(gs_coordinator *coordinator, const gs_job *job, const gs_member *member,
                        const char *reason, const char *message, const gs_fault_facts *fault);
void gs_events_forget_job(gs_coordinator *coordinator, uint64_t job);

void gs_list_events(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);

#endif
