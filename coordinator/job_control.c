#include "coordinator/job_control.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoints.h"
#include "coordinator/events.h"
#include "coordinator/job_log.h"
#include "coordinator/job_metrics.h"
#include "coordinator/job_record.h"
#include "coordinator/job_view.h"
#include "coordinator/membership.h"
#include "coordinator/planner.h"
#include "coordinator/timelines.h"
#include "coordinator/watch.h"
#include "coordinator/idempotency.h"
#include "core/clock.h"
#include "core/log.h"

#define MAX_GRACE_SECONDS 86400

bool gs_jobs_add(gs_coordinator *coordinator, gs_job *job) {
    if (coordinator->num_jobs == coordinator->max_jobs) {
        size_t max_jobs = coordinator->max_jobs ? coordinator->max_jobs * 2 : 64;
        gs_job **jobs = realloc(coordinator->jobs, max_jobs * sizeof *jobs);
        if (!jobs) return false;
        coordinator->jobs = jobs;
        coordinator->max_jobs = max_jobs;
    }
    coordinator->jobs[coordinator->num_jobs++] = job;
    return true;
}

gs_job *gs_jobs_by_id(gs_coordinator *coordinator, uint64_t id) {
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        if (coordinator->jobs[i]->id == id) return coordinator->jobs[i];
    }
    return NULL;
}

gs_job *gs_jobs_by_id_text(gs_coordinator *coordinator, const char *text) {
    uint64_t id = 0;
    return text && gs_job_id_parse(&id, text) ? gs_jobs_by_id(coordinator, id) : NULL;
}

static gs_job *find_live_name(gs_coordinator *coordinator, const char *name) {
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_job *job = coordinator->jobs[i];
        if (!gs_job_state_terminal(job->state) && !strcmp(job->spec.name, name)) return job;
    }
    return NULL;
}

static gs_status find_prefix(gs_coordinator *coordinator, gs_job **job, gs_json **details,
                             const char *text) {
    gs_json *candidates = gs_json_new_array();
    gs_job *found = NULL;
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        if (strncmp(coordinator->jobs[i]->id_text, text, strlen(text)) != 0) continue;
        found = coordinator->jobs[i];
        gs_json_push(candidates, gs_json_new_string(found->id_text));
    }
    if (gs_json_count(candidates) > 1) {
        *details = gs_json_new_object();
        gs_json_set_string(*details, "code", "ambiguous");
        gs_json_set(*details, "candidates", candidates);
        return gs_error(GS_FAILED_PRECONDITION, "job \"%s\" is ambiguous: %zu ids begin so", text,
                        gs_json_count(candidates));
    }
    gs_json_release(candidates);
    *job = found;
    return gs_ok();
}

gs_status gs_jobs_find(gs_coordinator *coordinator, gs_job **job, gs_json **details,
                       const gs_json *request) {
    const char *text = gs_json_string_or(request, "job", NULL);
    if (!text || !text[0]) return gs_error(GS_INVALID_ARGUMENT, "job: must be an id or a name");
    *job = gs_jobs_by_id_text(coordinator, text);
    if (!*job) *job = find_live_name(coordinator, text);
    if (!*job && strlen(text) >= 4) GS_TRY(find_prefix(coordinator, job, details, text));
    // The name of ended jobs too, when only one carries it: what people type next after a job ended.
    for (size_t i = coordinator->num_jobs; i-- > 0 && !*job;) {
        if (!strcmp(coordinator->jobs[i]->spec.name, text)) *job = coordinator->jobs[i];
    }
    if (!*job) return gs_error(GS_NOT_FOUND, "no job \"%s\"", text);
    return gs_ok();
}

static void show_reason(gs_coordinator *coordinator, gs_job *job, const char *reason,
                 const char *message) {
    snprintf(job->reason, sizeof job->reason, "%s", reason);
    snprintf(job->message, sizeof job->message, "%s", message);
    gs_coordinator_touch(coordinator, job);
    if (gs_watched(coordinator, job, GS_TOPIC_STATE)) {
        gs_watch_publish(coordinator, job, GS_TOPIC_STATE, gs_job_to_view(job, false));
    }
}

void gs_job_show(gs_coordinator *coordinator, gs_job *job, gs_job_state state, const char *reason,
                 const char *message) {
    if (!gs_job_state_may_follow(job->state, state)) {
        gs_log_error("transition refused", "job=%s from=%s to=%s reason=%s", job->id_text,
                     gs_job_state_name(job->state), gs_job_state_name(state), reason);
        return;
    }
    if (job->state != state) {
        int64_t now_ms = gs_wall_ms();
        if (now_ms > job->state_since_ms) job->spent_ms[job->state] += now_ms - job->state_since_ms;
        job->state_since_ms = now_ms;
    }
    job->state = state;
    show_reason(coordinator, job, reason, message);
}

void gs_job_move(gs_coordinator *coordinator, gs_job *job, gs_job_state state, const char *reason,
                 const char *format, ...) {
    char message[sizeof job->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    gs_event_add_text(coordinator, job, NULL,
                      state == GS_JOB_FAILED ? GS_SEVERITY_ERROR
                      : state == GS_JOB_RECOVERING ? GS_SEVERITY_WARNING : GS_SEVERITY_INFO,
                      reason, message);
    gs_job_show(coordinator, job, state, reason, message);
}

void gs_job_explain(gs_coordinator *coordinator, gs_job *job, const char *reason,
                    const char *format, ...) {
    char message[sizeof job->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!strcmp(job->reason, reason) && !strcmp(job->message, message)) return;
    show_reason(coordinator, job, reason, message);
}

void gs_job_end(gs_coordinator *coordinator, gs_job *job, gs_job_state state, const char *reason,
                const char *format, ...) {
    char message[sizeof job->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    job->ended_ms = gs_wall_ms();
    gs_job_move(coordinator, job, state, reason, "%s", message);
    gs_watch_end_job(coordinator, job);
    gs_job_log_wake(coordinator, job);
    coordinator->schedule_needed = true;
}

void gs_job_stop(gs_coordinator *coordinator, gs_job *job, bool now, gs_job_state outcome,
                 const char *reason, double grace_seconds) {
    if (!job->stop_asked) {
        job->stop_asked = true;
        job->stop_outcome = outcome;
        snprintf(job->stop_reason, sizeof job->stop_reason, "%s", reason);
    }
    if (!job->run) {
        gs_job_end(coordinator, job, job->stop_outcome, reason, "stopped before it ran");
        return;
    }
    bool drains = !now && (job->run->phase == GS_RUN_TRAINING || job->run->phase == GS_RUN_RELOADING);
    if (job->state != GS_JOB_STOPPING) {
        gs_job_move(coordinator, job, GS_JOB_STOPPING, reason,
                    drains ? "finishing the step in flight" : "ending the trainers");
    }
    if (drains) {
        gs_run_drain(coordinator, job->run, reason, job->spec.checkpoint.on_stop, grace_seconds);
    } else if (now || job->run->phase < GS_RUN_TRAINING) {
        gs_run_kill(coordinator, job->run, now ? 0 : 2);
    }
}

// A reply that waits for the store.
typedef struct gs_job_write {
    gs_write base;
    gs_coordinator *coordinator;
    gs_rpc_call_handle *call;  // NULL when its caller went away
    gs_held held;
    uint64_t job;
    char *body;  // owned
    char *key;   // owned; of an idempotent request
    char fingerprint[GS_DIGEST_TEXT_LEN];
    int64_t expires_ms;
    bool creates, deletes, purges;
} gs_job_write;

static void forget_call(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    ((gs_job_write *)owner)->call = NULL;
}

static gs_status write_job(gs_write *base, gs_job_store *store) {
    gs_job_write *write = (gs_job_write *)base;
    if (write->deletes) return gs_job_store_delete_job(store, write->job);
    GS_TRY(gs_job_store_put_job(store, write->job, write->body));
    if (!write->key) return gs_ok();
    return gs_job_store_put_key(store, write->key, write->fingerprint, write->job,
                                write->expires_ms);
}

static void drop_job(gs_coordinator *coordinator, gs_job *job, bool purge) {
    size_t index = 0;
    while (coordinator->jobs[index] != job) index++;
    memmove(&coordinator->jobs[index], &coordinator->jobs[index + 1],
            (coordinator->num_jobs - index - 1) * sizeof *coordinator->jobs);
    coordinator->num_jobs--;
    gs_watch_end_job(coordinator, job);
    gs_events_forget_job(coordinator, job->id);
    gs_metrics_forget(coordinator->metrics, "job_id", job->id_text);
    gs_job_log_remove(coordinator, job);
    if (purge) gs_checkpoints_purge(coordinator, job);
    gs_checkpoints_destroy(job->checkpoints);
    gs_timelines_forget(job);
    gs_job_metrics_destroy(job->metrics);
    gs_run_destroy(job->run);
    gs_job_destroy(job);
}

static gs_json *code_details(const char *code, const char *hint) {
    gs_json *details = gs_json_new_object();
    gs_json_set_string(details, "code", code);
    gs_json_set_string(details, "hint", hint);
    return details;
}

static gs_json *store_details(gs_status status) {
    if (status.code != GS_RESOURCE_EXHAUSTED) return NULL;
    return code_details("storage_full", "free space below the data directory; training goes on");
}

static void job_written(gs_write *base, gs_status status) {
    gs_job_write *write = (gs_job_write *)base;
    gs_coordinator *coordinator = write->coordinator;
    gs_job *job = gs_jobs_by_id(coordinator, write->job);
    gs_key *key = write->key ? gs_keys_find(coordinator->keys, write->key, 0) : NULL;
    if (key) key->in_flight = 0;
    gs_coordinator_note_store(coordinator, status);
    if (status.code) {
        if (write->key) gs_keys_remove(coordinator->keys, write->key);
        if (write->creates && job) drop_job(coordinator, job, false);
        else if (job) {  // what the request changed is written behind
            job->held_back = false;
            job->dirty = true;
            job->dirty_since_ns = gs_now_ns() + GS_NS_PER_SEC;
        }
        if (write->call) gs_rpc_reply(write->call, status, store_details(status));
    } else if (write->deletes) {
        bool purge = write->purges;
        if (job) drop_job(coordinator, job, purge);
        if (write->call) gs_rpc_reply(write->call, gs_ok(), gs_json_new_object());
    } else {
        if (job && write->creates) {
            job->held_back = false;
            coordinator->schedule_needed = true;
        }
        if (write->call) gs_rpc_reply(write->call, gs_ok(), job ? gs_job_to_view(job, true) : NULL);
    }
    free(write->body);
    free(write->key);
    free(write);
}

static void submit_job_write(gs_coordinator *coordinator, gs_rpc_call_handle *call,
                             gs_job_write *write) {
    write->base = (gs_write){.run = write_job, .done = job_written, .touches_store = true};
    write->coordinator = coordinator;
    write->call = call;
    gs_held_keep(&write->held, call, forget_call, write);
    gs_writer_submit(coordinator->writer, &write->base);
}

// A specification that is accepted gets its answer even when its plan cannot be foreseen.
static void reply_dry_run(gs_rpc_call_handle *call, const gs_job_spec *spec) {
    gs_json *reply = gs_json_new_object(), *plan = NULL, *memory = NULL;
    gs_json_set(reply, "spec", gs_job_spec_encode(spec));
    gs_status status = gs_planner_foresee(&plan, &memory, spec);
    if (!status.code) gs_json_set(reply, "plan", plan);
    if (!status.code) gs_json_set(reply, "memory", memory);
    gs_rpc_reply(call, gs_ok(), reply);
}

// Answers by itself and returns true when the key has been used.
static bool replay_key(gs_coordinator *coordinator, gs_rpc_call_handle *call, const char *key,
                       const char *fingerprint) {
    gs_key *known = gs_keys_find(coordinator->keys, key, gs_wall_ms());
    if (!known) return false;
    if (strcmp(known->fingerprint, fingerprint) != 0) {
        gs_rpc_reply(call,
                     gs_error(GS_INVALID_ARGUMENT, "idempotency key used with another body"),
                     code_details("idempotency_mismatch", "use a new key for a new request"));
        return true;
    }
    if (known->in_flight) {
        gs_rpc_reply(call, gs_error(GS_FAILED_PRECONDITION, "the first request is still in flight"),
                     code_details("in_flight", "ask again in a moment"));
        return true;
    }
    gs_job *job = gs_jobs_by_id(coordinator, known->job);
    if (!job) {  // deleted since: the key is free again
        gs_keys_remove(coordinator->keys, key);
        return false;
    }
    gs_json *reply = gs_job_to_view(job, true);
    gs_json_set_bool(reply, "idempotency_replayed", true);
    gs_rpc_reply(call, gs_ok(), reply);
    return true;
}

static void fingerprint_of(char text[GS_DIGEST_TEXT_LEN], const gs_json *spec_json) {
    char *encoded = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&encoded, &bytes, spec_json, false);
    gs_digest_format(text, status.code ? (gs_digest){0} : gs_digest_of(encoded, bytes));
    free(encoded);
}

static gs_status check_new_job(gs_coordinator *coordinator, gs_json **details,
                               const gs_job_spec *spec) {
    if (coordinator->draining) {
        *details = code_details("draining", "the coordinator is going down; try again later");
        return gs_error(GS_UNAVAILABLE, "the coordinator is going down");
    }
    gs_job *other = spec->name[0] ? find_live_name(coordinator, spec->name) : NULL;
    if (!other) return gs_ok();
    *details = code_details("conflict", "stop that job or choose another name");
    return gs_error(GS_ALREADY_EXISTS, "job %s is called \"%s\" already", other->id_text, spec->name);
}

static gs_job *make_job(gs_coordinator *coordinator, gs_job_spec *spec) {
    uint64_t id;
    do id = gs_job_id_make(gs_wall_ms(), gs_coordinator_draw(coordinator));
    while (gs_jobs_by_id(coordinator, id));
    char id_text[GS_JOB_ID_LEN];
    gs_job_id_format(id_text, id);
    if (!spec->name[0]) snprintf(spec->name, sizeof spec->name, "job-%s", id_text + 2);
    gs_json *spec_json = gs_job_spec_encode(spec);
    gs_job *job = spec_json ? gs_job_create(id, spec, spec_json) : NULL;
    if (!job) return NULL;
    job->metrics = gs_job_metrics_create();
    job->checkpoints = gs_checkpoints_create();
    job->log = gs_job_log_create(coordinator, job);
    job->created_ms = job->state_since_ms = job->waiting_since_ms = gs_wall_ms();
    job->held_back = true;  // not scheduled before it is durable
    if (job->metrics && job->checkpoints && job->log && gs_jobs_add(coordinator, job)) return job;
    gs_job_metrics_destroy(job->metrics);
    gs_checkpoints_destroy(job->checkpoints);
    gs_job_log_destroy(job->log);
    gs_job_destroy(job);
    return NULL;
}

static gs_status create_and_store(gs_coordinator *coordinator, gs_rpc_call_handle *call,
                                  gs_job_spec *spec, const char *key, const char *fingerprint) {
    gs_job_write *write = calloc(1, sizeof *write);
    gs_job *job = write ? make_job(coordinator, spec) : NULL;
    if (!job) {
        free(write);
        return gs_error(GS_RESOURCE_EXHAUSTED, "create job: out of memory");
    }
    gs_job_move(coordinator, job, GS_JOB_QUEUED, "WaitingForWorkers", "accepted");
    write->job = job->id;
    write->creates = true;
    if (key) {
        write->key = strdup(key);
        write->expires_ms = gs_wall_ms() + GS_KEY_LIFE_MS;
        snprintf(write->fingerprint, sizeof write->fingerprint, "%s", fingerprint);
        gs_key *known = gs_keys_add(coordinator->keys, key, fingerprint, job->id, write->expires_ms);
        if (known) known->in_flight = 1;
    }
    job->dirty = false;
    gs_status status = gs_job_to_record(&write->body, job);
    if (status.code) {
        free(write->key);
        free(write);
        drop_job(coordinator, job, false);
        return status;
    }
    submit_job_write(coordinator, call, write);
    return gs_ok();
}

void gs_create_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request) {
    (void)peer;
    gs_coordinator *coordinator = ctx;
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors *errors = calloc(1, sizeof *errors);
    gs_json *details = NULL;
    gs_status status = spec && errors ? gs_ok()
                                      : gs_error(GS_RESOURCE_EXHAUSTED, "create job: out of memory");
    if (!status.code) status = gs_job_spec_decode(spec, gs_json_get(request, "spec"), errors);
    if (status.code && errors && errors->count > 0) details = gs_field_errors_to_json(errors);
    const char *key = gs_json_string_or(request, "idempotency_key", NULL);
    char fingerprint[GS_DIGEST_TEXT_LEN] = "";
    bool answered = false;
    if (!status.code && key) {
        fingerprint_of(fingerprint, gs_json_get(request, "spec"));
        answered = replay_key(coordinator, call, key, fingerprint);
    }
    if (!status.code && !answered) status = check_new_job(coordinator, &details, spec);
    if (!status.code && !answered) {
        if (gs_json_bool_or(request, "dry_run", false)) reply_dry_run(call, spec);
        else status = create_and_store(coordinator, call, spec, key, fingerprint);
    }
    if (status.code) gs_rpc_reply(call, status, details);
    free(spec);
    free(errors);
}

void gs_stop_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                 const gs_json *request) {
    (void)peer;
    gs_coordinator *coordinator = ctx;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_jobs_find(coordinator, &job, &details, request);
    const char *outcome = gs_json_string_or(request, "outcome", "cancelled");
    const char *mode = gs_json_string_or(request, "mode", "graceful");
    if (!status.code && strcmp(outcome, "cancelled") != 0 && strcmp(outcome, "succeeded") != 0) {
        status = gs_error(GS_INVALID_ARGUMENT, "outcome: must be cancelled or succeeded");
    }
    if (!status.code && strcmp(mode, "graceful") != 0 && strcmp(mode, "now") != 0) {
        status = gs_error(GS_INVALID_ARGUMENT, "mode: must be graceful or now");
    }
    double grace_seconds = gs_json_double_or(
        request, "grace_seconds", (double)coordinator->timing.drain_ns / GS_NS_PER_SEC);
    if (!status.code && !(grace_seconds >= 0 && grace_seconds <= MAX_GRACE_SECONDS)) {
        status = gs_error(GS_INVALID_ARGUMENT, "grace_seconds: must be between 0 and %d",
                          MAX_GRACE_SECONDS);
    }
    gs_job_write *write = status.code ? NULL : calloc(1, sizeof *write);
    if (!status.code && !write) status = gs_error(GS_RESOURCE_EXHAUSTED, "stop job: out of memory");
    if (!status.code && gs_job_state_terminal(job->state)) {  // idempotent
        gs_rpc_reply(call, gs_ok(), gs_job_to_view(job, true));
        free(write);
        return;
    }
    if (!status.code) {
        gs_job_stop(coordinator, job, !strcmp(mode, "now"),
                    !strcmp(outcome, "succeeded") ? GS_JOB_SUCCEEDED : GS_JOB_CANCELLED,
                    "StoppedByUser", grace_seconds);
        write->job = job->id;
        status = gs_job_to_record(&write->body, job);
        job->dirty = false;
    }
    if (status.code) {
        free(write);
        gs_rpc_reply(call, status, details);
        return;
    }
    submit_job_write(coordinator, call, write);
}

void gs_delete_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request) {
    (void)peer;
    gs_coordinator *coordinator = ctx;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_jobs_find(coordinator, &job, &details, request);
    if (!status.code && !gs_job_state_terminal(job->state)) {
        details = code_details("wrong_state", "stop the job first");
        status = gs_error(GS_FAILED_PRECONDITION, "job %s is %s", job->id_text,
                          gs_job_state_name(job->state));
    }
    gs_job_write *write = status.code ? NULL : calloc(1, sizeof *write);
    if (!status.code && !write) status = gs_error(GS_RESOURCE_EXHAUSTED, "delete job: out of memory");
    if (status.code) {
        gs_rpc_reply(call, status, details);
        return;
    }
    write->job = job->id;
    write->deletes = true;
    write->purges = gs_json_bool_or(request, "purge", false);
    job->held_back = true;
    submit_job_write(coordinator, call, write);
}
