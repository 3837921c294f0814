#include "coordinator/serve/methods.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "coordinator/observe/events.h"
#include "coordinator/observe/hosts/enrolment.h"
#include "coordinator/observe/hosts/examination.h"
#include "coordinator/observe/hosts/rank_keyring.h"
#include "coordinator/observe/hosts/told_life.h"
#include "coordinator/observe/job_log.h"
#include "coordinator/observe/job_plans.h"
#include "coordinator/observe/metrics/diagnose.h"
#include "coordinator/observe/metrics/metrics_page.h"
#include "coordinator/observe/observer.h"
#include "coordinator/observe/rank_reports.h"
#include "coordinator/observe/sights.h"
#include "coordinator/observe/timelines.h"
#include "coordinator/observe/watch.h"
#include "coordinator/observe/worker_view.h"
#include "coordinator/serve/decode_agent.h"
#include "coordinator/serve/decode_people.h"
#include "coordinator/serve/decode_trainer.h"
#include "coordinator/serve/job_lists.h"
#include "coordinator/serve/plan_preview.h"
#include "coordinator/store/log_disk.h"
#include "core/clock.h"
#include "rpc/schema/step_record.h"

#define LOOK_NS (5 * GS_NS_PER_SEC)    // at the free space
#define KNOWN_NS (60 * GS_NS_PER_SEC)  // what was found longer ago is not told

static gs_engine_event event_of(gs_call call, const gs_rpc_peer *peer, int64_t generation) {
    return (gs_engine_event){.from = {.call = call, .who = gs_identity_of_peer(peer), .generation = generation}};
}

static gs_engine_event event_from(gs_service *service, gs_rpc_call_handle *call, bool is_stream,
                                  const gs_rpc_peer *peer, const gs_json *request) {
    gs_engine_event event = event_of(gs_calls_keep(&service->steps->calls, call, is_stream), peer,
                                     gs_json_int_or(request, "generation", -1));
    event.from.asked_by = gs_events_asker(peer, request);
    return event;
}

// A method whose request is one event, whatever it holds.
#define EVENT_METHOD(method, decode, is_stream)                                                        \
    static void method(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,                   \
                       const gs_json *request) {                                                       \
        gs_service *service = ctx;                                                                     \
        gs_engine_event event = event_from(service, call, is_stream, peer, request);                   \
        decode(&event, request);                                                                       \
        gs_steps_take(service->steps, &event);                                                         \
    }

EVENT_METHOD(heartbeat, gs_decode_heartbeat, false)
EVENT_METHOD(ready, gs_decode_ready, false)
EVENT_METHOD(exchange, gs_decode_exchange, false)
EVENT_METHOD(comm_up, gs_decode_comm_up, false)
EVENT_METHOD(settle, gs_decode_settle, false)
EVENT_METHOD(checkpointed, gs_decode_checkpointed, false)
EVENT_METHOD(ready_order, gs_decode_ready_order, false)
EVENT_METHOD(replan_job, gs_decode_replan_job, false)
EVENT_METHOD(release_job, gs_decode_release_job, false)
EVENT_METHOD(adopt_job, gs_decode_adopt_job, false)
EVENT_METHOD(described, gs_decode_described, false)

static void exited(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    gs_engine_event event = event_from(service, call, false, peer, request);
    gs_decode_exited(&event, request);
    uint64_t incarnation = event.exited.incarnation;
    gs_steps_take(service->steps, &event);
    if (service->gate && event.was_admitted) gs_key_gate_drop_rank(service->gate, incarnation, &peer->caller);
}

static void rank_keys(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)call;
    gs_service *service = ctx;
    gs_rank_keyring_take(service->gate, service->steps->state, peer, request);
}

// Who says hello as a worker, or as a trainer of one, has its key.
static bool is_own_worker(gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    const gs_rpc_caller *caller = &peer->caller;
    const char *worker = gs_json_string_or(request, "worker", "");
    gs_identity who = gs_identity_of_peer(peer);
    if (gs_principal_covers(&who.principal, worker)) return true;
    gs_rpc_end(call, gs_error(GS_PERMISSION_DENIED, "key %s (%s%s) may not be worker %.63s", caller->id, caller->name,
                              caller->is_pool ? "-…" : "", worker));
    return false;
}

static void agent_hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    if (!is_own_worker(call, peer, request)) return;
    gs_engine_event event = event_from(service, call, true, peer, request);
    gs_decode_agent_hello(&event, request);
    gs_told_life_check(&event.agent_hello.seen, service->gate, &event.from.who.principal, request);
    gs_told_numbers_check(&event.agent_hello, service->gate, &service->steps->state->cluster, request);
    gs_steps_take(service->steps, &event);
}

static void hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    if (!is_own_worker(call, peer, request)) return;
    gs_engine_event event = event_from(service, call, true, peer, request);
    gs_decode_hello(&event, request);
    gs_told_life_check(&event.hello.seen, service->gate, &event.from.who.principal, request);
    gs_steps_take(service->steps, &event);
}

static void agent_heartbeat(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    gs_engine_event event = event_from(service, call, false, peer, request);
    gs_decode_agent_heartbeat(&event, request);
    gs_agent_place *place = &event.agent_heartbeat.place;
    if (*place == GS_PLACE_APART && !gs_left_mark_is_to_be_seen(service->mark, gs_now_ns())) *place = GS_PLACE_UNKNOWN;
    gs_steps_take(service->steps, &event);
}

static void fault(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    gs_fault_facts facts;
    gs_engine_event event = event_from(service, call, false, peer, request);
    gs_decode_fault(&event, &facts, request);
    gs_steps_take(service->steps, &event);
}

// What a trainer says besides, for people.
typedef struct report {
    gs_service *service;
    uint64_t incarnation;
    const gs_json *request;      // of a Bye
    const gs_step_report *step;
} report;

static const gs_member *member_of(const report *it) {
    return gs_state_member(it->service->steps->state, it->incarnation);
}

static void keep_step(void *ctx) {
    const report *it = ctx;
    gs_rank_reports_keep(it->service->observer, member_of(it), it->step);
}

static void take_step(gs_service *service, const gs_rpc_peer *peer, const gs_step_report *step) {
    report it = {service, peer->incarnation, NULL, step};
    gs_engine_event event = event_of(0, peer, step->generation);
    gs_decode_step(&event, step);
    gs_steps_take_and(service->steps, &event, keep_step, &it);
    const gs_member *member = event.was_admitted ? member_of(&it) : NULL;
    if (member) gs_rank_reports_tell(service->observer, member, step);
}

// Of a worker of before.
static void step(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)call;
    gs_service *service = ctx;
    gs_step_report told;
    gs_step_report_from_json(&told, &service->rows, request);
    take_step(service, peer, &told);
}

static gs_status step_record(void *ctx, const gs_rpc_peer *peer, const void *record, size_t bytes) {
    gs_service *service = ctx;
    gs_step_report told;
    GS_TRY(gs_step_record_unpack(&told, &service->rows, record, bytes));
    take_step(service, peer, &told);
    return gs_ok();
}

static void keep_sample(void *ctx) {
    const report *it = ctx;
    const gs_member *member = member_of(it);
    const char *sample = gs_json_string_or(it->request, "sample", NULL);
    if (sample && gs_member_index(member) == 0)
        gs_observer_take_sample(it->service->observer, member->job, sample);
}

static void bye(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    report it = {ctx, peer->incarnation, request, NULL};
    gs_engine_event event = event_from(it.service, call, false, peer, request);
    gs_decode_bye(&event, request);
    gs_steps_take_and(it.service->steps, &event, keep_sample, &it);
}

static void create_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    char fingerprint[GS_DIGEST_TEXT_LEN];
    gs_json *details = NULL;
    gs_engine_event event = event_from(service, call, false, peer, request);
    gs_status status = gs_decode_create_job(&event, fingerprint, &details, request);
    if (!status.code) {
        gs_steps_take(service->steps, &event);
        return;
    }
    gs_calls_reply(&service->steps->calls, event.from.call, status, details);
    gs_engine_event_release(&event);
}

static void stop_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    gs_engine_event event = event_from(service, call, false, peer, request);
    gs_status status = gs_decode_stop_job(&event, request);
    if (!status.code) {
        gs_steps_take(service->steps, &event);
        return;
    }
    // That there is no such job comes first.
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status found = gs_observer_find_job(service->observer, &job, &details, request);
    gs_calls_reply(&service->steps->calls, event.from.call, found.code ? found : status, details);
}

// What a disk does not let go stays owed, and a deletion that cannot be promised is none.
static void delete_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_service *service = ctx;
    if (gs_json_bool_or(request, "purge", false) && gs_purges_are_full(service->steps->performer.purges)) {
        service->observer->limits_reached[GS_LIMIT_REMOVALS]++;
        gs_rpc_reply(call, gs_error(GS_RESOURCE_EXHAUSTED, "%d removals of checkpoints are owed already", GS_MAX_OWED_PURGES), NULL);
        return;
    }
    gs_engine_event event = event_from(service, call, false, peer, request);
    gs_decode_delete_job(&event, request);
    gs_steps_take(service->steps, &event);
}

static void push_check(gs_json *checks, const char *name, bool ok, const char *detail) {
    gs_json *check = gs_json_new_object();
    gs_json_set_string(check, "name", name);
    gs_json_set_bool(check, "ok", ok);
    if (detail && detail[0]) gs_json_set_string(check, "detail", detail);
    gs_json_push(checks, check);
}

static void get_health(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)peer;
    (void)request;
    const gs_service *service = ctx;
    const gs_observer *observer = service->observer;
    gs_json *checks = gs_json_new_array();
    bool accepting = !observer->state->draining;
    push_check(checks, "loop", true, NULL);
    push_check(checks, "store", !observer->store_failed, observer->store_error);
    push_check(checks, "control", true, gs_rpc_server_endpoint(service->observer->server, 0));
    bool is_old_copy = observer->state->cluster.is_old_copy;
    push_check(checks, "database", !is_old_copy,
               is_old_copy ? "an old copy: workers have seen a later one" : NULL);
    gs_key_gate_stats gate = {.is_alive = true};
    if (service->gate) gs_key_gate_get_stats(service->gate, &gate);
    const char *of_keys = !gate.is_alive  ? "nobody is let in: the handler of keys has ended"
                          : gate.is_behind ? "keys.json cannot be read, and the keys of before count"
                                           : NULL;
    if (service->gate) push_check(checks, "keys", !of_keys, of_keys);
    push_check(checks, "accepting", accepting, accepting ? NULL : "going down");
    gs_json *reply = gs_json_new_object();
    gs_json_set_bool(reply, "live", true);
    gs_json_set_bool(reply, "ready", accepting && !observer->store_failed && !is_old_copy && !of_keys);
    gs_json_set(reply, "checks", checks);
    gs_rpc_reply(call, gs_ok(), reply);
}

static gs_json *describe_system(const gs_service *service) {
    gs_json *reply = gs_json_new_object();
    gs_json_set_string(reply, "version", GRADSYNC_VERSION);
    gs_json *versions = gs_json_new_array();
    gs_json_push(versions, gs_json_new_string("v1"));
    gs_json_set(reply, "api_versions", versions);
    gs_json_set_double(reply, "uptime_seconds", gs_seconds_since(service->observer->started_ns));
    gs_json_set_int(reply, "coordinator_epoch", service->steps->state->cluster.epoch);
    gs_json_set_string(reply, "cluster", service->steps->state->cluster.id);
    gs_json *limits = gs_json_new_object();
    gs_json_set_int(limits, "request_body_bytes", 1 << 20);
    gs_json_set_int(limits, "page_items", 500);
    gs_json_set_int(limits, "log_bytes_per_job", GS_LOG_SEGMENT_BYTES * GS_LOG_MAX_SEGMENTS);
    gs_json_set(reply, "limits", limits);
    gs_json_set_string(reply, "control_endpoint", gs_rpc_server_endpoint(service->observer->server, 0));
    return reply;
}

static gs_status look_at_space(gs_write *base, gs_job_store *store) {
    (void)store;
    gs_space_look *it = (gs_space_look *)base;
    struct statvfs space;
    if (statvfs(it->data_dir, &space) != 0) return gs_error_from_errno(errno, "%s", it->data_dir);
    it->found_bytes = (int64_t)((uint64_t)space.f_bavail * space.f_frsize);
    return gs_ok();
}

static void have_looked(gs_write *base, gs_status status) {
    gs_space_look *it = (gs_space_look *)base;
    it->is_on_its_way = false;
    it->free_bytes = it->found_bytes;
    it->looked_ns = status.code ? 0 : gs_now_ns();
}

void gs_service_begin(gs_service *service, gs_steps *steps, gs_observer *observer) {
    gs_space_look *space = &service->space;
    *service = (gs_service){.steps = steps, .observer = observer, .space = {.data_dir = observer->data_dir}};
    space->asked_ns = gs_now_ns();
    have_looked(&space->base, look_at_space(&space->base, NULL));
}

void gs_service_tick(gs_service *service, int64_t now_ns) {
    gs_space_look *space = &service->space;
    if (space->is_on_its_way || now_ns - space->asked_ns < LOOK_NS) return;
    space->is_on_its_way = true;
    space->asked_ns = now_ns;
    space->base = (gs_write){.run = look_at_space, .done = have_looked, .lane = GS_LANE_LOOKS};
    gs_writer_submit(service->observer->writer, &space->base);
}

static void get_system(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)peer;
    (void)request;
    const gs_service *service = ctx;
    const gs_space_look *space = &service->space;
    gs_json *reply = describe_system(service);
    bool is_known = space->looked_ns && gs_now_ns() - space->looked_ns < KNOWN_NS;
    if (is_known) gs_json_set_int(reply, "data_dir_free_bytes", space->free_bytes);
    gs_rpc_reply(call, gs_ok(), reply);
}

// A method of coordinator/observe.
#define SEEN_METHOD(method, handler)                                                                   \
    static void method(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,                   \
                       const gs_json *request) {                                                       \
        handler(((gs_service *)ctx)->observer, call, peer, request);                                   \
    }

SEEN_METHOD(log_records, gs_log_records)
SEEN_METHOD(read_logs, gs_read_logs)
SEEN_METHOD(list_jobs, gs_list_jobs)
SEEN_METHOD(get_job, gs_get_job)
SEEN_METHOD(get_job_workers, gs_get_job_workers)
SEEN_METHOD(get_job_plan, gs_get_job_plan)
SEEN_METHOD(get_job_metrics, gs_get_job_metrics)
SEEN_METHOD(get_job_series, gs_get_job_series)
SEEN_METHOD(get_job_diagnosis, gs_get_job_diagnosis)
SEEN_METHOD(list_events, gs_list_events)
SEEN_METHOD(list_checkpoints, gs_list_checkpoints)
SEEN_METHOD(list_workers, gs_list_workers)
SEEN_METHOD(preview_plan, gs_preview_plan)
SEEN_METHOD(get_metrics, gs_get_metrics)
SEEN_METHOD(watch, gs_watch)
SEEN_METHOD(timeline, gs_timeline_page)
SEEN_METHOD(get_job_timeline, gs_get_job_timeline)
SEEN_METHOD(trace_job, gs_trace_job)
SEEN_METHOD(examine_workers, gs_examine_workers)
SEEN_METHOD(examined, gs_examined)
SEEN_METHOD(enrol, gs_enrol)

const gs_rpc_handler gs_coordinator_methods[GS_NUM_METHODS] = {
    [GS_AGENT_HELLO] = agent_hello,
    [GS_AGENT_HEARTBEAT] = agent_heartbeat,
    [GS_EXITED] = exited,
    [GS_LOG] = log_records,
    [GS_HELLO] = hello,
    [GS_HEARTBEAT] = heartbeat,
    [GS_READY] = ready,
    [GS_EXCHANGE] = exchange,
    [GS_COMM_UP] = comm_up,
    [GS_STEP] = step,
    [GS_FAULT] = fault,
    [GS_SETTLE] = settle,
    [GS_CHECKPOINTED] = checkpointed,
    [GS_BYE] = bye,
    [GS_CREATE_JOB] = create_job,
    [GS_LIST_JOBS] = list_jobs,
    [GS_GET_JOB] = get_job,
    [GS_STOP_JOB] = stop_job,
    [GS_DELETE_JOB] = delete_job,
    [GS_GET_JOB_WORKERS] = get_job_workers,
    [GS_GET_JOB_PLAN] = get_job_plan,
    [GS_GET_JOB_METRICS] = get_job_metrics,
    [GS_GET_JOB_SERIES] = get_job_series,
    [GS_LIST_EVENTS] = list_events,
    [GS_READ_LOGS] = read_logs,
    [GS_LIST_CHECKPOINTS] = list_checkpoints,
    [GS_LIST_WORKERS] = list_workers,
    [GS_PREVIEW_PLAN] = preview_plan,
    [GS_GET_METRICS] = get_metrics,
    [GS_GET_HEALTH] = get_health,
    [GS_GET_SYSTEM] = get_system,
    [GS_WATCH] = watch,
    [GS_TIMELINE] = timeline,
    [GS_GET_JOB_TIMELINE] = get_job_timeline,
    [GS_TRACE_JOB] = trace_job,
    [GS_GET_JOB_DIAGNOSIS] = get_job_diagnosis,
    [GS_READY_ORDER] = ready_order,
    [GS_REPLAN_JOB] = replan_job,
    [GS_RELEASE_JOB] = release_job,
    [GS_ADOPT_JOB] = adopt_job,
    [GS_DESCRIBED] = described,
    [GS_RANK_KEYS] = rank_keys,
    [GS_EXAMINED] = examined,
    [GS_EXAMINE_WORKERS] = examine_workers,
    [GS_ENROL] = enrol,
};

const gs_rpc_record_handler gs_coordinator_record_methods[GS_NUM_METHODS] = {
    [GS_STEP_RECORD] = step_record,
};
