// Timelines of a job's last steps: asked of its ranks when somebody wants them, passed on as they come.
// Loop thread.
//
// An asker gets a stream: pages {rank, steps} as ranks send them, then one item that says what they are
// about and who did not answer within GS_TIMELINE_WAIT_NS. Nothing of it stays here but what ranks leave
// behind when they end (a few steps, as text), so that an ended job still has something to show: until a
// next generation forms, and as long as its series live.
#ifndef COORDINATOR_OBSERVE_TIMELINES_H
#define COORDINATOR_OBSERVE_TIMELINES_H

#include "coordinator/observe/observer.h"

#define GS_TIMELINE_WAIT_NS (2 * GS_NS_PER_SEC)
#define GS_TIMELINE_ROWS 20000     // spans and buckets of all ranks in one answer
#define GS_TIMELINES_MAX_LEFT_BYTES ((size_t)64 << 20)  // that ended ranks left, of all jobs
#define GS_TIMELINE_MAX_ASKERS 16  // at a time

typedef struct gs_timeline_range {
    int64_t last;                // > 0: the last so many steps
    int64_t from_step, to_step;  // else these
} gs_timeline_range;
// "last:3", "100-102", "100"; NULL is "last:3". INVALID_ARGUMENT for anything else.
GS_NODISCARD gs_status gs_timeline_range_parse(gs_timeline_range *range, const char *text);

void gs_get_job_timeline(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request);
void gs_timeline_page(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request);
void gs_trace_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request);

// Ends what has waited long enough.
void gs_timelines_tick(gs_observer *observer);
// The coordinator stops.
void gs_timelines_end_all(gs_observer *observer);
// What the ranks of a job left behind is no longer wanted.
void gs_timelines_forget(gs_observer *observer, gs_job *job);

#endif
