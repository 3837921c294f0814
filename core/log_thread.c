#include "core/log_thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/thread.h"

#define MOST_LINES 4096  // of 2 KiB at most
#define LOOK_MS 100      // whether somebody reads again

#define LAST_LOOKS 500   // of 2 ms each, in a process that crashes

struct gs_log_thread {
    gs_queue *lines;  // of text with its newline
    gs_thread *thread;
    int file;
    _Atomic int64_t until_ns;  // once it stops; 0 before
    _Atomic uint64_t logged, done;  // lines that were taken; written or given up
    uint64_t told;              // of those that were dropped; the thread's
};

// Metrics reach it from everywhere, as the sink itself.
static _Atomic uint64_t num_dropped;

uint64_t gs_log_lines_dropped(void) { return atomic_load(&num_dropped); }

static void take(void *ctx, gs_log_level level, const char *line) {
    (void)level;
    gs_log_thread *it = ctx;
    size_t length = strlen(line);
    char *text = malloc(length + 2);
    if (text) {
        memcpy(text, line, length);
        memcpy(text + length, "\n", 2);
        atomic_fetch_add(&it->logged, 1);
        if (gs_queue_push(it->lines, text, gs_deadline_in_ns(0))) return;
        atomic_fetch_add(&it->done, 1);
    }
    free(text);
    atomic_fetch_add(&num_dropped, 1);
}

// False: the time of a stop is over.
static bool wait_for_room(const gs_log_thread *it) {
    for (;;) {
        int64_t until_ns = atomic_load(&it->until_ns);
        bool is_over = until_ns && gs_now_ns() > until_ns;
        struct pollfd file = {.fd = it->file, .events = POLLOUT};
        if (poll(&file, 1, is_over ? 0 : LOOK_MS) != 0) return true;  // an error is the write's to find
        if (is_over) return false;
    }
}

// In one write, so that lines of several processes on one pipe do not mix.
static void put(const gs_log_thread *it, const char *text) {
    size_t length = strlen(text);
    while (wait_for_room(it)) {
        ssize_t written = write(it->file, text, length);
        if (written >= 0 || (errno != EINTR && errno != EAGAIN)) return;
    }
    atomic_fetch_add(&num_dropped, 1);
}

static void tell_dropped(gs_log_thread *it) {
    uint64_t dropped = atomic_load(&num_dropped);
    if (dropped == it->told) return;
    char text[200], stamp[GS_TIMESTAMP_LEN];
    gs_timestamp_format(stamp, gs_wall_ms());
    snprintf(text, sizeof text, "ts=%s level=warn msg=\"log lines left out\" count=%llu reason=\"nobody took them\"\n", stamp,
             (unsigned long long)(dropped - it->told));
    it->told = dropped;
    put(it, text);
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_log_thread *it = ctx;
    for (void *item;;) {
        if (!gs_queue_pop(it->lines, &item, gs_deadline_in_ms(1000))) {
            tell_dropped(it);
            if (atomic_load(stopping)) return;
            continue;
        }
        put(it, item);
        atomic_fetch_add(&it->done, 1);
        free(item);
        if (atomic_load(&it->logged) == atomic_load(&it->done)) tell_dropped(it);
    }
}

// What a crash says of itself goes on to whoever had the signal before; the last lines, which say why, go first. They are
// written by the thread itself, which goes on meanwhile: nothing here but atomics and a wait with an end.
static const int fatal_signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
#define NUM_FATAL (sizeof fatal_signals / sizeof *fatal_signals)
static struct sigaction fatal_before[NUM_FATAL];
static _Atomic(gs_log_thread *) last_words_of;

static void set_back(int number) {
    for (size_t i = 0; i < NUM_FATAL; i++)
        if (!number || fatal_signals[i] == number) sigaction(fatal_signals[i], &fatal_before[i], NULL);
}

static void on_fatal(int number, siginfo_t *info, void *context) {
    (void)context;
    int error_number = errno;
    gs_log_thread *it = atomic_load(&last_words_of);
    for (int i = 0; it && i < LAST_LOOKS && atomic_load(&it->done) < atomic_load(&it->logged); i++) poll(NULL, 0, 2);
    set_back(number);
    if (info->si_code <= 0) raise(number);  // was sent: nothing repeats it
    errno = error_number;
}

static void watch_crashes(gs_log_thread *it) {
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    atomic_store(&last_words_of, it);
    for (size_t i = 0; i < NUM_FATAL; i++) sigaction(fatal_signals[i], &action, &fatal_before[i]);
}

static void leave_crashes(void) {
    set_back(0);
    atomic_store(&last_words_of, NULL);
}

gs_status gs_log_thread_start(gs_log_thread **out, int file) {
    gs_log_thread *it = calloc(1, sizeof *it);
    if (!it) return gs_error(GS_RESOURCE_EXHAUSTED, "log: out of memory");
    it->file = file;
    it->told = gs_log_lines_dropped();
    it->lines = gs_queue_create(MOST_LINES);
    gs_status status = it->lines ? gs_thread_start(&it->thread, "log", run, it)
                                 : gs_error(GS_RESOURCE_EXHAUSTED, "log: out of memory");
    if (status.code) {
        if (it->lines) gs_queue_destroy(it->lines);
        free(it);
        return status;
    }
    gs_log_set_sink(take, it);
    watch_crashes(it);
    *out = it;
    return gs_ok();
}

void gs_log_thread_flush(gs_log_thread *thread, gs_deadline deadline) {
    uint64_t wanted = atomic_load(&thread->logged);
    while (atomic_load(&thread->done) < wanted && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS / 5);
}

void gs_log_thread_stop(gs_log_thread *thread, gs_deadline deadline) {
    if (!thread) return;
    gs_log_set_sink(NULL, NULL);
    leave_crashes();
    atomic_store(&thread->until_ns, deadline.at_ns);
    gs_queue_close(thread->lines);
    gs_thread_stop(thread->thread);
    gs_queue_destroy(thread->lines);
    free(thread);
}
