// gradsync up: a coordinator and workers as children of this process. They end with it, however it
// ends.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "api/cli/command.h"
#include "core/clock.h"

enum { MAX_WORKERS = 64, READY_SECONDS = 30, END_SECONDS = 15, MAX_QUICK_ENDS = 5 };

typedef struct child {
    pid_t pid;  // 0: not running
    char name[32];
    int num_quick_ends;
    int64_t started_ns, start_again_ns;  // 0: not to be started
} child;

typedef struct cluster {
    const gs_cli_options *options;
    char bin_dir[PATH_MAX], data_dir[PATH_MAX];
    char http[128], control[128];
    child coordinator, workers[MAX_WORKERS];
    int num_workers, num_slots;
    sigset_t signals;
} cluster;

static bool find_bin_dir(char dir[PATH_MAX]) {
    ssize_t len = readlink("/proc/self/exe", dir, PATH_MAX - 1);
    if (len <= 0) return false;
    dir[len] = '\0';
    char *slash = strrchr(dir, '/');
    if (slash) *slash = '\0';
    return slash != NULL;
}

static bool make_dirs(const char *path) {
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *c = part + 1; *c; c++) {
        if (*c != '/') continue;
        *c = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return false;
        *c = '/';
    }
    return mkdir(part, 0777) == 0 || errno == EEXIST;
}

static bool choose_data_dir(cluster *up) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (up->options->data_dir)
        snprintf(up->data_dir, sizeof up->data_dir, "%s", up->options->data_dir);
    else if (state && *state)
        snprintf(up->data_dir, sizeof up->data_dir, "%s/gradsync", state);
    else
        snprintf(up->data_dir, sizeof up->data_dir, "%s/.local/state/gradsync",
                 home ? home : "/tmp");
    char logs[PATH_MAX + 8];
    snprintf(logs, sizeof logs, "%s/logs", up->data_dir);
    if (make_dirs(logs)) return true;
    fprintf(stderr, "gradsync: %s: %s\n", logs, strerror(errno));
    return false;
}

static bool read_count(int *count, const char *text, const char *flag, int most) {
    char *end;
    long value = text ? strtol(text, &end, 10) : 1;
    if (text && (end == text || *end || value < 1 || value > most)) {
        fprintf(stderr, "gradsync: --%s: '%s' is not a number from 1 to %d\n", flag, text, most);
        return false;
    }
    *count = (int)value;
    return true;
}

static void log_path(char path[PATH_MAX], const cluster *up, const char *name) {
    snprintf(path, PATH_MAX, "%.3000s/logs/%s.log", up->data_dir, name);
}

// In the child: dies with its parent, logs to its file, and becomes the program.
static _Noreturn void become_program(const cluster *up, const child *what, char **words,
                                     pid_t parent) {
    char path[PATH_MAX];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(EX_OSERR);
    setpgid(0, 0);  // Ctrl-C is for us alone; we end them in order
    log_path(path, up, what->name);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log >= 0) {
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
    }
    if (null >= 0) dup2(null, STDIN_FILENO);
    execv(words[0], words);
    fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
    _exit(EX_OSERR);
}

static bool start_child(cluster *up, child *what, char **words) {
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become_program(up, what, words, parent);
    if (pid < 0) fprintf(stderr, "gradsync: %s: %s\n", what->name, strerror(errno));
    what->pid = pid > 0 ? pid : 0;
    what->started_ns = gs_now_ns();
    what->start_again_ns = 0;
    return pid > 0;
}

static bool start_coordinator(cluster *up) {
    char program[PATH_MAX + 32], port_file[PATH_MAX + 32], http[128];
    snprintf(program, sizeof program, "%s/gradsync-coordinator", up->bin_dir);
    snprintf(port_file, sizeof port_file, "%s/ports.json", up->data_dir);
    snprintf(http, sizeof http, "%s", up->options->http ? up->options->http : "127.0.0.1:8470");
    unlink(port_file);
    char flag_http[] = "--http", flag_control[] = "--control", flag_data[] = "--data-dir",
         flag_ports[] = "--port-file", control[] = "tcp://127.0.0.1:0";
    char *words[] = {program,   flag_http,    http,       flag_control, control,
                     flag_data, up->data_dir, flag_ports, port_file,    NULL};
    snprintf(up->coordinator.name, sizeof up->coordinator.name, "coordinator");
    return start_child(up, &up->coordinator, words);
}

static bool start_worker(cluster *up, int index) {
    child *worker = &up->workers[index];
    char program[PATH_MAX + 32], slots[16], root[PATH_MAX];
    snprintf(program, sizeof program, "%s/gradsync-worker", up->bin_dir);
    snprintf(worker->name, sizeof worker->name, "worker-%d", index + 1);
    snprintf(slots, sizeof slots, "%d", up->num_slots);
    snprintf(root, sizeof root, "%s", up->options->data_root ? up->options->data_root : ".");
    char flag_coordinator[] = "--coordinator", flag_name[] = "--name", flag_slots[] = "--slots",
         flag_root[] = "--data-root";
    char *words[] = {program, flag_coordinator, up->control, flag_name, worker->name, flag_slots,
                     slots,   flag_root,        root,        NULL};
    return start_child(up, worker, words);
}

static bool read_ports(cluster *up) {
    char path[PATH_MAX + 32], text[512];
    snprintf(path, sizeof path, "%s/ports.json", up->data_dir);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    gs_json *ports = NULL;
    gs_status status = gs_json_parse(&ports, text, bytes);
    if (!status.code) {
        char url[1024];
        gs_cli_identity_name_server(url, gs_json_string_or(ports, "http", ""));
        snprintf(up->http, sizeof up->http, "%s", url);
        snprintf(up->control, sizeof up->control, "%s", gs_json_string_or(ports, "control", ""));
    }
    gs_json_release(ports);
    return !status.code && up->control[0];
}

static void print_log_tail(const cluster *up, const char *name) {
    char path[PATH_MAX], text[1500];
    log_path(path, up, name);
    FILE *file = fopen(path, "re");
    if (!file) return;
    if (fseek(file, -(long)(sizeof text - 1), SEEK_END) != 0) rewind(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    fprintf(stderr, "  the end of %s:\n%s", path, text);
}

static int describe_end(const cluster *up, const char *name, int wait_status) {
    if (WIFSIGNALED(wait_status)) {
        fprintf(stderr, "gradsync: %s was killed by signal %d\n", name, WTERMSIG(wait_status));
        print_log_tail(up, name);
        return EX_SOFTWARE;
    }
    fprintf(stderr, "gradsync: %s ended with exit code %d\n", name, WEXITSTATUS(wait_status));
    print_log_tail(up, name);
    return WEXITSTATUS(wait_status) ? WEXITSTATUS(wait_status) : EX_SOFTWARE;
}

// Exit code, or -1: go on.
static int reap_children(cluster *up, bool ending) {
    int wait_status, exit_code = -1;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        if (pid == up->coordinator.pid) {
            up->coordinator.pid = 0;
            if (!ending) exit_code = describe_end(up, "coordinator", wait_status);
        }
        for (int i = 0; i < up->num_workers; i++) {
            child *worker = &up->workers[i];
            if (pid != worker->pid) continue;
            worker->pid = 0;
            if (ending) continue;
            int code = describe_end(up, worker->name, wait_status);
            bool quick = gs_now_ns() - worker->started_ns < 10 * GS_NS_PER_SEC;
            worker->num_quick_ends = quick ? worker->num_quick_ends + 1 : 0;
            if (worker->num_quick_ends >= MAX_QUICK_ENDS || code == EX_USAGE)
                exit_code = code;
            else
                worker->start_again_ns = gs_now_ns() + GS_NS_PER_SEC;
        }
    }
    return exit_code;
}

// Waits for a signal at most `ms`. The signal, or 0.
static int wait_signal(const cluster *up, int64_t ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * GS_NS_PER_MS};
    int received = sigtimedwait(&up->signals, NULL, &time);
    return received > 0 ? received : 0;
}

static bool is_end_signal(int received) {
    return received == SIGINT || received == SIGTERM || received == SIGHUP;
}

static bool is_ready(const cluster *up) {
    gs_cli_http *http = gs_cli_http_open(&(gs_cli_server){.url = up->http}, 0, false);
    gs_strbuf text = {0};
    bool ready = http && gs_cli_http_text(http, &text,
                                          &(gs_cli_request){.verb = "GET",
                                                            .path = "/readyz",
                                                            .accept = "text/plain",
                                                            .quiet = true,
                                                            .once = true}) == GS_EXIT_OK;
    gs_strbuf_release(&text);
    gs_cli_http_close(http);
    return ready;
}

// Exit code, or -1: ready.
static int wait_ready(cluster *up) {
    gs_deadline deadline = gs_deadline_in_seconds(READY_SECONDS);
    bool has_ports = false;
    while (!gs_deadline_passed(deadline)) {
        if (is_end_signal(wait_signal(up, 50))) return GS_EXIT_INTERRUPTED;
        int exit_code = reap_children(up, false);
        if (exit_code >= 0) return exit_code;
        if (!has_ports) has_ports = read_ports(up);
        if (has_ports && is_ready(up)) return -1;
    }
    fprintf(stderr, "gradsync: the coordinator is not ready after %d s\n", READY_SECONDS);
    print_log_tail(up, "coordinator");
    return GS_EXIT_TIMEOUT;
}

static void print_welcome(const cluster *up) {
    printf("gradsync is up: %d worker%s with %d slot%s each\n"
           "  HTTP        %s\n  control     %s\n  data, logs  %s\n\n"
           "In another terminal:\n",
           up->num_workers, up->num_workers == 1 ? "" : "s", up->num_slots,
           up->num_slots == 1 ? "" : "s", up->http, up->control, up->data_dir);
    if (strcmp(up->http, "http://127.0.0.1:8470") != 0)
        printf("  export GRADSYNC_SERVER=%s\n", up->http);
    printf("  echo '{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":200}}' | gradsync submit - "
           "--wait\n"
           "Ctrl-C ends all of it.\n");
    fflush(stdout);
}

static void signal_children(cluster *up, int signal_number, bool workers, bool coordinator) {
    for (int i = 0; workers && i < up->num_workers; i++)
        if (up->workers[i].pid) kill(up->workers[i].pid, signal_number);
    if (coordinator && up->coordinator.pid) kill(up->coordinator.pid, signal_number);
}

static bool any_worker(const cluster *up) {
    for (int i = 0; i < up->num_workers; i++)
        if (up->workers[i].pid) return true;
    return false;
}

// Workers first: their trainers may still want to save. A second Ctrl-C, or too much time: SIGKILL.
static void end_cluster(cluster *up) {
    gs_deadline deadline = gs_deadline_in_seconds(END_SECONDS);
    bool killed = false, coordinator_told = false;
    signal_children(up, SIGTERM, true, false);
    while (any_worker(up) || up->coordinator.pid) {
        if (!any_worker(up) && !coordinator_told) {
            signal_children(up, SIGTERM, false, true);
            coordinator_told = true;
        }
        bool impatient = is_end_signal(wait_signal(up, 100)) || gs_deadline_passed(deadline);
        if (impatient && !killed) {
            signal_children(up, SIGKILL, true, true);
            killed = true;
        }
        reap_children(up, true);
    }
}

static int keep_running(cluster *up) {
    for (;;) {
        if (is_end_signal(wait_signal(up, 500))) return GS_EXIT_OK;
        int exit_code = reap_children(up, false);
        if (exit_code >= 0) return exit_code;
        for (int i = 0; i < up->num_workers; i++) {
            child *worker = &up->workers[i];
            if (worker->start_again_ns && gs_now_ns() >= worker->start_again_ns)
                start_worker(up, i);
        }
    }
}

// Exit code of the whole.
static int run_cluster(cluster *up) {
    if (!read_count(&up->num_workers, up->options->workers, "workers", MAX_WORKERS) ||
        !read_count(&up->num_slots, up->options->slots, "slots", 256))
        return GS_EXIT_USAGE;
    if (!find_bin_dir(up->bin_dir) || !choose_data_dir(up)) return EX_CANTCREAT;
    sigemptyset(&up->signals);
    sigaddset(&up->signals, SIGINT);
    sigaddset(&up->signals, SIGTERM);
    sigaddset(&up->signals, SIGHUP);
    sigaddset(&up->signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &up->signals, NULL);

    int exit_code = start_coordinator(up) ? wait_ready(up) : EX_OSERR;
    for (int i = 0; exit_code < 0 && i < up->num_workers; i++)
        if (!start_worker(up, i)) exit_code = EX_OSERR;
    if (exit_code < 0) {
        print_welcome(up);
        exit_code = keep_running(up);
    }
    end_cluster(up);
    return exit_code;
}

int gs_cli_up(gs_cli *cli) {
    cluster *up = calloc(1, sizeof *up);
    if (!up) return EX_OSERR;
    up->options = &cli->options;
    int exit_code = run_cluster(up);
    free(up);
    return exit_code;
}
