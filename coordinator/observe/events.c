#include "coordinator/observe/events.h"
#include "coordinator/observe/job_sight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/views/failure_view.h"
#include "coordinator/observe/views/page.h"
#include "coordinator/observe/watch.h"
#include "core/clock.h"
#include "core/log.h"

#define MOST_ASKER_BYTES 128
#define MAX_EVENTS 8192
#define MAX_EVENT_BYTES ((size_t)16 << 20)  // of their texts
#define PRUNE_EVERY 512
#define RETRY_NS GS_NS_PER_SEC
#define MOST_AT_ONCE 64  // that are written again, once one of them could be

typedef enum event_row_state { EVENT_STORED = 0, EVENT_ON_ITS_WAY, EVENT_TO_STORE } event_row_state;

typedef struct gs_event_row {
    uint64_t sequence, job;
    gs_json *item;  // owned
    size_t bytes;
    event_row_state state;
} gs_event_row;

struct gs_events {
    gs_event_row *ring;  // oldest at `first`
    size_t first, count, bytes;
    bool has_dropped;  // the store still has some of those that have left
    uint64_t next_sequence;
    // What the store did not take is written again, as long as it is in the ring.
    size_t num_to_store;
    int64_t retry_ns;   // one is tried then
    bool takes_again;   // and was taken: so are the others
};

static gs_event_row *row_at(gs_events *events, size_t index) {
    return &events->ring[(events->first + index) % MAX_EVENTS];
}

// NULL: it has left the ring. The newest are asked for most.
static gs_event_row *find_row(gs_events *events, uint64_t sequence) {
    for (size_t i = events->count; i-- > 0;) {
        gs_event_row *row = row_at(events, i);
        if (row->sequence == sequence) return row;
        if (row->sequence < sequence) return NULL;
    }
    return NULL;
}

static void release_row(gs_events *events, const gs_event_row *row) {
    events->num_to_store -= row->state == EVENT_TO_STORE;
    events->bytes -= row->bytes;
    gs_json_release(row->item);
}

static void drop_oldest(gs_events *events) {
    release_row(events, row_at(events, 0));
    events->first = (events->first + 1) % MAX_EVENTS;
    events->count--;
    events->has_dropped = true;
}

static void keep_event(gs_events *events, uint64_t sequence, uint64_t job, gs_json *item) {
    size_t bytes = gs_json_most_bytes(item);
    while (events->count == MAX_EVENTS || (events->count > 0 && events->bytes + bytes > MAX_EVENT_BYTES)) drop_oldest(events);
    *row_at(events, events->count) = (gs_event_row){sequence, job, item, bytes, EVENT_STORED};
    events->count++;
    events->bytes += bytes;
}

static void load_event(void *ctx, const gs_store_row *row) {
    gs_events *events = ctx;
    gs_json *item = NULL;
    gs_status status = gs_json_parse(&item, row->body, strlen(row->body));
    if (status.code) {
        gs_log_warn("event not readable", "sequence=%llu", (unsigned long long)row->id);
        return;
    }
    keep_event(events, row->id, row->job, item);
}

gs_status gs_events_create(gs_events **out, gs_job_store *store, uint64_t next_sequence) {
    gs_events *events = calloc(1, sizeof *events);
    if (events) events->ring = calloc(MAX_EVENTS, sizeof *events->ring);
    if (!events || !events->ring) {
        free(events);
        return gs_error(GS_RESOURCE_EXHAUSTED, "events: out of memory");
    }
    events->next_sequence = next_sequence;
    gs_status status = gs_job_store_load_events(store, load_event, events);
    if (status.code) {
        gs_events_destroy(events);
        return status;
    }
    *out = events;
    return gs_ok();
}

void gs_events_destroy(gs_events *events) {
    if (!events) return;
    for (size_t i = 0; i < events->count; i++) {
        gs_json_release(events->ring[(events->first + i) % MAX_EVENTS].item);
    }
    free(events->ring);
    free(events);
}

typedef struct gs_event_write {
    gs_write base;
    gs_events *events;  // there until the writer has stopped
    uint64_t sequence, job, prune_before;
    char *body;  // owned
} gs_event_write;

static gs_status write_event(gs_write *base, gs_job_store *store) {
    gs_event_write *event = (gs_event_write *)base;
    GS_TRY(gs_job_store_put_event(store, event->sequence, event->job, event->body));
    if (event->prune_before > 0) return gs_job_store_prune_events(store, event->prune_before);
    return gs_ok();
}

static void store_later(gs_events *events, gs_event_row *row) {
    row->state = EVENT_TO_STORE;
    events->num_to_store++;
    events->takes_again = false;
    events->retry_ns = gs_now_ns() + RETRY_NS;
}

static void event_written(gs_write *base, gs_status status) {
    gs_event_write *event = (gs_event_write *)base;
    gs_events *events = event->events;
    gs_event_row *row = find_row(events, event->sequence);
    if (status.code && !events->num_to_store)
        gs_log_warn("events are not stored", "from=%llu reason=\"%s\"", (unsigned long long)event->sequence, status.message);
    if (row && status.code) store_later(events, row);
    else if (row) row->state = EVENT_STORED;
    if (!status.code) events->takes_again = events->num_to_store > 0;
    free(event->body);
    free(event);
}

static void store_event(gs_observer *observer, gs_event_row *row) {
    const uint64_t sequence = row->sequence;
    const gs_json *item = row->item;
    gs_event_write *event = calloc(1, sizeof *event);
    if (!event) return;
    event->base = (gs_write){.run = write_event, .done = event_written, .lane = GS_LANE_ROWS};
    event->events = observer->events;
    event->sequence = sequence;
    event->job = row->job;
    row->state = EVENT_ON_ITS_WAY;
    if (observer->events->has_dropped && sequence % PRUNE_EVERY == 0)
        event->prune_before = row_at(observer->events, 0)->sequence;
    gs_status status = gs_json_encode(&event->body, NULL, item, false);
    if (status.code) {
        free(event);
        return;
    }
    gs_writer_submit(observer->writer, &event->base);
}

static void log_note(const gs_job *job, const gs_note *note) {
    static const gs_log_level levels[] = {GS_LOG_INFO, GS_LOG_WARN, GS_LOG_ERROR};
    char quoted[700];
    gs_log_quote(quoted, sizeof quoted, note->message);
    if (job && note->worker) {
        gs_log(levels[note->severity], note->reason, "job=%s rank=%d step=%lld detail=%s", job->id_text,
               note->rank, (long long)job->step, quoted);
    } else if (job) {
        gs_log(levels[note->severity], note->reason, "job=%s step=%lld detail=%s", job->id_text,
               (long long)job->step, quoted);
    } else {
        gs_log(levels[note->severity], note->reason, "detail=%s", quoted);
    }
}

void gs_events_see(gs_observer *observer, const gs_effect *effect) {
    static const char *const severities[] = {"info", "warning", "error"};
    const gs_note *note = &effect->note;
    const gs_job *job = effect->job;
    log_note(job, note);
    gs_events *events = observer->events;
    uint64_t sequence = events->next_sequence++;
    gs_json *item = gs_json_new_object();
    gs_json_set_int(item, "sequence", (int64_t)sequence);
    gs_json_set_time(item, "at", observer->state->wall_ms);
    if (job) gs_json_set_string(item, "job", job->id_text);
    gs_json_set_string(item, "reason", note->reason);
    gs_json_set_string(item, "severity", severities[note->severity]);
    gs_json_set_string(item, "message", note->message);
    if (note->generation) gs_json_set_int(item, "generation", note->generation);
    if (note->step >= 0) gs_json_set_int(item, "step", note->step);
    if (note->rank >= 0) gs_json_set_int(item, "rank", note->rank);
    if (note->worker) gs_json_set_string(item, "worker", note->worker);
    if (note->fault) gs_fault_to_view(item, note->fault);
    keep_event(events, sequence, job ? job->id : 0, item);
    gs_event_row *row = row_at(events, events->count - 1);
    // Behind the deletion of its job it would stay for ever: it is forgotten with the job, or written when that stays.
    if (job && gs_job_is_being_deleted(job)) store_later(events, row);
    else store_event(observer, row);
    gs_watch_publish(observer, job, GS_TOPIC_EVENT, gs_json_copy(item));
}

void gs_events_note(gs_observer *observer, gs_severity severity, const char *reason, const char *message) {
    gs_effect effect = {.kind = GS_DO_NOTE,
                        .note = {.severity = severity, .reason = reason, .message = message, .step = -1, .rank = -1}};
    gs_events_see(observer, &effect);
}

// A token's name, and its id in brackets.
static bool is_asker(const char *text) {
    size_t span = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._- ()");
    return span > 0 && span < MOST_ASKER_BYTES && !text[span];
}

const char *gs_events_asker(const gs_rpc_peer *peer, const gs_json *request) {
    const char *who = gs_json_string_or(request, "principal", "");
    return gs_rpc_caller_speaks_for_others(&peer->caller) && is_asker(who) ? who : "";
}

void gs_events_note_asker(gs_observer *observer, const gs_rpc_peer *peer, const gs_json *request, const char *what) {
    const char *who = gs_events_asker(peer, request), *key = peer->caller.is_known ? peer->caller.name : "";
    char message[400];
    if (!*who && !*key) return;
    bool both = *who && *key;
    snprintf(message, sizeof message, "%s was asked for by %s%s%s", what, *who ? who : key, both ? " through " : "", both ? key : "");
    gs_events_note(observer, GS_SEVERITY_INFO, "Requested", message);
}

static bool may_store(const gs_observer *observer, const gs_event_row *row) {
    const gs_job *job = row->job ? gs_job_table_get(&observer->state->jobs, row->job) : NULL;
    return row->state == EVENT_TO_STORE && !(job && gs_job_is_being_deleted(job));
}

static void store_again(gs_observer *observer, size_t most) {
    gs_events *events = observer->events;
    events->takes_again = false;
    events->retry_ns = gs_now_ns() + RETRY_NS;
    for (size_t i = 0; i < events->count && most > 0; i++) {
        gs_event_row *row = row_at(events, i);
        if (!may_store(observer, row)) continue;
        most--;
        events->num_to_store--;
        store_event(observer, row);
    }
}

void gs_events_tick(gs_observer *observer) {
    const gs_events *events = observer->events;
    if (!events->num_to_store || (!events->takes_again && gs_now_ns() < events->retry_ns)) return;
    store_again(observer, events->takes_again ? MOST_AT_ONCE : 1);
}

void gs_events_part(gs_observer *observer) {
    if (observer->events->num_to_store) store_again(observer, MAX_EVENTS);
}

void gs_events_forget_job(gs_observer *observer, uint64_t job) {
    gs_events *events = observer->events;
    size_t kept = 0;
    for (size_t i = 0; i < events->count; i++) {
        gs_event_row event = *row_at(events, i);
        if (event.job != job) {
            *row_at(events, kept++) = event;
            continue;
        }
        release_row(events, &event);
    }
    events->count = kept;
}

// Newest last; the cursor is the sequence of the last item of the page, and the next page is younger.
void gs_list_events(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    (void)peer;
    gs_observer *observer = ctx;
    gs_events *events = observer->events;
    gs_job *job = NULL;
    if (gs_json_get(request, "job")) {
        gs_json *details = NULL;
        gs_status status = gs_observer_find_job(observer, &job, &details, request);
        if (status.code) {
            gs_rpc_reply(call, status, details);
            return;
        }
    }
    const gs_json *cursor = gs_json_get(request, "cursor");
    uint64_t after = 0;
    gs_page page = {0};
    gs_status status = cursor ? gs_json_read_u64(&after, request, "cursor") : gs_ok();
    if (!status.code) status = gs_page_begin(&page, request, 100);
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }

    // Without a cursor: the newest `limit`; with one: the oldest after it.
    size_t matching = 0;
    for (size_t i = 0; i < events->count; i++) {
        const gs_event_row *event = row_at(events, i);
        if ((!job || event->job == job->id) && event->sequence > after) matching++;
    }
    size_t skip = !cursor && matching > page.limit ? matching - page.limit : 0;
    uint64_t last = 0;
    bool more = false;
    for (size_t i = 0; i < events->count && !more; i++) {
        const gs_event_row *event = row_at(events, i);
        if ((job && event->job != job->id) || event->sequence <= after) continue;
        if (skip > 0) {
            skip--;
            continue;
        }
        more = !gs_page_add(&page, gs_json_retain(event->item));
        if (!more) last = event->sequence;
    }
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "items", gs_page_end(&page));
    if (more) gs_json_set_u64(reply, "next_cursor", last);
    gs_rpc_reply(call, gs_ok(), reply);
}
