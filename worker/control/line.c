#include "worker/control/line.h"

#include <stdlib.h>
#include <string.h>

#include "core/boot_clock.h"
#include "core/log.h"
#include "core/thread.h"
#include "rpc/schema/messages.h"
#include "rpc/plan/param_page.h"
#include "rpc/schema/step_record.h"
#include "worker/seen_coordinator.h"
#include "worker/control/teardown_watch.h"
#include "worker/telemetry/telemetry.h"
#include "worker/telemetry/timeline_message.h"

#define RETRY_NS (200 * GS_NS_PER_MS)
// A coordinator that does not know this trainer is asked this often: the right one may take its
// place.
#define UNKNOWN_RETRY_NS (2 * GS_NS_PER_SEC)
#define MAX_EVENTS 64
// Unless the welcome says otherwise.
#define ORPHAN_SECONDS 600.0
#define MAX_CADENCE_SECONDS 60
// Of timelines: spans and buckets in one answer.
#define TIMELINE_ROWS 20000

struct gs_line {
    gs_rpc_client *client;
    gs_outbox *outbox;
    gs_control *control;
    gs_launch_page *page;
    gs_thread *thread;  // NULL before start
    gs_queue *events;   // gs_json: control thread → compute thread

    atomic_int state;
    atomic_uint generation;
    atomic_bool welcomed;      // the coordinator of now has answered Hello
    atomic_bool unknown;       // it has, and does not know this trainer
    atomic_bool reads_records;  // it takes flat step reports
    _Atomic int64_t heard_ns;  // when the coordinator was there last

    // Made once by start, then the control thread's.
    gs_json *hello;
    uint64_t incarnation;
    gs_param_spec *params;
    size_t num_params;
    // Control thread only.
    gs_seen_coordinator seen;
    unsigned cluster_turn;  // of the page's word, which hello says
    bool told_unknown;
    gs_rpc_stream *stream;
    int64_t turned_ns;  // the thread's last turn
    int64_t stood_ns;   // when it noticed last that this process stood still; 0: never
    int64_t heartbeat_ns, next_heartbeat_ns, next_hello_ns;

    pthread_mutex_t lock;  // of what follows
    gs_status refusal;     // of Hello; final
    gs_json *order;  // owned; the last ReadyOrder, told again to another life of the coordinator
    gs_json *communicator;  // owned; what Hello says of it
};

// Behind this thread's back: each page may be answered late, and heartbeats go on.
static void send_params(gs_line *line) {
    for (size_t i = 0; i < line->num_params; i += GS_PARAM_PAGE_ROWS) {
        int64_t applied_step = atomic_load(&line->control->progress.applied_step);
        gs_json *page = gs_member_message_ready(0, "", applied_step, NULL);
        gs_param_page_write(page, line->params, line->num_params, i);
        gs_outbox_push(line->outbox, GS_READY, page);
    }
}

// What a coordinator of before knew and did not write down.
static void tell_order_again(gs_line *line) {
    pthread_mutex_lock(&line->lock);
    gs_json *order = line->order ? gs_json_copy(line->order) : NULL;
    pthread_mutex_unlock(&line->lock);
    if (order) gs_outbox_push(line->outbox, GS_READY_ORDER, order);
}

// Who has a word for a coordinator takes its turn among the others that have.
static int64_t spread_ns(const gs_line *line) {
    return line->heartbeat_ns / 1000 * (int64_t)(line->incarnation % 1000);
}

// How often this rank is to be heard; changes when the coordinator hears more of them, or fewer.
static void take_cadence(gs_line *line, const gs_json *item) {
    double seconds = gs_json_double_or(item, "heartbeat_seconds", 0.1);
    double report = gs_json_double_or(item, "report_seconds", gs_seconds_of(GS_REPORT_EVERY_NS));
    int64_t before_ns = line->heartbeat_ns;
    if (seconds >= 0.01 && seconds <= MAX_CADENCE_SECONDS)
        line->heartbeat_ns = (int64_t)(seconds * (double)GS_NS_PER_SEC);
    if (report >= 0.01 && report <= MAX_CADENCE_SECONDS)
        gs_mailbox_set_report_every(&line->control->mailbox, (int64_t)(report * (double)GS_NS_PER_SEC));
    if (line->heartbeat_ns != before_ns) line->next_heartbeat_ns = gs_now_ns() + spread_ns(line);
}

static void take_welcome(gs_line *line, const gs_json *item) {
    take_cadence(line, item);
    atomic_store(&line->reads_records, gs_json_int_or(item, "step_record", 0) >= GS_STEP_RECORD_VERSION);
    atomic_store(&line->control->lead.limit_seconds, gs_json_double_or(item, "orphan_seconds", ORPHAN_SECONDS));
    atomic_store(&line->welcomed, true);
    line->told_unknown = false;
    gs_outbox_hold(line->outbox, false);
    int64_t epoch = line->seen.epoch;
    gs_seen_coordinator_note(&line->seen, item);
    // Whoever adopted this trainer has it from now on: no other cluster does.
    gs_json_set_string(line->hello, "cluster", line->seen.cluster);
    if (epoch != line->seen.epoch) tell_order_again(line);
    if (gs_json_bool_or(item, "send_params", false)) send_params(line);
}

static void take_abort(gs_line *line, const gs_json *item) {
    int64_t generation = gs_json_int_or(item, "generation", 0);
    if (generation < 0 || generation > UINT32_MAX) return;
    gs_mailbox_abort(&line->control->mailbox, (uint32_t)generation,
                     gs_json_string_or(item, "reason", ""));
}

// Decoded here, so that the compute thread need not.
static void take_replan(gs_line *line, const gs_json *item) {
    gs_plan_offer offer;
    gs_status status = gs_plan_offer_decode(&offer, item, line->params, line->num_params);
    if (!status.code && offer.generation == atomic_load(&line->generation)) {
        gs_mailbox_offer_plan(&line->control->mailbox, &offer);
        return;
    }
    if (status.code) gs_log_warn("plan not usable", "reason=\"%s\"", status.message);
    gs_plan_offer_release(&offer);
}

static void take_send_timeline(gs_line *line, const gs_json *item) {
    int64_t rows = gs_json_int_or(item, "max_rows", TIMELINE_ROWS);
    gs_timeline_pages pages = gs_timeline_pages_begin(
        line->control->progress.timeline,
        &(gs_timeline_range_asked){.last = gs_json_int_or(item, "last", 0),
                                   .from_step = gs_json_int_or(item, "from_step", 0),
                                   .to_step = gs_json_int_or(item, "to_step", -1),
                                   .max_rows =
                                       rows < TIMELINE_ROWS ? (size_t)rows : TIMELINE_ROWS});
    gs_json *page;
    while ((page = gs_timeline_pages_next(&pages))) {
        gs_member_complete_page(page, gs_json_int_or(item, "request", 0), gs_line_generation(line));
        gs_outbox_push(line->outbox, GS_TIMELINE, page);
    }
}

static void take_item(gs_line *line, gs_json *item) {
    const char *type = gs_json_string_or(item, "type", "");
    if (strcmp(type, "welcome") == 0) {
        take_welcome(line, item);
    } else if (strcmp(type, "cadence") == 0) {
        take_cadence(line, item);
    } else if (strcmp(type, "abort") == 0) {
        take_abort(line, item);
    } else if (strcmp(type, "replan") == 0) {
        take_replan(line, item);
    } else if (strcmp(type, "send_timeline") == 0) {
        take_send_timeline(line, item);
    } else if (strcmp(type, "trace") == 0) {
        if (line->control->progress.timeline)
            gs_timeline_switch(line->control->progress.timeline, gs_json_bool_or(item, "on", true));
    } else if (strcmp(type, "drain") == 0) {
        gs_mailbox_ask_to_drain(&line->control->mailbox, gs_json_bool_or(item, "save", true));
    } else if (gs_queue_push(line->events, item, (gs_deadline){0})) {
        return;
    }
    gs_json_release(item);
}

static void send_heartbeat(gs_line *line) {
    int64_t now_ns = gs_now_ns();
    if (!atomic_load(&line->welcomed) || now_ns < line->next_heartbeat_ns) return;
    line->next_heartbeat_ns = now_ns + line->heartbeat_ns;
    gs_json *out = gs_member_message_heartbeat((gs_member_state)atomic_load(&line->state),
                                               gs_line_generation(line), line->control);
    gs_rpc_send(line->client, GS_HEARTBEAT, out);
    gs_json_release(out);
}

// The rest is worth another try at once.
static bool is_refusal(gs_code code) {
    return code == GS_INVALID_ARGUMENT || code == GS_NOT_FOUND || code == GS_ALREADY_EXISTS ||
           code == GS_PERMISSION_DENIED || code == GS_UNAUTHENTICATED ||
           code == GS_FAILED_PRECONDITION || code == GS_ABORTED;
}

// Only who knows this trainer can say that its time is over (ABORTED). To one that has trained,
// every other refusal means the wrong coordinator: on an empty data directory, or of another version.
static bool is_final(const gs_line *line, gs_code code) {
    return code == GS_ABORTED || atomic_load(&line->state) < GS_MEMBER_RUNNING;
}

static void go_on_unknown(gs_line *line, gs_status status) {
    atomic_store(&line->unknown, true);
    line->next_hello_ns = gs_now_ns() + UNKNOWN_RETRY_NS;
    if (line->told_unknown) return;
    line->told_unknown = true;
    gs_log_warn("the coordinator does not know this trainer; it trains on", "reason=\"%s\"",
                status.message);
}

static void lose_stream(gs_line *line, gs_status status) {
    gs_rpc_stream_close(line->stream);
    line->stream = NULL;
    atomic_store(&line->welcomed, false);
    atomic_store(&line->unknown, false);
    // Who answers next may be another coordinator: what waits is for the one that welcomes.
    gs_outbox_hold(line->outbox, true);
    line->next_hello_ns = gs_now_ns() + RETRY_NS;
    if (!is_refusal(status.code)) return;
    if (!is_final(line, status.code)) {
        go_on_unknown(line, status);
        return;
    }
    pthread_mutex_lock(&line->lock);
    if (!line->refusal.code) line->refusal = status;
    pthread_mutex_unlock(&line->lock);
    gs_outbox_hold(line->outbox, false);  // nobody waits for it any more
    gs_log_warn("coordinator refused this trainer", "reason=\"%s\"", status.message);
    gs_mailbox_abort(&line->control->mailbox, GS_EVERY_GENERATION, status.message);
    line->next_hello_ns = gs_now_ns() + 3600 * GS_NS_PER_SEC;
}

static void say_communicator(gs_line *line) {
    pthread_mutex_lock(&line->lock);
    if (line->communicator) gs_json_set(line->hello, "communicator", gs_json_copy(line->communicator));
    else gs_json_remove(line->hello, "communicator");
    pthread_mutex_unlock(&line->lock);
}

// Its agent may hear first whose this trainer is now; to say another's name to the coordinator of before would be its end.
static void say_cluster(gs_line *line) {
    char cluster[GS_CLUSTER_ID_LEN];
    if (gs_launch_page_get_cluster(line->page, cluster, sizeof cluster, &line->cluster_turn))
        gs_json_set_string(line->hello, "cluster", cluster);
}

static void say_hello(gs_line *line) {
    if (line->stream || gs_now_ns() < line->next_hello_ns) return;
    say_communicator(line);
    say_cluster(line);
    gs_seen_coordinator_say(&line->seen, line->hello);
    gs_json_set_int(line->hello, "applied_step", atomic_load(&line->control->progress.applied_step));
    gs_status status = gs_rpc_stream_open(&line->stream, line->client, GS_HELLO, line->hello);
    if (status.code) {
        line->stream = NULL;
        lose_stream(line, status);
    }
}

static void read_stream(gs_line *line, gs_deadline deadline) {
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(line->stream, &item, deadline);
    if (status.code == GS_DEADLINE_EXCEEDED) return;
    if (!status.code && item) {
        atomic_store(&line->heard_ns, gs_now_ns());
        take_item(line, item);
        return;
    }
    if (!status.code) status = gs_error(GS_UNAVAILABLE, "the coordinator ended the stream");
    lose_stream(line, status);
}

// One that answers is no proof that it knows the job; but it is there, and whoever it belongs to sees what it shows.
static void watch_absence(gs_line *line, int64_t now_ns) {
    gs_lead *lead = &line->control->lead;
    bool answers = atomic_load(&line->welcomed) || atomic_load(&line->unknown);
    if (answers && gs_rpc_client_connected(line->client)) atomic_store(&lead->answered_ns, now_ns);
    double limit = atomic_load(&lead->limit_seconds);
    // Whoever slept with the coordinator, as a laptop does, has not been left by it: he asks first.
    int64_t answered_ns = atomic_load(&lead->answered_ns), since_ns = answered_ns > line->stood_ns ? answered_ns : line->stood_ns;
    bool orphaned = limit > 0 && gs_seconds_since_boot_ns(since_ns) >= limit;
    atomic_store(&line->control->mailbox.orphaned, orphaned);
}

// This process stood still: what it holds for the coordinator's word may be from before. It asks again; the new Hello goes out
// before the old stream is closed, so that nobody takes that for an end.
static void ask_again(gs_line *line) {
    gs_rpc_stream *old = line->stream;
    line->stood_ns = gs_boot_ns();
    if (!old && !atomic_load(&line->unknown)) return;
    gs_log_info("this process stood still: the coordinator is asked again", "seconds=%.1f", gs_seconds_since_boot_ns(line->turned_ns));
    atomic_store(&line->welcomed, false);
    atomic_store(&line->unknown, false);
    gs_outbox_hold(line->outbox, true);
    line->stream = NULL;
    line->next_hello_ns = 0;
    say_hello(line);
    gs_rpc_stream_close(old);
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_line *line = ctx;
    line->turned_ns = gs_boot_ns();
    while (!atomic_load(stopping)) {
        int64_t now_ns = gs_boot_ns();
        if (now_ns - line->turned_ns >= GS_STOOD_NS) ask_again(line);
        line->turned_ns = now_ns;
        say_hello(line);
        int64_t wait_ns = line->next_heartbeat_ns - gs_now_ns();
        if (wait_ns < 0 || wait_ns > 100 * GS_NS_PER_MS) wait_ns = 100 * GS_NS_PER_MS;
        if (line->stream)
            read_stream(line, gs_deadline_in_ns(wait_ns));
        else
            gs_sleep_ns(20 * GS_NS_PER_MS);
        if (gs_rpc_client_connected(line->client)) atomic_store(&line->heard_ns, gs_now_ns());
        watch_absence(line, now_ns);
        atomic_store(&line->page->applied_step, atomic_load(&line->control->progress.applied_step));
        send_heartbeat(line);
        gs_teardown_watch_look(line->control);
    }
    gs_rpc_stream_close(line->stream);
    line->stream = NULL;
}

gs_status gs_line_create(gs_line **out, gs_rpc_client *client, gs_outbox *outbox, gs_control *control,
                         gs_launch_page *page) {
    gs_line *line = calloc(1, sizeof *line);
    if (!line) return gs_error(GS_RESOURCE_EXHAUSTED, "line: out of memory");
    line->client = client;
    line->outbox = outbox;
    line->control = control;
    line->page = page;
    line->heartbeat_ns = 100 * GS_NS_PER_MS;
    gs_lead_begin(&control->lead, page, ORPHAN_SECONDS);
    atomic_store(&line->heard_ns, gs_now_ns());
    pthread_mutex_init(&line->lock, NULL);
    line->events = gs_queue_create(MAX_EVENTS);
    if (!line->events) {
        gs_line_destroy(line);
        return gs_error(GS_RESOURCE_EXHAUSTED, "line: out of memory");
    }
    *out = line;
    return gs_ok();
}

gs_status gs_line_start(gs_line *line, gs_json *hello, uint64_t incarnation, const gs_param_spec *params,
                        size_t num_params) {
    line->hello = hello;
    line->incarnation = incarnation;
    line->num_params = num_params;
    line->params = calloc(num_params, sizeof *line->params);
    if (!line->params) return gs_error(GS_RESOURCE_EXHAUSTED, "line: out of memory");
    memcpy(line->params, params, num_params * sizeof *params);
    gs_line_set_state(line, GS_MEMBER_WAITING, 0);
    return gs_thread_start(&line->thread, "gs-control", run, line);
}

bool gs_line_started(const gs_line *line) {
    return line->thread != NULL;
}

void gs_line_destroy(gs_line *line) {
    if (!line) return;
    gs_thread_stop(line->thread);
    void *event;
    while (line->events && gs_queue_pop(line->events, &event, (gs_deadline){0}))
        gs_json_release(event);
    gs_queue_destroy(line->events);
    gs_json_release(line->order);
    gs_json_release(line->communicator);
    free(line->params);
    gs_json_release(line->hello);
    pthread_mutex_destroy(&line->lock);
    free(line);
}

void gs_line_set_state(gs_line *line, gs_member_state state, uint32_t generation) {
    atomic_store(&line->state, state);
    atomic_store(&line->page->state, state);
    atomic_store(&line->generation, generation);
    gs_rpc_client_set_generation(line->client, generation);
}

uint32_t gs_line_generation(const gs_line *line) {
    return atomic_load(&line->generation);
}

bool gs_line_next_event(gs_line *line, gs_json **event, gs_deadline deadline) {
    void *item;
    if (!gs_queue_pop(line->events, &item, deadline)) return false;
    *event = item;
    return true;
}

gs_status gs_line_refusal(gs_line *line) {
    pthread_mutex_lock(&line->lock);
    gs_status status = line->refusal;
    pthread_mutex_unlock(&line->lock);
    return status;
}

bool gs_line_welcomed(const gs_line *line) {
    return atomic_load(&line->welcomed);
}

bool gs_line_reads_records(const gs_line *line) {
    return atomic_load(&line->reads_records);
}

bool gs_line_unknown(const gs_line *line) {
    return atomic_load(&line->unknown);
}

double gs_line_wait_seconds(const gs_line *line) {
    double limit = atomic_load(&line->control->lead.limit_seconds);
    return limit > 0 ? limit : ORPHAN_SECONDS;
}

int64_t gs_line_heard_ns(const gs_line *line) {
    return atomic_load(&line->heard_ns);
}

void gs_line_keep_communicator(gs_line *line, gs_json *communicator) {
    pthread_mutex_lock(&line->lock);
    gs_json *old = line->communicator;
    line->communicator = communicator;
    pthread_mutex_unlock(&line->lock);
    gs_json_release(old);
}

void gs_line_keep_order(gs_line *line, gs_json *order) {
    pthread_mutex_lock(&line->lock);
    gs_json *old = line->order;
    line->order = order;
    pthread_mutex_unlock(&line->lock);
    gs_json_release(old);
}
