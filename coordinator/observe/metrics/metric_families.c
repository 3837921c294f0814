#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/metrics/metric_families.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/observe/counters.h"
#include "core/clock.h"
#include "core/log_thread.h"
#include "rpc/schema/messages.h"

#define FAMILY(id, text, kind, ...)                                                                \
    static const gs_metric_family id = {                                                           \
        .name = #id, .help = text, .type = kind, .labels = {__VA_ARGS__}}
FAMILY(gradsync_build_info, "What runs; always 1.", GS_GAUGE, "version", "revision", "cuda", "nccl");
FAMILY(process_cpu_seconds_total, "User and system CPU time.", GS_COUNTER, NULL);
FAMILY(process_resident_memory_bytes, "Resident memory.", GS_GAUGE, NULL);
FAMILY(process_virtual_memory_bytes, "Virtual memory.", GS_GAUGE, NULL);
FAMILY(process_open_fds, "Open file descriptors.", GS_GAUGE, NULL);
FAMILY(process_max_fds, "Limit of open file descriptors.", GS_GAUGE, NULL);
FAMILY(process_start_time_seconds, "When the process started.", GS_GAUGE, NULL);
FAMILY(gradsync_control_messages_total, "Messages of the control plane.", GS_COUNTER, "direction",
       "type");
FAMILY(gradsync_log_lines_dropped_total, "Log lines that standard error did not take in time.", GS_COUNTER, NULL);
FAMILY(gradsync_control_messages_dropped_total, "Messages that were refused.", GS_COUNTER, "reason");
FAMILY(gradsync_control_messages_repeated_total, "Requests that came again.", GS_COUNTER, NULL);
FAMILY(gradsync_control_connections, "Open connections of the control port by TCP, by whether they have said something that counts.", GS_GAUGE, "state");
FAMILY(gradsync_control_connections_accepted_total, "Connections of the control port by TCP, whoever made them.", GS_COUNTER, NULL);
FAMILY(gradsync_control_connections_refused_total, "Connections whose key was not let in, or was let in no longer, or whose handshake came to nothing.", GS_COUNTER, "reason");
FAMILY(gradsync_control_connections_lost_total, "Connections that were closed or fell silent.", GS_COUNTER,
       NULL);
FAMILY(gradsync_coordinator_epoch, "Starts of the coordinator so far.", GS_GAUGE, NULL);
FAMILY(gradsync_coordinator_loop_lag_seconds, "How late the loop turns.", GS_GAUGE, NULL);
FAMILY(gradsync_store_failures_total, "Writes of jobs and numbers that the database did not take.", GS_COUNTER, NULL);
FAMILY(gradsync_metrics_dropped_series_total, "Series refused by the cap.", GS_COUNTER, NULL);
FAMILY(gradsync_jobs, "Jobs in each state.", GS_GAUGE, "state");
FAMILY(gradsync_jobs_unreadable, "Jobs whose records this version could not read: kept, and not shown.", GS_GAUGE, NULL);
FAMILY(gradsync_workers, "Workers in each state.", GS_GAUGE, "state");
FAMILY(gradsync_unknown_trainers, "Trainers of jobs that are not known here; they keep their slots.", GS_GAUGE, NULL);
FAMILY(gradsync_unknown_trainer_step, "The step that each of them has applied, as last told.", GS_GAUGE, "trainer", "cluster",
       "job_id", "rank");
FAMILY(gradsync_unknown_trainer_since_seconds, "Since when each of them is here, as Unix time.", GS_GAUGE, "trainer",
       "cluster", "job_id", "rank");

static void set_plain(gs_metrics *metrics, const gs_metric_family *family, double value) {
    gs_metric_set(gs_metrics_series(metrics, family, (const char *[]){NULL}), value);
}

static gs_metric *series_of(gs_observer *observer, const gs_metric_family *family,
                            const char *a, const char *b, const char *c) {
    return gs_metrics_series(observer->metrics, family, (const char *[]){a, b, c});
}

static void set(gs_observer *observer, const gs_metric_family *family, double value) {
    gs_metric_set(series_of(observer, family, NULL, NULL, NULL), value);
}

// Since Linux 6.2 the size of the list is how many there are; before it was 0, and they are counted one by one.
static double count_open_files(void) {
    struct stat info;
    if (stat("/proc/self/fd", &info) == 0 && info.st_size > 0) return (double)info.st_size;
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

void gs_metrics_refresh_process(gs_metrics *metrics) {
    struct rusage usage;
    struct rlimit files;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        set_plain(metrics, &process_cpu_seconds_total,
            (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    }
    unsigned long long virtual_pages = 0, resident_pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        int got = fscanf(file, "%llu %llu", &virtual_pages, &resident_pages);
        fclose(file);
        double page_bytes = got == 2 ? (double)sysconf(_SC_PAGESIZE) : 0;
        set_plain(metrics, &process_virtual_memory_bytes, (double)virtual_pages * page_bytes);
        set_plain(metrics, &process_resident_memory_bytes, (double)resident_pages * page_bytes);
    }
    set_plain(metrics, &process_open_fds, count_open_files());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        set_plain(metrics, &process_max_fds, (double)files.rlim_cur);
    }
    set_plain(metrics, &process_start_time_seconds, read_start_seconds());
}

static void refresh_control(gs_observer *observer) {
    gs_rpc_server_stats stats;
    gs_rpc_server_get_stats(observer->server, &stats);
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        if (!info) continue;
        gs_metric_set(series_of(observer, &gradsync_control_messages_total, "received", info->name,
                                NULL),
                      (double)stats.received[i]);
    }
    gs_metric_set(series_of(observer, &gradsync_control_messages_total, "sent", "all", NULL),
                  (double)stats.sent);
    gs_metric_set(series_of(observer, &gradsync_log_lines_dropped_total, NULL, NULL, NULL), (double)gs_log_lines_dropped());
    const struct {
        const char *reason;
        uint64_t count;
    } drops[] = {{"malformed", stats.dropped_malformed},
                 {"stale", stats.dropped_stale},
                 {"slow", stats.dropped_slow},
                 {"flood", stats.dropped_flood},
                 {"role", stats.refused}};
    for (size_t i = 0; i < sizeof drops / sizeof drops[0]; i++) {
        gs_metric_set(series_of(observer, &gradsync_control_messages_dropped_total,
                                drops[i].reason, NULL, NULL),
                      (double)drops[i].count);
    }
    gs_key_gate_stats gate = {0};
    if (observer->gate) gs_key_gate_get_stats(observer->gate, &gate);
    const struct {
        const char *reason;
        uint64_t count;
    } refusals[] = {{"unknown_key", gate.refused_unknown},
                    {"ended_key", gate.refused_ended},
                    {"revoked", stats.revoked},
                    {"handshake", stats.failed_handshakes}};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        gs_metric_set(series_of(observer, &gradsync_control_connections_refused_total, refusals[i].reason, NULL, NULL),
                      (double)refusals[i].count);
    gs_metric_set(series_of(observer, &gradsync_control_connections, "heard", NULL, NULL), (double)stats.heard);
    gs_metric_set(series_of(observer, &gradsync_control_connections, "silent", NULL, NULL), (double)stats.silent);
    set(observer, &gradsync_control_connections_accepted_total, (double)stats.accepted);
    set(observer, &gradsync_control_messages_repeated_total, (double)stats.repeated);
    set(observer, &gradsync_control_connections_lost_total, (double)stats.lost);
    set(observer, &gradsync_coordinator_epoch, observer->state->cluster.epoch);
    set(observer, &gradsync_coordinator_loop_lag_seconds, observer->loop_lag_seconds);
    set(observer, &gradsync_store_failures_total, (double)observer->num_store_failures);
    set(observer, &gradsync_metrics_dropped_series_total,
        (double)gs_metrics_dropped_count(observer->metrics));
}

static int show_unknown(gs_observer *observer, const gs_agent *agent) {
    int count = 0;
    for (int i = 0; i < agent->num_slots; i++) {
        const gs_agent_slot *slot = &agent->slots[i];
        if (!slot->is_unknown) continue;
        char job[GS_JOB_ID_LEN], rank[16];
        gs_job_id_format(job, slot->job);
        snprintf(rank, sizeof rank, "%d", slot->rank);
        const char *const labels[] = {"unknown", slot->cluster, job, rank};
        gs_metric_set(gs_metrics_series(observer->metrics, &gradsync_unknown_trainer_step, labels), (double)slot->step);
        gs_metric_set(gs_metrics_series(observer->metrics, &gradsync_unknown_trainer_since_seconds, labels),
                      (double)slot->since_ms / 1000);
        count++;
    }
    return count;
}

static void refresh_counts(gs_observer *observer) {
    double jobs[GS_NUM_JOB_STATES] = {0};
    for (size_t i = 0; i < observer->state->jobs.count; i++) {
        const gs_job *job = observer->state->jobs.items[i];
        if (!job->sight->has_no_row) jobs[gs_sight_state(job)]++;
    }
    for (int i = 0; i < GS_NUM_JOB_STATES; i++) {
        gs_metric_set(series_of(observer, &gradsync_jobs, gs_job_state_name((gs_job_state)i), NULL,
                                NULL),
                      jobs[i]);
    }
    set(observer, &gradsync_jobs_unreadable, (double)observer->state->jobs.num_unreadable);
    // A catalogue state that this version cannot reach is still there, at 0.
    static const char *const states[] = {"idle", "running", "lost", "assigned", "draining"};
    double workers[5] = {0}, unknown = 0;
    gs_metrics_forget(observer->metrics, "trainer", "unknown");  // those of before: who is here is shown again
    for (size_t i = 0; i < observer->state->agents.count; i++) {
        const gs_agent *agent = observer->state->agents.items[i];
        gs_slot_pools free = gs_agent_free_slots(agent);
        bool busy = free.plain + free.gpu < agent->num_slots;
        workers[!gs_agent_is_connected(agent) ? 2 : agent->is_leaving ? 4 : busy ? 1 : 0]++;
        unknown += show_unknown(observer, agent);
    }
    gs_metric_set(series_of(observer, &gradsync_unknown_trainers, NULL, NULL, NULL), unknown);
    for (int i = 0; i < 5; i++) {
        gs_metric_set(series_of(observer, &gradsync_workers, states[i], NULL, NULL), workers[i]);
    }
    gs_metric_set(series_of(observer, &gradsync_jobs, "paused", NULL, NULL), 0);
    gs_counters_declare(observer);
}

void gs_metrics_refresh(gs_observer *observer) {
    gs_metric_set(gs_metrics_series(observer->metrics, &gradsync_build_info,
                                    (const char *[]){GRADSYNC_VERSION, "", "none", "none"}),
                  1);
    refresh_control(observer);
    refresh_counts(observer);
}

bool gs_metrics_expired(const gs_observer *observer, const gs_job *job) {
    return gs_job_state_terminal(job->state) && gs_now_ns() - job->ended_ns > observer->state->timing.series_keep_ns;
}
