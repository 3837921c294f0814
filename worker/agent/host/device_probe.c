#include "worker/agent/host/device_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/strbuf.h"
#include "gradsync/comm/comm.h"
#include "kernels/device.h"

#define MAX_ANSWER_BYTES (64 * 1024)

extern char **environ;

static void set_version(gs_json *out, const char *name, int version) {
    char text[16];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    gs_json_set_string(out, name, text);
}

static gs_json *describe(int ordinal, gs_status *status) {
    gs_device_facts facts;
    *status = gs_cuda_device_facts(&facts, ordinal);
    if (status->code) return NULL;
    char capability[16];
    snprintf(capability, sizeof capability, "%d.%d", facts.capability_major,
             facts.capability_minor);
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "ordinal", ordinal);
    gs_json_set_string(out, "uuid", facts.uuid);
    gs_json_set_string(out, "name", facts.name);
    gs_json_set_int(out, "memory_bytes", (int64_t)facts.memory_bytes);
    gs_json_set_string(out, "capability", capability);
    set_version(out, "driver", facts.driver_version);
    set_version(out, "runtime", facts.runtime_version);
    return out;
}

gs_json *gs_device_probe_here(void) {
    char reason[192] = "", nccl[192];
    gs_json *out = gs_json_new_object(), *devices = gs_json_new_array();
    int count = gs_cuda_device_count(reason, sizeof reason);
    for (int i = 0; i < count; i++) {
        gs_status status;
        gs_json *device = describe(i, &status);
        if (device) gs_json_push(devices, device);
        else snprintf(reason, sizeof reason, "%.190s", status.message);
    }
    if (reason[0]) gs_json_set_string(out, "devices_reason", reason);
    gs_json_set(out, "devices", devices);
    bool has_nccl = gs_nccl_version(nccl, sizeof nccl);
    gs_json_set_string(out, has_nccl ? "nccl" : "nccl_reason", nccl);
    return out;
}

static _Noreturn void become_probe(int output_fd, pid_t parent, const gs_device_asker *asker) {
    static char *const name[] = {(char *)(uintptr_t)"gradsync-worker", (char *)(uintptr_t)"devices", NULL};
    if (asker->user && !gs_trainer_user_become(asker->user)) _exit(127);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(output_fd, STDOUT_FILENO);
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    execve("/proc/self/exe", name, asker->environment ? asker->environment : environ);
    _exit(127);
}

// All that the child prints, until it closes its end.
static gs_status read_answer(gs_strbuf *answer, int fd, gs_deadline deadline) {
    char data[4096];
    for (;;) {
        int64_t left_ms = (deadline.at_ns - gs_now_ns()) / GS_NS_PER_MS;
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int count = left_ms > 0 ? poll(&ready, 1, (int)left_ms) : 0;
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return gs_error(GS_DEADLINE_EXCEEDED, "the driver does not answer");
        ssize_t bytes = read(fd, data, sizeof data);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return gs_error_from_errno(errno, "reading its answer");
        if (bytes == 0) return gs_ok();
        if (strlen(gs_strbuf_text(answer)) + (size_t)bytes > MAX_ANSWER_BYTES)
            return gs_error(GS_DATA_LOSS, "its answer is too long");
        gs_strbuf_add(answer, data, (size_t)bytes);
    }
}

// A child that is stuck in its driver cannot even be killed: then it is left to end when it can.
static bool wait_for(pid_t pid, int *ended, gs_deadline deadline) {
    while (waitpid(pid, ended, WNOHANG) == 0) {
        if (gs_deadline_passed(deadline)) return false;
        gs_sleep_ns(GS_NS_PER_MS);
    }
    return true;
}

static gs_status end_child(pid_t pid, gs_status status, gs_deadline deadline) {
    int ended = 0;
    if (!status.code && !wait_for(pid, &ended, deadline))
        status = gs_error(GS_DEADLINE_EXCEEDED, "the driver does not let it end");
    if (status.code) {
        kill(pid, SIGKILL);
        wait_for(pid, &ended, gs_deadline_in_seconds(1));
        return status;
    }
    if (WIFSIGNALED(ended))
        return gs_error(GS_INTERNAL, "it died of signal %d", WTERMSIG(ended));
    if (WEXITSTATUS(ended))
        return gs_error(GS_INTERNAL, "it ended with exit code %d", WEXITSTATUS(ended));
    return gs_ok();
}

static gs_status ask(gs_json **found, const gs_device_asker *asker, gs_deadline deadline) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0) return gs_error_from_errno(errno, "pipe");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_probe(fds[1], parent, asker);
    int error_number = errno;
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return gs_error_from_errno(error_number, "fork");
    }
    gs_strbuf answer = {0};
    gs_status status = end_child(pid, read_answer(&answer, fds[0], deadline), deadline);
    close(fds[0]);
    if (!status.code)
        status = gs_json_parse(found, gs_strbuf_text(&answer), strlen(gs_strbuf_text(&answer)));
    gs_strbuf_release(&answer);
    return status;
}

gs_status gs_device_probe_ask(gs_json **found, const gs_device_asker *asker, gs_deadline deadline) {
    return gs_status_prefix(ask(found, asker, deadline), "device probe");
}
