#include "core/log_thread.h"
#include "core/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

#define MANY 20000
#define LAST_WORDS 2000

typedef struct reader {
    int ends[2];
    char line[4096];
    size_t used;
    int last;          // number of the last line that came
    int64_t count;     // of lines
    int64_t left_out;  // as was told
} reader;

static reader *begin(gs_log_thread **log) {
    reader *it = calloc(1, sizeof *it);
    it->last = -1;
    assert_int_equal(pipe2(it->ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(it->ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_ok(gs_log_thread_start(log, it->ends[1]));
    return it;
}

static void end(reader *it) {
    close(it->ends[0]);
    close(it->ends[1]);
    free(it);
}

static void take_line(reader *it) {
    const char *number = strstr(it->line, "number="), *count = strstr(it->line, "left out\" count=");
    if (count) it->left_out += atoll(strchr(count, '=') + 1);
    if (!number) return;
    assert_true(atoi(number + 7) > it->last);  // in their order
    it->last = atoi(number + 7);
    it->count++;
}

// All that is there now.
static void read_some(reader *it) {
    char c;
    while (read(it->ends[0], &c, 1) == 1) {
        it->line[it->used++] = c;
        assert_true(it->used < sizeof it->line);
        if (c != '\n') continue;
        it->line[it->used] = '\0';
        it->used = 0;
        take_line(it);
    }
    assert_int_equal(errno, EAGAIN);
}

static void log_many(int from, int to) {
    for (int i = from; i < to; i++) gs_log_info("some", "number=%d more=\"%s\"", i, "words and words and words");
}

static void nobody_waits_for_a_pipe_that_is_full(void **state) {
    (void)state;
    gs_log_thread *log = NULL;
    reader *it = begin(&log);
    uint64_t before = gs_log_lines_dropped();
    log_many(0, MANY);  // comes back, although nobody reads
    int64_t dropped = (int64_t)(gs_log_lines_dropped() - before);
    assert_true(dropped > 0);
    gs_deadline deadline = soon();
    while (it->left_out < dropped || it->count < MANY - dropped) {
        read_some(it);
        assert_false(gs_deadline_passed(deadline));
    }
    assert_int_equal(it->left_out, dropped);
    assert_int_equal(it->count, MANY - dropped);
    gs_log_thread_stop(log, soon());
    end(it);
}

static void what_was_flushed_is_there(void **state) {
    (void)state;
    gs_log_thread *log = NULL;
    reader *it = begin(&log);
    log_many(0, 100);
    gs_log_thread_flush(log, soon());
    read_some(it);
    assert_int_equal(it->count, 100);
    log_many(100, 120);
    gs_log_thread_stop(log, soon());
    read_some(it);
    assert_int_equal(it->count, 120);
    end(it);
}

static void crash(const reader *it) {
    gs_log_thread *log = NULL;
    if (gs_log_thread_start(&log, it->ends[1]).code) _exit(1);
    log_many(0, LAST_WORDS);
    abort();
}

static void touch_nothing(void *ctx, const atomic_bool *stopping) {
    (void)ctx;
    (void)stopping;
    volatile char *nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *nothing = 1;
}

static void crash_beside(const reader *it) {
    gs_log_thread *log = NULL;
    gs_thread *thread = NULL;
    int silent = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(silent, STDERR_FILENO);  // a sanitizer has its own last words
    if (gs_log_thread_start(&log, it->ends[1]).code) _exit(0);
    log_many(0, LAST_WORDS);
    if (gs_thread_start(&thread, "beside", touch_nothing, NULL).code) _exit(0);
    gs_thread_stop(thread);
    _exit(0);
}

// How the child ended.
static int hear_last_words(void (*end_so)(const reader *it)) {
    reader *it = calloc(1, sizeof *it);
    it->last = -1;
    assert_int_equal(pipe2(it->ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(it->ends[0], F_SETFL, O_NONBLOCK), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) end_so(it);
    int status = 0;
    gs_deadline deadline = soon();
    while (waitpid(child, &status, WNOHANG) == 0) {
        read_some(it);
        assert_false(gs_deadline_passed(deadline));
    }
    read_some(it);
    assert_int_equal(it->count, LAST_WORDS);
    end(it);
    return status;
}

// What says why it ends is said last.
static void the_last_words_of_a_crash_are_there(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip();  // a child of fork has no second thread there
#endif
    int status = hear_last_words(crash);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

// Of any thread.
static void the_last_words_before_a_crash_of_a_helper_are_there(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip();
#endif
    int status = hear_last_words(crash_beside);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

static void a_stop_waits_for_nobody_for_ever(void **state) {
    (void)state;
    gs_log_thread *log = NULL;
    reader *it = begin(&log);
    log_many(0, MANY);
    gs_log_thread_stop(log, gs_deadline_in_ms(20));
    end(it);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_waits_for_a_pipe_that_is_full),
        cmocka_unit_test(what_was_flushed_is_there),
        cmocka_unit_test(the_last_words_of_a_crash_are_there),
        cmocka_unit_test(the_last_words_before_a_crash_of_a_helper_are_there),
        cmocka_unit_test(a_stop_waits_for_nobody_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
