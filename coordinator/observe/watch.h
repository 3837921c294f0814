// Live streams of the Watch method. Loop thread.
#ifndef COORDINATOR_OBSERVE_WATCH_H
#define COORDINATOR_OBSERVE_WATCH_H

#include "coordinator/observe/observer.h"

typedef enum gs_topic {
    GS_TOPIC_STATE = 0,
    GS_TOPIC_STEP,
    GS_TOPIC_BUCKETS,
    GS_TOPIC_WORKER,
    GS_TOPIC_EVENT,
    GS_TOPIC_CHECKPOINT,
    GS_NUM_TOPICS
} gs_topic;

gs_watchers *gs_watchers_create(void);  // NULL: out of memory
void gs_watchers_destroy(gs_watchers *watchers);

// True when somebody listens to it: what is not listened to need not be made.
bool gs_watched(const gs_observer *observer, const gs_job *job, gs_topic topic);
// Tells everyone who listens. `data` is taken. `job` NULL: not of a job.
void gs_watch_publish(gs_observer *observer, const gs_job *job, gs_topic topic,
                      gs_json *data);
// The job is terminal, or goes away: `end` to those who watch it alone.
void gs_watch_end_job(gs_observer *observer, const gs_job *job);
void gs_watch_end_all(gs_observer *observer, const char *reason);
void gs_watch_tick(gs_observer *observer);  // steps that were held back by interval_ms

void gs_watch(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
