// gradsync-coordinator: flags, the lock on the data directory, signals, the loop, and the hosted API.
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "api/api.h"
#include "api/startup.h"
#include "coordinator/serve/coordinator.h"
#include "coordinator/store/data_dir.h"
#include "coordinator/store/files/marked_root.h"
#include "coordinator/store/trace.h"
#include "core/config.h"
#include "core/directory.h"
#include "core/log.h"
#include "core/log_thread.h"
#include "core/thread.h"
#include "rpc/json/config_file.h"
#include "rpc/keys/audit.h"
#include "rpc/keys/key_store.h"
#include "rpc/server/key_gate.h"

#define EXIT_GRACE_SECONDS 30
#define DAY_NS (86400.0 * (double)GS_NS_PER_SEC)
#define MOST_LIVE_JOBS 10000    // that wait and train
#define MOST_ENDED_ABOVE 10000  // --keep-jobs, until they are forgotten
#define MOST_KEYS 100000        // of requests of a day
#define FILES_WANTED 12000      // one for each of 10,000 trainers, agents of 8 slots, and the API

typedef struct coordinator_settings {
    char *http, *http_readonly, *allow_host, *control, *data_dir, *checkpoints, *log_level, *port_file, *trace, *tls_cert, *tls_key, *keyed_control;
    double orphan_limit, keep_days, keep_series;
    int64_t keep_jobs;
    bool require_token, require_key, insecure_no_auth, insecure_no_tls, new_checkpoints, core_files;
} coordinator_settings;

static const gs_config_field fields[] = {
    {.name = "http", .offset = offsetof(coordinator_settings, http),
     .default_value = "127.0.0.1:8470", .metavar = "ADDR:PORT|unix:/PATH",
     .help = "where to serve HTTP; port 0 picks one; a Unix socket is for this user alone"},
    {.name = "http_readonly", .offset = offsetof(coordinator_settings, http_readonly), .metavar = "ADDR:PORT|unix:/PATH",
     .help = "where everybody may read jobs, logs and metrics, and change nothing"},
    {.name = "allow_host", .type = GS_CONFIG_LIST,
     .offset = offsetof(coordinator_settings, allow_host), .metavar = "NAME[:PORT]",
     .help = "answer to this name in Host too; may be given again"},
    {.name = "control", .offset = offsetof(coordinator_settings, control),
     .default_value = "tcp://127.0.0.1:8471", .metavar = "URL",
     .help = "where workers connect; port 0 picks one"},
    {.name = "keyed_control", .offset = offsetof(coordinator_settings, keyed_control), .metavar = "URL",
     .help = "another address where workers connect, at which they show keys, while --control is as it was: for a cluster "
             "that is given keys as it runs"},
    {.name = "require_key", .type = GS_CONFIG_BOOL, .offset = offsetof(coordinator_settings, require_key),
     .default_value = "false",
     .help = "ask workers for keys at a loopback address too, and in spite of --insecure-no-auth; `gradsync key` makes them"},
    {.name = "data_dir", .offset = offsetof(coordinator_settings, data_dir),
     .metavar = "DIR", .help = "jobs, events and logs"},
    {.name = "checkpoints", .offset = offsetof(coordinator_settings, checkpoints), .metavar = "DIR",
     .help = "the directory of all checkpoints; below the data directory unless given"},
    {.name = "new_checkpoints", .type = GS_CONFIG_BOOL, .offset = offsetof(coordinator_settings, new_checkpoints),
     .default_value = "false",
     .help = "take that directory as it is, though it was another one, or its disk was there: for once"},
    {.name = "log_level", .offset = offsetof(coordinator_settings, log_level),
     .default_value = "info", .metavar = "LEVEL", .help = "debug, info, warn, error or off"},
    {.name = "port_file", .offset = offsetof(coordinator_settings, port_file), .metavar = "FILE",
     .help = "write the addresses really used to this file, as JSON"},
    {.name = "trace", .offset = offsetof(coordinator_settings, trace), .metavar = "FILE",
     .help = "record all that comes in and goes out in this new file, 1 GiB at most, for reports of "
             "bugs: it holds specifications, log lines and launch tokens"},
    {.name = "orphan_limit", .type = GS_CONFIG_DOUBLE,
     .offset = offsetof(coordinator_settings, orphan_limit), .default_value = "600", .most = 86400,
     .least = 1, .metavar = "SECONDS",
     .help = "ranks that hear no coordinator save and stop after that long; their job is not started "
             "elsewhere before"},
    {.name = "keep_jobs", .type = GS_CONFIG_INT, .offset = offsetof(coordinator_settings, keep_jobs),
     .default_value = "10000", .least = 0, .most = 1000000, .metavar = "N",
     .help = "ended jobs that are kept, the newest; 0: all. Others are forgotten as by DELETE: their checkpoints stay"},
    {.name = "keep_days", .type = GS_CONFIG_DOUBLE, .offset = offsetof(coordinator_settings, keep_days),
     .default_value = "0", .least = 0, .most = 36500, .metavar = "DAYS",
     .help = "ended jobs are kept that long, days without a coordinator not counted; 0: for ever"},
    {.name = "keep_series", .type = GS_CONFIG_DOUBLE, .offset = offsetof(coordinator_settings, keep_series),
     .default_value = "300", .least = 1, .most = 86400, .metavar = "SECONDS",
     .help = "the series of an ended job stay on /metrics that long; it is not forgotten before"},
    {.name = "insecure_no_auth", .type = GS_CONFIG_BOOL,
     .offset = offsetof(coordinator_settings, insecure_no_auth), .default_value = "false",
     .help = "serve other addresses than loopback though nobody shows credentials, and unencrypted: for private "
             "networks only"},
    {.name = "require_token", .type = GS_CONFIG_BOOL, .offset = offsetof(coordinator_settings, require_token),
     .default_value = "false",
     .help = "ask for a token at a loopback address too, and in spite of --insecure-no-auth; the first one is in "
             "DATA_DIR/admin.token"},
    {.name = "tls_cert", .offset = offsetof(coordinator_settings, tls_cert), .metavar = "FILE",
     .help = "encrypt HTTP: the server's certificate, then those that vouch for it, in PEM; read again when it changes"},
    {.name = "tls_key", .offset = offsetof(coordinator_settings, tls_key), .metavar = "FILE",
     .help = "the certificate's private key in PEM, which others may not read"},
    {.name = "core_files", .type = GS_CONFIG_BOOL, .offset = offsetof(coordinator_settings, core_files), .default_value = "false",
     .help = "let a process with keys leave core files and be traced"},
    {.name = "insecure_no_tls", .type = GS_CONFIG_BOOL, .offset = offsetof(coordinator_settings, insecure_no_tls),
     .default_value = "false", .help = "serve other addresses than loopback unencrypted, behind a proxy that encrypts"},
};

static const gs_config_program program = {
    .name = "gradsync-coordinator",
    .synopsis = "[--http ADDR:PORT] [--control URL] [--data-dir DIR]",
    .description = "Owns the truth about jobs and workers, and serves the HTTP API.",
    .fields = fields,
    .num_fields = sizeof fields / sizeof *fields,
    .read_file = gs_config_file_read,
};

// What a signal handler may touch.
static volatile sig_atomic_t stop_signal;
static const gs_coordinator *signalled;

static void note_signal(int number) {
    if (stop_signal) _exit(1);  // asked twice: at once
    stop_signal = number;
    int kept = errno;
    if (signalled) gs_coordinator_wake(signalled);
    errno = kept;
}

// Found out before the coordinator epoch is taken: a start that cannot serve leaves no trace.
static gs_status check_address_free(const char *name, const char *address) {
    if (strncmp(address, "unix:", 5) == 0) return gs_ok();
    char host[256];
    const char *colon = strrchr(address, ':');
    bool bracketed = address[0] == '[' && colon > address + 1 && colon[-1] == ']';
    const char *begin = address + bracketed;
    size_t host_bytes = colon ? (size_t)(colon - bracketed - begin) : sizeof host;
    if (host_bytes >= sizeof host) return gs_ok();  // whoever opens it says what is wrong
    snprintf(host, sizeof host, "%.*s", (int)host_bytes, begin);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) return gs_ok();
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool taken = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) != 0 && errno == EADDRINUSE;
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return taken ? gs_error(GS_FAILED_PRECONDITION, "%s: address %s is in use", name, address)
                 : gs_ok();
}

typedef struct program_state {
    gs_rpc_context *context;
    gs_key_gate *gate;   // NULL: nobody is asked for a key
    bool control_asks;
    gs_trace *trace;
    gs_audit *audit;     // of the API here, and of the control port
    gs_coordinator *coordinator;
    gs_api *api;
    gs_log_thread *log;
    atomic_bool api_stopped;
    int lock_fd;
    char data_dir[1100], checkpoints[1200], checkpoints_given[1200];  // the first two absolute
} program_state;

// One address: what ZeroMQ takes besides (a source, several of them, variables) would be looked at by its beginning alone.
static bool is_endpoint(const char *text) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:_-*%[]";
    const char *address = text + strlen("tcp://");
    return !strncmp(text, "tcp://", strlen("tcp://")) && strchr(address, ':') && !address[strspn(address, allowed)];
}

static bool is_loopback(const char *control) {
    const char *host = control + strlen("tcp://");
    char text[INET_ADDRSTRLEN] = "";
    struct in_addr address;
    size_t len = strcspn(host, ":");
    if (len < sizeof text) memcpy(text, host, len);
    if (inet_pton(AF_INET, text, &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
    return !strncmp(host, "localhost:", 10) || !strncmp(host, "[::1]:", 6);
}

// Nobody but this machine comes in without a key unless somebody has said so.
static gs_status choose_guard(program_state *state, const coordinator_settings *settings) {
    const char *const addresses[] = {settings->control, settings->keyed_control};
    for (int i = 0; i < 2; i++)
        if (addresses[i][0] && !is_endpoint(addresses[i]))
            return gs_error(GS_INVALID_ARGUMENT, "%s: must be one tcp://ADDR:PORT, is %s", i ? "keyed_control" : "control", addresses[i]);
    bool wide = !is_loopback(settings->control);
    state->control_asks = settings->require_key || (wide && !settings->insecure_no_auth);
    if (wide && !state->control_asks)
        gs_log_warn("anybody who reaches this address may start jobs", "control=%s", settings->control);
    return gs_ok();
}

static gs_status open_gate(program_state *state, const coordinator_settings *settings) {
    if (!state->control_asks && !settings->keyed_control[0]) return gs_ok();
    gs_key_file server;
    char keys[GS_KEY_PATH_BYTES], shown[GS_CURVE_KEY_TEXT_BYTES];
    bool made;
    GS_TRY(gs_status_prefix(gs_key_store_server(&server, state->data_dir, &made), "key of the control port"));
    gs_key_store_path(keys, state->data_dir);
    gs_curve_key_format(shown, &server.pair.shown);
    if (made) gs_log_info("a key of this coordinator was made", "path=%s/control.key public=%s", state->data_dir, shown);
    gs_status status = gs_key_gate_open(&state->gate, state->context, &server.pair, keys);
    if (!status.code) gs_key_gate_audit(state->gate, state->audit);
    gs_key_file_wipe(&server);
    return status;
}

static gs_status open_audit(program_state *state) {
    char path[1200];
    snprintf(path, sizeof path, "%s/audit.jsonl", state->data_dir);
    return gs_audit_open(&state->audit, &(gs_audit_options){.path = path});
}

static gs_status make_absolute(char *out, size_t out_bytes, const char *field, const char *path) {
    char *real = realpath(path, NULL);
    if (!real) return gs_error_from_errno(errno, "%s: %s", field, path);
    snprintf(out, out_bytes, "%s", real);
    free(real);
    return gs_ok();
}

// The default of versions before was relative: jobs that are not found any more are looked for here first.
static void warn_of_left_data(const char *data_dir) {
    if (access("gradsync-data/gradsync.db", F_OK) != 0) return;
    gs_log_warn("data of an earlier version is here and not used; --data-dir gradsync-data takes it",
                "data_dir=%s", data_dir);
}

static gs_status open_data_dir(program_state *state, const coordinator_settings *settings) {
    char standard[1000];
    const char *given = settings->data_dir ? settings->data_dir : "";
    gs_status none = gs_data_dir_default(standard, sizeof standard, geteuid() == 0);
    if (!*given && none.code) return none;
    if (!none.code && !strcmp(given, standard)) warn_of_left_data(given);
    GS_TRY(gs_data_dir_lock(&state->lock_fd, given));
    return make_absolute(state->data_dir, sizeof state->data_dir, "data_dir", given);
}

// One that has been marked is not made again: its disk may be away, and another directory in its place.
static gs_status choose_checkpoints(program_state *state, const coordinator_settings *settings) {
    bool given = settings->checkpoints && settings->checkpoints[0];
    char *path = state->checkpoints_given, known[GS_ROOT_PATH_LEN];
    snprintf(path, sizeof state->checkpoints_given, "%s%s", given ? settings->checkpoints : state->data_dir,
             given ? "" : "/checkpoints");
    bool was_marked = !settings->new_checkpoints && gs_marked_root_recall(known, state->data_dir, path);
    if (!was_marked) GS_TRY(gs_status_prefix(gs_directory_make(path, 0700), "checkpoints"));
    gs_status status = make_absolute(state->checkpoints, sizeof state->checkpoints, "checkpoints", path);
    if (!was_marked || !status.code) return status;
    snprintf(state->checkpoints, sizeof state->checkpoints, "%s", known);
    return gs_ok();
}

static int fail(int exit_code, gs_status status) {
    gs_log_error("cannot start", "reason=\"%s\"", status.message);
    return exit_code;
}

// Keys of ours, or tokens that others show us wherever anybody else is served than who may use this machine's loopback unasked.
static bool has_secrets(const program_state *state, const coordinator_settings *settings) {
    return state->control_asks || settings->keyed_control[0] || settings->tls_key[0] || settings->require_token || settings->insecure_no_tls;
}

static int open_program(program_state *state, const coordinator_settings *settings) {
    gs_status status = choose_guard(state, settings);
    if (status.code) return fail(EX_CONFIG, status);
    if (has_secrets(state, settings) && !settings->core_files) gs_startup_guard_memory();
    status = open_data_dir(state, settings);
    if (status.code) return fail(EX_CANTCREAT, status);
    status = check_address_free("control", settings->control + strlen("tcp://"));
    if (!status.code && settings->keyed_control[0])
        status = check_address_free("keyed_control", settings->keyed_control + strlen("tcp://"));
    if (!status.code) status = check_address_free("http", settings->http);
    if (status.code) return fail(EX_UNAVAILABLE, status);
    status = choose_checkpoints(state, settings);
    if (status.code) return fail(EX_CANTCREAT, status);
    if (settings->trace && settings->trace[0]) status = gs_trace_open(&state->trace, settings->trace);
    if (status.code) return fail(EX_CANTCREAT, status);
    status = gs_rpc_context_create(&state->context);
    if (status.code) return fail(EX_OSERR, status);
    status = open_audit(state);
    if (status.code) return fail(EX_CONFIG, status);
    status = open_gate(state, settings);
    if (status.code) return fail(status.code == GS_DATA_LOSS ? EX_DATAERR : EX_CONFIG, status);
    gs_timing timing = gs_timing_default;
    timing.orphan_ns = (int64_t)(settings->orphan_limit * (double)GS_NS_PER_SEC);
    timing.series_keep_ns = (int64_t)(settings->keep_series * (double)GS_NS_PER_SEC);
    gs_coordinator_options options = {.timing = &timing,
                                      .retention = {.ended_jobs = (size_t)settings->keep_jobs,
                                                    .ended_ns = (int64_t)(settings->keep_days * DAY_NS),
                                                    .ended_above = MOST_ENDED_ABOVE,
                                                    .live_jobs = MOST_LIVE_JOBS,
                                                    .keys = MOST_KEYS},
                                      .data_dir = state->data_dir,
                                      .checkpoints_dir = state->checkpoints,
                                      .checkpoints_given = state->checkpoints_given,
                                      .checkpoints_are_new = settings->new_checkpoints,
                                      .control_endpoint = settings->control,
                                      .control_asks = state->control_asks,
                                      .guarded_endpoint = settings->keyed_control[0] ? settings->keyed_control : NULL,
                                      .gate = state->gate,
                                      .context = state->context,
                                      .trace = state->trace,
                                      .audit = state->audit};
    status = gs_coordinator_create(&state->coordinator, &options);
    if (status.code) {
        return fail(status.code == GS_DATA_LOSS ? EX_DATAERR
                    : status.code == GS_ALREADY_EXISTS ? EX_CANTCREAT
                    : status.code == GS_FAILED_PRECONDITION ? EX_UNAVAILABLE : EX_OSERR, status);
    }
    char tokens[1200];
    snprintf(tokens, sizeof tokens, "%s/tokens.json", state->data_dir);
    gs_api_options api = {.http_address = settings->http,
                          .http_readonly = settings->http_readonly[0] ? settings->http_readonly : NULL,
                          .tokens_path = tokens,
                          .audit = state->audit,
                          .require_token = settings->require_token,
                          .tls_cert = settings->tls_cert[0] ? settings->tls_cert : NULL,
                          .tls_key = settings->tls_key[0] ? settings->tls_key : NULL,
                          .insecure_no_tls = settings->insecure_no_tls,
                          .context = state->context,
                          .rpc_endpoint = GS_INPROC_ENDPOINT,
                          .insecure_no_auth = settings->insecure_no_auth,
                          .allow_host = settings->allow_host,
                          .checkpoints_dir = state->checkpoints};
    status = gs_api_start(&state->api, &api);
    if (!status.code) return EX_OK;
    return fail(status.code == GS_UNAVAILABLE ? EX_UNAVAILABLE : status.code == GS_DATA_LOSS ? EX_DATAERR : EX_CONFIG, status);
}

// The API's requests in flight need the loop, so it is stopped beside it.
static void stop_api(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    program_state *state = ctx;
    gs_api_stop(state->api);
    state->api = NULL;
    atomic_store(&state->api_stopped, true);
    gs_coordinator_wake(state->coordinator);
}

static gs_status turn_until_api_stopped(program_state *state) {
    gs_thread *stopper = NULL;
    gs_status status = gs_thread_start(&stopper, "api-stop", stop_api, state);
    gs_deadline deadline = gs_deadline_in_seconds(EXIT_GRACE_SECONDS);
    while (!status.code && !atomic_load(&state->api_stopped) && !gs_deadline_passed(deadline)) {
        status = gs_coordinator_turn(state->coordinator);
    }
    gs_thread_stop(stopper);
    return status;
}

static int run_program(program_state *state, const coordinator_settings *settings) {
    const char *control = gs_coordinator_control_endpoint(state->coordinator);
    gs_status status = gs_ok();
    gs_log_thread_flush(state->log, gs_deadline_in_seconds(1));  // who waits for the port finds what its start had to say
    if (settings->port_file && settings->port_file[0]) {
        status = gs_startup_write_port_file(settings->port_file, gs_api_address(state->api), gs_api_readonly_address(state->api), control);
        if (status.code) return fail(EX_CANTCREAT, status);
    }
    const char *keyed = state->control_asks ? control : gs_coordinator_guarded_endpoint(state->coordinator);
    gs_log_info("ready", "http=%s control=%s keyed_control=%s data_dir=%s", gs_api_address(state->api), control, keyed,
                state->data_dir);
    gs_status data = gs_ok();
    while (!status.code && !data.code && !stop_signal) {
        status = gs_coordinator_turn(state->coordinator);
        data = gs_coordinator_check_data(state->coordinator);
    }
    if (status.code) {
        gs_log_error("the loop ended", "reason=\"%s\"", status.message);
    } else if (data.code) {
        gs_log_error("stopping", "reason=\"%s\"", data.message);
    } else {
        gs_log_info("stopping", "signal=%d", (int)stop_signal);
    }
    gs_coordinator_drain(state->coordinator);
    gs_status stopped = turn_until_api_stopped(state);
    if (data.code) return data.code == GS_ALREADY_EXISTS ? EX_CANTCREAT : EX_DATAERR;
    return status.code || stopped.code ? EX_SOFTWARE : EX_OK;
}

static void close_program(program_state *state) {
    signalled = NULL;
    gs_api_stop(state->api);
    gs_coordinator_destroy(state->coordinator);
    gs_key_gate_close(state->gate);
    gs_audit_close(state->audit);
    if (state->context) gs_rpc_context_destroy(state->context);
    gs_trace_close(state->trace);
    if (state->lock_fd >= 0) close(state->lock_fd);
}

static int run_main(const coordinator_settings *settings) {
    gs_log_level level;
    if (!gs_log_level_from_name(&level, settings->log_level)) {
        fprintf(stderr, "gradsync-coordinator: --log-level: '%s' is no level\n", settings->log_level);
        return EX_USAGE;
    }
    gs_log_set_level(level);
    gs_startup_raise_file_limit(FILES_WANTED);
    program_state state = {.lock_fd = -1};
    gs_status log = gs_log_thread_start(&state.log, STDERR_FILENO);
    if (log.code) return fail(EX_OSERR, log);
    int exit_code = open_program(&state, settings);
    if (exit_code == EX_OK) {
        signalled = state.coordinator;
        exit_code = run_program(&state, settings);
    }
    close_program(&state);
    gs_log_thread_stop(state.log, gs_deadline_in_seconds(1));
    return exit_code;
}

// --help and --print-config show the default that holds for this user.
static gs_status parse_settings(coordinator_settings *settings, gs_config_outcome *outcome, int argc,
                                char **argv) {
    char data_dir[1000];
    gs_status none = gs_data_dir_default(data_dir, sizeof data_dir, geteuid() == 0);
    gs_config_field own[sizeof fields / sizeof *fields];
    memcpy(own, fields, sizeof fields);
    for (size_t i = 0; i < program.num_fields && !none.code; i++) {
        if (!strcmp(own[i].name, "data_dir")) own[i].default_value = data_dir;
    }
    gs_config_program with_defaults = program;
    with_defaults.fields = own;
    return gs_config_parse(settings, outcome, &with_defaults, argc, argv);
}

int main(int argc, char **argv) {
    coordinator_settings settings = {0};
    gs_config_outcome outcome;
    gs_status status = parse_settings(&settings, &outcome, argc, argv);
    if (status.code) {
        fprintf(stderr, "gradsync-coordinator: %s\n", status.message);
        return EX_USAGE;
    }
    struct sigaction action = {.sa_handler = note_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    int exit_code = outcome == GS_CONFIG_EXIT ? EX_OK : run_main(&settings);
    gs_config_release(&settings, &program);
    return exit_code;
}
