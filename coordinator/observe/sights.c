#include "coordinator/observe/sights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/counters.h"
#include "coordinator/observe/events.h"
#include "coordinator/observe/failure_view.h"
#include "coordinator/observe/job_log.h"
#include "coordinator/observe/job_plans.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/job_view.h"
#include "coordinator/observe/timelines.h"
#include "coordinator/observe/watch.h"
#include "coordinator/observe/worker_view.h"
#include "coordinator/store/record/checkpoint_record.h"
#include "core/clock.h"
#include "core/log.h"

#define MAX_SERIES 20000
#define EXPIRE_NS (600 * GS_NS_PER_SEC)

gs_status gs_observer_create(gs_observer **out, const gs_observer_options *options) {
    gs_observer *observer = calloc(1, sizeof *observer);
    if (!observer) return gs_error(GS_RESOURCE_EXHAUSTED, "observer: out of memory");
    observer->state = options->state;
    observer->data_dir = options->data_dir;
    observer->started_ns = gs_now_ns();
    observer->watchers = gs_watchers_create();
    observer->metrics = gs_metrics_create(MAX_SERIES);
    gs_status status = observer->watchers && observer->metrics
                           ? gs_events_create(&observer->events, options->store, options->next_sequence)
                           : gs_error(GS_RESOURCE_EXHAUSTED, "observer: out of memory");
    if (status.code) gs_observer_destroy(observer);
    else *out = observer;
    return status;
}

void gs_observer_destroy(gs_observer *observer) {
    if (!observer) return;
    gs_watchers_destroy(observer->watchers);
    gs_events_destroy(observer->events);
    gs_metrics_destroy(observer->metrics);
    free(observer);
}

static void reload_curves(const gs_observer *observer, gs_job *job) {
    char path[1200];
    snprintf(path, sizeof path, "%s/jobs/%s/metrics.jsonl", observer->data_dir, job->id_text);
    gs_job_metrics_reload(job->sight->metrics, path);
}

bool gs_observer_meet(gs_observer *observer, gs_job *job, gs_job_documents *documents, bool was_stored) {
    gs_job_sight *sight = calloc(1, sizeof *sight);
    if (!sight) {
        gs_job_documents_release(documents);
        return false;
    }
    sight->documents = *documents;
    *documents = (gs_job_documents){0};
    job->sight = sight;
    sight->metrics = gs_job_metrics_create();
    sight->log = gs_job_log_create(observer, job);
    if (!sight->metrics || !sight->log) {
        gs_observer_forget(observer, job);
        return false;
    }
    if (was_stored) reload_curves(observer, job);
    return true;
}

void gs_observer_forget(gs_observer *observer, gs_job *job) {
    (void)observer;
    gs_job_sight *sight = job->sight;
    if (!sight) return;
    gs_timelines_forget(job);
    gs_job_metrics_destroy(sight->metrics);
    gs_job_log_destroy(sight->log);
    gs_job_documents_release(&sight->documents);
    free(sight);
    job->sight = NULL;
}

static void add_job(gs_observer *observer, gs_job *job) {
    gs_job_documents documents = gs_job_documents_of(&job->spec);
    // Nothing of it could be shown, and it is on its way to the disk: the next life finds it.
    if (!gs_observer_meet(observer, job, &documents, false)) abort();
}

static void drop_job(gs_observer *observer, gs_job *job) {
    gs_watch_end_job(observer, job);
    gs_events_forget_job(observer, job->id);
    gs_metrics_forget(observer->metrics, "job_id", job->id_text);
    gs_job_log_remove(observer, job);
    gs_observer_forget(observer, job);
}

static void show_job(gs_observer *observer, const gs_job *job) {
    if (gs_watched(observer, job, GS_TOPIC_STATE))
        gs_watch_publish(observer, job, GS_TOPIC_STATE, gs_job_to_view(job, false));
}

static void end_job(gs_observer *observer, gs_job *job) {
    gs_watch_end_job(observer, job);
    gs_job_log_wake(observer, job);
}

static void begin_generation(gs_job *job, const gs_run *run) {
    gs_job_metrics_begin_generation(job->sight->metrics, run->num_members);
    gs_timelines_forget(job);
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
    case GS_DO_END_JOB: end_job(observer, job); break;
    case GS_DO_DROP_JOB: drop_job(observer, job); break;
    case GS_DO_BEGIN_GENERATION: begin_generation(job, effect->run); break;
    case GS_DO_END_RUN:
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

static void expire_series(gs_observer *observer, int64_t now_ns) {
    if (observer->expired_ns && now_ns - observer->expired_ns < EXPIRE_NS) return;
    observer->expired_ns = now_ns;
    int64_t keep_ms = observer->state->timing.series_keep_ns / GS_NS_PER_MS;
    const gs_job_table *jobs = &observer->state->jobs;
    for (size_t i = 0; i < jobs->count; i++) {
        gs_job *job = jobs->items[i];
        if (!gs_job_state_terminal(job->state) || gs_wall_ms() - job->ended_ms <= keep_ms) continue;
        gs_metrics_forget(observer->metrics, "job_id", job->id_text);
        gs_timelines_forget(job);
    }
}

void gs_observer_tick(gs_observer *observer) {
    gs_watch_tick(observer);
    gs_timelines_tick(observer);
    for (size_t i = 0; i < observer->state->jobs.count; i++) gs_job_log_tick(observer, observer->state->jobs.items[i]);
    expire_series(observer, gs_now_ns());
}

void gs_observer_part(gs_observer *observer) {
    gs_watch_end_all(observer, "server_shutdown");
    gs_timelines_end_all(observer);
    for (size_t i = 0; i < observer->state->jobs.count; i++) gs_job_log_tick(observer, observer->state->jobs.items[i]);
}
