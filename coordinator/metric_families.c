#include "coordinator/metric_families.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/agents.h"
#include "coordinator/job_families.h"
#include "core/clock.h"
#include "rpc/schema/messages.h"

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

FAMILY(gradsync_build_info, "What runs; always 1.", GS_GAUGE, "version", "revision", "cuda", "nccl");
FAMILY(process_cpu_seconds_total, "User and system CPU time.", GS_COUNTER, NULL);
FAMILY(process_resident_memory_bytes, "Resident memory.", GS_GAUGE, NULL);
FAMILY(process_virtual_memory_bytes, "Virtual memory.", GS_GAUGE, NULL);
FAMILY(process_open_fds, "Open file descriptors.", GS_GAUGE, NULL);
FAMILY(process_max_fds, "Limit of open file descriptors.", GS_GAUGE, NULL);
FAMILY(process_start_time_seconds, "When the process started.", GS_GAUGE, NULL);
FAMILY(gradsync_control_messages_total, "Messages of the control plane.", GS_COUNTER, "direction",
       "type");
FAMILY(gradsync_control_messages_dropped_total, "Messages that were refused.", GS_COUNTER, "reason");
FAMILY(gradsync_control_messages_repeated_total, "Requests that came again.", GS_COUNTER, NULL);
FAMILY(gradsync_control_connections_lost_total, "Connections that were closed or fell silent.", GS_COUNTER,
       NULL);
FAMILY(gradsync_coordinator_epoch, "Starts of the coordinator so far.", GS_GAUGE, NULL);
FAMILY(gradsync_coordinator_loop_lag_seconds, "How late the loop turns.", GS_GAUGE, NULL);
FAMILY(gradsync_metrics_dropped_series_total, "Series refused by the cap.", GS_COUNTER, NULL);
FAMILY(gradsync_jobs, "Jobs in each state.", GS_GAUGE, "state");
FAMILY(gradsync_workers, "Workers in each state.", GS_GAUGE, "state");
HISTOGRAM(gradsync_rendezvous_duration_seconds, "From start of ranks to go.", gs_checkpoint_bounds,
          "outcome");
HISTOGRAM(gradsync_plan_build_duration_seconds, "Time to make a plan.", gs_http_bounds, NULL);
FAMILY(gradsync_job_restarts_total, "Generations after a failure.", GS_COUNTER, "job_id", "reason");
FAMILY(gradsync_job_rescales_total, "Changes of world size.", GS_COUNTER, "job_id", "direction");
FAMILY(gradsync_faults_total, "Faults and verdicts.", GS_COUNTER, "job_id", "kind", "verdict");
HISTOGRAM(gradsync_fault_recover_seconds, "From the end of a generation to the next committed step.",
          gs_checkpoint_bounds, "job_id");

static gs_metric *series_of(gs_coordinator *coordinator, const gs_metric_family *family,
                            const char *a, const char *b, const char *c) {
    return gs_metrics_series(coordinator->metrics, family, (const char *[]){a, b, c});
}

void gs_metrics_observe_rendezvous(gs_coordinator *coordinator, const char *outcome,
                                   double seconds) {
    gs_metric_observe(
        series_of(coordinator, &gradsync_rendezvous_duration_seconds, outcome, NULL, NULL), seconds);
}

void gs_metrics_observe_plan(gs_coordinator *coordinator, double seconds) {
    gs_metric_observe(series_of(coordinator, &gradsync_plan_build_duration_seconds, NULL, NULL, NULL),
                      seconds);
}

void gs_metrics_count_restart(gs_coordinator *coordinator, const gs_job *job, const char *reason) {
    gs_metric_add(series_of(coordinator, &gradsync_job_restarts_total, job->id_text, reason, NULL), 1);
}

void gs_metrics_count_fault(gs_coordinator *coordinator, const gs_job *job, const char *kind,
                            const char *verdict) {
    gs_metric_add(series_of(coordinator, &gradsync_faults_total, job->id_text, kind, verdict), 1);
}

void gs_metrics_count_rescale(gs_coordinator *coordinator, const gs_job *job,
                              const char *direction) {
    gs_metric_add(series_of(coordinator, &gradsync_job_rescales_total, job->id_text, direction, NULL),
                  1);
}

void gs_metrics_observe_recovery(gs_coordinator *coordinator, const gs_job *job, double seconds) {
    gs_metric_observe(
        series_of(coordinator, &gradsync_fault_recover_seconds, job->id_text, NULL, NULL), seconds);
}

static void set(gs_coordinator *coordinator, const gs_metric_family *family, double value) {
    gs_metric_set(series_of(coordinator, family, NULL, NULL, NULL), value);
}

static double count_open_files(void) {
    DIR *list = opendir("/proc/self/fd");
    if (!list) return 0;
    double count = -1;  // the list itself
    while (readdir(list)) count++;
    closedir(list);
    return count - 2;  // . and ..
}

static double read_start_seconds(void) {
    char line[1024] = "", *at;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file) return 0;
    char *got = fgets(line, sizeof line, file);
    fclose(file);
    unsigned long long start_ticks = 0;
    at = got ? strrchr(line, ')') : NULL;  // the name before may hold anything
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                              "%*d %*d %llu", &start_ticks) != 1) {
        return 0;
    }
    struct timespec since_boot;
    clock_gettime(CLOCK_BOOTTIME, &since_boot);
    double boot = (double)gs_wall_ms() / 1000 - (double)since_boot.tv_sec;
    return boot + (double)start_ticks / (double)sysconf(_SC_CLK_TCK);
}

static void refresh_process(gs_coordinator *coordinator) {
    struct rusage usage;
    struct rlimit files;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        set(coordinator, &process_cpu_seconds_total,
            (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    }
    unsigned long long virtual_pages = 0, resident_pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        int got = fscanf(file, "%llu %llu", &virtual_pages, &resident_pages);
        fclose(file);
        double page_bytes = got == 2 ? (double)sysconf(_SC_PAGESIZE) : 0;
        set(coordinator, &process_virtual_memory_bytes, (double)virtual_pages * page_bytes);
        set(coordinator, &process_resident_memory_bytes, (double)resident_pages * page_bytes);
    }
    set(coordinator, &process_open_fds, count_open_files());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        set(coordinator, &process_max_fds, (double)files.rlim_cur);
    }
    set(coordinator, &process_start_time_seconds, read_start_seconds());
}

static void refresh_control(gs_coordinator *coordinator) {
    gs_rpc_server_stats stats;
    gs_rpc_server_get_stats(coordinator->server, &stats);
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        if (!info) continue;
        gs_metric_set(series_of(coordinator, &gradsync_control_messages_total, "received", info->name,
                                NULL),
                      (double)stats.received[i]);
    }
    gs_metric_set(series_of(coordinator, &gradsync_control_messages_total, "sent", "all", NULL),
                  (double)stats.sent);
    const struct {
        const char *reason;
        uint64_t count;
    } drops[] = {{"malformed", stats.dropped_malformed},
                 {"stale", stats.dropped_stale},
                 {"slow", stats.dropped_slow},
                 {"flood", stats.dropped_flood}};
    for (size_t i = 0; i < sizeof drops / sizeof drops[0]; i++) {
        gs_metric_set(series_of(coordinator, &gradsync_control_messages_dropped_total,
                                drops[i].reason, NULL, NULL),
                      (double)drops[i].count);
    }
    set(coordinator, &gradsync_control_messages_repeated_total, (double)stats.repeated);
    set(coordinator, &gradsync_control_connections_lost_total, (double)stats.lost);
    set(coordinator, &gradsync_coordinator_epoch, coordinator->epoch);
    set(coordinator, &gradsync_coordinator_loop_lag_seconds, coordinator->loop_lag_seconds);
    set(coordinator, &gradsync_metrics_dropped_series_total,
        (double)gs_metrics_dropped_count(coordinator->metrics));
}

static void refresh_counts(gs_coordinator *coordinator) {
    double jobs[GS_NUM_JOB_STATES] = {0};
    for (size_t i = 0; i < coordinator->num_jobs; i++) jobs[coordinator->jobs[i]->state]++;
    for (int i = 0; i < GS_NUM_JOB_STATES; i++) {
        gs_metric_set(series_of(coordinator, &gradsync_jobs, gs_job_state_name((gs_job_state)i), NULL,
                                NULL),
                      jobs[i]);
    }
    // A catalogue state that this version cannot reach is still there, at 0.
    static const char *const states[] = {"idle", "running", "lost", "assigned", "draining"};
    double workers[5] = {0};
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        const gs_agent *agent = coordinator->agents[i];
        gs_slot_pools free = gs_agent_free_slots(agent);
        bool busy = free.plain + free.gpu < agent->num_slots;
        workers[!agent->stream ? 2 : busy ? 1 : 0]++;
    }
    for (int i = 0; i < 5; i++) {
        gs_metric_set(series_of(coordinator, &gradsync_workers, states[i], NULL, NULL), workers[i]);
    }
    gs_metric_set(series_of(coordinator, &gradsync_jobs, "paused", NULL, NULL), 0);
    static const char *const outcomes[] = {"complete", "timeout", "error"};
    for (int i = 0; i < 3; i++) {
        series_of(coordinator, &gradsync_rendezvous_duration_seconds, outcomes[i], NULL, NULL);
    }
    series_of(coordinator, &gradsync_plan_build_duration_seconds, NULL, NULL, NULL);
}

void gs_metrics_refresh(gs_coordinator *coordinator) {
    gs_metric_set(gs_metrics_series(coordinator->metrics, &gradsync_build_info,
                                    (const char *[]){GRADSYNC_VERSION, "", "none", "none"}),
                  1);
    refresh_process(coordinator);
    refresh_control(coordinator);
    refresh_counts(coordinator);
}

bool gs_metrics_expired(const gs_coordinator *coordinator, const gs_job *job) {
    int64_t keep_ms = coordinator->timing.series_keep_ns / GS_NS_PER_MS;
    return gs_job_state_terminal(job->state) && gs_wall_ms() - job->ended_ms > keep_ms;
}

bool gs_metrics_refresh_job_slice(gs_coordinator *coordinator, gs_job *job, int slice) {
    if (slice > 0) return gs_job_families_refresh_slice(coordinator, job, slice);
    static const char *const reasons[] = {"worker_lost", "worker_error", "coordinator", "operator"};
    for (int k = 0; k < 4; k++) {
        series_of(coordinator, &gradsync_job_restarts_total, job->id_text, reasons[k], NULL);
    }
    series_of(coordinator, &gradsync_job_rescales_total, job->id_text, "up", NULL);
    series_of(coordinator, &gradsync_job_rescales_total, job->id_text, "down", NULL);
    return gs_job_families_refresh_slice(coordinator, job, slice);
}
