// The coordinator's state, all of it, and the loop that owns it. No locks: what another thread does
// comes back as a message (writer.h) or as a call (rpc/server/rpc_server.h).
//
// The struct is open to this folder; main.c uses the functions alone.
#ifndef COORDINATOR_COORDINATOR_H
#define COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/job.h"
#include "coordinator/timing.h"
#include "coordinator/writer.h"
#include "core/metrics.h"
#include "core/status.h"
#include "core/u64_map.h"
#include "rpc/client/rpc_client.h"
#include "rpc/server/rpc_server.h"

typedef struct gs_agent gs_agent;        // agents.h
typedef struct gs_events gs_events;      // events.h
typedef struct gs_watchers gs_watchers;  // watch.h
typedef struct gs_keys gs_keys;          // idempotency.h
typedef struct gs_metrics_page gs_metrics_page;  // metrics_page.h
typedef struct gs_timeline_asker gs_timeline_asker;  // timelines.c
typedef struct gs_trace gs_trace;  // trace.h

typedef struct gs_coordinator_options {
    const char *data_dir;          // exists and is locked by the caller
    const char *checkpoints_dir;   // exists
    const char *control_endpoint;  // "tcp://127.0.0.1:8471"
    gs_rpc_context *context;       // borrowed until destroy
    const gs_timing *timing;       // NULL: the default
    gs_trace *trace;               // borrowed until destroy; NULL: none
} gs_coordinator_options;

typedef struct gs_coordinator {
    char data_dir[1024], checkpoints_dir[1024];
    gs_timing timing;
    gs_rpc_server *server;
    gs_writer *writer;
    gs_trace *trace;  // borrowed; NULL: nobody records
    gs_rpc_tap tap;   // of the trace
    int wake_fd;  // eventfd: something of another thread or a signal
    uint32_t epoch;
    char cluster[24];  // cluster.h
    uint64_t life;     // of this start
    gs_u64_map lives;  // of all starts, by epoch
    bool is_old_copy;  // of a database: nothing starts
    uint32_t next_generation, generation_end;

    gs_job **jobs;  // owned; oldest first
    size_t num_jobs, max_jobs;
    gs_agent **agents;  // owned
    size_t num_agents, max_agents;
    gs_u64_map agents_by_name;         // by hash of the name
    gs_u64_map agents_by_incarnation;
    gs_u64_map members;  // of all runs, by incarnation
    gs_events *events;
    gs_watchers *watchers;
    gs_keys *keys;
    gs_metrics *metrics;
    gs_metrics_page *page;  // owned; NULL while nobody asks for metrics
    gs_timeline_asker *timeline_askers;  // owned
    int64_t timeline_requests;           // made so far

    int64_t started_ns, turned_ns, swept_ns;
    double loop_lag_seconds;
    bool schedule_needed, draining, store_failed;
    char store_error[256];
} gs_coordinator;

#define GS_INPROC_ENDPOINT "inproc://gradsync-control"

GS_NODISCARD gs_status gs_coordinator_create(gs_coordinator **out,
                                             const gs_coordinator_options *options);
// One turn: waits for input at most until the next timer, serves, decides, writes behind.
GS_NODISCARD gs_status gs_coordinator_turn(gs_coordinator *coordinator);
// Async-signal-safe: makes a waiting turn return.
void gs_coordinator_wake(const gs_coordinator *coordinator);
const char *gs_coordinator_control_endpoint(const gs_coordinator *coordinator);
// Refuses new jobs from now on.
void gs_coordinator_drain(gs_coordinator *coordinator);
// Says good-bye to streams, writes what is behind, closes. Trainers go on. NULL is fine.
void gs_coordinator_destroy(gs_coordinator *coordinator);

// For the parts of this folder.
uint32_t gs_coordinator_take_generation(gs_coordinator *coordinator);
// A number that nobody else has: of jobs, members, launches.
uint64_t gs_coordinator_draw(gs_coordinator *coordinator);
// How often members are to be heard: less often when they are many.
int64_t gs_coordinator_heartbeat_ns(const gs_coordinator *coordinator);
// The job must be written (behind), and its version grows.
void gs_coordinator_touch(gs_coordinator *coordinator, gs_job *job);
// The same, written in this turn: what a restart wants to find.
void gs_coordinator_touch_now(gs_coordinator *coordinator, gs_job *job);
// What the store answered to a write: readiness shows it.
void gs_coordinator_note_store(gs_coordinator *coordinator, gs_status status);

#endif
