#include <inttypes.h>
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
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/log_disk.h"
#include "tests/support/temp_dir.h"

typedef struct log_fixture {
    char *root, directory[600];
    gs_log_disk *disk;
} log_fixture;

static int set_up(void **state) {
    log_fixture *fixture = calloc(1, sizeof *fixture);
    fixture->root = gs_temp_dir_make();
    snprintf(fixture->directory, sizeof fixture->directory, "%s/job", fixture->root);
    fixture->disk = gs_log_disk_create(fixture->directory);
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    log_fixture *fixture = *state;
    gs_log_disk_destroy(fixture->disk);
    gs_temp_dir_remove(fixture->root);
    free(fixture);
    return 0;
}

static void append(log_fixture *fixture, int rank, const char *level, const char *text, uint64_t key) {
    char line[400];
    snprintf(line, sizeof line,
             "{\"rank\":%d,\"generation\":1,\"stream\":\"stdout\",\"level\":\"%s\",\"text\":\"%s\"}", rank,
             level, text);
    gs_status status = gs_log_disk_append(fixture->disk, line, key);
    assert_int_equal(status.code, GS_OK);
}

// The texts that a query finds, joined by commas.
static uint64_t find(log_fixture *fixture, char *texts, size_t texts_bytes, const gs_log_query *query) {
    gs_log_answer answer = {0};
    gs_status status = gs_log_disk_read(fixture->disk, &answer, query);
    assert_int_equal(status.code, GS_OK);
    texts[0] = '\0';
    for (size_t i = 0; i < gs_json_count(answer.records); i++) {
        size_t used = strlen(texts);
        snprintf(texts + used, texts_bytes - used, "%s%s", used ? "," : "",
                 gs_json_string_or(gs_json_at(answer.records, i), "text", "?"));
    }
    gs_json_release(answer.records);
    return answer.cursor;
}

static void the_plain_view_is_rank_0_and_warnings_of_all(void **state) {
    log_fixture *fixture = *state;
    char texts[200];
    append(fixture, 0, "info", "a", 1);
    append(fixture, 1, "info", "b", 2);
    append(fixture, 1, "warning", "c", 3);
    find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 100});
    assert_string_equal(texts, "a,c");
    find(fixture, texts, sizeof texts, &(gs_log_query){.all_ranks = true, .generation = -1, .limit = 100});
    assert_string_equal(texts, "a,b,c");
    find(fixture, texts, sizeof texts,
         &(gs_log_query){.num_ranks = 1, .ranks = {1}, .generation = -1, .limit = 100});
    assert_string_equal(texts, "b,c");
}

static void tail_limit_and_since_cut_the_answer(void **state) {
    log_fixture *fixture = *state;
    char texts[200], text[8];
    for (int i = 0; i < 10; i++) {
        snprintf(text, sizeof text, "%d", i);
        append(fixture, 0, "info", text, (uint64_t)i + 1);
    }
    find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 100, .tail = 3});
    assert_string_equal(texts, "7,8,9");
    uint64_t cursor = find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 4});
    assert_string_equal(texts, "0,1,2,3");
    find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 4, .since = cursor});
    assert_string_equal(texts, "4,5,6,7");
}

static void grep_finds_text_as_it_is_typed(void **state) {
    log_fixture *fixture = *state;
    append(fixture, 0, "info", "loss 1.5", 1);
    append(fixture, 0, "info", "NCCL (warn", 2);
    append(fixture, 0, "info", "glob .* matched", 3);
    static const struct {
        const char *grep, *found;
    } rows[] = {{"loss", "loss 1.5"},       {"Loss", ""},  {"(warn", "NCCL (warn"},
                {".*", "glob .* matched"}, {"1.5", "loss 1.5"}, {"1?5", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char texts[200];
        gs_log_query query = {.generation = -1, .limit = 10};
        snprintf(query.grep, sizeof query.grep, "%s", rows[i].grep);
        find(fixture, texts, sizeof texts, &query);
        assert_string_equal(texts, rows[i].found);
    }
}

// As an expression the first overran the stack and the second took gigabytes.
static void no_grep_costs_more_than_its_text(void **state) {
    log_fixture *fixture = *state;
    append(fixture, 0, "info", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 1);
    static const char *const attacks[] = {
        ".*{10,}{10,}{10,}{10,}{10,}", "((((a{1,255}){1,255}){1,255}){1,255}){1,255}",
        "(a*)*(a*)*(a*)*(a*)*b", "(((((((((((((((((((((((((((((((((((((((("};
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        char texts[200];
        gs_log_query query = {.generation = -1, .limit = 10};
        snprintf(query.grep, sizeof query.grep, "%s", attacks[i]);
        find(fixture, texts, sizeof texts, &query);
        assert_string_equal(texts, "");
        append(fixture, 0, "info", attacks[i], 10 + i);
        find(fixture, texts, sizeof texts, &query);
        assert_string_equal(texts, attacks[i]);
    }
}

static void a_repeated_record_is_kept_once_also_after_a_restart(void **state) {
    log_fixture *fixture = *state;
    char texts[200];
    append(fixture, 0, "info", "a", 1);
    append(fixture, 0, "info", "a", 1);
    gs_status status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(status.code, GS_OK);
    gs_log_disk_destroy(fixture->disk);
    fixture->disk = gs_log_disk_create(fixture->directory);
    append(fixture, 0, "info", "a", 1);
    append(fixture, 0, "info", "b", 2);
    uint64_t cursor = find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 10});
    assert_string_equal(texts, "a,b");
    assert_int_equal(cursor, 2);
}

static void lines_that_did_not_fit_are_taken_when_they_come_again(void **state) {
    log_fixture *fixture = *state;
    char texts[200];
    append(fixture, 0, "info", "a", 1);
    gs_status status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(status.code, GS_OK);
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 150, .rlim_max = before.rlim_max};  // in the middle of "b"
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    append(fixture, 0, "info", "b", 2);
    append(fixture, 0, "info", "c", 3);
    status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_not_equal(status.code, GS_OK);
    append(fixture, 0, "info", "b", 2);
    append(fixture, 0, "info", "c", 3);
    uint64_t cursor = find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 10});
    assert_string_equal(texts, "a,b,c");
    assert_int_equal(cursor, 3);  // a hole would be lines that nobody sees any more
}

static void rotated_segments_are_part_of_the_log(void **state) {
    log_fixture *fixture = *state;
    static char line[70000];
    memset(line, 'x', sizeof line);
    static const char head[] = "{\"rank\":0,\"generation\":1,\"level\":\"info\",\"text\":\"";
    memcpy(line, head, sizeof head - 1);
    memcpy(line + sizeof line - 3, "\"}", 3);
    for (uint64_t i = 1; i <= 300; i++) {  // 20 MiB: three segments
        gs_status status = gs_log_disk_append(fixture->disk, line, i);
        assert_int_equal(status.code, GS_OK);
    }
    size_t found = 0;
    gs_log_query query = {.generation = -1, .limit = 1000};
    gs_log_answer answer = {0};
    do {
        answer = (gs_log_answer){0};
        gs_status status = gs_log_disk_read(fixture->disk, &answer, &query);
        assert_int_equal(status.code, GS_OK);
        found += gs_json_count(answer.records);
        query.since = answer.cursor;
        gs_json_release(answer.records);
    } while (!answer.at_end);
    assert_int_equal(found, 300);
}

// What this process has read of files so far; −1: the kernel does not count.
static int64_t bytes_read(void) {
    int64_t bytes = -1;
    FILE *file = fopen("/proc/self/io", "r");
    if (file && fscanf(file, "rchar: %" SCNd64, &bytes) != 1) bytes = -1;
    if (file) fclose(file);
    return bytes;
}

static void append_long_lines(log_fixture *fixture, uint64_t first_key, int count) {
    static char text[60001], line[61000];
    memset(text, 'x', sizeof text - 1);
    snprintf(line, sizeof line, "{\"rank\":0,\"generation\":1,\"level\":\"info\",\"text\":\"%s\"}", text);
    for (int i = 0; i < count; i++) {
        gs_status status = gs_log_disk_append(fixture->disk, line, first_key + (uint64_t)i);
        assert_int_equal(status.code, GS_OK);
    }
    gs_status status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(status.code, GS_OK);
}

// On a disk that is full an agent says the same again and again, for each job. Once the log was read whole each time.
static void a_line_that_does_not_fit_is_refused_without_reading_the_log(void **state) {
    log_fixture *fixture = *state;
    append_long_lines(fixture, 1, 300);  // 18 MB, in three segments
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int64_t read_before = bytes_read();
    int num_refused = 0;
    for (uint64_t i = 0; i < 20; i++) {
        append(fixture, 0, "info", "does not fit", 1000 + i);
        gs_status status = gs_log_disk_flush(fixture->disk);
        num_refused += status.code != GS_OK;
    }
    int64_t read_behind = bytes_read();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(num_refused, 20);
    if (read_before < 0) {
        print_message("no /proc/self/io: what is read is not counted here\n");
        skip();
    }
    assert_in_range(read_behind - read_before, 0, 100000);
    // And what was known still is: its number, and which lines are repeats.
    char texts[200];
    append_long_lines(fixture, 200, 101);
    append(fixture, 0, "info", "fits", 2000);
    uint64_t cursor = find(fixture, texts, sizeof texts,
                           &(gs_log_query){.generation = -1, .limit = 10, .since = 300});
    assert_string_equal(texts, "fits");
    assert_int_equal(cursor, 301);
}

// What was still in memory went with it, and the next lines were acknowledged in its place.
static void the_end_of_a_segment_that_does_not_fit_is_refused(void **state) {
    log_fixture *fixture = *state;
    char path[700];
    struct stat info;
    snprintf(path, sizeof path, "%s/log-0.ndjson", fixture->directory);
    uint64_t num_lines = 0;
    do {
        append_long_lines(fixture, ++num_lines, 1);
        assert_int_equal(stat(path, &info), 0);
    } while (info.st_size + 61000 < GS_LOG_SEGMENT_BYTES);
    while (info.st_size + 500 < GS_LOG_SEGMENT_BYTES) {
        append(fixture, 0, "info", "short", ++num_lines);
        gs_status status = gs_log_disk_flush(fixture->disk);
        assert_int_equal(status.code, GS_OK);
        assert_int_equal(stat(path, &info), 0);
    }
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = (rlim_t)info.st_size, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    gs_status status = gs_ok();
    for (uint64_t key = num_lines + 1; key <= num_lines + 10 && !status.code; key++)
        status = gs_log_disk_append(fixture->disk, "{\"text\":\"one of ten lines that go over the end of a segment\"}", key);
    if (!status.code) status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_not_equal(status.code, GS_OK);
    char texts[400];
    append(fixture, 0, "info", "again", num_lines + 1);
    uint64_t cursor = find(fixture, texts, sizeof texts,
                           &(gs_log_query){.generation = -1, .limit = 10, .since = num_lines});
    assert_string_equal(texts, "again");
    assert_int_equal(cursor, num_lines + 1);
}

// Half of it was in the file already: it is not shown, and what comes instead takes its place.
static void what_a_failure_left_in_the_file_is_no_line(void **state) {
    log_fixture *fixture = *state;
    char texts[200];
    append(fixture, 0, "info", "a", 1);
    gs_status status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(status.code, GS_OK);
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 280, .rlim_max = before.rlim_max};  // behind "b", in the middle of "c"
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    append(fixture, 0, "info", "b", 2);
    append(fixture, 0, "info", "c", 3);
    status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_not_equal(status.code, GS_OK);
    const gs_log_query all = {.generation = -1, .limit = 10};
    assert_int_equal(find(fixture, texts, sizeof texts, &all), 1);
    assert_string_equal(texts, "a");
    append(fixture, 0, "info", "d", 4);
    assert_int_equal(find(fixture, texts, sizeof texts, &all), 2);
    assert_string_equal(texts, "a,d");
    gs_log_disk_destroy(fixture->disk);
    fixture->disk = gs_log_disk_create(fixture->directory);
    assert_int_equal(find(fixture, texts, sizeof texts, &all), 2);
    assert_string_equal(texts, "a,d");
}

// Without descriptors there seemed to be no log, and its numbers began anew.
static void a_log_that_cannot_be_read_is_not_begun_anew(void **state) {
    log_fixture *fixture = *state;
    char texts[200];
    append(fixture, 0, "info", "a", 1);
    append(fixture, 0, "info", "b", 2);
    gs_log_disk_rest(fixture->disk);
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    gs_status written = gs_log_disk_append(fixture->disk, "{\"text\":\"c\"}", 3);
    gs_log_answer answer = {0};
    gs_status read = gs_log_disk_read(fixture->disk, &answer, &(gs_log_query){.generation = -1, .limit = 10});
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_not_equal(written.code, GS_OK);
    assert_int_not_equal(read.code, GS_OK);
    append(fixture, 0, "info", "c", 3);
    uint64_t cursor = find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .limit = 10});
    assert_string_equal(texts, "a,b,c");
    assert_int_equal(cursor, 3);
}

// Somebody cut it, or removed it: nothing is written behind a hole, and the numbers go on.
static void a_log_that_was_cut_goes_on_with_its_numbers(void **state) {
    log_fixture *fixture = *state;
    char texts[200], path[700];
    append(fixture, 0, "info", "a", 1);
    append(fixture, 0, "info", "b", 2);
    gs_status status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(status.code, GS_OK);
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 8, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    append(fixture, 0, "info", "c", 3);  // so that it is opened again
    status = gs_log_disk_flush(fixture->disk);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_not_equal(status.code, GS_OK);
    snprintf(path, sizeof path, "%s/log-0.ndjson", fixture->directory);
    assert_int_equal(truncate(path, 0), 0);
    status = gs_log_disk_append(fixture->disk, "{\"text\":\"c\"}", 3);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    append(fixture, 0, "info", "c", 3);
    uint64_t cursor = find(fixture, texts, sizeof texts, &(gs_log_query){.generation = -1, .all_ranks = true, .limit = 10, .since = 2});
    assert_string_equal(texts, "c");
    assert_int_equal(cursor, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_plain_view_is_rank_0_and_warnings_of_all, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tail_limit_and_since_cut_the_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(grep_finds_text_as_it_is_typed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_grep_costs_more_than_its_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_repeated_record_is_kept_once_also_after_a_restart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lines_that_did_not_fit_are_taken_when_they_come_again, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(rotated_segments_are_part_of_the_log, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_line_that_does_not_fit_is_refused_without_reading_the_log, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_end_of_a_segment_that_does_not_fit_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_failure_left_in_the_file_is_no_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_log_that_cannot_be_read_is_not_begun_anew, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_log_that_was_cut_goes_on_with_its_numbers, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
