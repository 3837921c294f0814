#include "coordinator/observe/sights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/counters.h"
#include "coordinator/observe/curves.h"
#include "coordinator/observe/events.h"
#include "coordinator/observe/job_log.h"
#include "coordinator/observe/job_plans.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/job_view.h"
#include "coordinator/observe/recall.h"
#include "coordinator/observe/timelines.h"
#include "coordinator/observe/views/failure_view.h"
#include "coordinator/observe/views/plan_view.h"
#include "coordinator/observe/watch.h"
#include "coordinator/observe/worker_view.h"
#include "coordinator/store/record/checkpoint_record.h"
#include "core/clock.h"
#include "core/log.h"

#define MAX_SERIES 20000
#define REST_LOOK_NS GS_NS_PER_SEC
#define MOST_UNREADABLE_NAMED 5
#define RECALLED_NS (60 * GS_NS_PER_SEC)  // kept in case somebody asks again

gs_status gs_observer_create(gs_observer **out, const gs_observer_options *options) {
    gs_observer *observer = calloc(1, sizeof *observer);
    if (!observer) return gs_error(GS_RESOURCE_EXHAUSTED, "observer: out of memory");
    observer->state = options->state;
    observer->data_dir = options->data_dir;
    observer->started_ns = gs_now_ns();
    observer->watchers = gs_watchers_create();
    observer->metrics = gs_metrics_create(MAX_SERIES);
    observer->no_metrics = gs_job_metrics_create();
    observer->recalls = gs_recalls_create();
    gs_status status = observer->watchers && observer->metrics && observer->no_metrics && observer->recalls
                           ? gs_events_create(&observer->events, options->store, options->next_sequence)
                           : gs_error(GS_RESOURCE_EXHAUSTED, "observer: out of memory");
    if (status.code) gs_observer_destroy(observer);
    else *out = observer;
    return status;
}

void gs_observer_destroy(gs_observer *observer) {
    if (!observer) return;
    gs_watchers_destroy(observer->watchers);
    gs_recalls_destroy(observer->recalls);
    gs_job_metrics_destroy(observer->no_metrics);
    gs_events_destroy(observer->events);
    gs_metrics_destroy(observer->metrics);
    free(observer);
}

static void note_state(gs_job_sight *sight, const gs_job *job) {
    sight->state_before = job->state;
    sight->before_since_ms = job->state_since_ms;
}

bool gs_observer_meet(gs_observer *observer, gs_job *job, gs_job_documents *documents, bool was_stored) {
    gs_job_sight *sight = calloc(1, sizeof *sight);
    if (!sight) {
        gs_job_documents_release(documents);
        return false;
    }
    sight->documents = *documents;
    *documents = (gs_job_documents){0};
    gs_plan_view_seal(sight->documents.plan);
    job->sight = sight;
    sight->metrics = observer->no_metrics;
    note_state(sight, job);
    sight->log = gs_job_log_create(observer, job);
    sight->curves = gs_curves_create(was_stored);
    bool may_report = !gs_job_state_terminal(job->state);
    if (sight->log && sight->curves && (!may_report || gs_sight_own_metrics(observer, job))) return true;
    gs_observer_forget(observer, job);
    return false;
}

void gs_observer_forget(gs_observer *observer, gs_job *job) {
    gs_job_sight *sight = job->sight;
    if (!sight) return;
    gs_timelines_forget(observer, job);
    if (sight->metrics != observer->no_metrics) gs_job_metrics_destroy(sight->metrics);
    gs_curves_destroy(sight->curves);
    gs_job_log_destroy(sight->log);
    gs_past_ranks_release(&sight->past);
    gs_job_documents_release(&sight->documents);
    gs_json_release(sight->line.text);
    free(sight);
    job->sight = NULL;
}

static void add_job(gs_observer *observer, gs_job *job) {
    gs_job_documents documents = gs_job_documents_of(&job->spec);
    // Nothing of it could be shown, and it is on its way to the disk: the next life finds it.
    if (!gs_observer_meet(observer, job, &documents, false)) abort();
    job->sight->has_no_row = true;
}

static void drop_job(gs_observer *observer, gs_job *job) {
    gs_watch_end_job(observer, job);
    gs_events_forget_job(observer, job->id);
    gs_metrics_forget(observer->metrics, "job_id", job->id_text);
    gs_recall_forget(observer, job);
    gs_job_log_remove(observer, job);
    gs_observer_forget(observer, job);
}

static void publish_state(gs_observer *observer, const gs_job *job) {
    if (gs_watched(observer, job, GS_TOPIC_STATE))
        gs_watch_publish(observer, job, GS_TOPIC_STATE, gs_job_to_view(job, false));
}

static void show_job(gs_observer *observer, gs_job *job) {
    gs_job_sight *sight = job->sight;
    if (!gs_job_state_terminal(job->state)) note_state(sight, job);
    else if (sight->end_version || job->state != sight->state_before) return;  // shown with the row
    if (!sight->has_no_row) publish_state(observer, job);
}

static void end_job(gs_job *job) {
    job->sight->ended_ns = gs_now_ns();
    job->sight->end_version = job->version;
}

// Its end, or that there is a job at all.
static void tell_stored(gs_observer *observer, gs_job *job) {
    publish_state(observer, job);
    if (!gs_sight_has_ended(job)) return;
    gs_watch_end_job(observer, job);
    gs_job_log_wake(observer, job);
}

void gs_observer_note_row(gs_observer *observer, uint64_t id, uint64_t version, gs_status status) {
    gs_job *job = gs_job_table_get(&observer->state->jobs, id);
    gs_job_sight *sight = job ? job->sight : NULL;
    if (!sight) return;
    if (sight->rows_on_their_way > 0) sight->rows_on_their_way--;
    sight->row_failed = status.code != GS_OK;
    if (status.code) return;
    bool is_first = sight->has_no_row, is_end = sight->end_version && version >= sight->end_version;
    sight->has_no_row = false;
    if (is_end) {
        sight->end_version = 0;
        note_state(sight, job);
    }
    if (is_first || is_end) tell_stored(observer, job);
}

static void begin_generation(gs_observer *observer, gs_job *job, const gs_run *run) {
    gs_job_metrics_begin_generation(job->sight->metrics, run->num_members);
    gs_timelines_forget(observer, job);
}

// Members are in the order of ranks.
static void note_ranks(const gs_observer *observer, gs_job_sight *sight, const gs_run *run) {
    if (!observer->gate) return;  // nobody is asked whose they were
    for (int i = 0; i < run->num_members; i++)
        gs_past_ranks_add(&sight->past, run->members[i].worker, i, run->generation);
}

static void replace(gs_json **document, gs_json *made) {
    gs_json_release(*document);
    *document = made;
}

static void show_checkpoint(gs_observer *observer, gs_job *job, const gs_checkpoint *item) {
    gs_save_facts *saves = &job->sight->saves;
    saves->last_success_ms = item->created_ms;
    saves->last_success_step = item->step;
    saves->last_bytes = item->bytes;
    saves->last_verified_ms = gs_wall_ms();
    gs_histogram_observe(&saves->save_seconds, gs_checkpoint_bounds, 12, item->seconds);
    gs_json *data = gs_checkpoint_to_view(item);
    gs_json_set_string(data, "job", job->id_text);
    gs_watch_publish(observer, job, GS_TOPIC_CHECKPOINT, data);
}

static void show_plan(gs_observer *observer, const gs_effect *effect) {
    gs_job_plans_see(effect);
    // A step in which a plan was made does little else.
    if (effect->run->phase < GS_RUN_TRAINING) gs_counters_plan_made(observer, observer->step_seconds);
}

static void log_line(const gs_effect *effect) {
    static const gs_log_level levels[] = {GS_LOG_INFO, GS_LOG_WARN, GS_LOG_ERROR};
    gs_log(levels[effect->log.severity], effect->log.event, "%s", effect->text);
}

void gs_observer_see(gs_observer *observer, const gs_effect *effect) {
    gs_job *job = effect->job;
    switch (effect->kind) {
    case GS_DO_NOTE: gs_events_see(observer, effect); break;
    case GS_DO_LOG: log_line(effect); break;
    case GS_DO_ADD_JOB: add_job(observer, job); break;
    case GS_DO_SHOW_JOB: show_job(observer, job); break;
    case GS_DO_END_JOB: end_job(job); break;
    case GS_DO_DROP_JOB: drop_job(observer, job); break;
    case GS_DO_BEGIN_GENERATION: begin_generation(observer, job, effect->run); break;
    case GS_DO_END_RUN:
        note_ranks(observer, job->sight, effect->run);
        replace(&job->sight->documents.final_workers, gs_run_members_to_view(job, effect->run));
        break;
    case GS_DO_SHOW_FAILURE: replace(&job->sight->documents.failure, gs_failure_to_view(effect->run)); break;
    case GS_DO_SHOW_PLAN: show_plan(observer, effect); break;
    case GS_DO_SHOW_WORKER:
        gs_watch_publish(observer, NULL, GS_TOPIC_WORKER, gs_worker_to_notice(effect->agent, effect->worker_state));
        break;
    case GS_DO_SHOW_CHECKPOINT: show_checkpoint(observer, job, effect->checkpoint); break;
    case GS_DO_COUNT: gs_counters_see(observer, effect); break;
    default: break;
    }
}

void gs_observer_take_sample(gs_observer *observer, gs_job *job, const char *sample) {
    (void)observer;
    char *copy = strdup(sample);
    if (!copy) return;
    free(job->sight->documents.sample);
    job->sight->documents.sample = copy;
}

static bool may_rest(const gs_observer *observer, const gs_job *job, int64_t now_ns, int64_t recalled_ns) {
    const gs_job_sight *sight = job->sight;
    if (!gs_job_state_terminal(job->state) || job->dirty || job->held_back || job->run || sight->row_failed) return false;
    if (sight->rows_on_their_way > 0) return false;
    if (gs_curves_are_moving(job)) return false;
    // What an earlier version left is read whole at a start, and shown as long; what somebody asked for is not.
    bool is_of_start = !sight->ended_ns && sight->documents.spec && !sight->used_ns;
    int64_t since_ns = is_of_start ? observer->started_ns : sight->ended_ns;
    if (since_ns && now_ns - since_ns < observer->state->timing.series_keep_ns) return false;
    return !sight->used_ns || now_ns - sight->used_ns >= recalled_ns;
}

static void rest(gs_observer *observer, gs_job *job) {
    gs_job_sight *sight = job->sight;
    gs_json_release(sight->line.text);
    sight->line = (gs_job_line){0};
    if (sight->documents.spec) gs_job_documents_rest(&sight->documents);
    if (sight->metrics != observer->no_metrics) {
        gs_job_metrics_destroy(sight->metrics);
        sight->metrics = observer->no_metrics;
        gs_curves_let_go(job);
    }
    if (sight->on_page || sight->ended_ns) gs_metrics_forget(observer->metrics, "job_id", job->id_text);
    sight->on_page = false;
    sight->ended_ns = sight->used_ns = 0;
    sight->recalled_bytes = 0;
    gs_past_ranks_release(&sight->past);  // last lines that are still on their way go into their worker's log
    gs_plan_offers_release(&job->offers);
    gs_timelines_forget(observer, job);
    gs_job_log_rest(observer, job);
}

static bool are_too_many_recalled(const gs_job_table *jobs) {
    size_t count = 0, bytes = 0;
    for (size_t i = 0; i < jobs->count; i++) {
        const gs_job_sight *sight = jobs->items[i]->sight;
        if (!sight->used_ns || sight->is_resting) continue;
        count++;
        bytes += sight->recalled_bytes;
    }
    return count > GS_RECALL_MAX_KEPT || bytes > GS_RECALL_MAX_KEPT_BYTES;
}

static void rest_jobs(gs_observer *observer) {
    int64_t now_ns = gs_now_ns();
    if (now_ns - observer->rested_ns < REST_LOOK_NS) return;
    observer->rested_ns = now_ns;
    observer->recalled_jobs = observer->recalled_bytes = 0;
    bool are_too_many = are_too_many_recalled(&observer->state->jobs);
    observer->limits_reached[GS_LIMIT_RECALLED] += are_too_many;
    int64_t recalled_ns = are_too_many ? 0 : RECALLED_NS;
    for (size_t i = 0; i < observer->state->jobs.count; i++) {
        gs_job *job = observer->state->jobs.items[i];
        if (job->sight->is_resting || !may_rest(observer, job, now_ns, recalled_ns)) continue;
        job->sight->is_resting = true;
        rest(observer, job);
    }
}

// What a former life wrote of a job that trains is read one after the other, so that lines of logs come in between.
static bool wants_curves(const gs_observer *observer, const gs_job *job) {
    return observer->num_curves_coming == 0 && !gs_job_state_terminal(job->state);
}

void gs_observer_tick(gs_observer *observer) {
    gs_watch_tick(observer);
    gs_events_tick(observer);
    gs_timelines_tick(observer);
    for (size_t i = 0; i < observer->state->jobs.count; i++) {
        gs_job *job = observer->state->jobs.items[i];
        if (job->sight->is_resting) continue;
        gs_job_log_tick(observer, job);
        gs_curves_tick(observer, job, wants_curves(observer, job));
    }
    gs_recall_tick(observer);
    rest_jobs(observer);
    gs_counters_tick(observer);
}

void gs_observer_part(gs_observer *observer) {
    gs_events_part(observer);
    gs_watch_end_all(observer, "server_shutdown");
    gs_timelines_end_all(observer);
    gs_recall_end_all(observer);
    for (size_t i = 0; i < observer->state->jobs.count; i++) {
        gs_job *job = observer->state->jobs.items[i];
        gs_job_log_tick(observer, job);
        gs_curves_part(observer, job);
    }
}

void gs_observer_tell_unreadable(gs_observer *observer) {
    const gs_job_table *jobs = &observer->state->jobs;
    char message[400];
    size_t count = jobs->num_unreadable, shown = count < MOST_UNREADABLE_NAMED ? count : MOST_UNREADABLE_NAMED;
    if (count == 0) return;
    int length = snprintf(message, sizeof message, count == 1 ? "%zu job cannot be read and is not shown:" : "%zu jobs cannot be read and are not shown:", count);
    for (size_t i = 0; i < shown; i++) {
        char id_text[GS_JOB_ID_LEN];
        gs_job_id_format(id_text, jobs->unreadable[i]);
        length += snprintf(message + length, sizeof message - (size_t)length, "%s %s", i ? "," : "", id_text);
    }
    if (count > shown) length += snprintf(message + length, sizeof message - (size_t)length, " and %zu others", count - shown);
    snprintf(message + length, sizeof message - (size_t)length, "; what is stored of %s is kept, and the log says why", count == 1 ? "it" : "them");
    gs_events_note(observer, GS_SEVERITY_ERROR, "JobsUnreadable", message);
}
