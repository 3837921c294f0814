#include "coordinator/observe/counters.h"

#include <string.h>

#include "coordinator/observe/job_sight.h"

#define FAMILY(id, text, kind, ...)                                                                \
    static const gs_metric_family id = {                                                           \
        .name = #id, .help = text, .type = kind, .labels = {__VA_ARGS__}}
#define HISTOGRAM(id, text, ladder, ...)                                                           \
    static const gs_metric_family id = {.name = #id,                                               \
                                        .help = text,                                              \
                                        .type = GS_HISTOGRAM,                                      \
                                        .labels = {__VA_ARGS__},                                   \
                                        .bounds = ladder,                                          \
                                        .num_bounds = sizeof ladder / sizeof ladder[0]}


HISTOGRAM(gradsync_rendezvous_duration_seconds, "From start of ranks to go.", gs_checkpoint_bounds,
          "outcome");
HISTOGRAM(gradsync_plan_build_duration_seconds, "Time to make a plan.", gs_http_bounds, NULL);
FAMILY(gradsync_job_restarts_total, "Generations after a failure.", GS_COUNTER, "job_id", "reason");
FAMILY(gradsync_job_rescales_total, "Changes of world size.", GS_COUNTER, "job_id", "direction");
FAMILY(gradsync_faults_total, "Faults and verdicts.", GS_COUNTER, "job_id", "kind", "verdict");
HISTOGRAM(gradsync_fault_recover_seconds, "From the end of a generation to the next committed step.",
          gs_checkpoint_bounds, "job_id");

static gs_metric *series_of(gs_observer *observer, const gs_metric_family *family, const char *a, const char *b,
                            const char *c) {
    return gs_metrics_series(observer->metrics, family, (const char *[]){a, b, c});
}

static void count_failed_save(gs_save_facts *saves, const char *cause) {
    uint64_t *failures = !strcmp(cause, "space")       ? &saves->failures_space
                         : !strcmp(cause, "deadline")  ? &saves->failures_deadline
                         : !strcmp(cause, "residuals") ? &saves->failures_residuals
                         : !strcmp(cause, "digest")    ? &saves->failures_digest
                                                       : &saves->failures_io;
    ++*failures;
}

void gs_counters_see(gs_observer *observer, const gs_effect *effect) {
    const gs_count *count = &effect->count;
    const gs_job *job = effect->job;
    switch (count->kind) {
    case GS_COUNT_RENDEZVOUS:
        gs_metric_observe(series_of(observer, &gradsync_rendezvous_duration_seconds, count->label, NULL, NULL),
                          count->seconds);
        break;
    case GS_COUNT_RESTART:
        gs_metric_add(series_of(observer, &gradsync_job_restarts_total, job->id_text, count->label, NULL), 1);
        break;
    case GS_COUNT_FAULT:
        gs_metric_add(series_of(observer, &gradsync_faults_total, job->id_text, count->label, count->second), 1);
        break;
    case GS_COUNT_RESCALE:
        gs_metric_add(series_of(observer, &gradsync_job_rescales_total, job->id_text, count->label, NULL), 1);
        break;
    case GS_COUNT_RECOVERY:
        gs_metric_observe(series_of(observer, &gradsync_fault_recover_seconds, job->id_text, NULL, NULL),
                          count->seconds);
        break;
    case GS_COUNT_SAVE_FAILED: count_failed_save(&job->sight->saves, count->label); break;
    }
}

void gs_counters_plan_made(gs_observer *observer, double seconds) {
    gs_metric_observe(series_of(observer, &gradsync_plan_build_duration_seconds, NULL, NULL, NULL), seconds);
}

void gs_counters_declare(gs_observer *observer) {
    static const char *const outcomes[] = {"complete", "timeout", "error"};
    for (int i = 0; i < 3; i++) series_of(observer, &gradsync_rendezvous_duration_seconds, outcomes[i], NULL, NULL);
    series_of(observer, &gradsync_plan_build_duration_seconds, NULL, NULL, NULL);
}

void gs_counters_declare_job(gs_observer *observer, const gs_job *job) {
    static const char *const reasons[] = {"worker_lost", "worker_error", "coordinator", "operator"};
    for (int i = 0; i < 4; i++) series_of(observer, &gradsync_job_restarts_total, job->id_text, reasons[i], NULL);
    series_of(observer, &gradsync_job_rescales_total, job->id_text, "up", NULL);
    series_of(observer, &gradsync_job_rescales_total, job->id_text, "down", NULL);
}
