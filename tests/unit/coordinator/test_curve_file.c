#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/curve_file.h"
#include "core/strbuf.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

typedef struct fixture {
    char *root, directory[600], path[640];
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->root = gs_temp_dir_make();
    snprintf(f->directory, sizeof f->directory, "%s/job", f->root);
    snprintf(f->path, sizeof f->path, "%s/metrics.jsonl", f->directory);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_temp_dir_remove(f->root);
    free(f);
    return 0;
}

static void append(const fixture *f, const char *text) {
    assert_ok(gs_curve_file_append(f->directory, text, strlen(text)));
}

static void expect(const fixture *f, const char *wanted) {
    char *text = NULL;
    size_t bytes = 0;
    assert_ok(gs_curve_file_read(&text, &bytes, f->directory));
    assert_string_equal(text, wanted);
    assert_int_equal(bytes, strlen(wanted));
    free(text);
}

static void append_raw(const fixture *f, const char *text) {
    FILE *file = fopen(f->path, "a");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_job_that_never_reported_has_none(void **state) {
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(gs_curve_file_read(&text, &bytes, ((fixture *)*state)->directory).code, GS_NOT_FOUND);
}

static void a_line_that_was_cut_swallows_none(void **state) {
    fixture *f = *state;
    append(f, "{\"step\":1}\n{\"step\":2}\n");
    append_raw(f, "{\"step\":3,\"lo");
    expect(f, "{\"step\":1}\n{\"step\":2}\n");
    append(f, "{\"step\":4}\n");
    expect(f, "{\"step\":1}\n{\"step\":2}\n{\"step\":4}\n");
}

static void what_does_not_fit_leaves_no_part(void **state) {
    fixture *f = *state;
    append(f, "{\"step\":1}\n");
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (rlim_t most = 11; most < 33; most++) {  // at each byte of the two lines
        small = (struct rlimit){.rlim_cur = most, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        gs_status status = gs_curve_file_append(f->directory, "{\"step\":2}\n{\"step\":3}\n", 22);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_not_equal(status.code, GS_OK);
        struct stat info;
        assert_int_equal(stat(f->path, &info), 0);
        assert_int_equal(info.st_size, 11);
    }
    append(f, "{\"step\":2}\n");
    expect(f, "{\"step\":1}\n{\"step\":2}\n");
}

static void append_steps(const fixture *f, int from, int count) {
    gs_strbuf text = {0};
    for (int step = from; step < from + count; step++)
        gs_strbuf_printf(&text, "{\"step\":%d,\"loss\":%s,\"grad_norm\":0.5,\"tokens_per_second\":12345.5}\n", step,
                         step == 777 ? "\"NaN\"" : "2.5");
    append(f, gs_strbuf_text(&text));
    gs_strbuf_release(&text);
}

static void it_never_outgrows_its_bound(void **state) {
    fixture *f = *state;
    for (int step = 0; step < 100000; step += 500) {
        append_steps(f, step, 500);
        if (step % 10000 == 0) append(f, "{\"step\":5,\"eval_loss\":1.5}\n");
        struct stat info;
        assert_int_equal(stat(f->path, &info), 0);
        assert_true(info.st_size <= (off_t)GS_CURVE_FILE_BYTES);
    }
    char *text = NULL;
    size_t bytes = 0;
    assert_ok(gs_curve_file_read(&text, &bytes, f->directory));
    assert_int_equal(strncmp(text, "{\"step\":0,", 10), 0);
    assert_non_null(strstr(text, "{\"step\":99999,"));
    assert_non_null(strstr(text, "NaN"));
    assert_non_null(strstr(text, "eval_loss"));
    int last = -1, most_apart = 0, num = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1, num++) {
        int step = atoi(line + 8);
        if (strncmp(strchr(line, ','), ",\"eval", 6) == 0) continue;
        assert_true(step > last);
        if (step - last > most_apart) most_apart = step - last;
        last = step;
    }
    assert_true(num > 5000);
    assert_true(most_apart <= 64);
    free(text);
}

#ifdef GRADSYNC_FAILPOINTS
static void a_death_while_it_is_thinned_costs_nothing(void **state) {
    fixture *f = *state;
    for (int step = 0; step < 12000; step += 500) append_steps(f, step, 500);
    pid_t child = fork();
    if (child == 0) {
        setenv("GRADSYNC_FAILPOINTS", "curves.thin=kill", 1);
        for (int step = 12000; step < 40000; step += 500) append_steps(f, step, 500);
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    char *text = NULL;
    size_t bytes = 0;
    assert_ok(gs_curve_file_read(&text, &bytes, f->directory));
    int step = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) assert_int_equal(atoi(line + 8), step++);
    assert_true(step > 12000);
    free(text);
    append_steps(f, step, 500);
    struct stat info;
    assert_int_equal(stat(f->path, &info), 0);
    assert_true(info.st_size <= (off_t)GS_CURVE_FILE_BYTES);
}
#endif

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
#ifdef GRADSYNC_FAILPOINTS
        TEST(a_death_while_it_is_thinned_costs_nothing),  // first: a process reads once what it is to die of
#endif
        TEST(a_job_that_never_reported_has_none),
        TEST(a_line_that_was_cut_swallows_none),
        TEST(what_does_not_fit_leaves_no_part),
        TEST(it_never_outgrows_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
