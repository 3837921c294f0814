// What happens between two looks at the metrics page is counted as it happens. Loop thread.
#ifndef COORDINATOR_OBSERVE_COUNTERS_H
#define COORDINATOR_OBSERVE_COUNTERS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/observe/observer.h"

// A GS_DO_COUNT.
void gs_counters_see(gs_observer *observer, const gs_effect *effect);
void gs_counters_plan_made(gs_observer *observer, double seconds);
// What reached its bound since the last tick (gs_observer.limits_reached): counted, and an event at most once a minute
// for each.
void gs_counters_tick(gs_observer *observer);
// Of what another counts: it has been reached so often since its start.
void gs_counters_note_limit(gs_observer *observer, gs_limit limit, uint64_t total);
// Series that are 0 until something happens, so that they are there to be watched.
void gs_counters_declare(gs_observer *observer);
void gs_counters_declare_job(gs_observer *observer, const gs_job *job);

#endif
