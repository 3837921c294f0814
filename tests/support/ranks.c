#include "tests/support/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/strbuf.h"
#include "core/thread.h"
#include "tests/support/rank_link.h"
#include "tests/support/shared_gpu.h"

#define MAX_NOTES 4096

extern char **environ;

typedef struct rank_process {
    pid_t pid;  // 0 when reaped
    int socket; // hub thread; -1 after end of file
    gs_strbuf in, out;
    size_t out_sent;
    bool exchanges; // `exchange` and `mine` wait for the others
    rank_message exchange;
    gs_strbuf mine;
    // Under gs_ranks.lock:
    bool ended, reported;
    gs_status status;
    char **notes; // never freed before the end, so that a caller may keep one
    size_t num_notes;
} rank_process;

struct gs_ranks {
    int world_size;
    rank_process *processes;
    gs_thread *hub; // moves the messages of all ranks
    int wake[2];    // pipe that ends the hub
    int first_ended; // the hub's; -1: all live. Who ended later may have ended because of it
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static int int_from_environment(const char *name) {
    const char *text = getenv(name);
    return text ? (int)strtol(text, NULL, 10) : -1;
}

bool gs_ranks_main(int argc, char **argv, const gs_rank_body *bodies, int *exit_code) {
    if (argc != 4 || strcmp(argv[1], "--rank-body") != 0) return false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gs_rank_env env = {.rank = int_from_environment("RANK"),
                       .world_size = int_from_environment("WORLD_SIZE"),
                       .arg = argv[3]};
    gs_share_gpu(env.rank);
    rank_link *link = rank_link_open(env.rank, env.world_size);
    *exit_code = 1;
    if (!link) return true;
    env.exchange = link;
    gs_status status = gs_error(GS_NOT_FOUND, "no rank body \"%s\"", argv[2]);
    for (const gs_rank_body *body = bodies; body->name; body++) {
        if (strcmp(body->name, argv[2]) == 0) {
            status = body->run(&env);
            break;
        }
    }
    gs_status sent = rank_link_send(link, RANK_MESSAGE_STATUS, &status, sizeof status);
    rank_link_close(link);
    *exit_code = sent.code ? 1 : 0;
    return true;
}

gs_status gs_rank_exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                           const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    return rank_link_exchange(ctx, tag, ranks, num_ranks, mine, bytes, all, deadline);
}

void gs_rank_note(const gs_rank_env *env, const char *text) {
    gs_status sent = rank_link_send(env->exchange, RANK_MESSAGE_NOTE, text, strlen(text) + 1);
    (void)sent; // the parent is gone: nobody reads notes
}

static void queue_message(rank_process *to, rank_message_type type, const void *body,
                          size_t bytes) {
    rank_message head = to->exchange;
    head.type = type;
    head.bytes = (uint32_t)bytes;
    gs_strbuf_add(&to->out, &head, sizeof head);
    gs_strbuf_add(&to->out, body, bytes);
    to->exchanges = false;
    gs_strbuf_clear(&to->mine);
}

// Whether `rank` is in the exchange of exactly these ranks.
static bool is_waiting(const gs_ranks *ranks, int rank, uint64_t group) {
    const rank_process *process = &ranks->processes[rank];
    return process->exchanges && process->exchange.ranks == group;
}

static void fail_exchange(gs_ranks *ranks, uint64_t group, gs_status status) {
    for (int i = 0; i < ranks->world_size; i++) {
        if (is_waiting(ranks, i, group))
            queue_message(&ranks->processes[i], RANK_MESSAGE_ERROR, &status, sizeof status);
    }
}

static void answer_exchange(gs_ranks *ranks, uint64_t group) {
    gs_strbuf all = {0};
    for (int i = 0; i < ranks->world_size; i++) {
        if (group >> i & 1)
            gs_strbuf_add(&all, ranks->processes[i].mine.text, ranks->processes[i].mine.len);
    }
    for (int i = 0; i < ranks->world_size; i++) {
        if (group >> i & 1)
            queue_message(&ranks->processes[i], RANK_MESSAGE_EXCHANGE, all.text, all.len);
    }
    gs_strbuf_release(&all);
}

// Completes the exchange that the ranks of `group` are in, or ends it when it can never complete. Others of
// them may still be in an exchange of another group.
static void settle_group(gs_ranks *ranks, uint64_t group) {
    int first = -1, num_missing = 0;
    for (int i = 0; i < ranks->world_size; i++) {
        if (!(group >> i & 1)) continue;
        num_missing += !is_waiting(ranks, i, group);
        if (!is_waiting(ranks, i, group)) continue;
        if (first < 0) first = i;
        const rank_message *a = &ranks->processes[first].exchange;
        const rank_message *b = &ranks->processes[i].exchange;
        if (strcmp(a->tag, b->tag) != 0 || a->bytes != b->bytes) {
            fail_exchange(ranks, group,
                          gs_error(GS_FAILED_PRECONDITION,
                                   "rank %d exchanges %u bytes \"%s\", rank %d %u bytes \"%s\"",
                                   first, a->bytes, a->tag, i, b->bytes, b->tag));
            return;
        }
    }
    if (!num_missing) {
        answer_exchange(ranks, group);
        return;
    }
    for (int k = 0; k < ranks->world_size; k++) {
        int i = (k + (ranks->first_ended > 0 ? ranks->first_ended : 0)) % ranks->world_size;
        if (!(group >> i & 1) || ranks->processes[i].socket >= 0 || ranks->processes[i].exchanges)
            continue;
        fail_exchange(ranks, group,
                      gs_error(GS_ABORTED, "exchange \"%s\": rank %d has ended",
                               ranks->processes[first].exchange.tag, i));
        return;
    }
}

static void settle_exchanges(gs_ranks *ranks) {
    for (int i = 0; i < ranks->world_size; i++) {
        if (ranks->processes[i].exchanges) settle_group(ranks, ranks->processes[i].exchange.ranks);
    }
}

static void add_note(rank_process *process, const char *text) {
    if (process->num_notes == MAX_NOTES) return;
    if (!process->notes) process->notes = calloc(MAX_NOTES, sizeof *process->notes);
    if (process->notes) process->notes[process->num_notes++] = strdup(text);
}

static void take_message(gs_ranks *ranks, rank_process *process, const rank_message *head,
                         const char *body) {
    if (head->type == RANK_MESSAGE_EXCHANGE) {
        process->exchange = *head;
        process->exchanges = true;
        gs_strbuf_clear(&process->mine);
        gs_strbuf_add(&process->mine, body, head->bytes);
        if (head->ranks >> (process - ranks->processes) & 1) return;
        gs_status status =
            gs_error(GS_INVALID_ARGUMENT, "exchange \"%s\": of others alone", head->tag);
        queue_message(process, RANK_MESSAGE_ERROR, &status, sizeof status);
        return;
    }
    pthread_mutex_lock(&ranks->lock);
    if (head->type == RANK_MESSAGE_NOTE) add_note(process, body);
    if (head->type == RANK_MESSAGE_STATUS && head->bytes == sizeof process->status) {
        memcpy(&process->status, body, sizeof process->status);
        process->reported = true;
    }
    pthread_cond_broadcast(&ranks->changed);
    pthread_mutex_unlock(&ranks->lock);
}

static void parse_input(gs_ranks *ranks, rank_process *process) {
    size_t at = 0;
    rank_message head;
    while (process->in.len - at >= sizeof head) {
        memcpy(&head, process->in.text + at, sizeof head);
        if (process->in.len - at - sizeof head < head.bytes) break;
        take_message(ranks, process, &head, process->in.text + at + sizeof head);
        at += sizeof head + head.bytes;
    }
    if (!at) return;
    memmove(process->in.text, process->in.text + at, process->in.len - at);
    process->in.len -= at;
}

static void end_input(gs_ranks *ranks, rank_process *process) {
    close(process->socket);
    process->socket = -1;
    if (ranks->first_ended < 0) ranks->first_ended = (int)(process - ranks->processes);
    pthread_mutex_lock(&ranks->lock);
    process->ended = true;
    pthread_cond_broadcast(&ranks->changed);
    pthread_mutex_unlock(&ranks->lock);
}

static void read_socket(gs_ranks *ranks, rank_process *process) {
    char data[65536];
    ssize_t got = recv(process->socket, data, sizeof data, MSG_DONTWAIT);
    if (got > 0) {
        gs_strbuf_add(&process->in, data, (size_t)got);
        parse_input(ranks, process);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        end_input(ranks, process);
    }
}

static void write_socket(rank_process *process) {
    size_t left = process->out.len - process->out_sent;
    ssize_t sent = send(process->socket, process->out.text + process->out_sent, left,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) process->out_sent += (size_t)sent;
    if (process->out_sent == process->out.len) {
        gs_strbuf_clear(&process->out);
        process->out_sent = 0;
    }
}

static void run_hub(void *ctx, const atomic_bool *stopping) {
    gs_ranks *ranks = ctx;
    struct pollfd *polls = calloc((size_t)ranks->world_size + 1, sizeof *polls);
    if (!polls) abort();
    while (!atomic_load(stopping)) {
        for (int i = 0; i < ranks->world_size; i++) {
            const rank_process *process = &ranks->processes[i];
            polls[i] = (struct pollfd){.fd = process->socket, .events = POLLIN};
            if (process->out.len) polls[i].events |= POLLOUT;
        }
        polls[ranks->world_size] = (struct pollfd){.fd = ranks->wake[0], .events = POLLIN};
        if (poll(polls, (nfds_t)ranks->world_size + 1, -1) < 0 && errno != EINTR) abort();
        for (int i = 0; i < ranks->world_size; i++) {
            rank_process *process = &ranks->processes[i];
            if (process->socket >= 0 && polls[i].revents & POLLOUT) write_socket(process);
            if (process->socket >= 0 && polls[i].revents & (POLLIN | POLLHUP | POLLERR))
                read_socket(ranks, process);
        }
        settle_exchanges(ranks);
    }
    free(polls);
}

static char **make_environment(int rank, int world_size, const char *const *added,
                               gs_strbuf *rank_text, gs_strbuf *world_text) {
    size_t num_own = 0, num_added = 0, at = 0;
    while (environ[num_own]) num_own++;
    while (added && added[num_added]) num_added++;
    char **list = calloc(num_own + num_added + 3, sizeof *list);
    if (!list) return NULL;
    gs_strbuf_printf(rank_text, "RANK=%d", rank);
    gs_strbuf_printf(world_text, "WORLD_SIZE=%d", world_size);
    // getenv finds the first of a name, so ours come first.
    list[at++] = rank_text->text;
    list[at++] = world_text->text;
    for (size_t i = 0; i < num_added; i++) list[at++] = (char *)(uintptr_t)added[i];
    for (size_t i = 0; i < num_own; i++) list[at++] = environ[i];
    return list;
}

static gs_status spawn_process(rank_process *process, int child_socket, char *const *argv,
                               char *const *environment) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_socket, RANK_LINK_FD);
    int error = posix_spawn(&process->pid, "/proc/self/exe", &actions, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&actions);
    if (!error) return gs_ok();
    process->pid = 0;
    return gs_error_from_errno(error, "spawn");
}

static gs_status start_process(gs_ranks *ranks, int rank, const char *name, const char *arg,
                               const char *const *environment) {
    rank_process *process = &ranks->processes[rank];
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets))
        return gs_error_from_errno(errno, "rank %d: socket pair", rank);
    process->socket = sockets[0];
    gs_strbuf rank_text = {0}, world_text = {0};
    char **list = make_environment(rank, ranks->world_size, environment, &rank_text, &world_text);
    const char *argv[] = {"rank", "--rank-body", name, arg ? arg : "", NULL};
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "rank %d: out of memory", rank);
    if (list) status = spawn_process(process, sockets[1], (char *const *)(uintptr_t)argv, list);
    close(sockets[1]);
    free(list);
    gs_strbuf_release(&rank_text);
    gs_strbuf_release(&world_text);
    return status;
}

static gs_status start_processes(gs_ranks *ranks, const char *name, const char *arg,
                                 const char *const *environment) {
    if (pipe2(ranks->wake, O_CLOEXEC)) return gs_error_from_errno(errno, "ranks: pipe");
    for (int i = 0; i < ranks->world_size; i++)
        GS_TRY(start_process(ranks, i, name, arg, environment));
    return gs_thread_start(&ranks->hub, "rank-hub", run_hub, ranks);
}

gs_status gs_ranks_start(gs_ranks **out, const char *name, int world_size, const char *arg,
                         const char *const *environment) {
    gs_ranks *ranks = calloc(1, sizeof *ranks);
    if (!ranks) return gs_error(GS_RESOURCE_EXHAUSTED, "ranks: out of memory");
    ranks->world_size = world_size;
    ranks->first_ended = -1;
    ranks->wake[0] = ranks->wake[1] = -1;
    pthread_mutex_init(&ranks->lock, NULL);
    gs_cond_init(&ranks->changed);
    ranks->processes = calloc((size_t)world_size, sizeof *ranks->processes);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "ranks: out of memory");
    if (ranks->processes) {
        for (int i = 0; i < world_size; i++) ranks->processes[i].socket = -1;
        status = start_processes(ranks, name, arg, environment);
    }
    if (status.code) {
        gs_ranks_destroy(ranks);
        return status;
    }
    *out = ranks;
    return gs_ok();
}

pid_t gs_ranks_pid(const gs_ranks *ranks, int rank) {
    return ranks->processes[rank].pid;
}

void gs_ranks_signal(gs_ranks *ranks, int rank, int signal) {
    if (ranks->processes[rank].pid > 0) kill(ranks->processes[rank].pid, signal);
}

static bool wait_for_end(gs_ranks *ranks, rank_process *process, gs_deadline deadline) {
    pthread_mutex_lock(&ranks->lock);
    while (!process->ended && gs_cond_wait(&ranks->changed, &ranks->lock, deadline)) {
    }
    bool ended = process->ended;
    pthread_mutex_unlock(&ranks->lock);
    return ended;
}

// The end of a process counts as well as what it said: a sanitizer speaks through the exit code.
static gs_status judge_process(const rank_process *process, int how, bool in_time) {
    if (!in_time) return gs_error(GS_DEADLINE_EXCEEDED, "did not end in time");
    if (WIFSIGNALED(how)) return gs_error(GS_ABORTED, "killed by signal %d", WTERMSIG(how));
    if (WEXITSTATUS(how))
        return gs_error(GS_INTERNAL, "exit code %d%s%s", WEXITSTATUS(how),
                        process->reported && process->status.code ? " after: " : "",
                        process->reported ? process->status.message : "");
    if (!process->reported) return gs_error(GS_INTERNAL, "ended without a status");
    return process->status;
}

gs_status gs_ranks_wait(gs_ranks *ranks, gs_status *statuses, gs_deadline deadline) {
    gs_status result = gs_ok();
    for (int i = 0; i < ranks->world_size; i++) {
        rank_process *process = &ranks->processes[i];
        bool in_time = wait_for_end(ranks, process, deadline);
        if (!in_time) {
            gs_ranks_signal(ranks, i, SIGKILL);
            wait_for_end(ranks, process, gs_deadline_in_seconds(60));
            result = gs_error(GS_DEADLINE_EXCEEDED, "rank %d did not end in time", i);
        }
        int how = 0;
        if (process->pid > 0) {
            while (waitpid(process->pid, &how, 0) < 0 && errno == EINTR) {
            }
            process->pid = 0;
        }
        gs_status status = judge_process(process, how, in_time);
        if (statuses) statuses[i] = status;
    }
    return result;
}

const char *gs_ranks_note(const gs_ranks *ranks, int rank) {
    gs_ranks *locked = (gs_ranks *)(uintptr_t)ranks;
    const rank_process *process = &ranks->processes[rank];
    pthread_mutex_lock(&locked->lock);
    const char *note = process->num_notes ? process->notes[process->num_notes - 1] : "";
    pthread_mutex_unlock(&locked->lock);
    return note;
}

static bool has_note(const rank_process *process, const char *prefix) {
    for (size_t i = 0; i < process->num_notes; i++) {
        if (strncmp(process->notes[i], prefix, strlen(prefix)) == 0) return true;
    }
    return false;
}

gs_status gs_ranks_wait_note(gs_ranks *ranks, int rank, const char *prefix, gs_deadline deadline) {
    rank_process *process = &ranks->processes[rank];
    gs_status status = gs_ok();
    pthread_mutex_lock(&ranks->lock);
    while (!has_note(process, prefix)) {
        if (process->ended) {
            status = gs_error(GS_ABORTED, "rank %d ended without a note \"%s\"", rank, prefix);
            break;
        }
        if (!gs_cond_wait(&ranks->changed, &ranks->lock, deadline)) {
            status = gs_error(GS_DEADLINE_EXCEEDED, "rank %d: no note \"%s\"", rank, prefix);
            break;
        }
    }
    pthread_mutex_unlock(&ranks->lock);
    return status;
}

static void release_process(rank_process *process) {
    if (process->pid > 0) {
        kill(process->pid, SIGKILL);
        while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    if (process->socket >= 0) close(process->socket);
    gs_strbuf_release(&process->in);
    gs_strbuf_release(&process->out);
    gs_strbuf_release(&process->mine);
    for (size_t i = 0; i < process->num_notes; i++) free(process->notes[i]);
    free(process->notes);
}

void gs_ranks_destroy(gs_ranks *ranks) {
    if (!ranks) return;
    gs_thread_ask_to_stop(ranks->hub);
    if (ranks->wake[1] >= 0) close(ranks->wake[1]);
    gs_thread_stop(ranks->hub);
    if (ranks->wake[0] >= 0) close(ranks->wake[0]);
    for (int i = 0; ranks->processes && i < ranks->world_size; i++)
        release_process(&ranks->processes[i]);
    free(ranks->processes);
    pthread_cond_destroy(&ranks->changed);
    pthread_mutex_destroy(&ranks->lock);
    free(ranks);
}

gs_status gs_ranks_run(const char *name, int world_size, const char *arg, gs_deadline deadline) {
    gs_ranks *ranks = NULL;
    GS_TRY(gs_ranks_start(&ranks, name, world_size, arg, NULL));
    gs_status *statuses = calloc((size_t)world_size, sizeof *statuses);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "ranks: out of memory");
    if (statuses) status = gs_ranks_wait(ranks, statuses, deadline);
    for (int i = 0; statuses && i < world_size; i++) {
        if (statuses[i].code) {
            status = gs_status_prefix(statuses[i], "rank %d", i);
            break;
        }
    }
    free(statuses);
    gs_ranks_destroy(ranks);
    return status;
}
