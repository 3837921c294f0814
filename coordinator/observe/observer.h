// Who sees: everything that people are shown of the coordinator, kept beside its state, of which nothing decides. Loop
// thread.
#ifndef COORDINATOR_OBSERVE_OBSERVER_H
#define COORDINATOR_OBSERVE_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/state.h"
#include "coordinator/store/writer.h"
#include "core/metrics.h"
#include "rpc/server/rpc_server.h"

typedef struct gs_events gs_events;                  // events.h
typedef struct gs_watchers gs_watchers;              // watch.h
typedef struct gs_metrics_page gs_metrics_page;      // metrics/metrics_page.h
typedef struct gs_timeline_asker gs_timeline_asker;  // timelines.c

typedef struct gs_observer {
    const gs_state *state;  // borrowed
    const char *data_dir;   // borrowed
    gs_writer *writer;      // borrowed
    gs_rpc_server *server;  // borrowed
    // Tells the peer at the other end of a call something that decides nothing. Takes item.
    bool (*send)(void *send_ctx, gs_call call, gs_json *item);
    void *send_ctx;

    gs_events *events;
    gs_watchers *watchers;
    gs_metrics *metrics;
    gs_metrics_page *page;               // owned; NULL while nobody asks for metrics
    gs_timeline_asker *timeline_askers;  // owned
    int64_t timeline_requests;           // made so far
    int64_t started_ns, expired_ns;
    double loop_lag_seconds, step_seconds;  // of the loop; that the engine took for its last step
    bool store_failed;  // the last time
    uint64_t num_store_failures;
    char store_error[256];
} gs_observer;

// What the store answered to a write: readiness shows it.
void gs_observer_note_store(gs_observer *observer, gs_status status);

// {job} of a request: id, unique prefix of at least four characters, or name. *details when it is ambiguous.
GS_NODISCARD gs_status gs_observer_find_job(const gs_observer *observer, gs_job **job, gs_json **details,
                                            const gs_json *request);

#endif
