#include "coordinator/methods.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "coordinator/agents.h"
#include "coordinator/checkpoints.h"
#include "coordinator/coordinator.h"
#include "coordinator/diagnose.h"
#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/job_log.h"
#include "coordinator/job_metrics.h"
#include "coordinator/job_view.h"
#include "coordinator/membership.h"
#include "coordinator/metrics_page.h"
#include "coordinator/plan_preview.h"
#include "coordinator/planner.h"
#include "coordinator/rendezvous.h"
#include "coordinator/timelines.h"
#include "coordinator/replan.h"
#include "coordinator/watch.h"
#include "core/clock.h"

static void get_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_jobs_find(ctx, &job, &details, request);
    gs_rpc_reply(call, status, status.code ? details : gs_job_to_view(job, true));
}

static void get_job_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                            const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *body = NULL;
    gs_status status = gs_jobs_find(ctx, &job, &body, request);
    if (!status.code) {
        body = gs_json_new_object();
        gs_json_set(body, "items", gs_job_members_to_view(job));
    }
    gs_rpc_reply(call, status, body);
}

// "running,recovering" has the word.
static bool in_list(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        bool begins = at == list || at[-1] == ',';
        if (begins && (at[length] == '\0' || at[length] == ',')) return true;
    }
    return false;
}

static bool has_label(const gs_job *job, const char *wanted) {
    const char *colon = wanted ? strchr(wanted, ':') : NULL;
    for (int i = 0; colon && i < job->spec.num_labels; i++) {
        const gs_job_label *label = &job->spec.labels[i];
        if (!strncmp(label->key, wanted, (size_t)(colon - wanted)) &&
            !label->key[colon - wanted] && !strcmp(label->value, colon + 1)) {
            return true;
        }
    }
    return false;
}

static bool matches(const gs_job *job, const gs_json *request) {
    const char *states = gs_json_string_or(request, "state", NULL);
    if (states && states[0] && !in_list(states, gs_job_state_name(job->state))) return false;
    const char *name = gs_json_string_or(request, "name", NULL);
    if (name && name[0] && fnmatch(name, job->spec.name, 0) != 0) return false;
    const gs_json *labels = gs_json_get(request, "label");
    for (size_t i = 0; i < gs_json_count(labels); i++) {
        if (!has_label(job, gs_json_string(gs_json_at(labels, i)))) return false;
    }
    return true;
}

typedef struct gs_field_pick {
    const char *fields;
    gs_json *out;
} gs_field_pick;

static bool pick_field(void *ctx, const char *key, const gs_json *value) {
    gs_field_pick *pick = ctx;
    if (in_list(pick->fields, key)) gs_json_set(pick->out, key, gs_json_copy(value));
    return true;
}

static gs_json *list_item(const gs_job *job, const char *fields) {
    bool all = fields && !strcmp(fields, "*");
    gs_json *view = gs_job_to_view(job, all || (fields && in_list(fields, "spec")));
    if (!fields || !fields[0] || all) return view;
    gs_field_pick pick = {fields, gs_json_new_object()};
    gs_json_each(view, pick_field, &pick);
    gs_json_release(view);
    return pick.out;
}

// Ids grow with time, so the id of the last item is the cursor; newest first unless asked.
static void list_jobs(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    (void)peer;
    gs_coordinator *coordinator = ctx;
    int64_t limit = gs_json_int_or(request, "limit", 50);
    bool ascending = !strcmp(gs_json_string_or(request, "order", "desc"), "asc");
    const char *cursor = gs_json_string_or(request, "cursor", NULL);
    uint64_t after = 0;
    if (limit < 1 || limit > 500 || (cursor && !gs_job_id_parse(&after, cursor))) {
        gs_rpc_reply(call, gs_error(GS_INVALID_ARGUMENT, "limit: 1 to 500; cursor: as it was given"),
                     NULL);
        return;
    }
    gs_json *items = gs_json_new_array();
    const gs_job *last = NULL;
    bool more = false;
    for (size_t k = 0; k < coordinator->num_jobs && !more; k++) {
        const gs_job *job = coordinator->jobs[ascending ? k : coordinator->num_jobs - 1 - k];
        if (cursor && (ascending ? job->id <= after : job->id >= after)) continue;
        if (!matches(job, request)) continue;
        if ((int64_t)gs_json_count(items) == limit) {
            more = true;
            break;
        }
        gs_json_push(items, list_item(job, gs_json_string_or(request, "fields", NULL)));
        last = job;
    }
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "items", items);
    if (more && last) gs_json_set_string(reply, "next_cursor", last->id_text);
    gs_rpc_reply(call, gs_ok(), reply);
}

static void push_check(gs_json *checks, const char *name, bool ok, const char *detail) {
    gs_json *check = gs_json_new_object();
    gs_json_set_string(check, "name", name);
    gs_json_set_bool(check, "ok", ok);
    if (detail && detail[0]) gs_json_set_string(check, "detail", detail);
    gs_json_push(checks, check);
}

static void get_health(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    (void)peer;
    (void)request;
    gs_coordinator *coordinator = ctx;
    gs_json *checks = gs_json_new_array();
    bool accepting = !coordinator->draining;
    push_check(checks, "loop", true, NULL);
    push_check(checks, "store", !coordinator->store_failed, coordinator->store_error);
    push_check(checks, "control", true, gs_rpc_server_endpoint(coordinator->server, 0));
    push_check(checks, "database", !coordinator->is_old_copy,
               coordinator->is_old_copy ? "an old copy: workers have seen a later one" : NULL);
    push_check(checks, "accepting", accepting, accepting ? NULL : "going down");
    gs_json *reply = gs_json_new_object();
    gs_json_set_bool(reply, "live", true);
    gs_json_set_bool(reply, "ready", accepting && !coordinator->store_failed && !coordinator->is_old_copy);
    gs_json_set(reply, "checks", checks);
    gs_rpc_reply(call, gs_ok(), reply);
}

static void get_system(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    (void)peer;
    (void)request;
    gs_coordinator *coordinator = ctx;
    gs_json *reply = gs_json_new_object();
    gs_json_set_string(reply, "version", GRADSYNC_VERSION);
    gs_json *versions = gs_json_new_array();
    gs_json_push(versions, gs_json_new_string("v1"));
    gs_json_set(reply, "api_versions", versions);
    gs_json_set_double(reply, "uptime_seconds",
                       (double)(gs_now_ns() - coordinator->started_ns) / GS_NS_PER_SEC);
    gs_json_set_int(reply, "coordinator_epoch", coordinator->epoch);
    gs_json_set_string(reply, "cluster", coordinator->cluster);
    gs_json *limits = gs_json_new_object();
    gs_json_set_int(limits, "request_body_bytes", 1 << 20);
    gs_json_set_int(limits, "page_items", 500);
    gs_json_set_int(limits, "log_bytes_per_job", GS_LOG_SEGMENT_BYTES * GS_LOG_MAX_SEGMENTS);
    gs_json_set(reply, "limits", limits);
    gs_json_set_string(reply, "control_endpoint", gs_rpc_server_endpoint(coordinator->server, 0));
    struct statvfs space;
    if (statvfs(coordinator->data_dir, &space) == 0) {
        gs_json_set_int(reply, "data_dir_free_bytes",
                        (int64_t)((uint64_t)space.f_bavail * space.f_frsize));
    }
    gs_rpc_reply(call, gs_ok(), reply);
}

const gs_rpc_handler gs_coordinator_methods[GS_NUM_METHODS] = {
    [GS_AGENT_HELLO] = gs_agent_hello,
    [GS_AGENT_HEARTBEAT] = gs_agent_heartbeat,
    [GS_EXITED] = gs_exited,
    [GS_LOG] = gs_log_records,
    [GS_HELLO] = gs_hello,
    [GS_HEARTBEAT] = gs_heartbeat,
    [GS_READY] = gs_ready,
    [GS_EXCHANGE] = gs_exchange_bytes,
    [GS_COMM_UP] = gs_comm_up,
    [GS_STEP] = gs_step,
    [GS_FAULT] = gs_fault,
    [GS_SETTLE] = gs_settle,
    [GS_CHECKPOINTED] = gs_checkpointed,
    [GS_BYE] = gs_bye,
    [GS_CREATE_JOB] = gs_create_job,
    [GS_LIST_JOBS] = list_jobs,
    [GS_GET_JOB] = get_job,
    [GS_STOP_JOB] = gs_stop_job,
    [GS_DELETE_JOB] = gs_delete_job,
    [GS_GET_JOB_WORKERS] = get_job_workers,
    [GS_GET_JOB_PLAN] = gs_get_job_plan,
    [GS_GET_JOB_METRICS] = gs_get_job_metrics,
    [GS_GET_JOB_SERIES] = gs_get_job_series,
    [GS_LIST_EVENTS] = gs_list_events,
    [GS_READ_LOGS] = gs_read_logs,
    [GS_LIST_CHECKPOINTS] = gs_list_checkpoints,
    [GS_LIST_WORKERS] = gs_list_workers,
    [GS_PREVIEW_PLAN] = gs_preview_plan,
    [GS_GET_METRICS] = gs_get_metrics,
    [GS_GET_HEALTH] = get_health,
    [GS_GET_SYSTEM] = get_system,
    [GS_WATCH] = gs_watch,
    [GS_TIMELINE] = gs_timeline_page,
    [GS_GET_JOB_TIMELINE] = gs_get_job_timeline,
    [GS_TRACE_JOB] = gs_trace_job,
    [GS_GET_JOB_DIAGNOSIS] = gs_get_job_diagnosis,
    [GS_READY_ORDER] = gs_ready_order,
    [GS_REPLAN_JOB] = gs_replan_job,
};
