#include "tests/support/coordinator_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/random.h"
#include "tests/support/temp_dir.h"

#define MOST_DRAWS 20
#define IN_USE 69  // exit code of a coordinator

// A port that others get by chance for a connection of theirs is lost to a coordinator that starts
// again: theirs are above these.
static int draw_port(void) {
    return 10000 + (int)(gs_random_from_system() % 22000);
}

static pid_t spawn(const gs_coordinator_process *process, const char *port_file) {
    char data[600], log[600];
    snprintf(data, sizeof data, "%s/data", process->directory);
    snprintf(log, sizeof log, "%s/coordinator.log", process->directory);
    pid_t pid = fork();
    if (pid != 0) return pid;
    int file = process->log_file ? process->log_file : open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0) dup2(file, STDERR_FILENO);
    char http[128], control[128];
    snprintf(http, sizeof http, "127.0.0.1:%d", draw_port());
    snprintf(control, sizeof control, "tcp://127.0.0.1:%d", draw_port());
    execl(GRADSYNC_BIN_DIR "/gradsync-coordinator", "gradsync-coordinator", "--http",
          process->http[0] ? process->http : http, "--control",
          process->control[0] ? process->control : control, "--data-dir", data, "--port-file",
          port_file, process->flag, (char *)NULL);
    _exit(127);
}

static bool read_ports(gs_coordinator_process *process, const char *port_file) {
    FILE *file = fopen(port_file, "re");
    if (!file) return false;
    int got = fscanf(file, "{\"http\":\"%127[^\"]\",\"control\":\"%127[^\"]\"}", process->http,
                     process->control);
    fclose(file);
    return got == 2;
}

static gs_status start_once(gs_coordinator_process *process, int *exit_code) {
    if (!process->directory) process->directory = gs_temp_dir_make();
    char port_file[600];
    snprintf(port_file, sizeof port_file, "%s/ports.json", process->directory);
    unlink(port_file);
    process->pid = spawn(process, port_file);
    if (process->pid < 0) return gs_error_from_errno(errno, "fork");
    gs_deadline deadline = gs_deadline_in_seconds(120);
    while (!read_ports(process, port_file)) {
        int status = 0;
        if (waitpid(process->pid, &status, WNOHANG) == process->pid) {
            process->pid = 0;
            *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            return gs_error(GS_UNAVAILABLE, "the coordinator ended with %d, see %s/coordinator.log",
                            WIFEXITED(status) ? WEXITSTATUS(status) : -1, process->directory);
        }
        if (gs_deadline_passed(deadline)) {
            return gs_error(GS_DEADLINE_EXCEEDED, "the coordinator did not start");
        }
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    return gs_ok();
}

gs_status gs_coordinator_process_start(gs_coordinator_process *process) {
    bool is_first = !process->http[0];
    int exit_code = 0;
    gs_status status = start_once(process, &exit_code);
    for (int i = 0; i < MOST_DRAWS && is_first && status.code && exit_code == IN_USE; i++)
        status = start_once(process, &exit_code);
    return status;
}

void gs_coordinator_process_pause(const gs_coordinator_process *process, int64_t duration_ns) {
    kill(process->pid, SIGSTOP);
    gs_sleep_ns(duration_ns);
    kill(process->pid, SIGCONT);
}

void gs_coordinator_process_kill(gs_coordinator_process *process) {
    if (process->pid <= 0) return;
    kill(process->pid, SIGKILL);
    waitpid(process->pid, NULL, 0);
    process->pid = 0;
}

int gs_coordinator_process_stop(gs_coordinator_process *process) {
    if (process->pid > 0) kill(process->pid, SIGTERM);
    return gs_coordinator_process_wait(process);
}

int gs_coordinator_process_wait(gs_coordinator_process *process) {
    if (process->pid <= 0) return -1;
    gs_deadline deadline = gs_deadline_in_seconds(120);
    int status = 0;
    while (waitpid(process->pid, &status, WNOHANG) != process->pid) {
        if (gs_deadline_passed(deadline)) {
            gs_coordinator_process_kill(process);
            return -1;
        }
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    process->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void gs_coordinator_process_release(gs_coordinator_process *process) {
    gs_coordinator_process_kill(process);
    if (process->directory) gs_temp_dir_remove(process->directory);
    *process = (gs_coordinator_process){0};
}
