#include "coordinator/job_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/run.h"

gs_status gs_job_to_record(char **text, const gs_job *job) {
    gs_json *record = gs_json_new_object();
    gs_json_set(record, "spec", gs_json_retain(job->spec_json));
    gs_json_set_string(record, "state", gs_job_state_name(job->state));
    gs_json_set_string(record, "reason", job->reason);
    gs_json_set_string(record, "message", job->message);
    gs_json_set_int(record, "created_ms", job->created_ms);
    gs_json_set_int(record, "started_ms", job->started_ms);
    gs_json_set_int(record, "ended_ms", job->ended_ms);
    gs_json_set_int(record, "state_since_ms", job->state_since_ms);
    gs_json_set_int(record, "version", (int64_t)job->version);
    gs_json_set_bool(record, "stop_asked", job->stop_asked);
    gs_json_set_string(record, "stop_outcome", gs_job_state_name(job->stop_outcome));
    gs_json_set_string(record, "stop_reason", job->stop_reason);
    gs_json_set_int(record, "generation", job->generation);
    gs_json_set_int(record, "world_size", job->world_size);
    gs_json_set_int(record, "step", job->step);
    gs_json_set_bool(record, "committed", job->committed);
    gs_json_set_int(record, "restarts", job->restarts);
    gs_json_set_int(record, "reached_step", job->reached_step);
    gs_json_set_int(record, "lost_steps", job->lost_steps);
    gs_json *times = gs_json_new_array();
    for (int i = 0; i < job->num_restart_times; i++) {
        gs_json_push(times, gs_json_new_int(job->restart_times_ms[i]));
    }
    gs_json_set(record, "restart_times_ms", times);
    gs_json_set_int(record, "startup_failures", job->startup_failures);
    gs_json_set_int(record, "plan_revision", job->plan_revision);
    gs_json_set_int(record, "world_wanted", job->world_wanted);
    if (job->failure) gs_json_set(record, "failure", gs_json_retain(job->failure));
    if (job->final_runs) gs_json_set(record, "final_workers", gs_json_retain(job->final_runs));
    if (job->plan) gs_json_set(record, "plan", gs_json_retain(job->plan));
    if (job->plan_history) {
        gs_json_set(record, "plan_history", gs_json_retain(job->plan_history));
    }
    gs_json_set(record, "plan_rebuilds", gs_json_retain(job->plan_rebuilds));
    if (job->ready_order) gs_json_set(record, "ready_order", gs_json_retain(job->ready_order));
    gs_json_set_string(record, "order_reason", job->order_reason);
    gs_json_set_string(record, "sample", job->sample);
    if (job->run) gs_json_set(record, "run", gs_run_to_record(job->run));
    gs_status status = gs_json_encode(text, NULL, record, false);
    gs_json_release(record);
    return status;
}

static gs_json *take_copy(const gs_json *record, const char *key) {
    const gs_json *value = gs_json_get(record, key);
    return value ? gs_json_copy(value) : NULL;
}

static void read_numbers(gs_job *job, const gs_json *record) {
    job->created_ms = gs_json_int_or(record, "created_ms", 0);
    job->started_ms = gs_json_int_or(record, "started_ms", 0);
    job->ended_ms = gs_json_int_or(record, "ended_ms", 0);
    job->state_since_ms = gs_json_int_or(record, "state_since_ms", 0);
    job->version = (uint64_t)gs_json_int_or(record, "version", 1);
    job->stop_asked = gs_json_bool_or(record, "stop_asked", false);
    job->generation = (uint32_t)gs_json_int_or(record, "generation", 0);
    job->world_size = (int)gs_json_int_or(record, "world_size", 0);
    job->step = gs_json_int_or(record, "step", 0);
    job->committed = gs_json_bool_or(record, "committed", false);
    job->restarts = gs_json_int_or(record, "restarts", 0);
    job->reached_step = gs_json_int_or(record, "reached_step", 0);
    job->lost_steps = gs_json_int_or(record, "lost_steps", 0);
    job->startup_failures = (int)gs_json_int_or(record, "startup_failures", 0);
    job->plan_revision = (int)gs_json_int_or(record, "plan_revision", 0);
    job->world_wanted = (int)gs_json_int_or(record, "world_wanted", 0);
    const gs_json *times = gs_json_get(record, "restart_times_ms");
    for (size_t i = 0; i < gs_json_count(times) && i < GS_JOB_MAX_RESTART_TIMES; i++) {
        int64_t at_ms = 0;
        if (gs_json_int(&at_ms, gs_json_at(times, i))) {
            job->restart_times_ms[job->num_restart_times++] = at_ms;
        }
    }
}

static gs_status fill_job(gs_job *job, const gs_json *record) {
    if (!gs_job_state_from_name(&job->state, gs_json_string_or(record, "state", "")) ||
        !gs_job_state_from_name(&job->stop_outcome,
                                gs_json_string_or(record, "stop_outcome", "cancelled"))) {
        return gs_error(GS_DATA_LOSS, "job %s: unknown state", job->id_text);
    }
    snprintf(job->reason, sizeof job->reason, "%s", gs_json_string_or(record, "reason", ""));
    snprintf(job->message, sizeof job->message, "%s", gs_json_string_or(record, "message", ""));
    snprintf(job->stop_reason, sizeof job->stop_reason, "%s",
             gs_json_string_or(record, "stop_reason", ""));
    read_numbers(job, record);
    job->failure = take_copy(record, "failure");
    job->final_runs = take_copy(record, "final_workers");
    job->plan = take_copy(record, "plan");
    job->plan_history = take_copy(record, "plan_history");
    job->ready_order = take_copy(record, "ready_order");
    gs_json *rebuilds = take_copy(record, "plan_rebuilds");
    if (rebuilds) {
        gs_json_release(job->plan_rebuilds);
        job->plan_rebuilds = rebuilds;
    }
    snprintf(job->order_reason, sizeof job->order_reason, "%s",
             gs_json_string_or(record, "order_reason", ""));
    const char *sample = gs_json_string_or(record, "sample", NULL);
    if (sample) job->sample = strdup(sample);
    if (!gs_job_state_terminal(job->state)) {
        job->run = gs_run_from_record(job, gs_json_get(record, "run"));
    }
    return gs_ok();
}

gs_status gs_job_from_record(gs_job **out, uint64_t id, const char *text) {
    gs_json *record = NULL;
    GS_TRY(gs_json_parse(&record, text, strlen(text)));
    gs_json *spec_json = take_copy(record, "spec");
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors *errors = calloc(1, sizeof *errors);
    gs_status status = spec && errors ? gs_job_spec_decode(spec, spec_json, errors)
                                      : gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
    if (status.code && errors && errors->count > 0)
        status = gs_error(status.code, "%s: %s", errors->items[0].pointer, errors->items[0].message);
    gs_job *job = status.code ? NULL : gs_job_create(id, spec, spec_json);
    if (!status.code && !job) status = gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
    else if (status.code) gs_json_release(spec_json);
    if (!status.code) status = fill_job(job, record);
    free(spec);
    free(errors);
    gs_json_release(record);
    if (status.code) {
        if (job) gs_run_destroy(job->run);
        gs_job_destroy(job);
        return status;
    }
    *out = job;
    return gs_ok();
}
