// The curves of a job on their way to its file and back. Loop thread; the thread of logs does the waiting.
//
// Entries are written behind, together; what the disk refuses is tried again each second, and said once. While it says
// nothing, GS_CURVES_MAX_PENDING bytes wait at most, beside as many that are with it: the oldest go (GS_LIMIT_CURVES).
// What an earlier life of the coordinator wrote is read behind readiness: of jobs that train one after the other, of
// ended ones when somebody asks.
#ifndef COORDINATOR_OBSERVE_CURVES_H
#define COORDINATOR_OBSERVE_CURVES_H

#include "coordinator/observe/observer.h"

#define GS_CURVES_MAX_PENDING ((size_t)256 << 10)

typedef struct gs_curves gs_curves;

gs_curves *gs_curves_create(bool was_stored);  // NULL: out of memory
void gs_curves_destroy(gs_curves *curves);

// An entry that was drawn.
void gs_curves_note(gs_observer *observer, gs_job *job, const gs_json *entry);
// What waits is submitted. `reads`: what a former life wrote may be asked for now; true when it was.
bool gs_curves_tick(gs_observer *observer, gs_job *job, bool reads);
// The last of them, whether the disk took what came before or not.
void gs_curves_part(gs_observer *observer, gs_job *job);
// Until they have been read.
bool gs_curves_are_missing(const gs_job *job);
bool gs_curves_are_unreadable(const gs_job *job);  // they were asked for, and the disk has not given them
// Some of them are on their way to the disk or back, or wait for it.
bool gs_curves_are_moving(const gs_job *job);
// They are not in memory any more.
void gs_curves_let_go(gs_job *job);

#endif
