// What happened: numbered, in memory for lists, in the store for good. Loop thread.
#ifndef COORDINATOR_OBSERVE_EVENTS_H
#define COORDINATOR_OBSERVE_EVENTS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/observe/observer.h"

GS_NODISCARD gs_status gs_events_create(gs_events **out, gs_job_store *store,
                                        uint64_t next_sequence);
void gs_events_destroy(gs_events *events);

// A GS_DO_NOTE.
void gs_events_see(gs_observer *observer, const gs_effect *effect);
// Of the observer itself, of no job.
void gs_events_note(gs_observer *observer, gs_severity severity, const char *reason, const char *message);
// Who asks for a change: whom an API names that was shown a token. Borrowed from the request; "": nobody is named, or by one who may
// not, or not as names are.
const char *gs_events_asker(const gs_rpc_peer *peer, const gs_json *request);
// "Requested", of no job: by him, and the key that he shows; nothing where nobody is known. `what`: "a recording of job j-1".
void gs_events_note_asker(gs_observer *observer, const gs_rpc_peer *peer, const gs_json *request, const char *what);
void gs_events_forget_job(gs_observer *observer, uint64_t job);
// What the store did not take is written as soon as it takes something, as long as it is among the newest that are kept.
void gs_events_tick(gs_observer *observer);
void gs_events_part(gs_observer *observer);  // for the last time

void gs_list_events(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);

#endif
