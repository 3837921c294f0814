// What a key costs a report: the same step records, of 20 buckets, sent over TCP to a server in another process, open and with
// CURVE, in turns. Said is the CPU time of each process for one report, all of its threads; the server unpacks what it gets.
//
//   bench_keys [ROUNDS [SECONDS]]
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/control_reports.h"
#include "core/clock.h"
#include "rpc/client/rpc_client.h"
#include "rpc/keys/key_store.h"
#include "rpc/schema/step_record.h"
#include "rpc/server/rpc_server.h"

#define CLIENTS 8
#define REPORTS_A_TICK 20
#define TICK_NS (10 * GS_NS_PER_MS)  // 2,000 reports a second of each client: below what a server takes of one

typedef struct shared {
    atomic_int ready, stop;
    atomic_ullong received;
    char endpoint[128];
    double server_seconds;
} shared;

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void check(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "keys: %s\n", status.message);
    exit(1);
}

static gs_status take(void *ctx, const gs_rpc_peer *peer, const void *record, size_t bytes) {
    static gs_report_rows rows;
    gs_step_report told;
    (void)peer;
    GS_TRY(gs_step_record_unpack(&told, &rows, record, bytes));
    atomic_fetch_add(&((shared *)ctx)->received, 1);
    return gs_ok();
}

static void serve(shared *it, const char *dir) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_key_gate *gate = NULL;
    gs_key_file own;
    char keys[GS_KEY_PATH_BYTES];
    check(gs_rpc_context_create(&context));
    if (dir) {
        check(gs_key_store_server(&own, dir, NULL));
        gs_key_store_path(keys, dir);
        check(gs_key_gate_open(&gate, context, &own.pair, keys));
    }
    gs_rpc_server_options options = {.endpoints = {"tcp://127.0.0.1:0"}, .guarded = {gate != NULL}, .gate = gate,
                                     .coordinator_epoch = 1, .ctx = it, .record_handlers = {[GS_STEP_RECORD] = take}};
    check(gs_rpc_server_open(&server, context, &options));
    snprintf(it->endpoint, sizeof it->endpoint, "%s", gs_rpc_server_endpoint(server, 0));
    atomic_store(&it->ready, 1);
    double begun = 0;
    while (!atomic_load(&it->stop)) {
        check(gs_rpc_server_turn(server, -1, gs_deadline_in_ms(50)));
        if (atomic_load(&it->ready) == 2) {
            begun = cpu_seconds();
            atomic_store(&it->received, 0);
            atomic_store(&it->ready, 3);
        }
    }
    it->server_seconds = cpu_seconds() - begun;
    _exit(0);
}

static gs_status copy_key(void *ctx, gs_key_file *key) {
    *key = *(const gs_key_file *)ctx;
    return gs_ok();
}

static void connect_all(gs_rpc_client *clients[CLIENTS], gs_rpc_context *context, const shared *it, gs_key_file *key) {
    for (int i = 0; i < CLIENTS; i++) {
        gs_rpc_client_options options = {.endpoint = it->endpoint};
        if (key) options.source = (gs_rpc_key_source){copy_key, key};
        check(gs_rpc_client_open(&clients[i], context, &options));
        while (!gs_rpc_client_connected(clients[i])) gs_sleep_ns(GS_NS_PER_MS);
    }
}

// Microseconds of CPU for one report: here, and in the server.
static void run_one(double *sender_us, double *server_us, const char *dir, gs_key_file *key, double seconds, const void *record,
                    size_t bytes) {
    shared *it = mmap(NULL, sizeof *it, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (it == MAP_FAILED) exit(1);
    pid_t pid = fork();
    if (pid == 0) serve(it, dir);
    while (!atomic_load(&it->ready)) gs_sleep_ns(GS_NS_PER_MS);
    gs_rpc_context *context;
    gs_rpc_client *clients[CLIENTS];
    check(gs_rpc_context_create(&context));
    connect_all(clients, context, it, key);
    atomic_store(&it->ready, 2);
    while (atomic_load(&it->ready) != 3) gs_sleep_ns(GS_NS_PER_MS);
    double begun = cpu_seconds();
    int64_t next_ns = gs_now_ns(), end_ns = next_ns + (int64_t)(seconds * 1e9);
    for (; next_ns < end_ns; next_ns += TICK_NS) {
        for (int i = 0; i < CLIENTS; i++)
            for (int k = 0; k < REPORTS_A_TICK; k++) gs_rpc_send_record(clients[i], GS_STEP_RECORD, record, bytes);
        int64_t wait_ns = next_ns + TICK_NS - gs_now_ns();
        if (wait_ns > 0) gs_sleep_ns(wait_ns);
    }
    gs_sleep_ns(300 * GS_NS_PER_MS);
    double sender = cpu_seconds() - begun;
    atomic_store(&it->stop, 1);
    waitpid(pid, NULL, 0);
    double received = (double)atomic_load(&it->received);
    *sender_us = sender / received * 1e6;
    *server_us = it->server_seconds / received * 1e6;
    for (int i = 0; i < CLIENTS; i++) gs_rpc_client_close(clients[i]);
    gs_rpc_context_destroy(context);
    munmap(it, sizeof *it);
}

static void make_key(char dir[64], gs_key_file *key) {
    gs_key_file server;
    char keys[GS_KEY_PATH_BYTES];
    gs_known_key known = {.role = GS_ROLE_AGENT, .name = "bench"};
    snprintf(dir, 64, "/tmp/gradsync-bench-keys.XXXXXX");
    if (!mkdtemp(dir)) exit(1);
    check(gs_key_store_server(&server, dir, NULL));
    gs_key_store_path(keys, dir);
    check(gs_key_store_make(keys, &known, key));
    key->server = server.pair.shown;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    char dir[64], command[96];
    gs_key_file key;
    make_key(dir, &key);
    control_reports *reports = control_reports_create();
    if (!reports) return 1;
    size_t bytes;
    control_place place = {.rank = 1, .step = 64, .told_step = 60};
    const void *record = control_reports_make(reports, &bytes, &place);
    printf("# %zu bytes a report, %d clients; CPU microseconds for one report\n# round  mode   sender  server\n", bytes, CLIENTS);
    double sums[2][2] = {{0}};
    for (int round = 0; round < rounds; round++) {
        for (int keyed = 0; keyed < 2; keyed++) {
            double sender_us, server_us;
            run_one(&sender_us, &server_us, keyed ? dir : NULL, keyed ? &key : NULL, seconds, record, bytes);
            printf("%7d  %-5s %7.1f %7.1f\n", round, keyed ? "keys" : "open", sender_us, server_us);
            fflush(stdout);
            sums[keyed][0] += sender_us / rounds;
            sums[keyed][1] += server_us / rounds;
        }
    }
    printf("#   mean  open  %7.1f %7.1f\n#   mean  keys  %7.1f %7.1f\n# a key costs %.1f us where a report is sent, %.1f us where it is taken\n",
           sums[0][0], sums[0][1], sums[1][0], sums[1][1], sums[1][0] - sums[0][0], sums[1][1] - sums[0][1]);
    control_reports_destroy(reports);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}
