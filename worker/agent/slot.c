#include "worker/agent/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/boot_clock.h"
#include "core/clock.h"
#include "worker/exit_code.h"

#define READ_BYTES 65536
#define TAIL_LINE_BYTES 1000
#define MOST_RANKS (1 << 20)

extern char **environ;

void gs_slot_init(gs_slot *slot, int index, gs_agent_reports *reports, const gs_confinement *confinement) {
    *slot = (gs_slot){.index = index, .reports = reports, .confinement = confinement, .pidfd = -1};
    slot->outputs[0] = (gs_slot_output){.slot = slot, .stream = "stdout", .fd = -1};
    slot->outputs[1] = (gs_slot_output){.slot = slot, .stream = "stderr", .fd = -1};
}

// What the agent hands to its child.
typedef struct birth {
    int launch_fd;
    const int *output_fds;
    pid_t agent;
    char *const *argv;
    const gs_rank_environment *environment;
    gs_confined confined;
} birth;

static _Noreturn void give_up(const char *what) {
    // In the log of its job; strerror is not safe here.
    static const char before[] = "gradsync-worker: a trainer could not ";
    char text[200];
    size_t used = sizeof before - 1, more = strlen(what);
    if (more > sizeof text - sizeof before) more = sizeof text - sizeof before;
    memcpy(text, before, used);
    memcpy(text + used, what, more);
    text[used + more] = '\n';
    if (write(STDERR_FILENO, text, used + more + 1) < 0) _exit(GS_EXIT_SYSTEM);
    _exit(GS_EXIT_CONFIGURATION);
}

// In the child: only calls that are safe after a fork of a process with threads.
static _Noreturn void become_trainer(const birth *it) {
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null_fd = open("/dev/null", O_RDONLY);
    dup2(null_fd, STDIN_FILENO);
    dup2(it->output_fds[0], STDOUT_FILENO);
    dup2(it->output_fds[1], STDERR_FILENO);
    const char *failed = gs_confined_apply(&it->confined);
    if (failed) give_up(failed);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // behind the change of its user, which takes it back
    if (getppid() != it->agent) _exit(127);  // it died before the line above
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    fcntl(it->launch_fd, F_SETFD, 0);
    execve("/proc/self/exe", it->argv, it->environment->variables);
    give_up("be started: its user may not execute gradsync-worker, or there is no memory");
}

// RANK names the process to failpoints; matrix products get their threads from the device, not from BLAS;
// the GPUs of other slots are not there for this trainer.
static gs_status make_environment(gs_slot *slot, const gs_json *document) {
    char rank[24], visible_devices[4096];
    snprintf(rank, sizeof rank, "RANK=%d", (int)gs_json_int_or(document, "rank_hint", 0));
    snprintf(visible_devices, sizeof visible_devices, "CUDA_VISIBLE_DEVICES=%s",
             gs_json_string_or(document, "visible_devices", ""));
    char *const set[] = {rank, visible_devices, (char *)(uintptr_t)"OPENBLAS_NUM_THREADS=1", NULL};
    gs_rank_environment_sources sources = {.own = environ, .set = set};
    const gs_confinement *confinement = slot->confinement;
    char *user[4] = {NULL};
    if (confinement) {
        sources.secrets = confinement->options.secrets;
        sources.withheld = confinement->options.withheld;
        sources.passed = confinement->options.pass_environment;
        if (confinement->user.is_another) {
            user[0] = (char *)(uintptr_t)confinement->user.home;
            user[1] = (char *)(uintptr_t)confinement->user.user_name;
            user[2] = (char *)(uintptr_t)confinement->user.log_name;
            sources.user = user;
        }
    }
    return gs_rank_environment_make(&slot->environment, gs_json_get(document, "spec"), &sources);
}

static gs_status spawn(gs_slot *slot, int launch_fd, const gs_json *document, bool has_key,
                       const int output_fds[2]) {
    char fd_text[16];
    snprintf(fd_text, sizeof fd_text, "%d", launch_fd);
    char *argv[] = {(char *)(uintptr_t)"gradsync-worker", (char *)(uintptr_t)"--trainer", fd_text,
                    NULL};
    GS_TRY(make_environment(slot, document));
    birth it = {.launch_fd = launch_fd, .output_fds = output_fds, .agent = getpid(), .argv = argv,
                .environment = &slot->environment};
    GS_TRY(gs_status_prefix(gs_confined_begin(&it.confined, slot->confinement, document, slot->index), "slot %d", slot->index));
    bool allows_cores = slot->confinement && slot->confinement->options.core_files;
    it.confined.has_secrets = (has_key || slot->environment.num_secrets > 0) && !allows_cores;
    atomic_store(&slot->page->is_guarded, it.confined.has_secrets);
    // Of a group that could not be removed the count is an earlier trainer's.
    if (slot->confinement && slot->confinement->cgroup)
        slot->kills_before = gs_rank_cgroup_kills(slot->confinement->cgroup, slot->index);
    pid_t pid = fork();
    if (pid == 0) become_trainer(&it);
    int error_number = errno;
    gs_confined_release(&it.confined);
    if (pid < 0) return gs_error_from_errno(error_number, "slot %d: fork", slot->index);
    setpgid(pid, pid);
    slot->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (slot->pidfd < 0) {
        error_number = errno;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return gs_error_from_errno(error_number, "slot %d: pidfd", slot->index);
    }
    slot->pid = pid;
    return gs_ok();
}

static gs_status open_outputs(gs_slot *slot, int write_fds[2]) {
    for (int i = 0; i < 2; i++) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0) {
            return gs_error_from_errno(errno, "slot %d: pipe", slot->index);
        }
        slot->outputs[i].fd = fds[0];
        write_fds[i] = fds[1];
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
    }
    return gs_ok();
}

static void release(gs_slot *slot) {
    for (int i = 0; i < 2; i++) {
        gs_slot_output *output = &slot->outputs[i];
        if (output->fd >= 0) close(output->fd);
        free(output->lines.text);
    }
    for (int i = 0; i < GS_SLOT_TAIL_LINES; i++) free(slot->tail[i]);
    if (slot->pidfd >= 0) close(slot->pidfd);
    gs_launch_unmap(slot->page);
    gs_json_release(slot->document);
    gs_rank_environment_release(&slot->environment);
    gs_slot_init(slot, slot->index, slot->reports, slot->confinement);
}

gs_status gs_slot_start(gs_slot *slot, const gs_json *document, const gs_key_file *key) {
    int launch_fd = -1, write_fds[2] = {-1, -1};
    snprintf(slot->job, sizeof slot->job, "%s", gs_json_string_or(document, "job", ""));
    snprintf(slot->cluster, sizeof slot->cluster, "%s", gs_json_string_or(document, "cluster", ""));
    slot->document = gs_json_copy(document);
    gs_status status = gs_json_read_u64(&slot->incarnation, document, "incarnation");
    if (!status.code) status = gs_launch_write(&launch_fd, &slot->page, document, key);
    if (!status.code) status = open_outputs(slot, write_fds);
    if (!status.code) {
        status = spawn(slot, launch_fd, document, key != NULL, write_fds);
    }
    if (launch_fd >= 0) close(launch_fd);
    for (int i = 0; i < 2; i++) {
        if (write_fds[i] >= 0) close(write_fds[i]);
    }
    if (status.code) release(slot);
    return status;
}

void gs_slot_hold(gs_slot *slot, bool holds) {
    if (!gs_slot_busy(slot) || slot->is_held == holds || (holds && slot->kill_at_ns)) return;
    slot->is_held = holds;
    slot->held_ns = gs_boot_ns();
    kill(-slot->pid, holds ? SIGSTOP : SIGCONT);
}

bool gs_slot_held_longer(const gs_slot *slot, double limit_seconds, double margin_seconds) {
    if (!gs_slot_busy(slot) || !slot->is_held || limit_seconds <= 0) return false;
    return gs_seconds_since_boot_ns(slot->held_ns) >= limit_seconds + margin_seconds;
}

void gs_slot_stop(gs_slot *slot, bool kill_now, double grace_seconds) {
    if (!gs_slot_busy(slot)) return;
    if (!kill_now) gs_slot_hold(slot, false);  // who stands still is killed as it stands
    if (!kill_now && slot->kill_at_ns == 0) kill(-slot->pid, SIGTERM);
    int64_t at_ns = gs_deadline_in_seconds(kill_now ? 0 : grace_seconds).at_ns;
    if (slot->kill_at_ns == 0 || at_ns < slot->kill_at_ns) slot->kill_at_ns = at_ns;
    gs_slot_tick(slot);
}

void gs_slot_tick(gs_slot *slot) {
    if (!gs_slot_busy(slot) || slot->kill_at_ns == 0 || gs_now_ns() < slot->kill_at_ns) return;
    kill(-slot->pid, SIGKILL);
}

static void keep_tail(gs_slot *slot, const char *text, size_t bytes) {
    char **at = &slot->tail[slot->num_tail++ % GS_SLOT_TAIL_LINES];
    free(*at);
    *at = strndup(text, bytes < TAIL_LINE_BYTES ? bytes : TAIL_LINE_BYTES);
}

// What a trainer wrote about itself; one that was taken over may have written anything.
static int rank_of(const gs_slot *slot) {
    int rank = atomic_load(&slot->page->rank);
    return rank < 0 || rank >= MOST_RANKS ? (int)gs_json_int_or(slot->document, "rank_hint", 0) : rank;
}

static void report_line(gs_slot_output *output, const char *text, size_t bytes) {
    gs_slot *slot = output->slot;
    gs_log_record record = {.job = slot->job,
                            .rank = rank_of(slot),
                            .generation = atomic_load(&slot->page->generation),
                            .stream = output->stream,
                            .text = text,
                            .bytes = bytes,
                            .at_ms = gs_wall_ms(),
                            // Two apart, so that a mark fits between.
                            .position = slot->position += 2};
    gs_agent_reports_add_line(slot->reports, &record);
    keep_tail(slot, text, bytes);
}

static void take_line(void *ctx, const char *text, size_t bytes) {
    gs_slot_output *output = ctx;
    const gs_rank_environment *environment = &output->slot->environment;
    char *shown = environment->num_secrets ? malloc(bytes + 1) : NULL;
    if (!environment->num_secrets) report_line(output, text, bytes);
    if (!shown) return;  // no memory to look through it: better no line
    memcpy(shown, text, bytes);
    report_line(output, shown, gs_rank_environment_hide(environment, shown, bytes));
    free(shown);
}

static size_t cut_line(void *ctx, const char *text, size_t bytes, size_t at) {
    const gs_slot_output *output = ctx;
    return gs_rank_environment_cut(&output->slot->environment, text, bytes, at);
}

void gs_slot_read(gs_slot *slot, gs_slot_output *output) {
    char data[READ_BYTES];
    // Bounded, so that a trainer that prints without end does not keep the agent from the others.
    for (int i = 0; i < 16 && output->fd >= 0; i++) {
        ssize_t bytes = read(output->fd, data, sizeof data);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return;
        if (bytes == 0) {
            close(output->fd);
            output->fd = -1;
            return;
        }
        if (slot->environment.num_secrets && !output->lines.text) {
            output->lines.hold = gs_rank_environment_longest(&slot->environment) - 1;
            output->lines.cut = cut_line;
        }
        gs_log_lines_add(&output->lines, data, (size_t)bytes, take_line, output);
    }
}

static gs_json *encode_tail(const gs_slot *slot) {
    gs_json *out = gs_json_new_array();
    uint64_t first =
        slot->num_tail > GS_SLOT_TAIL_LINES ? slot->num_tail - GS_SLOT_TAIL_LINES : 0;
    for (uint64_t i = first; i < slot->num_tail; i++) {
        const char *line = slot->tail[i % GS_SLOT_TAIL_LINES];
        if (line) gs_json_push(out, gs_json_new_string(line));
    }
    return out;
}

gs_json *gs_slot_describe(const gs_slot *slot) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "slot", slot->index);
    gs_json_set_string(out, "job", slot->job);
    gs_json_set_string(out, "cluster", slot->cluster);
    gs_json_set_int(out, "rank", rank_of(slot));
    gs_json_set_int(out, "generation", atomic_load(&slot->page->generation));
    int world_size = atomic_load(&slot->page->world_size);
    int64_t applied_step = atomic_load(&slot->page->applied_step);
    gs_json_set_int(out, "world_size", world_size < 0 || world_size > MOST_RANKS ? 0 : world_size);
    gs_json_set_int(out, "applied_step", applied_step < 0 ? 0 : applied_step);
    gs_json_set_string(out, "state", gs_member_state_name((gs_member_state)atomic_load(&slot->page->state)));
    gs_json_set_u64(out, "incarnation", slot->incarnation);
    gs_json_set_int(out, "pid", slot->pid);
    const gs_json *numbers = gs_json_get(slot->document, "numbers");
    if (numbers) gs_json_set(out, "numbers", gs_json_copy(numbers));
    return out;
}

gs_json *gs_slot_describe_fully(const gs_slot *slot) {
    static const char *const copied[] = {"launch_token", "last_generation", "device", "checkpoints_dir", "spec", NULL};
    gs_json *out = gs_slot_describe(slot);
    for (const char *const *name = copied; *name; name++) {
        const gs_json *member = gs_json_get(slot->document, *name);
        if (member) gs_json_set(out, *name, gs_json_copy(member));
    }
    gs_json_set_string(out, "writes_as", gs_json_string_or(slot->document, "cluster", ""));
    return out;
}

// In the words of its log, where whoever looks for a reason reads them.
static void tell_memory_limit(gs_slot *slot) {
    static const char words[] = "gradsync-worker: the memory limit of this rank (limits.memory_bytes, --memory-per-slot) ended it";
    const gs_rank_cgroup *cgroup = slot->confinement ? slot->confinement->cgroup : NULL;
    if (!cgroup) return;
    if (gs_rank_cgroup_kills(cgroup, slot->index) > slot->kills_before) report_line(&slot->outputs[1], words, sizeof words - 1);
    gs_rank_cgroup_remove(cgroup, slot->index);
}

void gs_slot_reap(gs_slot *slot, const char *host) {
    siginfo_t facts = {0};
    int options = WEXITED | WNOHANG | WNOWAIT;
    if (waitid(P_PID, (id_t)slot->pid, &facts, options) < 0 || facts.si_pid == 0) return;
    kill(-slot->pid, SIGKILL);  // what it may have left behind; its number cannot be another's yet
    waitpid(slot->pid, NULL, 0);
    for (int i = 0; i < 2; i++) {
        gs_slot_read(slot, &slot->outputs[i]);
        gs_log_lines_finish(&slot->outputs[i].lines, take_line, &slot->outputs[i]);
    }
    tell_memory_limit(slot);
    gs_json *exited = gs_slot_describe(slot);
    bool by_itself = facts.si_code == CLD_EXITED;
    gs_json_remove(exited, "pid");
    gs_json_set_int(exited, "exit_code", by_itself ? facts.si_status : -1);
    gs_json_set_int(exited, "signal", by_itself ? 0 : facts.si_status);
    gs_json_set_string(exited, "host", host);
    gs_json_set(exited, "log_tail", encode_tail(slot));
    gs_agent_reports_add_exit(slot->reports, exited);
    release(slot);
}
