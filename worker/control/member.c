#include "worker/control/member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/thread.h"
#include "rpc/schema/messages.h"
#include "rpc/schema/param_page.h"
#include "worker/control/member_messages.h"
#include "worker/exit_code.h"
#include "worker/telemetry/timeline_message.h"

#define CALL_SECONDS 5.0
#define RETRY_NS (200 * GS_NS_PER_MS)
// Without a coordinator: how long a trainer that has nothing to train waits, and one that must settle.
#define IDLE_ORPHAN_NS (60 * GS_NS_PER_SEC)
#define SETTLE_ORPHAN_SECONDS 10.0
#define SETTLE_SECONDS 60.0
// A communicator that cannot be torn down would keep its memory from the next generation.
#define TEARDOWN_NS (5 * GS_NS_PER_SEC)
#define MAX_EVENTS 64
#define MAX_OUTBOX 64
// Of timelines: spans and buckets in one answer, and in what is left behind at the end.
#define TIMELINE_ROWS 20000
#define LEFT_STEPS 3
#define LEFT_ROWS 600

// Until it has been acknowledged.
typedef struct outbox_entry {
    gs_method method;
    gs_json *request;  // owned
} outbox_entry;

struct gs_member {
    const gs_launch *launch;
    gs_control *control;
    const gs_trainer *trainer;  // NULL before join
    gs_rpc_context *context;
    gs_rpc_client *client;

    gs_thread *control_thread, *outbox_thread;
    gs_queue *events;  // gs_json: control thread → compute thread
    gs_queue *outbox;  // outbox_entry
    atomic_int outbox_count;

    atomic_int state;
    atomic_uint generation;
    atomic_bool welcomed;      // the coordinator of now has answered Hello
    _Atomic int64_t heard_ns;  // when the coordinator was there last

    // Made once by join, then the control thread's: it needs no trainer.
    gs_json *hello;
    gs_param_spec *param_specs;
    size_t num_params;
    // Control thread only.
    int64_t coordinator_epoch;
    gs_rpc_stream *stream;
    int64_t heartbeat_ns, next_heartbeat_ns, next_hello_ns;

    pthread_mutex_t lock;  // of what follows
    gs_status refusal;     // of Hello; final
    gs_json *order;        // owned; the last ReadyOrder, told again to another life of the coordinator
};

static const char *state_name(gs_member_state state) {
    static const char *const names[] = {"waiting", "prepared", "connecting",
                                        "running", "aborting", "leaving"};
    return names[state];
}

static gs_status call(gs_member *member, gs_method method, gs_json *request, double seconds) {
    gs_json *reply = NULL;
    gs_status status = gs_rpc_call(member->client, method, request, &reply,
                                   gs_deadline_in_seconds(seconds));
    gs_json_release(request);
    gs_json_release(reply);
    return status;
}

static void send_params(gs_member *member) {
    gs_status status = gs_ok();
    for (size_t i = 0; i < member->num_params && !status.code; i += GS_PARAM_PAGE_ROWS) {
        gs_json *page = gs_member_message_ready(0, "", atomic_load(&member->control->applied_step));
        gs_json_set_string(page, "state_digest", "");
        gs_param_page_write(page, member->param_specs, member->num_params, i);
        status = call(member, GS_READY, page, CALL_SECONDS);
    }
    if (status.code) gs_log_warn("parameters not sent", "reason=\"%s\"", status.message);
}

// Takes the request: values belong to one thread at a time.
static void push_outbox(gs_member *member, gs_method method, gs_json *request) {
    outbox_entry *entry = calloc(1, sizeof *entry);
    if (entry) {
        *entry = (outbox_entry){method, request};
        atomic_fetch_add(&member->outbox_count, 1);
        if (gs_queue_push(member->outbox, entry, (gs_deadline){0})) return;
        atomic_fetch_sub(&member->outbox_count, 1);
        free(entry);
    }
    gs_json_release(request);
    gs_log_warn("too much waits for the coordinator", "dropped=%s",
                gs_method_info_of(method)->name);
}

static void drop_entry(outbox_entry *entry) {
    gs_json_release(entry->request);
    free(entry);
}

// What a coordinator of before knew and did not write down.
static void tell_order_again(gs_member *member) {
    pthread_mutex_lock(&member->lock);
    gs_json *order = member->order ? gs_json_copy(member->order) : NULL;
    pthread_mutex_unlock(&member->lock);
    if (order) push_outbox(member, GS_READY_ORDER, order);
}

static void take_welcome(gs_member *member, const gs_json *item) {
    double seconds = gs_json_double_or(item, "heartbeat_seconds", 0.1);
    if (seconds >= 0.01 && seconds <= 10) {
        member->heartbeat_ns = (int64_t)(seconds * (double)GS_NS_PER_SEC);
    }
    atomic_store(&member->welcomed, true);
    int64_t epoch = gs_json_int_or(item, "coordinator_epoch", 0);
    if (epoch != member->coordinator_epoch) tell_order_again(member);
    member->coordinator_epoch = epoch;
    if (gs_json_bool_or(item, "send_params", false)) send_params(member);
}

static void take_abort(gs_member *member, const gs_json *item) {
    // One for a generation that this trainer has left behind means nothing to it.
    if (gs_json_int_or(item, "generation", 0) < (int64_t)atomic_load(&member->generation)) return;
    gs_control_abort(member->control, gs_json_string_or(item, "reason", "the generation ended"));
}

// Decoded here, so that the compute thread need not.
static void take_replan(gs_member *member, const gs_json *item) {
    gs_plan_offer offer;
    gs_status status =
        gs_plan_offer_decode(&offer, item, member->param_specs, member->num_params);
    if (!status.code && offer.generation == atomic_load(&member->generation)) {
        gs_control_offer_plan(member->control, &offer);
        return;
    }
    if (status.code) gs_log_warn("plan not usable", "reason=\"%s\"", status.message);
    gs_plan_offer_release(&offer);
}

static gs_json *next_timeline_page(gs_member *member, gs_timeline_pages *pages, int64_t request) {
    gs_json *page = gs_timeline_pages_next(pages);
    if (!page) return NULL;
    gs_json_set_int(page, "request", request);
    gs_json_set_int(page, "generation", atomic_load(&member->generation));
    return page;
}

static void take_send_timeline(gs_member *member, const gs_json *item) {
    int64_t rows = gs_json_int_or(item, "max_rows", TIMELINE_ROWS);
    gs_timeline_pages pages = gs_timeline_pages_begin(
        member->control->timeline,
        &(gs_timeline_range_asked){.last = gs_json_int_or(item, "last", 0),
                                   .from_step = gs_json_int_or(item, "from_step", 0),
                                   .to_step = gs_json_int_or(item, "to_step", -1),
                                   .max_rows = rows < TIMELINE_ROWS ? (size_t)rows : TIMELINE_ROWS});
    gs_json *page;
    while ((page = next_timeline_page(member, &pages, gs_json_int_or(item, "request", 0))))
        push_outbox(member, GS_TIMELINE, page);
}

static void take_item(gs_member *member, gs_json *item) {
    const char *type = gs_json_string_or(item, "type", "");
    if (strcmp(type, "welcome") == 0) {
        take_welcome(member, item);
    } else if (strcmp(type, "abort") == 0) {
        take_abort(member, item);
    } else if (strcmp(type, "replan") == 0) {
        take_replan(member, item);
    } else if (strcmp(type, "send_timeline") == 0) {
        take_send_timeline(member, item);
    } else if (strcmp(type, "trace") == 0) {
        if (member->control->timeline)
            gs_timeline_switch(member->control->timeline, gs_json_bool_or(item, "on", true));
    } else if (strcmp(type, "drain") == 0) {
        gs_control_ask_to_drain(member->control, gs_json_bool_or(item, "save", true));
    } else if (gs_queue_push(member->events, item, (gs_deadline){0})) {
        return;
    }
    gs_json_release(item);
}

static int64_t resident_bytes(void) {
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%*s %lld", &pages) != 1) pages = 0;
        fclose(file);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

static void set_plans(gs_json *out, const gs_control *control) {
    gs_json_set_u64(out, "plan", atomic_load(&control->plan_digest));
    gs_json_set_u64(out, "next_plan", atomic_load(&control->next_plan_digest));
    gs_json_set_int(out, "plan_step", atomic_load(&control->plan_step));
}

static void send_heartbeat(gs_member *member) {
    int64_t now_ns = gs_now_ns();
    if (!atomic_load(&member->welcomed) || now_ns < member->next_heartbeat_ns) return;
    member->next_heartbeat_ns = now_ns + member->heartbeat_ns;
    gs_trainer_phase phase = (gs_trainer_phase)atomic_load(&member->control->phase);
    gs_json *out = gs_json_new_object();
    gs_json_set_string(out, "state", state_name((gs_member_state)atomic_load(&member->state)));
    gs_json_set_int(out, "generation", atomic_load(&member->generation));
    gs_json_set_int(out, "applied_step", atomic_load(&member->control->applied_step));
    gs_json_set_string(out, "phase", gs_trainer_phase_name(phase));
    gs_json_set_int(out, "rss_bytes", resident_bytes());
    set_plans(out, member->control);
    gs_rpc_send(member->client, GS_HEARTBEAT, out);
    gs_json_release(out);
}

// A coordinator that does not want this trainer will not want it later; the rest is worth another try.
static bool is_final(gs_code code) {
    return code == GS_INVALID_ARGUMENT || code == GS_NOT_FOUND || code == GS_ALREADY_EXISTS ||
           code == GS_PERMISSION_DENIED || code == GS_UNAUTHENTICATED ||
           code == GS_FAILED_PRECONDITION || code == GS_ABORTED;
}

static void lose_stream(gs_member *member, gs_status status) {
    gs_rpc_stream_close(member->stream);
    member->stream = NULL;
    atomic_store(&member->welcomed, false);
    member->next_hello_ns = gs_now_ns() + RETRY_NS;
    if (!is_final(status.code)) return;
    pthread_mutex_lock(&member->lock);
    if (!member->refusal.code) member->refusal = status;
    pthread_mutex_unlock(&member->lock);
    gs_log_warn("coordinator refused this trainer", "reason=\"%s\"", status.message);
    gs_control_abort(member->control, status.message);
    member->next_hello_ns = gs_now_ns() + 3600 * GS_NS_PER_SEC;
}

static void say_hello(gs_member *member) {
    if (member->stream || gs_now_ns() < member->next_hello_ns) return;
    gs_json_set_int(member->hello, "applied_step", atomic_load(&member->control->applied_step));
    gs_status status =
        gs_rpc_stream_open(&member->stream, member->client, GS_HELLO, member->hello);
    if (status.code) {
        member->stream = NULL;
        lose_stream(member, status);
    }
}

static void read_stream(gs_member *member, gs_deadline deadline) {
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(member->stream, &item, deadline);
    if (status.code == GS_DEADLINE_EXCEEDED) return;
    if (!status.code && item) {
        atomic_store(&member->heard_ns, gs_now_ns());
        take_item(member, item);
        return;
    }
    if (!status.code) status = gs_error(GS_UNAVAILABLE, "the coordinator ended the stream");
    lose_stream(member, status);
}

static void watch_teardown(const gs_member *member) {
    int64_t since_ns = atomic_load(&member->control->teardown_since_ns);
    if (since_ns == 0 || gs_now_ns() - since_ns < TEARDOWN_NS) return;
    gs_log_error("a session could not be torn down: its communicator or a replica hangs",
                 "seconds=%lld", (long long)(TEARDOWN_NS / GS_NS_PER_SEC));
    _exit(GS_EXIT_ABORT_HUNG);
}

static void run_control(void *ctx, const atomic_bool *stopping) {
    gs_member *member = ctx;
    while (!atomic_load(stopping)) {
        say_hello(member);
        int64_t wait_ns = member->next_heartbeat_ns - gs_now_ns();
        if (wait_ns < 0 || wait_ns > 100 * GS_NS_PER_MS) wait_ns = 100 * GS_NS_PER_MS;
        if (member->stream) read_stream(member, gs_deadline_in_ns(wait_ns));
        else gs_sleep_ns(20 * GS_NS_PER_MS);
        if (gs_rpc_client_connected(member->client)) atomic_store(&member->heard_ns, gs_now_ns());
        send_heartbeat(member);
        watch_teardown(member);
    }
    gs_rpc_stream_close(member->stream);
    member->stream = NULL;
}

static void run_outbox(void *ctx, const atomic_bool *stopping) {
    gs_member *member = ctx;
    while (!atomic_load(stopping)) {
        void *item;
        if (!gs_queue_pop(member->outbox, &item, gs_deadline_in_ms(100))) continue;
        outbox_entry *entry = item;
        gs_status status = gs_error(GS_UNAVAILABLE, "not sent");
        while (!atomic_load(stopping) &&
               (status.code == GS_UNAVAILABLE || status.code == GS_DEADLINE_EXCEEDED)) {
            status = call(member, entry->method, gs_json_retain(entry->request), 1.0);
            if (status.code == GS_UNAVAILABLE) gs_sleep_ns(RETRY_NS);
        }
        if (status.code && status.code != GS_UNAVAILABLE) {
            gs_log_warn("not accepted", "method=%s reason=\"%s\"",
                        gs_method_info_of(entry->method)->name, status.message);
        }
        drop_entry(entry);
        atomic_fetch_sub(&member->outbox_count, 1);
    }
}

gs_status gs_member_create(gs_member **out, const gs_launch *launch, gs_control *control) {
    gs_member *member = calloc(1, sizeof *member);
    if (!member) return gs_error(GS_RESOURCE_EXHAUSTED, "member: out of memory");
    member->launch = launch;
    member->control = control;
    member->heartbeat_ns = 100 * GS_NS_PER_MS;
    atomic_store(&member->heard_ns, gs_now_ns());
    pthread_mutex_init(&member->lock, NULL);
    member->events = gs_queue_create(MAX_EVENTS);
    member->outbox = gs_queue_create(MAX_OUTBOX);
    gs_rpc_client_options options = {.endpoint = launch->coordinator,
                                     .job = launch->job_number,
                                     .incarnation = launch->incarnation};
    gs_status status = gs_ok();
    if (!member->events || !member->outbox) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "member: out of memory");
    }
    if (!status.code) status = gs_rpc_context_create(&member->context);
    if (!status.code) status = gs_rpc_client_open(&member->client, member->context, &options);
    if (status.code) {
        gs_member_destroy(member);
        return status;
    }
    *out = member;
    return gs_ok();
}

gs_status gs_member_join(gs_member *member, const gs_trainer *trainer) {
    member->trainer = trainer;
    member->hello = gs_member_message_hello(member->launch, trainer);
    const gs_trainer_state *state = gs_trainer_get_state(trainer);
    member->num_params = state->num_params;
    member->param_specs = calloc(state->num_params, sizeof *member->param_specs);
    if (!member->param_specs) return gs_error(GS_RESOURCE_EXHAUSTED, "member: out of memory");
    memcpy(member->param_specs, state->param_specs, state->num_params * sizeof *state->param_specs);
    GS_TRY(gs_thread_start(&member->outbox_thread, "gs-outbox", run_outbox, member));
    return gs_thread_start(&member->control_thread, "gs-control", run_control, member);
}

static void drop_all(gs_queue *queue) {
    void *item;
    while (queue && gs_queue_pop(queue, &item, (gs_deadline){0})) gs_json_release(item);
    gs_queue_destroy(queue);
}

static void flush_outbox(gs_member *member, gs_deadline deadline) {
    while (atomic_load(&member->outbox_count) > 0 && !gs_deadline_passed(deadline)) {
        gs_sleep_ns(2 * GS_NS_PER_MS);
    }
}

void gs_member_destroy(gs_member *member) {
    if (!member) return;
    gs_thread_ask_to_stop(member->control_thread);
    gs_thread_ask_to_stop(member->outbox_thread);
    gs_thread_stop(member->control_thread);
    gs_thread_stop(member->outbox_thread);
    gs_rpc_client_close(member->client);
    gs_rpc_context_destroy(member->context);
    drop_all(member->events);
    void *entry;
    while (member->outbox && gs_queue_pop(member->outbox, &entry, (gs_deadline){0}))
        drop_entry(entry);
    gs_queue_destroy(member->outbox);
    gs_json_release(member->order);
    free(member->param_specs);
    gs_json_release(member->hello);
    pthread_mutex_destroy(&member->lock);
    free(member);
}

static gs_status read_refusal(gs_member *member) {
    pthread_mutex_lock(&member->lock);
    gs_status status = member->refusal;
    pthread_mutex_unlock(&member->lock);
    return status;
}

gs_status gs_member_next_event(gs_member *member, gs_json **event, gs_deadline deadline) {
    GS_TRY(read_refusal(member));
    GS_TRY(gs_control_check(member->control));
    void *item;
    if (gs_queue_pop(member->events, &item, deadline)) {
        *event = item;
        return gs_ok();
    }
    if (gs_now_ns() - atomic_load(&member->heard_ns) > IDLE_ORPHAN_NS) {
        return gs_error(GS_UNAVAILABLE, "no coordinator at %s", member->launch->coordinator);
    }
    return gs_error(GS_DEADLINE_EXCEEDED, "no word from the coordinator yet");
}

void gs_member_set_state(gs_member *member, gs_member_state state, uint32_t generation) {
    atomic_store(&member->state, state);
    atomic_store(&member->generation, generation);
    gs_rpc_client_set_generation(member->client, generation);
}

gs_status gs_member_send_ready(gs_member *member, const char *plan_hash) {
    char digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, gs_trainer_state_digest(gs_trainer_get_state(member->trainer)));
    gs_json *request = gs_member_message_ready(atomic_load(&member->generation), plan_hash,
                                               atomic_load(&member->control->applied_step));
    gs_json_set_string(request, "state_digest", digest);
    return call(member, GS_READY, request, CALL_SECONDS);
}

gs_status gs_member_send_comm_up(gs_member *member, const gs_session *session) {
    return call(member, GS_COMM_UP, gs_member_message_comm_up(session), CALL_SECONDS);
}

bool gs_member_wait_for_welcome(gs_member *member, gs_deadline deadline) {
    bool save, drains;
    do {
        if (!member->control_thread || read_refusal(member).code) return false;
        if (atomic_load(&member->welcomed)) return true;
        drains = gs_control_drains(member->control, &save);
        if (!drains) gs_sleep_ns(20 * GS_NS_PER_MS);
    } while (!drains && !gs_deadline_passed(deadline));
    return false;
}

// The last steps, for those who look when this trainer is gone.
static void leave_timeline(gs_member *member) {
    gs_timeline_pages pages =
        gs_timeline_pages_begin(member->control->timeline,
                                &(gs_timeline_range_asked){.last = LEFT_STEPS, .max_rows = LEFT_ROWS});
    gs_json *page;
    while ((page = next_timeline_page(member, &pages, 0))) {
        gs_status status = call(member, GS_TIMELINE, page, 1);
        if (!status.code) continue;
        gs_log_debug("no timeline left", "reason=\"%s\"", status.message);
        return;
    }
}

void gs_member_say_bye(gs_member *member, const gs_trainer_outcome *outcome, int rank) {
    uint32_t generation = atomic_load(&member->generation);
    gs_member_set_state(member, GS_MEMBER_LEAVING, generation);
    // Somebody who is not there will not be there in a moment either.
    double seconds = !member->control_thread || atomic_load(&member->welcomed) ? CALL_SECONDS : 1;
    flush_outbox(member, gs_deadline_in_seconds(2 * seconds));
    if (atomic_load(&member->welcomed)) leave_timeline(member);
    gs_json *bye = gs_member_message_bye(outcome, generation, rank,
                                         atomic_load(&member->control->applied_step));
    set_plans(bye, member->control);  // a change since the last heartbeat
    gs_status status = call(member, GS_BYE, bye, seconds);
    if (status.code) gs_log_warn("left without good-bye", "reason=\"%s\"", status.message);
}

static gs_status take_all(void *all, size_t bytes, const gs_json *items) {
    for (size_t i = 0; i < gs_json_count(items); i++) {
        gs_json *holder = gs_json_new_object();
        gs_json_set(holder, "bytes", gs_json_copy(gs_json_at(items, i)));
        void *data = NULL;
        size_t data_bytes = 0;
        gs_status status = gs_json_read_bytes(&data, &data_bytes, holder, "bytes");
        gs_json_release(holder);
        if (!status.code && data_bytes == bytes) memcpy((char *)all + i * bytes, data, bytes);
        free(data);
        if (status.code) return status;
        if (data_bytes != bytes) {
            return gs_error(GS_FAILED_PRECONDITION, "rank %zu sent %zu bytes instead of %zu", i,
                            data_bytes, bytes);
        }
    }
    return gs_ok();
}

static gs_status exchange(void *ctx, const char *tag, const void *mine, size_t bytes, void *all,
                          gs_deadline deadline) {
    gs_member *member = ctx;
    const gs_session *session = gs_trainer_get_session(member->trainer);
    gs_json *request = gs_json_new_object(), *reply = NULL;
    gs_json_set_int(request, "generation", gs_session_generation(session));
    gs_json_set_string(request, "tag", tag);
    gs_json_set_int(request, "rank", gs_session_rank(session));
    gs_json_set_bytes(request, "bytes", mine, bytes);
    gs_status status = gs_rpc_call(member->client, GS_EXCHANGE, request, &reply, deadline);
    if (!status.code) {
        const gs_json *items = gs_json_get(reply, "all");
        size_t world_size = (size_t)gs_session_world_size(session);
        status = gs_json_count(items) == world_size
                     ? take_all(all, bytes, items)
                     : gs_error(GS_INTERNAL, "exchange %s: %zu answers for %zu ranks", tag,
                                gs_json_count(items), world_size);
    }
    gs_json_release(request);
    gs_json_release(reply);
    return gs_status_prefix(status, "exchange %s", tag);
}

// Before its welcome a coordinator does not know whose report it is.
static bool report(void *ctx, gs_json *step_report) {
    gs_member *member = ctx;
    bool heard = atomic_load(&member->welcomed);
    if (heard) gs_rpc_send(member->client, GS_STEP, step_report);
    gs_json_release(step_report);
    return heard;
}

static void checkpointed(void *ctx, const gs_checkpoint_result *result) {
    gs_member *member = ctx;
    push_outbox(member, GS_CHECKPOINTED, gs_member_message_checkpointed(result));
}

static void ordered(void *ctx, const gs_order_report *order) {
    gs_member *member = ctx;
    gs_json *kept = gs_member_message_order(order);
    pthread_mutex_lock(&member->lock);
    gs_json *old = member->order;
    member->order = kept;
    pthread_mutex_unlock(&member->lock);
    gs_json_release(old);
    push_outbox(member, GS_READY_ORDER, gs_member_message_order(order));
}

static void fault(void *ctx, const gs_fault *what) {
    gs_member *member = ctx;
    gs_status status = call(member, GS_FAULT, gs_member_message_fault(what), 2.0);
    if (status.code) gs_log_warn("fault not reported", "reason=\"%s\"", status.message);
}

// A coordinator that is there may take its time (a frozen rank must be found and killed first).
static gs_status settle(void *ctx, gs_settle_verdict *verdict, const gs_settlement *settlement) {
    gs_member *member = ctx;
    gs_member_set_state(member, GS_MEMBER_ABORTING, settlement->generation);
    gs_deadline end = gs_deadline_in_seconds(SETTLE_SECONDS);
    gs_json *request = gs_member_message_settle(settlement), *reply = NULL;
    gs_status status;
    do {
        gs_deadline turn = gs_deadline_min(end, gs_deadline_in_seconds(SETTLE_ORPHAN_SECONDS));
        status = gs_rpc_call(member->client, GS_SETTLE, request, &reply, turn);
    } while (status.code == GS_DEADLINE_EXCEEDED && gs_rpc_client_connected(member->client) &&
             !gs_deadline_passed(end));
    if (!status.code) {
        verdict->apply = gs_json_bool_or(reply, "apply", false);
        verdict->save = gs_json_bool_or(reply, "save", false);
    }
    gs_json_release(request);
    gs_json_release(reply);
    return status;
}

const gs_control_ops gs_member_control_ops = {.exchange = exchange,
                                              .report = report,
                                              .checkpointed = checkpointed,
                                              .fault = fault,
                                              .ordered = ordered,
                                              .settle = settle};
