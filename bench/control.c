// The coordinator under load: N simulated workers in jobs of 64 ranks against a real
// gradsync-coordinator, quiet, then scraped, then flooded with GET /v1/jobs, then committing new
// jobs to a disk that takes 200 ms for each fsync (see slow_disk.c). Its directory is made in
// TMPDIR and left to the caller: the coordinator's log is in it.
//
//   bench_control COORDINATOR_PROGRAM WORKERS [SECONDS_PER_PHASE [STEP_SECONDS]]
//
// Loop: round trip of a control call, so the time until the loop has come round, plus two hops.
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/control_requests.h"
#include "bench/control_workers.h"
#include "core/clock.h"
#include "core/strbuf.h"
#include "core/thread.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"

#define RANKS_OF_JOB 64
#define SLOTS 8
#define NUM_FLOODERS 4
#define MAX_SAMPLES 100000

typedef struct bench {
    char dir[200], flag[224];  // while `flag` exists its disk is slow
    control_http http;
    char control[128];
    pid_t pid;
    gs_rpc_context *context;
    gs_rpc_client *client;
    control_workers *workers;
    control_requests *requests;
    // Of the phase that runs.
    double *loop_ms, *http_ms;
    int num_loop, num_http, num_submitted;
    size_t scrape_bytes;
    atomic_ullong flooded;
} bench;

static void stop_bench(bench *b, const char *why) {
    fprintf(stderr, "control: %s; see %s/log\n", why, b->dir);
    if (b->pid > 0) kill(b->pid, SIGKILL);
    exit(1);
}

static bool read_ports(bench *b, const char *path) {
    char text[512] = "";
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    gs_json *ports = NULL;
    if (gs_json_parse(&ports, text, bytes).code) return false;
    char http[64] = "";
    snprintf(http, sizeof http, "%s", gs_json_string_or(ports, "http", ""));
    snprintf(b->control, sizeof b->control, "%s", gs_json_string_or(ports, "control", ""));
    gs_json_release(ports);
    char *colon = strrchr(http, ':');
    if (!colon || !b->control[0]) return false;
    b->http.port = atoi(colon + 1);
    snprintf(b->http.host, sizeof b->http.host, "%.*s", (int)(colon - http), http);
    return true;
}

static void start_coordinator(bench *b, const char *program) {
    const char *parent = getenv("TMPDIR");
    snprintf(b->dir, sizeof b->dir, "%s/gradsync-bench-XXXXXX", parent ? parent : "/tmp");
    char path[224], log[224];
    if (!mkdtemp(b->dir)) stop_bench(b, "no directory");
    snprintf(path, sizeof path, "%s/ports", b->dir);
    snprintf(log, sizeof log, "%s/log", b->dir);
    snprintf(b->flag, sizeof b->flag, "%s/slow", b->dir);
    b->pid = fork();
    if (b->pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("LD_PRELOAD", SLOW_DISK_LIBRARY, 1);
        setenv("BENCH_SLOW_DISK", b->flag, 1);
        execl(program, program, "--data-dir", b->dir, "--http", "127.0.0.1:0", "--control",
              "tcp://127.0.0.1:0", "--port-file", path, (char *)NULL);
        _exit(127);
    }
    gs_deadline deadline = gs_deadline_in_seconds(20);
    while (!read_ports(b, path)) {
        if (gs_deadline_passed(deadline)) stop_bench(b, "the coordinator does not start");
        gs_sleep_ns(10 * GS_NS_PER_MS);
    }
}

static double cpu_seconds(const bench *b) {
    char path[64];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)b->pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int found =
        fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
    fclose(file);
    return found == 2 ? (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK) : 0;
}

static double rss_mib(const bench *b) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)b->pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int found = fscanf(file, "%*d %ld", &pages);
    fclose(file);
    return found == 1 ? (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20) : 0;
}

static bool submit_job(bench *b, int ranks, gs_strbuf *response) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"name\":\"sim-%d\",\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1000000000},"
             "\"world\":{\"min\":%d,\"max\":%d}}",
             b->num_submitted++, ranks, ranks);
    int status = control_http_request(&b->http, "POST", "/v1/jobs", body, response);
    return status == 201 || status == 202;
}

static void submit_jobs(bench *b, int num_workers) {
    gs_strbuf response = {0};
    for (int first = 0; first < num_workers; first += RANKS_OF_JOB) {
        int ranks = num_workers - first < RANKS_OF_JOB ? num_workers - first : RANKS_OF_JOB;
        if (!submit_job(b, ranks, &response)) stop_bench(b, gs_strbuf_text(&response));
    }
    gs_strbuf_release(&response);
}

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double quantile(double *samples, int count, double q) {
    if (!count) return 0;
    qsort(samples, (size_t)count, sizeof *samples, compare_doubles);
    return samples[(int)((double)(count - 1) * q)];
}

static void probe_loop(void *ctx, const atomic_bool *stopping) {
    bench *b = ctx;
    gs_json *request = gs_json_new_object();
    gs_json_set_u64(request, "incarnation", 1);  // nobody's: nothing happens
    while (!atomic_load(stopping) && b->num_loop < MAX_SAMPLES) {
        int64_t begun_ns = gs_now_ns();
        gs_status status =
            gs_rpc_call(b->client, GS_EXITED, request, NULL, gs_deadline_in_seconds(20));
        b->loop_ms[b->num_loop++] = (double)(gs_now_ns() - begun_ns) / 1e6;
        if (status.code) fprintf(stderr, "control: %s\n", status.message);
        gs_sleep_ns(10 * GS_NS_PER_MS);
    }
    gs_json_release(request);
}

static void scrape(void *ctx, const atomic_bool *stopping) {
    bench *b = ctx;
    gs_strbuf response = {0};
    while (!atomic_load(stopping) && b->num_http < MAX_SAMPLES) {
        int64_t begun_ns = gs_now_ns();
        int status = control_http_request(&b->http, "GET", "/metrics", "", &response);
        b->http_ms[b->num_http++] = (double)(gs_now_ns() - begun_ns) / 1e6;
        b->scrape_bytes = response.len;
        if (status != 200) fprintf(stderr, "control: /metrics answers %d\n", status);
        gs_sleep_ns(500 * GS_NS_PER_MS);
    }
    gs_strbuf_release(&response);
}

static void flood(void *ctx, const atomic_bool *stopping) {
    bench *b = ctx;
    gs_strbuf response = {0};
    while (!atomic_load(stopping)) {
        if (control_http_request(&b->http, "GET", "/v1/jobs", "", &response) == 200)
            atomic_fetch_add(&b->flooded, 1);
    }
    gs_strbuf_release(&response);
}

// Jobs that must wait for slots: nothing of them happens but their commit, which the answer waits
// for.
static void commit_slowly(void *ctx, const atomic_bool *stopping) {
    bench *b = ctx;
    gs_strbuf response = {0};
    int fd = open(b->flag, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    while (!atomic_load(stopping) && b->num_http < MAX_SAMPLES) {
        int64_t begun_ns = gs_now_ns();
        if (!submit_job(b, RANKS_OF_JOB, &response)) {
            fprintf(stderr, "control: %s\n", gs_strbuf_text(&response));
        }
        b->http_ms[b->num_http++] = (double)(gs_now_ns() - begun_ns) / 1e6;
    }
    unlink(b->flag);
    gs_strbuf_release(&response);
}

static void ask_in_turn(void *ctx, const atomic_bool *stopping) {
    bench *b = ctx;
    while (!atomic_load(stopping) && control_requests_turn(b->requests)) continue;
}

typedef void (*load_body)(void *ctx, const atomic_bool *stopping);

static void run_phase(bench *b, int num_workers, const char *name, double seconds, load_body load,
                      int num_threads) {
    gs_thread *probe = NULL, *threads[NUM_FLOODERS] = {0};
    b->num_loop = b->num_http = 0;
    b->scrape_bytes = 0;
    atomic_store(&b->flooded, 0);
    control_workers_counts before = control_workers_count(b->workers);
    double cpu_before = cpu_seconds(b);
    int64_t begun_ns = gs_now_ns();
    gs_status status = gs_thread_start(&probe, "probe", probe_loop, b);
    for (int i = 0; load && !status.code && i < num_threads; i++) {
        status = gs_thread_start(&threads[i], "load", load, b);
    }
    if (status.code) stop_bench(b, status.message);
    gs_sleep_ns((int64_t)(seconds * 1e9));
    double elapsed = (double)(gs_now_ns() - begun_ns) / 1e9;
    double cpu = cpu_seconds(b) - cpu_before;
    control_workers_counts after = control_workers_count(b->workers);
    for (int i = 0; i < num_threads; i++) gs_thread_stop(threads[i]);
    gs_thread_stop(probe);
    printf("%7d  %-8s %9.0f %9.0f %9.2f %9.2f %9.2f %7.0f %9.1f %9.1f %9.0f %9.0f %6d %8d\n",
           num_workers, name, (double)(after.sent - before.sent) / elapsed,
           (double)(after.received - before.received) / elapsed,
           quantile(b->loop_ms, b->num_loop, 0.5), quantile(b->loop_ms, b->num_loop, 0.99),
           quantile(b->loop_ms, b->num_loop, 1), 100 * cpu / elapsed, rss_mib(b),
           quantile(b->http_ms, b->num_http, 0.5), (double)b->scrape_bytes / 1024,
           (double)atomic_load(&b->flooded) / elapsed, after.links_lost - before.links_lost,
           after.trainers_stepping);
    fflush(stdout);
}

static void wait_for_trainers(bench *b, int num_workers) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    int64_t begun_ns = gs_now_ns();
    control_workers_counts counts = control_workers_count(b->workers);
    while (counts.trainers_stepping != num_workers && !gs_deadline_passed(deadline)) {
        gs_sleep_ns(10 * GS_NS_PER_MS);
        counts = control_workers_count(b->workers);
    }
    if (!counts.trainers_stepping) stop_bench(b, "no job starts");
    printf("# %d of %d workers step after %.1f s\n", counts.trainers_stepping, num_workers,
           (double)(gs_now_ns() - begun_ns) / 1e9);
}

static void connect_all(bench *b, int num_workers, double step_seconds) {
    control_workers_options options = {.host = "127.0.0.1",
                                       .port = atoi(strrchr(b->control, ':') + 1),
                                       .num_agents = (num_workers + SLOTS - 1) / SLOTS,
                                       .slots = SLOTS,
                                       .step_seconds = step_seconds};
    gs_rpc_client_options client = {.endpoint = b->control};
    gs_status status = gs_rpc_context_create(&b->context);
    if (!status.code) status = gs_rpc_client_open(&b->client, b->context, &client);
    if (!status.code) status = control_workers_start(&b->workers, &options);
    if (status.code) stop_bench(b, status.message);
}

// Two descriptors for each worker, one here and one in the coordinator, which inherits this.
static void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr,
                "usage: %s COORDINATOR WORKERS [SECONDS [STEP_SECONDS]]\n",
                argv[0]);
        return 2;
    }
    int num_workers = atoi(argv[2]);
    double seconds = argc > 3 ? atof(argv[3]) : 10;
    static bench b;
    b.loop_ms = calloc(MAX_SAMPLES, sizeof(double));
    b.http_ms = calloc(MAX_SAMPLES, sizeof(double));
    if (!b.loop_ms || !b.http_ms) stop_bench(&b, "out of memory");
    raise_descriptor_limit();
    start_coordinator(&b, argv[1]);
    connect_all(&b, num_workers, argc > 4 ? atof(argv[4]) : 1);
    submit_jobs(&b, num_workers);
    wait_for_trainers(&b, num_workers);
    run_phase(&b, num_workers, "quiet", seconds, NULL, 0);
    run_phase(&b, num_workers, "scraped", seconds, scrape, 1);
    run_phase(&b, num_workers, "flooded", seconds, flood, NUM_FLOODERS);
    run_phase(&b, num_workers, "slowdisk", seconds, commit_slowly, 1);
    b.requests = control_requests_create(&b.http);
    if (!b.requests) stop_bench(&b, "out of memory");
    run_phase(&b, num_workers, "asked", seconds, ask_in_turn, 1);
    bool is_right = control_requests_print(b.requests);
    control_requests_destroy(b.requests);
    control_workers_counts counts = control_workers_count(b.workers);
    if (counts.links_lost || counts.trainers_stepping != num_workers) {
        fprintf(stderr, "control: %d connections were given up, %d of %d workers step\n", counts.links_lost,
                counts.trainers_stepping, num_workers);
        is_right = false;
    }
    control_workers_stop(b.workers);
    gs_rpc_client_close(b.client);
    gs_rpc_context_destroy(b.context);
    kill(b.pid, SIGKILL);
    waitpid(b.pid, NULL, 0);
    free(b.loop_ms);
    free(b.http_ms);
    return is_right ? 0 : 1;
}
