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

#include <cmocka.h>

#include "coordinator/store/trace.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define MAX_LINES 32

typedef struct fixture {
    char *directory, path[600], store_path[600];
    gs_trace *trace;
    gs_job_store *store;
    gs_store_start start;
    gs_json *lines[MAX_LINES];
    size_t num_lines;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->directory = gs_temp_dir_make();
    snprintf(f->path, sizeof f->path, "%s/trace.jsonl", f->directory);
    snprintf(f->store_path, sizeof f->store_path, "%s/store.db", f->directory);
    assert_ok(gs_trace_open(&f->trace, f->path));
    assert_ok(gs_job_store_open(&f->store, &f->start, f->store_path));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < f->num_lines; i++) gs_json_release(f->lines[i]);
    gs_trace_close(f->trace);
    gs_job_store_close(f->store);
    gs_temp_dir_remove(f->directory);
    free(f);
    return 0;
}

// Every line is JSON.
static void read_lines(fixture *f) {
    char *line = NULL;
    size_t reserved = 0;
    ssize_t length;
    FILE *file = fopen(f->path, "re");
    assert_non_null(file);
    while ((length = getline(&line, &reserved, file)) > 0) {
        assert_true(f->num_lines < MAX_LINES);
        assert_ok(gs_json_parse(&f->lines[f->num_lines++], line, (size_t)length));
    }
    free(line);
    fclose(file);
}

static void assert_line(const fixture *f, size_t index, const char *direction, const char *kind) {
    assert_true(index < f->num_lines);
    assert_string_equal(gs_json_string_or(f->lines[index], direction, ""), kind);
}

static void begin(fixture *f) {
    assert_ok(gs_trace_begin(f->trace, f->store, &f->start, "/data", "/data/checkpoints"));
    gs_trace_turn(f->trace);
}

static void a_record_begins_with_what_the_store_holds(void **state) {
    fixture *f = *state;
    assert_ok(gs_job_store_put_job(f->store, 7, "{\"name\":\"a\"}"));
    assert_ok(gs_job_store_put_event(f->store, 3, 7, "{\"reason\":\"b\"}"));
    assert_ok(gs_job_store_put_checkpoint(f->store, 7, "step-1", "{\"step\":1}"));
    assert_ok(gs_job_store_put_key(f->store, "a \"key\"", "f", 7, 99));
    begin(f);
    assert_ok(gs_job_store_delete_checkpoint(f->store, 7, "step-1"));
    gs_trace_turn(f->trace);
    read_lines(f);
    assert_int_equal(f->num_lines, 7);
    assert_line(f, 0, "in", "start");
    assert_int_equal(gs_json_int_or(f->lines[0], "coordinator_epoch", 0), 1);
    const gs_json *job = gs_json_get(f->lines[1], "row"), *key = gs_json_get(f->lines[4], "row");
    assert_string_equal(gs_json_string(gs_json_at(job, 0)), "put_job");
    assert_string_equal(gs_json_string_or(gs_json_at(job, 2), "name", ""), "a");
    assert_string_equal(gs_json_string(gs_json_at(key, 1)), "a \"key\"");
    assert_line(f, 6, "out", "row");  // written after the start
    assert_string_equal(gs_json_string(gs_json_at(gs_json_get(f->lines[6], "row"), 0)),
                        "delete_checkpoint");
}

static void what_comes_and_goes_is_a_line_each_in_its_turn(void **state) {
    fixture *f = *state;
    begin(f);
    gs_rpc_tap tap = gs_trace_tap(f->trace);
    gs_rpc_peer peer = {.connection = 4, .incarnation = UINT64_MAX, .job = 7, .generation = 2};
    const char pretty[] = "{\n  \"job\": \"a\"\n}";
    tap.request(tap.ctx, 1, GS_GET_JOB, &peer, pretty, sizeof pretty - 1);
    tap.answer(tap.ctx, 1, GS_NOT_FOUND, "{\"message\":\"no\"}", 16);
    gs_trace_turn(f->trace);
    gs_trace_turn(f->trace);  // nothing came
    gs_trace_written(f->trace, 3, gs_error(GS_UNAVAILABLE, "the disk is \"away\""));
    gs_trace_event(f->trace, "tick");
    tap.item(tap.ctx, 9, "{}", 2, false);
    gs_trace_turn(f->trace);
    read_lines(f);
    assert_int_equal(f->num_lines, 9);
    assert_line(f, 2, "in", "turn");
    assert_line(f, 3, "in", "request");
    assert_string_equal(gs_json_string_or(f->lines[3], "method", ""), "GetJob");
    assert_string_equal(gs_json_string_or(f->lines[3], "incarnation", ""), "18446744073709551615");
    assert_string_equal(gs_json_string_or(gs_json_get(f->lines[3], "body"), "job", ""), "a");
    assert_line(f, 4, "out", "answer");
    assert_int_equal(gs_json_int_or(f->lines[4], "code", 0), GS_NOT_FOUND);
    assert_line(f, 5, "in", "turn");
    assert_line(f, 6, "in", "written");
    assert_string_equal(gs_json_string_or(f->lines[6], "message", ""), "the disk is \"away\"");
    assert_line(f, 7, "in", "tick");
    assert_true(gs_json_int_or(f->lines[7], "t", -1) >= gs_json_int_or(f->lines[6], "t", 0));
    assert_line(f, 8, "out", "item");
    assert_false(gs_json_bool_or(f->lines[8], "sent", true));
}

static void a_file_that_is_there_is_not_written_over(void **state) {
    fixture *f = *state;
    gs_trace *second = NULL;
    struct stat info;
    assert_int_equal(gs_trace_open(&second, f->path).code, GS_ALREADY_EXISTS);
    assert_null(second);
    assert_int_equal(stat(f->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

// The bound of a file's size stands for a disk that is full: the write fails.
static void a_disk_that_is_full_ends_the_record_alone(void **state) {
    fixture *f = *state;
    struct rlimit kept, small;
    begin(f);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &kept), 0);
    small = kept;
    small.rlim_cur = 2048;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 1000; i++) {
        gs_trace_event(f->trace, "tick");
        gs_trace_turn(f->trace);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &kept), 0);
    gs_trace_event(f->trace, "tick");
    gs_trace_turn(f->trace);
    struct stat info;
    assert_int_equal(stat(f->path, &info), 0);
    assert_int_equal(info.st_size, 2048);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_record_begins_with_what_the_store_holds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_comes_and_goes_is_a_line_each_in_its_turn, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_is_there_is_not_written_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_is_full_ends_the_record_alone, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
