#include "api/live/event_hub.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

enum {
    RING_EVENTS = 256,
    RING_BYTES = 256 << 10,
    MAX_HUBS = 96,  // more than there are streams, those of readers included
    IDLE_SECONDS = 60,
    WATCH_INTERVAL_MS = 100,
    RETRY_MS = 500,
    LOOK_MS = 250
};

typedef struct ring_slot {
    char id[48], name[16];
    uint64_t sequence;
    char *data;
} ring_slot;

// All members but `thread` belong to the lock of the hubs.
struct gs_event_hub {
    gs_event_hub *next;
    gs_event_hubs *hubs;
    gs_thread *thread;
    char job[64];
    int num_readers;
    int64_t idle_since_ns;
    bool subscribed, ended, dead;

    uint32_t coordinator_epoch;
    uint64_t last_sequence;
    uint64_t floor_sequence;  // what came up to here in this coordinator epoch is not in the ring
    ring_slot ring[RING_EVENTS];
    uint64_t begin, end;  // positions; slot = position % RING_EVENTS
    size_t ring_bytes;
};

struct gs_event_hubs {
    gs_rpc_client *client;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    gs_event_hub *first;
    bool stopping;
};

static void drop_oldest(gs_event_hub *hub) {
    ring_slot *slot = &hub->ring[hub->begin % RING_EVENTS];
    hub->ring_bytes -= strlen(slot->data);
    if (slot->sequence > hub->floor_sequence) hub->floor_sequence = slot->sequence;
    free(slot->data);
    slot->data = NULL;
    hub->begin++;
}

static void push_event(gs_event_hub *hub, const char *name, const char *data) {
    char *copy = strdup(data);
    if (!copy) return;
    size_t bytes = strlen(copy);
    while (hub->begin < hub->end &&
           (hub->end - hub->begin == RING_EVENTS || hub->ring_bytes + bytes > RING_BYTES))
        drop_oldest(hub);
    ring_slot *slot = &hub->ring[hub->end++ % RING_EVENTS];
    snprintf(slot->name, sizeof slot->name, "%s", name);
    snprintf(slot->id, sizeof slot->id, "%" PRIu32 "-%" PRIu64, hub->coordinator_epoch,
             hub->last_sequence);
    slot->sequence = hub->last_sequence;
    slot->data = copy;
    hub->ring_bytes += bytes;
    pthread_cond_broadcast(&hub->hubs->changed);
}

static void begin_subscription(gs_event_hub *hub, uint32_t coordinator_epoch, uint64_t sequence) {
    bool again = hub->subscribed || hub->end > 0;
    while (hub->begin < hub->end) drop_oldest(hub);
    hub->coordinator_epoch = coordinator_epoch;
    hub->last_sequence = hub->floor_sequence = sequence;
    hub->subscribed = true;
    if (again) push_event(hub, "reset", "{}");
    pthread_cond_broadcast(&hub->hubs->changed);
}

static void end_hub(gs_event_hub *hub, const char *data) {
    if (hub->ended) return;
    push_event(hub, "end", data);
    hub->ended = true;
}

static bool must_end(gs_event_hub *hub, const atomic_bool *stopping) {
    gs_event_hubs *hubs = hub->hubs;
    pthread_mutex_lock(&hubs->lock);
    bool idle =
        hub->num_readers == 0 && gs_now_ns() - hub->idle_since_ns > IDLE_SECONDS * GS_NS_PER_SEC;
    if (idle) hub->dead = true;  // nobody joins it any more
    bool end = idle || hubs->stopping || hub->ended || atomic_load(stopping);
    pthread_mutex_unlock(&hubs->lock);
    return end;
}

static void take_item(gs_event_hub *hub, uint32_t coordinator_epoch, const gs_json *item) {
    const char *event = gs_json_string_or(item, "event", "");
    int64_t sequence = gs_json_int_or(item, "sequence", 0);
    char *data = NULL;
    const gs_json *value = gs_json_get(item, "data");
    if (value) {
        gs_status encoded = gs_json_encode(&data, NULL, value, false);
        if (encoded.code) return;
    }
    const char *text = data ? data : "{}";
    pthread_mutex_lock(&hub->hubs->lock);
    if (strcmp(event, "snapshot") == 0) {
        begin_subscription(hub, coordinator_epoch, sequence > 0 ? (uint64_t)sequence : 0);
    } else {
        if (sequence > 0 && (uint64_t)sequence > hub->last_sequence)
            hub->last_sequence = (uint64_t)sequence;
        if (strcmp(event, "end") == 0)
            end_hub(hub, text);
        else if (*event)
            push_event(hub, event, text);
    }
    pthread_mutex_unlock(&hub->hubs->lock);
    free(data);
}

static gs_json *watch_request(const gs_event_hub *hub) {
    static const char *const topics[] = {"state",  "step",  "buckets",
                                         "worker", "event", "checkpoint"};
    static const char *const cluster_topics[] = {"state", "worker", "event", "checkpoint"};
    bool cluster = hub->job[0] == '\0';
    const char *const *words = cluster ? cluster_topics : topics;
    gs_json *list = gs_json_new_array();
    for (size_t i = 0; i < (cluster ? 4u : 6u); i++)
        gs_json_push(list, gs_json_new_string(words[i]));
    gs_json *request = gs_json_new_object();
    if (!cluster) gs_json_set_string(request, "job", hub->job);
    gs_json_set(request, "topics", list);
    gs_json_set_int(request, "interval_ms", WATCH_INTERVAL_MS);
    return request;
}

static gs_status read_coordinator_epoch(gs_event_hub *hub, uint32_t *coordinator_epoch) {
    gs_json *system = NULL;
    gs_status status =
        gs_rpc_call(hub->hubs->client, GS_GET_SYSTEM, NULL, &system, gs_deadline_in_ms(2000));
    *coordinator_epoch = (uint32_t)gs_json_int_or(system, "coordinator_epoch", 0);
    gs_json_release(system);
    return status;
}

// One subscription, until it breaks or nobody wants it. Ok: it ended cleanly.
static gs_status follow_stream(gs_event_hub *hub, const atomic_bool *stopping) {
    uint32_t coordinator_epoch = 0;
    GS_TRY(read_coordinator_epoch(hub, &coordinator_epoch));
    gs_json *request = watch_request(hub);
    gs_rpc_stream *stream = NULL;
    gs_status status = gs_rpc_stream_open(&stream, hub->hubs->client, GS_WATCH, request);
    gs_json_release(request);
    while (!status.code && !must_end(hub, stopping)) {
        gs_json *item = NULL;
        status = gs_rpc_stream_next(stream, &item, gs_deadline_in_ms(LOOK_MS));
        if (status.code == GS_DEADLINE_EXCEEDED) {
            status = gs_ok();
            continue;
        }
        if (status.code || !item) break;
        take_item(hub, coordinator_epoch, item);
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    return status;
}

static bool is_final(gs_code code) {
    return code == GS_NOT_FOUND || code == GS_INVALID_ARGUMENT || code == GS_UNIMPLEMENTED ||
           code == GS_PERMISSION_DENIED;
}

static void run_hub(void *ctx, const atomic_bool *stopping) {
    gs_event_hub *hub = ctx;
    gs_event_hubs *hubs = hub->hubs;
    while (!must_end(hub, stopping)) {
        gs_status status = follow_stream(hub, stopping);
        pthread_mutex_lock(&hubs->lock);
        if (is_final(status.code)) end_hub(hub, "{\"reason\":\"gone\"}");
        if (!hub->ended && !hubs->stopping)
            gs_cond_wait(&hubs->changed, &hubs->lock, gs_deadline_in_ms(RETRY_MS));
        pthread_mutex_unlock(&hubs->lock);
    }
}

gs_status gs_event_hubs_create(gs_event_hubs **out, gs_rpc_client *client) {
    gs_event_hubs *hubs = calloc(1, sizeof *hubs);
    if (!hubs) return gs_error(GS_RESOURCE_EXHAUSTED, "event hubs: out of memory");
    hubs->client = client;
    pthread_mutex_init(&hubs->lock, NULL);
    gs_cond_init(&hubs->changed);
    *out = hubs;
    return gs_ok();
}

void gs_event_hubs_stop(gs_event_hubs *hubs) {
    pthread_mutex_lock(&hubs->lock);
    hubs->stopping = true;
    pthread_cond_broadcast(&hubs->changed);
    pthread_mutex_unlock(&hubs->lock);
}

bool gs_event_hubs_stopping(gs_event_hubs *hubs) {
    pthread_mutex_lock(&hubs->lock);
    bool stopping = hubs->stopping;
    pthread_mutex_unlock(&hubs->lock);
    return stopping;
}

static void free_hub(gs_event_hub *hub) {
    gs_thread_stop(hub->thread);
    while (hub->begin < hub->end) drop_oldest(hub);
    free(hub);
}

void gs_event_hubs_destroy(gs_event_hubs *hubs) {
    if (!hubs) return;
    gs_event_hubs_stop(hubs);
    while (hubs->first) {
        gs_event_hub *hub = hubs->first;
        hubs->first = hub->next;
        free_hub(hub);
    }
    pthread_cond_destroy(&hubs->changed);
    pthread_mutex_destroy(&hubs->lock);
    free(hubs);
}

// Unlinks hubs that nobody reads: those whose time is over, or any when room is needed. Under the
// lock; the caller frees them outside of it, because that waits for their threads.
static gs_event_hub *unlink_unused(gs_event_hubs *hubs) {
    int num_hubs = 0;
    for (gs_event_hub *hub = hubs->first; hub; hub = hub->next) num_hubs++;
    gs_event_hub *unused = NULL;
    for (gs_event_hub **link = &hubs->first; *link;) {
        gs_event_hub *hub = *link;
        bool over = hub->dead || gs_now_ns() - hub->idle_since_ns > IDLE_SECONDS * GS_NS_PER_SEC;
        if (hub->num_readers > 0 || !(over || num_hubs >= MAX_HUBS)) {
            link = &hub->next;
            continue;
        }
        *link = hub->next;
        hub->next = unused;
        unused = hub;
        num_hubs--;
    }
    return unused;
}

// The hub of `job`, made when there is none, with one reader more. NULL: out of memory or too many.
static gs_event_hub *find_hub(gs_event_hubs *hubs, const char *job, bool *is_new) {
    int num_hubs = 0;
    for (gs_event_hub *hub = hubs->first; hub; hub = hub->next) {
        num_hubs++;
        if (hub->dead || strcmp(hub->job, job) != 0) continue;
        hub->num_readers++;
        return hub;
    }
    gs_event_hub *hub = num_hubs < MAX_HUBS ? calloc(1, sizeof *hub) : NULL;
    if (!hub) return NULL;
    snprintf(hub->job, sizeof hub->job, "%s", job);
    hub->hubs = hubs;
    hub->num_readers = 1;
    hub->next = hubs->first;
    hubs->first = hub;
    *is_new = true;
    return hub;
}

gs_status gs_event_hubs_join(gs_event_hub **out, gs_event_hubs *hubs, const char *job,
                             gs_deadline deadline) {
    bool is_new = false;
    pthread_mutex_lock(&hubs->lock);
    gs_event_hub *unused = unlink_unused(hubs);
    gs_event_hub *hub = find_hub(hubs, job, &is_new);
    gs_status status = gs_ok();
    if (!hub) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "more than %d jobs are watched", MAX_HUBS);
    } else if (is_new) {
        status = gs_thread_start(&hub->thread, "event-hub", run_hub, hub);
        if (status.code) {
            hubs->first = hub->next;
            free(hub);
            hub = NULL;
        }
    }
    while (hub && !hub->subscribed && !hub->ended && !hubs->stopping)
        if (!gs_cond_wait(&hubs->changed, &hubs->lock, deadline)) break;
    pthread_mutex_unlock(&hubs->lock);
    while (unused) {
        gs_event_hub *next = unused->next;
        free_hub(unused);
        unused = next;
    }
    *out = hub;
    return status;
}

void gs_event_hub_leave(gs_event_hub *hub) {
    pthread_mutex_lock(&hub->hubs->lock);
    hub->num_readers--;
    hub->idle_since_ns = gs_now_ns();
    pthread_mutex_unlock(&hub->hubs->lock);
}

uint64_t gs_event_hub_position(gs_event_hub *hub, char last_id[48]) {
    pthread_mutex_lock(&hub->hubs->lock);
    uint64_t position = hub->end;
    snprintf(last_id, 48, "%" PRIu32 "-%" PRIu64, hub->coordinator_epoch, hub->last_sequence);
    pthread_mutex_unlock(&hub->hubs->lock);
    return position;
}

// False: there is none, or it is larger than `most`.
static bool read_decimal(uint64_t *number, const char **text, uint64_t most) {
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 20 || (digits > 1 && **text == '0')) return false;
    *number = 0;
    for (const char *end = *text + digits; *text < end; ++*text) {
        uint64_t digit = (uint64_t)(**text - '0');
        if (*number > (most - digit) / 10) return false;
        *number = *number * 10 + digit;
    }
    return true;
}

bool gs_event_id_parse(uint32_t *epoch, uint64_t *sequence, const char *id) {
    uint64_t number;
    if (!read_decimal(&number, &id, UINT32_MAX) || *id++ != '-') return false;
    *epoch = (uint32_t)number;
    return read_decimal(sequence, &id, UINT64_MAX) && *id == '\0';
}

bool gs_event_hub_resume(gs_event_hub *hub, uint64_t *position, const char *id) {
    uint32_t epoch;
    uint64_t sequence;
    if (!gs_event_id_parse(&epoch, &sequence, id)) return false;
    pthread_mutex_lock(&hub->hubs->lock);
    bool known = hub->subscribed && epoch == hub->coordinator_epoch &&
                 sequence >= hub->floor_sequence && sequence <= hub->last_sequence;
    if (known) {
        *position = hub->begin;
        while (*position < hub->end && hub->ring[*position % RING_EVENTS].sequence <= sequence)
            (*position)++;
    }
    pthread_mutex_unlock(&hub->hubs->lock);
    return known;
}

bool gs_event_hub_at_end(gs_event_hub *hub, uint64_t position) {
    pthread_mutex_lock(&hub->hubs->lock);
    bool at_end = hub->ended && position >= hub->end;
    pthread_mutex_unlock(&hub->hubs->lock);
    return at_end;
}

static gs_hub_outcome take_event(gs_event_hub *hub, gs_hub_event *event, uint64_t *position,
                                 uint64_t *num_dropped) {
    if (*position < hub->begin) {
        *num_dropped += hub->begin - *position;
        *position = hub->begin;
    }
    const ring_slot *slot = &hub->ring[*position % RING_EVENTS];
    memcpy(event->id, slot->id, sizeof event->id);
    memcpy(event->name, slot->name, sizeof event->name);
    event->data = strdup(slot->data);
    (*position)++;
    return event->data ? GS_HUB_EVENT : GS_HUB_NOTHING;
}

gs_hub_outcome gs_event_hub_next(gs_event_hub *hub, gs_hub_event *event, uint64_t *position,
                                 uint64_t *num_dropped, gs_deadline deadline) {
    gs_event_hubs *hubs = hub->hubs;
    gs_hub_outcome outcome = GS_HUB_NOTHING;
    *num_dropped = 0;
    pthread_mutex_lock(&hubs->lock);
    for (;;) {
        if (hubs->stopping) {
            outcome = GS_HUB_STOPPING;
        } else if (*position < hub->end) {
            outcome = take_event(hub, event, position, num_dropped);
        } else if (hub->ended) {
            outcome = GS_HUB_END;
        } else if (gs_cond_wait(&hubs->changed, &hubs->lock, deadline)) {
            continue;
        }
        break;
    }
    pthread_mutex_unlock(&hubs->lock);
    return outcome;
}
