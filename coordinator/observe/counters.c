#include "coordinator/observe/counters.h"

#include <string.h>

#include "coordinator/observe/events.h"
#include "coordinator/observe/job_sight.h"
#include "core/clock.h"

#define LIMIT_EVENT_NS (60 * GS_NS_PER_SEC)

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
FAMILY(gradsync_jobs_forgotten_total, "Ended jobs that were too old, or too many.", GS_COUNTER, "reason");
FAMILY(gradsync_limit_reached_total, "Bounds that were reached: refused, or the oldest dropped.", GS_COUNTER, "limit");

static const struct {
    const char *name, *what;
} limits[GS_NUM_LIMITS] = {
    [GS_LIMIT_CURVES] = {"curves", "lines of curves that the disk did not take were dropped, the oldest first"},
    [GS_LIMIT_WRITES] = {"writes", "too much waits for the disk: writes were refused"},
    [GS_LIMIT_WATCHERS] = {"watchers", "as many streams are watched as may be: one more was refused"},
    [GS_LIMIT_TIMELINES] = {"timelines", "as many timelines are being made as may be: one more was refused"},
    [GS_LIMIT_LEFT_TIMELINES] = {"left_timelines", "ended ranks left as many timelines as may be kept: some were dropped"},
    [GS_LIMIT_RECALLS] = {"recalls", "as many questions about ended jobs wait as may: one more was refused"},
    [GS_LIMIT_KEYS] = {"idempotency_keys", "as many idempotency keys are remembered as may be: a request with a new one was refused"},
    [GS_LIMIT_JOBS] = {"jobs", "as many jobs wait and train as may: one more was refused"},
    [GS_LIMIT_ENDED_JOBS] = {"ended_jobs", "more jobs have ended than may be here until they are forgotten: one more was refused"},
    [GS_LIMIT_RECALLED] = {"recalled_jobs", "as many ended jobs are in memory because somebody asked as may be: they are let go"},
    [GS_LIMIT_REMOVALS] = {"removals", "as many removals of checkpoints are owed as may be: one more was refused"},
    [GS_LIMIT_SWEPT] = {"swept_directories", "as many directories without a manifest are watched as may be: others are swept later"},
    [GS_LIMIT_REQUESTS] = {"requests", "as many requests wait as may: one more was refused"},
    [GS_LIMIT_UNREAD] = {"unread", "a worker or a reader does not read as much as may wait for it: what came on top was not sent"},
    [GS_LIMIT_ENDS] = {"ends", "as many ends of streams wait to be read as may: one more was sent without what it says"},
    [GS_LIMIT_OPEN_CALLS] = {"open_calls", "a peer of the control port has as many calls open as it may: one more was refused"},
    [GS_LIMIT_ANSWERS] = {"answers", "as many answers are kept for who asks again as may be: the oldest of a peer went"},
    [GS_LIMIT_CONNECTIONS] = {"connections", "the control port has as many connections as it may: one more was refused"},
    [GS_LIMIT_SESSIONS] = {"sessions", "as many peers of the control port went away as are remembered: the first of them was forgotten before its time"},
    [GS_LIMIT_MESSAGES] = {"messages", "a peer of the control port said more in a second than it may: messages were dropped"},
    [GS_LIMIT_EXCHANGES] = {"exchanges", "a rank has as many exchanges open as it may, or gave more than an answer holds: it was refused"},
};

static gs_metric *series_of(gs_observer *observer, const gs_metric_family *family, const char *a, const char *b,
                            const char *c) {
    return gs_metrics_series(observer->metrics, family, (const char *[]){a, b, c});
}

static void count_failed_save(gs_save_facts *saves, gs_save_failure cause) {
    switch (cause) {
    case GS_SAVE_SPACE: saves->failures_space++; break;
    case GS_SAVE_DEADLINE: saves->failures_deadline++; break;
    case GS_SAVE_RESIDUALS: saves->failures_residuals++; break;
    case GS_SAVE_DIGEST: saves->failures_digest++; break;
    default: saves->failures_io++; break;
    }
}

static void note_limit(gs_observer *observer, const char *name) {
    for (int i = 0; i < GS_NUM_LIMITS; i++) {
        if (!strcmp(limits[i].name, name)) observer->limits_reached[i]++;
    }
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
    case GS_COUNT_FORGOTTEN:
        gs_metric_add(series_of(observer, &gradsync_jobs_forgotten_total, count->label, NULL, NULL), count->seconds);
        break;
    case GS_COUNT_LIMIT: note_limit(observer, count->label); break;
    case GS_COUNT_SAVE_FAILED: count_failed_save(&job->sight->saves, count->failure); break;
    }
}

static void tell_limit(gs_observer *observer, gs_limit limit) {
    uint64_t times = observer->limits_reached[limit];
    observer->limits_reached[limit] = 0;
    gs_metric_add(series_of(observer, &gradsync_limit_reached_total, limits[limit].name, NULL, NULL), (double)times);
    int64_t now_ns = gs_now_ns(), *told_ns = &observer->limit_told_ns[limit];
    if (*told_ns && now_ns - *told_ns < LIMIT_EVENT_NS) return;
    *told_ns = now_ns;
    gs_events_note(observer, GS_SEVERITY_WARNING, "LimitReached", limits[limit].what);
}

void gs_counters_note_limit(gs_observer *observer, gs_limit limit, uint64_t total) {
    observer->limits_reached[limit] += total - observer->limit_totals[limit];
    observer->limit_totals[limit] = total;
}

static void ask_server(gs_observer *observer) {
    gs_rpc_server_stats stats;
    gs_rpc_server_get_stats(observer->server, &stats);
    gs_counters_note_limit(observer, GS_LIMIT_REQUESTS, stats.refused_full);
    gs_counters_note_limit(observer, GS_LIMIT_UNREAD, stats.dropped_slow);
    gs_counters_note_limit(observer, GS_LIMIT_ENDS, stats.cut);
    gs_counters_note_limit(observer, GS_LIMIT_OPEN_CALLS, stats.refused_open);
    gs_counters_note_limit(observer, GS_LIMIT_ANSWERS, stats.unkept);
    gs_counters_note_limit(observer, GS_LIMIT_CONNECTIONS, stats.refused_connections);
    gs_counters_note_limit(observer, GS_LIMIT_SESSIONS, stats.forgotten_sessions);
    gs_counters_note_limit(observer, GS_LIMIT_MESSAGES, stats.dropped_flood);
}

void gs_counters_tick(gs_observer *observer) {
    gs_counters_note_limit(observer, GS_LIMIT_WRITES, gs_writer_num_refused(observer->writer));
    if (observer->server) ask_server(observer);
    for (int i = 0; i < GS_NUM_LIMITS; i++) {
        if (observer->limits_reached[i] > 0) tell_limit(observer, (gs_limit)i);
    }
}

void gs_counters_plan_made(gs_observer *observer, double seconds) {
    gs_metric_observe(series_of(observer, &gradsync_plan_build_duration_seconds, NULL, NULL, NULL), seconds);
}

void gs_counters_declare(gs_observer *observer) {
    static const char *const outcomes[] = {"complete", "timeout", "error"};
    for (int i = 0; i < 3; i++) series_of(observer, &gradsync_rendezvous_duration_seconds, outcomes[i], NULL, NULL);
    series_of(observer, &gradsync_plan_build_duration_seconds, NULL, NULL, NULL);
    series_of(observer, &gradsync_jobs_forgotten_total, "age", NULL, NULL);
    series_of(observer, &gradsync_jobs_forgotten_total, "number", NULL, NULL);
    for (int i = 0; i < GS_NUM_LIMITS; i++)
        series_of(observer, &gradsync_limit_reached_total, limits[i].name, NULL, NULL);
}

void gs_counters_declare_job(gs_observer *observer, const gs_job *job) {
    static const char *const reasons[] = {"worker_lost", "worker_error", "coordinator", "operator"};
    for (int i = 0; i < 4; i++) series_of(observer, &gradsync_job_restarts_total, job->id_text, reasons[i], NULL);
    series_of(observer, &gradsync_job_rescales_total, job->id_text, "up", NULL);
    series_of(observer, &gradsync_job_rescales_total, job->id_text, "down", NULL);
}
