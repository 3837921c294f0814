#include "coordinator/store/record/job_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/job_table.h"
#include "coordinator/model/run.h"
#include "coordinator/store/record/param_order.h"
#include "coordinator/store/record/run_record.h"
#include "core/clock.h"

// Checkpoints that are none any more, whatever their own rows say yet: those may be what the disk refuses, and another life would
// take them for good. NULL: there are none.
static gs_json *gone_to_record(const gs_checkpoints *checkpoints) {
    gs_json *gone = NULL;
    for (size_t i = 0; i < checkpoints->count; i++) {
        const gs_checkpoint *item = &checkpoints->items[i];
        if (item->state != GS_CHECKPOINT_DELETING || !item->is_gone) continue;
        if (!gone) gone = gs_json_new_array();
        gs_json_push(gone, gs_json_new_string(item->directory));
    }
    return gone;
}

static void read_gone(gs_checkpoints *checkpoints, const gs_json *gone) {
    for (size_t i = 0; i < gs_json_count(gone); i++) {
        const char *name = gs_json_string(gs_json_at(gone, i));
        if (!name || strlen(name) >= GS_CHECKPOINT_NAME_LEN || gs_checkpoints_find(checkpoints, name)) continue;
        gs_checkpoint *item = gs_checkpoints_add(checkpoints, name);
        item->state = GS_CHECKPOINT_DELETING;
        item->is_gone = true;
    }
}

// As wall-clock times, as they always were: an age counts from the creation.
static gs_json *restarts_to_record(const gs_job *job) {
    gs_json *times = gs_json_new_array();
    for (int i = 0; i < job->num_restart_ages; i++) {
        gs_json_push(times, gs_json_new_int(job->created_ms + job->restart_ages_ns[i] / GS_NS_PER_MS));
    }
    return times;
}

static gs_json *plan_to_record(const gs_plan_facts *plan) {
    gs_json *record = gs_json_new_object();
    gs_json_set_string(record, "hash", plan->hash);
    gs_json_set_string(record, "reason", plan->reason);
    gs_json_set_int(record, "since_step", plan->since_step);
    gs_json_set_int(record, "num_buckets", (int64_t)plan->num_buckets);
    return record;
}

static void set_document(gs_json *record, const char *key, gs_json *document) {
    if (document) gs_json_set(record, key, gs_json_retain(document));
}

static void set_facts(gs_json *record, const gs_job *job, int64_t now_ns) {
    gs_json_set_string(record, "state", gs_job_state_name(job->state));
    gs_json_set_string(record, "reason", job->reason);
    gs_json_set_string(record, "message", job->message);
    gs_json_set_int(record, "created_ms", job->created_ms);
    gs_json_set_int(record, "started_ms", job->started_ms);
    gs_json_set_int(record, "ended_ms", job->ended_ms);
    gs_json_set_int(record, "state_since_ms", job->state_since_ms);
    gs_json_set_int(record, "age_ms", gs_job_age_ns(job, now_ns) / GS_NS_PER_MS);
    gs_json_set_int(record, "version", (int64_t)job->version);
    gs_json_set_bool(record, "stop_asked", job->stop_asked);
    gs_json_set_string(record, "stop_outcome", gs_job_state_name(job->stop_outcome));
    gs_json_set_string(record, "stop_reason", job->stop_reason);
    if (job->adopted_from[0]) gs_json_set_string(record, "adopted_from", job->adopted_from);
    if (job->written_as[0]) gs_json_set_string(record, "written_as", job->written_as);
    if (job->adopted_step) gs_json_set_int(record, "adopted_step", job->adopted_step);
    if (job->least_generation) gs_json_set_int(record, "least_generation", job->least_generation);
    gs_json_set_int(record, "generation", job->generation);
    if (job->begun_generation != job->generation) gs_json_set_int(record, "begun_generation", job->begun_generation);
    gs_json_set_int(record, "world_size", job->world_size);
    gs_json_set_int(record, "step", job->step);
    gs_json_set_bool(record, "committed", job->committed);
    gs_json_set_int(record, "restarts", job->restarts);
    gs_json_set_int(record, "reached_step", job->reached_step);
    gs_json_set_int(record, "lost_steps", job->lost_steps);
    gs_json_set(record, "restart_times_ms", restarts_to_record(job));
    gs_json_set_int(record, "startup_failures", job->startup_failures);
    gs_json_set_int(record, "plan_revision", job->plan.revision);
    if (job->plan.hash[0]) gs_json_set(record, "plan_facts", plan_to_record(&job->plan));
    gs_json_set_int(record, "world_wanted", job->world_wanted);
    if (job->checkpoints.is_given_up) gs_json_set_bool(record, "disk_given_up", true);
    if (job->begun_step) gs_json_set_int(record, "begun_step", job->begun_step);
    if (job->begun_directory[0]) gs_json_set_string(record, "begun_directory", job->begun_directory);
    if (job->left_generation) gs_json_set_int(record, "left_generation", job->left_generation);
    if (job->left_step) gs_json_set_int(record, "left_step", job->left_step);
    if (job->go_on_step) gs_json_set_int(record, "go_on_step", job->go_on_step);
    gs_json_set(record, "gone", gone_to_record(&job->checkpoints));
}

gs_status gs_job_to_record(char **text, const gs_job *job, const gs_job_documents *documents, int64_t now_ns) {
    gs_json *record = gs_json_new_object();
    set_document(record, "spec", documents->spec);
    set_facts(record, job, now_ns);
    set_document(record, "failure", documents->failure);
    set_document(record, "final_workers", documents->final_workers);
    set_document(record, "plan", documents->plan);
    set_document(record, "plan_history", documents->plan_history);
    set_document(record, "plan_rebuilds", documents->plan_rebuilds);
    if (job->ready_order.params) gs_json_set(record, "ready_order", gs_param_order_encode(&job->ready_order));
    if (job->link.ready_seconds) gs_json_set(record, "link", gs_link_message_encode(&job->link));
    if (job->link_generation) gs_json_set_int(record, "link_generation", job->link_generation);
    gs_json_set_string(record, "order_reason", job->order_reason);
    gs_json_set_string(record, "sample", documents->sample);
    if (job->run) gs_json_set(record, "run", gs_run_to_record(job->run));
    gs_status status = gs_json_encode(text, NULL, record, false);
    gs_json_release(record);
    return status;
}

static gs_json *labels_of(const gs_job_spec *spec) {
    gs_json *labels = gs_json_new_object();
    for (int i = 0; i < spec->num_labels; i++) gs_json_set_string(labels, spec->labels[i].key, spec->labels[i].value);
    return labels;
}

gs_status gs_job_to_card(char **text, const gs_job *job, const gs_job_documents *documents, int64_t now_ns) {
    gs_json *card = gs_json_new_object();
    gs_json_set_string(card, "name", job->spec.name);
    if (job->spec.num_labels > 0) gs_json_set(card, "labels", labels_of(&job->spec));
    gs_json_set_int(card, "target", job->spec.steps.target);
    gs_json_set_int(card, "keep_last", job->spec.checkpoint.keep_last);
    set_facts(card, job, now_ns);
    if (documents->failure) gs_json_set(card, "failure", gs_failure_in_short(documents->failure));
    char *sample = gs_sample_in_short(documents->sample);
    gs_json_set_string(card, "sample", sample);
    free(sample);
    gs_status status = gs_json_encode(text, NULL, card, false);
    gs_json_release(card);
    return status;
}

static gs_json *take_copy(const gs_json *record, const char *key) {
    const gs_json *value = gs_json_get(record, key);
    return value ? gs_json_copy(value) : NULL;
}

static void read_text(char *text, size_t text_bytes, const gs_json *record, const char *key) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(record, key, ""));
}

static void read_numbers(gs_job *job, const gs_json *record) {
    job->created_ms = gs_json_int_or(record, "created_ms", 0);
    job->started_ms = gs_json_int_or(record, "started_ms", 0);
    job->ended_ms = gs_json_int_or(record, "ended_ms", 0);
    job->state_since_ms = gs_json_int_or(record, "state_since_ms", 0);
    job->version = (uint64_t)gs_json_int_or(record, "version", 1);
    job->stop_asked = gs_json_bool_or(record, "stop_asked", false);
    job->generation = (uint32_t)gs_json_int_or(record, "generation", 0);
    job->begun_generation = (uint32_t)gs_json_int_or(record, "begun_generation", job->generation);
    job->adopted_step = gs_json_int_or(record, "adopted_step", 0);
    job->least_generation = (uint32_t)gs_json_int_or(record, "least_generation", 0);
    job->world_size = (int)gs_json_int_or(record, "world_size", 0);
    job->step = gs_json_int_or(record, "step", 0);
    job->committed = gs_json_bool_or(record, "committed", false);
    job->restarts = gs_json_int_or(record, "restarts", 0);
    job->reached_step = gs_json_int_or(record, "reached_step", 0);
    job->lost_steps = gs_json_int_or(record, "lost_steps", 0);
    job->startup_failures = (int)gs_json_int_or(record, "startup_failures", 0);
    job->world_wanted = (int)gs_json_int_or(record, "world_wanted", 0);
    job->checkpoints.is_given_up = gs_json_bool_or(record, "disk_given_up", false);
    job->begun_step = gs_json_int_or(record, "begun_step", 0);
    read_text(job->begun_directory, sizeof job->begun_directory, record, "begun_directory");
    job->left_generation = (uint32_t)gs_json_int_or(record, "left_generation", 0);
    job->left_step = gs_json_int_or(record, "left_step", 0);
    job->go_on_step = gs_json_int_or(record, "go_on_step", 0);
    read_gone(&job->checkpoints, gs_json_get(record, "gone"));
}

// A record of before has no age: it is what the wall clock says.
static void read_ages(gs_job *job, const gs_json *record, int64_t now_ns, int64_t wall_ms) {
    int64_t age_ms = gs_json_int_or(record, "age_ms", wall_ms - job->created_ms);
    if (age_ms < 0) age_ms = 0;
    if (age_ms > INT64_MAX / 2 / GS_NS_PER_MS) age_ms = INT64_MAX / 2 / GS_NS_PER_MS;
    job->age_ns = age_ms * GS_NS_PER_MS;
    job->aged_ns = now_ns;
    const gs_json *times = gs_json_get(record, "restart_times_ms");
    for (size_t i = 0; i < gs_json_count(times) && i < GS_JOB_MAX_RESTARTS_KEPT; i++) {
        int64_t at_ms = 0;
        if (!gs_json_int(&at_ms, gs_json_at(times, i))) continue;
        int64_t restart_ms = at_ms < job->created_ms ? 0 : at_ms - job->created_ms;
        if (restart_ms > age_ms) restart_ms = age_ms;
        job->restart_ages_ns[job->num_restart_ages++] = restart_ms * GS_NS_PER_MS;
    }
}

// A record of before has them in what people are shown alone.
static void read_plan(gs_plan_facts *plan, const gs_json *record) {
    const gs_json *facts = gs_json_get(record, "plan_facts"), *document = gs_json_get(record, "plan");
    const gs_json *from = facts ? facts : document;
    plan->revision = (int)gs_json_int_or(record, "plan_revision", 0);
    read_text(plan->hash, sizeof plan->hash, from, "hash");
    read_text(plan->reason, sizeof plan->reason, from, "reason");
    plan->since_step = gs_json_int_or(from, "since_step", 0);
    int64_t num_buckets = facts ? gs_json_int_or(facts, "num_buckets", 0) : (int64_t)gs_json_count(gs_json_get(document, "buckets"));
    plan->num_buckets = num_buckets > 0 ? (size_t)num_buckets : 0;
}

// An order that is none is no order: the next one that a rank tells takes its place.
static void read_order(gs_param_order *order, const gs_json *list) {
    gs_status status = list ? gs_param_order_decode(order, list) : gs_ok();
    if (status.code) *order = (gs_param_order){0};
}

// One that cannot be read is measured again.
static void read_link(gs_link_report *link, const gs_json *message) {
    gs_status status = message ? gs_link_message_decode(link, message) : gs_ok();
    if (status.code) *link = (gs_link_report){0};
}

static void read_documents(gs_job_documents *documents, const gs_json *record) {
    documents->failure = take_copy(record, "failure");
    documents->final_workers = take_copy(record, "final_workers");
    documents->plan = take_copy(record, "plan");
    documents->plan_history = take_copy(record, "plan_history");
    documents->plan_rebuilds = take_copy(record, "plan_rebuilds");
    if (!documents->plan_rebuilds) documents->plan_rebuilds = gs_json_new_object();
    const char *sample = gs_json_string_or(record, "sample", NULL);
    documents->sample = sample ? strdup(sample) : NULL;
}

// Who had its ranks is what people are shown of its last run.
static void read_last_workers(gs_job *job, const gs_json *final_workers) {
    for (size_t i = 0; i < gs_json_count(final_workers); i++) {
        const char *worker = gs_json_string_or(gs_json_at(final_workers, i), "worker", "");
        if (*worker) gs_job_note_worker(job, worker);
    }
}

static gs_status fill_job(gs_job *job, const gs_json *record) {
    if (!gs_job_state_from_name(&job->state, gs_json_string_or(record, "state", "")) ||
        !gs_job_state_from_name(&job->stop_outcome,
                                gs_json_string_or(record, "stop_outcome", "cancelled"))) {
        return gs_error(GS_DATA_LOSS, "job %s: unknown state", job->id_text);
    }
    read_text(job->reason, sizeof job->reason, record, "reason");
    read_text(job->message, sizeof job->message, record, "message");
    read_text(job->stop_reason, sizeof job->stop_reason, record, "stop_reason");
    read_text(job->adopted_from, sizeof job->adopted_from, record, "adopted_from");
    read_text(job->written_as, sizeof job->written_as, record, "written_as");
    read_text(job->order_reason, sizeof job->order_reason, record, "order_reason");
    read_numbers(job, record);
    // What the state says by itself (model/transitions.c): without it the job could not leave that state.
    job->committed |= job->state == GS_JOB_RUNNING || job->state == GS_JOB_RECOVERING;
    job->stop_asked |= job->state == GS_JOB_STOPPING;
    read_plan(&job->plan, record);
    read_order(&job->ready_order, gs_json_get(record, "ready_order"));
    read_link(&job->link, gs_json_get(record, "link"));
    job->link_generation = (uint32_t)gs_json_int_or(record, "link_generation", 0);
    return gs_ok();
}

// It was accepted once, by whatever version wrote it: what a stricter one would refuse counts as it is.
static gs_status decode_spec(gs_job_spec *spec, const gs_json *document) {
    gs_field_errors *errors = calloc(1, sizeof *errors);
    if (!errors) return gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
    gs_status status = gs_job_spec_decode_stored(spec, document, errors);
    if (status.code && errors->count > 0)
        status = gs_error(status.code, "%s: %s", errors->items[0].pointer, errors->items[0].message);
    free(errors);
    return status;
}

static gs_status read_spec(gs_job **job, uint64_t id, const gs_json *document) {
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_status status = spec ? decode_spec(spec, document) : gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
    if (!status.code) {
        *job = gs_job_create(id, spec);
        if (!*job) status = gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
    }
    free(spec);
    return status;
}

gs_status gs_job_from_record(gs_job **out, gs_job_documents *documents, uint64_t id, const char *text,
                             int64_t now_ns, int64_t wall_ms) {
    gs_json *record = NULL;
    gs_job *job = NULL;
    GS_TRY(gs_json_parse(&record, text, strlen(text)));
    gs_status status = read_spec(&job, id, gs_json_get(record, "spec"));
    if (!status.code) status = fill_job(job, record);
    if (!status.code) {
        read_ages(job, record, now_ns, wall_ms);
        job->ended_ns = now_ns;  // where nobody knows better
        if (!gs_job_state_terminal(job->state)) {
            job->run = gs_run_from_record(job, gs_json_get(record, "run"), now_ns);
            read_last_workers(job, gs_json_get(record, "final_workers"));
        }
        job->waiting_since_ms = wall_ms;
        job->waiting_since_ns = now_ns;
        *documents = (gs_job_documents){.spec = take_copy(record, "spec")};
        read_documents(documents, record);
        *out = job;
    } else {
        gs_job_destroy(job);
    }
    gs_json_release(record);
    return status;
}

static bool read_label(void *ctx, const char *key, const gs_json *value) {
    gs_job_spec *spec = ctx;
    if (spec->num_labels == (int)(sizeof spec->labels / sizeof spec->labels[0])) return false;
    gs_job_label *label = &spec->labels[spec->num_labels++];
    const char *text = gs_json_string(value);
    snprintf(label->key, sizeof label->key, "%s", key);
    snprintf(label->value, sizeof label->value, "%s", text ? text : "");
    return true;
}

gs_status gs_job_from_card(gs_job **out, gs_job_documents *documents, uint64_t id, const char *text, int64_t now_ns,
                           int64_t wall_ms) {
    gs_json *card = NULL;
    GS_TRY(gs_json_parse(&card, text, strlen(text)));
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_job *job = spec ? gs_job_create(id, spec) : NULL;
    free(spec);
    gs_status status = job ? fill_job(job, card) : gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
    if (!status.code && !gs_job_state_terminal(job->state))
        status = gs_error(GS_DATA_LOSS, "job %s: its card says that it is %s", job->id_text, gs_job_state_name(job->state));
    if (!status.code) {
        read_text(job->spec.name, sizeof job->spec.name, card, "name");
        gs_json_each(gs_json_get(card, "labels"), read_label, &job->spec);
        job->spec.steps.target = gs_json_int_or(card, "target", 0);
        job->spec.checkpoint.keep_last = gs_json_int_or(card, "keep_last", 0);  // 0: not told
        read_ages(job, card, now_ns, wall_ms);
        const char *sample = gs_json_string_or(card, "sample", NULL);
        *documents = (gs_job_documents){.failure = take_copy(card, "failure"), .sample = sample ? strdup(sample) : NULL};
        *out = job;
    } else {
        gs_job_destroy(job);
    }
    gs_json_release(card);
    return status;
}

gs_status gs_job_documents_from_record(gs_job_documents *out, gs_job_spec *spec, const char *text) {
    gs_json *record = NULL;
    GS_TRY(gs_json_parse(&record, text, strlen(text)));
    gs_status status = decode_spec(spec, gs_json_get(record, "spec"));
    if (!status.code) {
        *out = (gs_job_documents){.spec = take_copy(record, "spec")};
        read_documents(out, record);
    }
    gs_json_release(record);
    return status;
}
