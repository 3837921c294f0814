// What it costs the whole coordinator that nobody gets in without a key: coordinators beside each other, one that asks nobody, one that
// wants tokens, TLS and CURVE, and for requests one that wants tokens alone. Said is CPU time, which neighbours of the machine change less
// than time; of each round the ratio to the open one, and of all rounds the medians.
//
//   bench_key_cost COORDINATOR_PROGRAM WORKERS [ROUNDS [SECONDS]]
//
// Requests: GET /v1/jobs on one connection that is kept, one behind the other, in turns. Reports: WORKERS simulated trainers
// (control_workers.h) of jobs of 64 ranks, at each of the first two at the same time; the coordinator's CPU of all that it does in the
// same SECONDS, with steps once a second (of more than 1,000 workers: so that 1,000 report) and four times as often, and from both what one report more takes. Its directory is made in TMPDIR, and removed when all went well.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/control_workers.h"
#include "bench/kept_http.h"
#include "core/clock.h"
#include "rpc/json/json.h"
#include "rpc/keys/key_store.h"

#define RANKS_OF_JOB 64
#define SLOTS 8
#define REQUESTS 500  // of a round
#define MOST_ROUNDS 99
#define START_SECONDS 30
#define FORM_SECONDS 300

typedef struct side {
    const char *name;
    bool is_keyed, wants_token;
    char dir[256], host[64], control[128], token[128];
    int http_port;
    pid_t pid;
    clockid_t cpu;
    gs_key_file key;  // of its workers
    kept_http *http;
    control_workers *workers;
} side;

typedef struct numbers {
    double values[MOST_ROUNDS];
    int count;
} numbers;

#define NUM_SIDES 3
static side sides[NUM_SIDES] = {{.name = "open"}, {.name = "keys", .is_keyed = true, .wants_token = true}, {.name = "token", .wants_token = true}};

static void give_up(const char *why) {
    fprintf(stderr, "key_cost: %s; see %s and %s\n", why, sides[0].dir, sides[1].dir);
    for (int i = 0; i < NUM_SIDES; i++)
        if (sides[i].pid > 0) kill(sides[i].pid, SIGKILL);
    exit(1);
}

static void check(gs_status status) {
    if (status.code) give_up(status.message);
}

static double seconds_of(clockid_t clock) {
    struct timespec at;
    if (clock_gettime(clock, &at) != 0) give_up("no CPU time");
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(numbers *of) {
    qsort(of->values, (size_t)of->count, sizeof of->values[0], compare);
    int half = of->count / 2;
    return of->count % 2 ? of->values[half] : (of->values[half - 1] + of->values[half]) / 2;
}

static void add(numbers *to, double value) { to->values[to->count++] = value; }

// A key for all workers, and a certificate that its client will not look at.
static void make_keys(side *it) {
    char command[1200], path[GS_KEY_PATH_BYTES];
    gs_key_file server;
    gs_known_key known = {.role = GS_ROLE_AGENT, .name = "sim", .is_pool = true};
    check(gs_key_store_server(&server, it->dir, NULL));
    gs_key_store_path(path, it->dir);
    check(gs_key_store_make(path, &known, &it->key));
    it->key.server = server.pair.shown;
    snprintf(command, sizeof command,
             "umask 077; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench "
             "-addext subjectAltName=IP:127.0.0.1 -keyout %s/tls.key -out %s/tls.cert 2>/dev/null", it->dir, it->dir);
    if (system(command) != 0) give_up("no certificate: openssl");
}

static bool read_ports(side *it) {
    char path[300], text[512] = "";
    snprintf(path, sizeof path, "%s/ports", it->dir);
    FILE *file = fopen(path, "re");
    gs_json *ports = NULL;
    if (!file) return false;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    if (gs_json_parse(&ports, text, bytes).code) return false;
    snprintf(it->host, sizeof it->host, "%s", gs_json_string_or(ports, "http", ""));
    snprintf(it->control, sizeof it->control, "%s", gs_json_string_or(ports, "control", ""));
    gs_json_release(ports);
    char *colon = strrchr(it->host, ':');
    if (!colon || !it->control[0]) return false;
    *colon = '\0';
    it->http_port = atoi(colon + 1);
    return true;
}

static void run_coordinator(const side *it, const char *program) {
    char log[300], ports[300], cert[300], key[300];
    snprintf(log, sizeof log, "%s/log", it->dir);
    snprintf(ports, sizeof ports, "%s/ports", it->dir);
    snprintf(cert, sizeof cert, "%s/tls.cert", it->dir);
    snprintf(key, sizeof key, "%s/tls.key", it->dir);
    const char *argv[] = {program, "--data-dir", it->dir, "--http", "127.0.0.1:0", "--control", "tcp://127.0.0.1:0", "--port-file", ports,
                          "--log-level", "warn", it->wants_token ? "--require-token" : NULL, it->is_keyed ? "--require-key" : NULL, "--tls-cert", cert, "--tls-key", key, NULL};
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(program, (char **)(uintptr_t)argv);
    _exit(127);
}

static void read_token(side *it) {
    char path[300];
    snprintf(path, sizeof path, "%s/admin.token", it->dir);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(it->token, sizeof it->token, file)) give_up("no token");
    fclose(file);
    it->token[strcspn(it->token, "\r\n")] = '\0';
}

static void start(side *it, const char *program) {
    const char *parent = getenv("TMPDIR");
    snprintf(it->dir, sizeof it->dir, "%s/gradsync-key-cost-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(it->dir)) give_up("no directory");
    if (it->is_keyed) make_keys(it);
    it->pid = fork();
    if (it->pid == 0) run_coordinator(it, program);
    gs_deadline deadline = gs_deadline_in_seconds(START_SECONDS);
    while (!read_ports(it)) {
        if (gs_deadline_passed(deadline)) give_up("a coordinator does not start");
        gs_sleep_ns(10 * GS_NS_PER_MS);
    }
    if (clock_getcpuclockid(it->pid, &it->cpu) != 0) give_up("no CPU clock");
    if (it->wants_token) read_token(it);
    check(kept_http_open(&it->http, it->host, it->http_port, it->is_keyed, it->wants_token ? it->token : NULL));
}

static void ask(side *it, int times) {
    for (int i = 0; i < times; i++)
        if (kept_http_ask(it->http, "GET", "/v1/jobs", "") != 200) give_up("GET /v1/jobs is not answered 200");
}

enum { SERVER, CLIENT, BOTH, NUM_SHARES };
static const char *const shares[NUM_SHARES] = {"coordinator", "client", "both"};

static void compare_requests(int rounds) {
    static numbers us[NUM_SIDES][NUM_SHARES], ratios[NUM_SIDES][NUM_SHARES];
    for (int i = 0; i < NUM_SIDES; i++) ask(&sides[i], REQUESTS / 2);
    for (int round = 0; round < rounds; round++) {
        double now[NUM_SIDES][NUM_SHARES];
        for (int turn = 0; turn < NUM_SIDES; turn++) {
            int i = (turn + round) % NUM_SIDES;  // who is first takes turns, too
            double server = seconds_of(sides[i].cpu), client = seconds_of(CLOCK_THREAD_CPUTIME_ID);
            ask(&sides[i], REQUESTS);
            now[i][SERVER] = (seconds_of(sides[i].cpu) - server) / REQUESTS * 1e6;
            now[i][CLIENT] = (seconds_of(CLOCK_THREAD_CPUTIME_ID) - client) / REQUESTS * 1e6;
            now[i][BOTH] = now[i][SERVER] + now[i][CLIENT];
        }
        for (int share = 0; share < NUM_SHARES; share++) {
            for (int i = 0; i < NUM_SIDES; i++) {
                add(&us[i][share], now[i][share]);
                add(&ratios[i][share], now[i][share] / now[0][share]);
            }
        }
    }
    printf("# GET /v1/jobs on a kept connection, %d rounds of %d each, CPU microseconds of a request: medians, and of the open one, median of rounds\n",
           rounds, REQUESTS);
    for (int share = 0; share < NUM_SHARES; share++)
        printf("request  %-12s open %7.1f  token %7.1f %.3f  token and TLS %7.1f %.3f\n", shares[share], median(&us[0][share]), median(&us[2][share]),
               median(&ratios[2][share]), median(&us[1][share]), median(&ratios[1][share]));
    fflush(stdout);
}

static void wait_for(const side *it, int num_workers) {
    gs_deadline deadline = gs_deadline_in_seconds(FORM_SECONDS);
    while (control_workers_count(it->workers).trainers_stepping < num_workers) {
        if (gs_deadline_passed(deadline)) {
            fprintf(stderr, "key_cost: %s: %d of %d workers step\n", it->name, control_workers_count(it->workers).trainers_stepping, num_workers);
            give_up("not all workers step");
        }
        gs_sleep_ns(10 * GS_NS_PER_MS);
    }
}

static void start_workers(side *it, int num_workers) {
    control_workers_options options = {.host = "127.0.0.1", .port = atoi(strrchr(it->control, ':') + 1), .num_agents = (num_workers + SLOTS - 1) / SLOTS,
                                       .slots = SLOTS, .step_seconds = num_workers > 1000 ? num_workers / 1000.0 : 1, .key = it->is_keyed ? &it->key : NULL};
    check(control_workers_start(&it->workers, &options));
    for (int first = 0; first < num_workers; first += RANKS_OF_JOB) {
        char body[256];
        int ranks = num_workers - first < RANKS_OF_JOB ? num_workers - first : RANKS_OF_JOB;
        snprintf(body, sizeof body, "{\"name\":\"sim-%d\",\"model\":{\"kind\":\"gpt2\"},\"steps\":{\"target\":1000000000},\"world\":{\"min\":%d,\"max\":%d}}",
                 first, ranks, ranks);
        if (kept_http_ask(it->http, "POST", "/v1/jobs", body) != 201) give_up("a job is not taken");
        // One job after the other: of ten thousand handshakes at once some would last too long, and nobody here comes again.
        wait_for(it, first + ranks);
    }
}

// Of the whole coordinator, and what came to it.
typedef struct loads {
    numbers cpu[2], reports[2], messages[2], ratios;
} loads;

static void measure(loads *out, int rounds, double seconds) {
    for (int round = 0; round < rounds; round++) {
        double cpu[2];
        control_workers_counts before[2];
        for (int i = 0; i < 2; i++) {
            before[i] = control_workers_count(sides[i].workers);
            cpu[i] = seconds_of(sides[i].cpu);
        }
        gs_sleep_ns((int64_t)(seconds * 1e9));
        for (int i = 0; i < 2; i++) {
            control_workers_counts after = control_workers_count(sides[i].workers);
            cpu[i] = (seconds_of(sides[i].cpu) - cpu[i]) / seconds * 1e6;
            add(&out->cpu[i], cpu[i]);
            add(&out->reports[i], (double)(after.reports - before[i].reports) / seconds);
            add(&out->messages[i], (double)(after.sent - before[i].sent) / seconds);
        }
        add(&out->ratios, cpu[1] / cpu[0]);
    }
}

static void print_load(loads *of, double step_seconds) {
    printf("steps of %-4g s  open %6.0f reports/s of %6.0f messages/s, %5.1f %% of a core; CURVE %6.0f of %6.0f, %5.1f %%; ratio %.3f\n", step_seconds,
           median(&of->reports[0]), median(&of->messages[0]), median(&of->cpu[0]) / 1e4, median(&of->reports[1]), median(&of->messages[1]),
           median(&of->cpu[1]) / 1e4, median(&of->ratios));
    fflush(stdout);
}

// All else goes on as before when steps come more often, so what is more is of the reports.
static void compare_reports(int num_workers, int rounds, double seconds) {
    static loads loaded[2];
    // Of more workers each is asked to report less often (coordinator/rules/timing.c), and would hide the difference.
    const double slower = num_workers > 1000 ? num_workers / 1000.0 : 1, steps[2] = {slower, slower / 4};
    for (int i = 0; i < 2; i++) {
        start_workers(&sides[i], num_workers);
    }
    printf("# %d workers at each coordinator, %d rounds of %g s at the same time, CPU of the whole coordinator: medians, and median of rounds of the ratio to open\n",
           num_workers, rounds, seconds);
    for (int phase = 0; phase < 2; phase++) {
        for (int i = 0; i < 2; i++) control_workers_pace(sides[i].workers, steps[phase]);
        gs_sleep_ns(5 * GS_NS_PER_SEC);
        measure(&loaded[phase], rounds, seconds);
        print_load(&loaded[phase], steps[phase]);
    }
    double us[2];
    for (int i = 0; i < 2; i++)
        us[i] = (median(&loaded[1].cpu[i]) - median(&loaded[0].cpu[i])) / (median(&loaded[1].reports[i]) - median(&loaded[0].reports[i]));
    printf("one report more  open %6.1f us, CURVE %6.1f us; ratio %.3f\n", us[0], us[1], us[1] / us[0]);
}

static bool are_all_there(int num_workers) {
    bool all = true;
    for (int i = 0; i < 2; i++) {
        control_workers_counts counts = control_workers_count(sides[i].workers);
        if (!counts.links_lost && counts.trainers_stepping == num_workers) continue;
        fprintf(stderr, "key_cost: %s: %d connections were given up, %d of %d workers step\n", sides[i].name, counts.links_lost, counts.trainers_stepping, num_workers);
        all = false;
    }
    return all;
}

static void end(side *it, bool removes) {
    char command[300];
    control_workers_stop(it->workers);
    kept_http_close(it->http);
    kill(it->pid, SIGKILL);
    waitpid(it->pid, NULL, 0);
    snprintf(command, sizeof command, "rm -rf %s", it->dir);
    if (removes && system(command) != 0) fprintf(stderr, "key_cost: %s stays\n", it->dir);
}

int main(int argc, char **argv) {
    int num_workers = argc > 2 ? atoi(argv[2]) : 0, rounds = argc > 3 ? atoi(argv[3]) : 15;
    double seconds = argc > 4 ? atof(argv[4]) : 4;
    if (argc < 3 || num_workers < 1 || rounds < 1 || rounds > MOST_ROUNDS || seconds <= 0) {
        fprintf(stderr, "usage: %s COORDINATOR WORKERS [ROUNDS, at most %d [SECONDS]]\n", argv[0], MOST_ROUNDS);
        return 64;
    }
    // The connections of all workers of both are this process's.
    struct rlimit limit;
    rlim_t wanted = 2 * (rlim_t)(num_workers + num_workers / SLOTS) + 100;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < wanted) {
        fprintf(stderr, "key_cost: %d workers at each coordinator want %llu descriptors: ulimit -n\n", num_workers, (unsigned long long)wanted);
        return 1;
    }
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < NUM_SIDES; i++) start(&sides[i], argv[1]);
    compare_requests(rounds);
    compare_reports(num_workers, rounds, seconds);
    bool is_right = are_all_there(num_workers);
    for (int i = 0; i < NUM_SIDES; i++) end(&sides[i], is_right);
    return is_right ? 0 : 1;
}
