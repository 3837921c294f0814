// All that is seen: begun, fed by the engine's effects and by time, ended. Loop thread.
#ifndef COORDINATOR_OBSERVE_SIGHTS_H
#define COORDINATOR_OBSERVE_SIGHTS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/observe/observer.h"
#include "coordinator/store/record/job_documents.h"

typedef struct gs_observer_options {
    const gs_state *state;
    const char *data_dir;
    gs_job_store *store;     // read by create alone
    uint64_t next_sequence;  // of events
} gs_observer_options;

// writer, server and send are set by the caller before the first effect is seen.
GS_NODISCARD gs_status gs_observer_create(gs_observer **out, const gs_observer_options *options);
// Sights of jobs go first (gs_observer_forget); the writer is idle by then.
void gs_observer_destroy(gs_observer *observer);

// Begins to see a job; takes the documents, also when there is no memory for it (false). `was_stored`: its curves are
// read from what a former life of the coordinator wrote.
bool gs_observer_meet(gs_observer *observer, gs_job *job, gs_job_documents *documents, bool was_stored);
void gs_observer_forget(gs_observer *observer, gs_job *job);

// One of the effects for people.
void gs_observer_see(gs_observer *observer, const gs_effect *effect);
// What the store answered to the row of a job that had this version.
void gs_observer_note_row(gs_observer *observer, uint64_t job, uint64_t version, gs_status status);
// What the model of a job wrote at the end.
void gs_observer_take_sample(gs_observer *observer, gs_job *job, const char *sample);
void gs_observer_tick(gs_observer *observer);
// The coordinator stops: streams are told, what is behind is submitted to the writer.
void gs_observer_part(gs_observer *observer);
// Of jobs whose records this life could not read: people see nothing else of them. Once, when the writer has started.
void gs_observer_tell_unreadable(gs_observer *observer);

#endif
