#include "worker/agent/log_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct collected {
    char *lines[64];
    size_t bytes[64];
    int count;
} collected;

static void collect(void *ctx, const char *text, size_t bytes) {
    collected *all = ctx;
    assert_true(all->count < 64);
    all->lines[all->count] = strndup(text, bytes);
    all->bytes[all->count++] = bytes;
}

static void release(collected *all) {
    for (int i = 0; i < all->count; i++) free(all->lines[i]);
}

static void lines_come_out_whole_however_they_arrive(void **state) {
    (void)state;
    const char text[] = "one\ntwo\r\n\nthree";
    for (size_t piece = 1; piece <= sizeof text; piece++) {
        gs_log_lines lines = {0};
        collected all = {0};
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            size_t left = sizeof text - 1 - at;
            gs_log_lines_add(&lines, text + at, left < piece ? left : piece, collect, &all);
        }
        assert_int_equal(all.count, 3);
        gs_log_lines_finish(&lines, collect, &all);
        assert_int_equal(all.count, 4);
        assert_string_equal(all.lines[0], "one");
        assert_string_equal(all.lines[1], "two");
        assert_string_equal(all.lines[2], "");
        assert_string_equal(all.lines[3], "three");
        release(&all);
    }
}

static void long_lines_are_split_and_marked(void **state) {
    (void)state;
    size_t bytes = 3 * GS_LOG_LINE_BYTES, mark = strlen(GS_LOG_LINE_MARK), total = 0;
    char *text = malloc(bytes + 1);
    memset(text, 'x', bytes);
    text[bytes] = '\n';
    gs_log_lines lines = {0};
    collected all = {0};
    gs_log_lines_add(&lines, text, bytes + 1, collect, &all);
    assert_int_equal(all.count, 4);
    for (int i = 0; i < all.count; i++) {
        bool is_last = i == all.count - 1;
        assert_true(all.bytes[i] <= GS_LOG_LINE_BYTES);
        const char *end = all.lines[i] + all.bytes[i] - mark;
        if (!is_last) assert_string_equal(end, GS_LOG_LINE_MARK);
        total += all.bytes[i] - (is_last ? 0 : mark);
    }
    assert_int_equal(total, bytes);
    gs_log_lines_finish(&lines, collect, &all);
    assert_int_equal(all.count, 4);
    release(&all);
    free(text);
}

static void a_line_of_exactly_the_limit_is_one_line(void **state) {
    (void)state;
    size_t bytes = GS_LOG_LINE_BYTES - strlen(GS_LOG_LINE_MARK);
    char *text = malloc(bytes + 1);
    memset(text, 'y', bytes);
    text[bytes] = '\n';
    gs_log_lines lines = {0};
    collected all = {0};
    gs_log_lines_add(&lines, text, bytes + 1, collect, &all);
    assert_int_equal(all.count, 1);
    assert_int_equal(all.bytes[0], bytes);
    gs_log_lines_finish(&lines, collect, &all);
    release(&all);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_out_whole_however_they_arrive),
        cmocka_unit_test(long_lines_are_split_and_marked),
        cmocka_unit_test(a_line_of_exactly_the_limit_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
