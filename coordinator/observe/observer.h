// Who sees: everything that people are shown of the coordinator, kept beside its state, of which nothing decides. Loop
// thread.
#ifndef COORDINATOR_OBSERVE_OBSERVER_H
#define COORDINATOR_OBSERVE_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/engine/base/identity.h"
#include "coordinator/model/state.h"
#include "coordinator/store/writer.h"
#include "core/metrics.h"
#include "rpc/server/rpc_server.h"

typedef struct gs_events gs_events;                  // events.h
typedef struct gs_watchers gs_watchers;              // watch.h
typedef struct gs_metrics_page gs_metrics_page;      // metrics/metrics_page.h
typedef struct gs_job_metrics gs_job_metrics;        // reports/job_metrics.h
typedef struct gs_recalls gs_recalls;                // recall.h
typedef struct gs_timeline_asker gs_timeline_asker;  // timelines.c
typedef struct gs_examination gs_examination;        // hosts/examination.c

// A bound that was reached: what is above it is refused, or the oldest goes.
typedef enum gs_limit {
    GS_LIMIT_CURVES = 0,  // lines of curves that a disk did not take in time
    GS_LIMIT_WRITES,      // that were refused: too many wait for the disk
    GS_LIMIT_WATCHERS,
    GS_LIMIT_TIMELINES,
    GS_LIMIT_LEFT_TIMELINES,  // that ended ranks left and that were not kept
    GS_LIMIT_RECALLS,     // questions about ended jobs that wait for the disk
    GS_LIMIT_KEYS,
    GS_LIMIT_JOBS,
    GS_LIMIT_ENDED_JOBS,  // that are not forgotten yet
    GS_LIMIT_RECALLED,    // ended jobs that are in memory as a whole
    GS_LIMIT_REMOVALS,    // of checkpoints that are owed
    GS_LIMIT_SWEPT,       // directories that are watched until they are old enough to be swept
    GS_LIMIT_REQUESTS,    // that wait for the loop
    GS_LIMIT_UNREAD,      // messages that a peer does not read
    GS_LIMIT_ENDS,        // of streams that wait to be read
    GS_LIMIT_OPEN_CALLS,  // of a peer
    GS_LIMIT_ANSWERS,     // that are kept for repeats
    GS_LIMIT_CONNECTIONS,
    GS_LIMIT_SESSIONS,    // of peers that went away
    GS_LIMIT_MESSAGES,    // of a peer in a second
    GS_LIMIT_EXCHANGES,   // of a rank, and what an answer to all holds
    GS_NUM_LIMITS
} gs_limit;

typedef struct gs_observer {
    const gs_state *state;  // borrowed
    const char *data_dir;   // borrowed
    gs_writer *writer;      // borrowed
    gs_rpc_server *server;  // borrowed
    gs_key_gate *gate;      // borrowed; NULL: nobody shows a key
    // Tells the peer at the other end of a call something that decides nothing. Takes item.
    bool (*send)(void *send_ctx, gs_call call, gs_json *item);
    void *send_ctx;

    int wake_fd;            // borrowed; written when another thread has something for the loop

    gs_events *events;
    gs_watchers *watchers;
    gs_metrics *metrics;
    gs_metrics_page *page;               // owned; NULL while nobody asks for metrics
    gs_timeline_asker *timeline_askers;  // owned
    int64_t timeline_requests;           // made so far, and examinations
    gs_examination *examination;         // owned; NULL: nobody asks for one
    size_t left_timeline_bytes;          // that ended ranks left, of all jobs
    int64_t started_ns;
    double loop_lag_seconds, step_seconds;  // of the loop; that the engine took for its last step
    gs_job_metrics *no_metrics;     // owned; what jobs have of which nothing is in memory
    gs_recalls *recalls;            // owned
    int64_t rested_ns;              // ended jobs were looked at; 0: at the next tick
    size_t recalled_jobs, recalled_bytes;  // since then
    int num_curves_coming;          // reads that the thread of logs has
    uint64_t limits_reached[GS_NUM_LIMITS];  // since the last tick
    int64_t limit_told_ns[GS_NUM_LIMITS];
    uint64_t limit_totals[GS_NUM_LIMITS];    // as others count, when they were asked last
    bool store_failed;  // the last time
    uint64_t num_store_failures;
    char store_error[256];
} gs_observer;

// What the store answered to a write: readiness shows it.
void gs_observer_note_store(gs_observer *observer, gs_status status);

// {job} of a request: id, unique prefix of at least four characters, or name. *details when it is ambiguous.
GS_NODISCARD gs_status gs_observer_find_job(const gs_observer *observer, gs_job **job, gs_json **details,
                                            const gs_json *request);

// What a message that comes in shows of its sender. Borrows the peer's name.
static inline gs_identity gs_identity_of_peer(const gs_rpc_peer *peer) {
    const gs_rpc_caller *caller = &peer->caller;
    return (gs_identity){.principal = {caller->is_known, caller->is_pool, caller->name},
                         .incarnation = peer->incarnation,
                         .job = peer->job,
                         .token = peer->token};
}

// The ids of those that this text may mean. The caller's.
gs_json *gs_job_candidates_to_view(const gs_job_table *jobs, const char *text);

#endif
