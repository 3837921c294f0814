#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/held.h"
#include "coordinator/observe/job_view.h"
#include "core/clock.h"

#define MAX_WATCHERS 256
#define MAX_INTERVAL_MS 60000

static const char *const topic_names[GS_NUM_TOPICS] = {"state",  "step",  "buckets",
                                                       "worker", "event", "checkpoint"};

typedef struct gs_watcher {
    gs_watchers *owner;
    gs_rpc_call_handle *call;
    gs_held held;
    uint64_t job;  // 0: all
    unsigned topics;
    int64_t interval_ns, step_sent_ns;
    gs_json *step_waiting;  // owned; the newest step that interval_ms holds back
    int64_t steps_folded;
    int64_t dropped;
    struct gs_watcher *next;
} gs_watcher;

struct gs_watchers {
    gs_watcher *first;
    int count;
    uint64_t sequence;  // of the newest event, the same for all who get it
};

gs_watchers *gs_watchers_create(void) { return calloc(1, sizeof(gs_watchers)); }

static void remove_watcher(gs_watcher *watcher) {
    gs_watcher **link = &watcher->owner->first;
    while (*link != watcher) link = &(*link)->next;
    *link = watcher->next;
    watcher->owner->count--;
    gs_json_release(watcher->step_waiting);
    free(watcher);
}

static void forget_watcher(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    remove_watcher(owner);
}

void gs_watchers_destroy(gs_watchers *watchers) {
    if (!watchers) return;
    while (watchers->first) {
        gs_rpc_end(watchers->first->call, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        remove_watcher(watchers->first);
    }
    free(watchers);
}

static bool send_named(gs_watcher *watcher, const char *event, gs_json *data) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "event", event);
    gs_json_set_int(item, "sequence", (int64_t)watcher->owner->sequence);
    gs_json_set(item, "data", data);
    return !gs_rpc_item(watcher->call, item).code;
}

// A watcher that is too slow loses items, and is told how many as soon as it can be told anything.
static void send_event(gs_watcher *watcher, const char *event, gs_json *data) {
    if (watcher->dropped > 0) {
        gs_json *gap = gs_json_new_object();
        gs_json_set_int(gap, "dropped", watcher->dropped);
        if (!send_named(watcher, "gap", gap)) {
            watcher->dropped++;
            gs_json_release(data);
            return;
        }
        watcher->dropped = 0;
    }
    if (!send_named(watcher, event, data)) watcher->dropped++;
}

static bool listens(const gs_watcher *watcher, const gs_job *job, gs_topic topic) {
    if (!(watcher->topics >> topic & 1u)) return false;
    return watcher->job == 0 || (job && job->id == watcher->job);
}

bool gs_watched(const gs_observer *observer, const gs_job *job, gs_topic topic) {
    for (gs_watcher *watcher = observer->watchers->first; watcher; watcher = watcher->next) {
        if (listens(watcher, job, topic)) return true;
    }
    return false;
}

static void send_step(gs_watcher *watcher, int64_t now_ns) {
    gs_json *data = watcher->step_waiting;
    watcher->step_waiting = NULL;
    watcher->owner->sequence++;
    gs_json_set_int(data, "steps_summarised", watcher->steps_folded);
    watcher->steps_folded = 0;
    watcher->step_sent_ns = now_ns;
    send_event(watcher, "step", data);
}

static void hold_step(gs_watcher *watcher, const gs_json *data) {
    // A watcher of all jobs folds each job's steps apart only as far as one slot allows: the newest
    // of another job sends the one that waits.
    const char *waiting = gs_json_string_or(watcher->step_waiting, "job", "");
    if (watcher->step_waiting && strcmp(waiting, gs_json_string_or(data, "job", "")) != 0) {
        send_step(watcher, watcher->step_sent_ns);
    }
    gs_json_release(watcher->step_waiting);
    watcher->step_waiting = gs_json_copy(data);
    watcher->steps_folded++;
    int64_t now_ns = gs_now_ns();
    if (now_ns - watcher->step_sent_ns >= watcher->interval_ns) send_step(watcher, now_ns);
}

void gs_watch_publish(gs_observer *observer, const gs_job *job, gs_topic topic,
                      gs_json *data) {
    observer->watchers->sequence++;
    for (gs_watcher *watcher = observer->watchers->first; watcher; watcher = watcher->next) {
        if (!listens(watcher, job, topic)) continue;
        if (topic == GS_TOPIC_STEP) hold_step(watcher, data);
        else send_event(watcher, topic_names[topic], gs_json_retain(data));
    }
    gs_json_release(data);
}

void gs_watch_tick(gs_observer *observer) {
    int64_t now_ns = gs_now_ns();
    for (gs_watcher *watcher = observer->watchers->first; watcher; watcher = watcher->next) {
        if (watcher->step_waiting && now_ns - watcher->step_sent_ns >= watcher->interval_ns) {
            send_step(watcher, now_ns);
        }
    }
}

static void end_watcher(gs_watcher *watcher, gs_json *data) {
    if (watcher->step_waiting) send_step(watcher, gs_now_ns());
    send_event(watcher, "end", data);
    gs_rpc_end(watcher->call, gs_ok());
    remove_watcher(watcher);
}

void gs_watch_end_job(gs_observer *observer, const gs_job *job) {
    gs_watcher *next;
    for (gs_watcher *watcher = observer->watchers->first; watcher; watcher = next) {
        next = watcher->next;
        if (watcher->job == job->id) end_watcher(watcher, gs_job_to_view(job, false));
    }
}

void gs_watch_end_all(gs_observer *observer, const char *reason) {
    while (observer->watchers->first) {
        gs_json *data = gs_json_new_object();
        gs_json_set_string(data, "reason", reason);
        end_watcher(observer->watchers->first, data);
    }
}

static gs_status read_topics(unsigned *topics, const gs_json *list) {
    *topics = 0;
    for (size_t i = 0; i < gs_json_count(list); i++) {
        const char *name = gs_json_string(gs_json_at(list, i));
        int topic = 0;
        while (topic < GS_NUM_TOPICS && (!name || strcmp(name, topic_names[topic]) != 0)) topic++;
        if (topic == GS_NUM_TOPICS) {
            return gs_error(GS_INVALID_ARGUMENT, "topics: \"%s\" is none of state, step, buckets, "
                            "worker, event, checkpoint", name ? name : "?");
        }
        *topics |= 1u << topic;
    }
    if (*topics == 0) *topics = (1u << GS_NUM_TOPICS) - 1;
    return gs_ok();
}

static void send_snapshot(gs_observer *observer, gs_watcher *watcher, const gs_job *job) {
    if (job) {
        send_event(watcher, "snapshot", gs_job_to_view(job, true));
        return;
    }
    gs_json *jobs = gs_json_new_array();
    for (size_t i = 0; i < observer->state->jobs.count; i++) {
        const gs_job *other = observer->state->jobs.items[i];
        if (!other->sight->has_no_row && !gs_sight_has_ended(other)) gs_json_push(jobs, gs_job_to_view(other, false));
    }
    gs_json *data = gs_json_new_object();
    gs_json_set(data, "jobs", jobs);
    send_event(watcher, "snapshot", data);
}

void gs_watch(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)peer;
    gs_observer *observer = ctx;
    gs_watchers *watchers = observer->watchers;
    gs_job *job = NULL;
    gs_json *details = NULL;
    unsigned topics = 0;
    gs_status status = read_topics(&topics, gs_json_get(request, "topics"));
    if (!status.code && gs_json_get(request, "job")) {
        status = gs_observer_find_job(observer, &job, &details, request);
    }
    if (!status.code && watchers->count >= MAX_WATCHERS) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "%d streams are open already", MAX_WATCHERS);
        observer->limits_reached[GS_LIMIT_WATCHERS]++;
    }
    gs_watcher *watcher = status.code ? NULL : calloc(1, sizeof *watcher);
    if (!watcher) {
        if (!status.code) status = gs_error(GS_RESOURCE_EXHAUSTED, "watch: out of memory");
        gs_json_release(details);
        gs_rpc_end(call, status);
        return;
    }
    int64_t interval_ms = gs_json_int_or(request, "interval_ms", 500);
    *watcher = (gs_watcher){.owner = watchers, .call = call, .job = job ? job->id : 0,
                            .topics = topics, .next = watchers->first};
    if (interval_ms < 100) interval_ms = 100;
    if (interval_ms > MAX_INTERVAL_MS) interval_ms = MAX_INTERVAL_MS;
    watcher->interval_ns = interval_ms * GS_NS_PER_MS;
    watchers->first = watcher;
    watchers->count++;
    gs_held_keep(&watcher->held, call, forget_watcher, watcher);
    send_snapshot(observer, watcher, job);
    if (job && gs_sight_has_ended(job)) end_watcher(watcher, gs_job_to_view(job, false));
}
