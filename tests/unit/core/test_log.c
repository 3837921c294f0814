#include "core/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char last_line[4096];
static int num_lines;

static void keep_line(void *ctx, gs_log_level level, const char *line) {
    (void)ctx;
    (void)level;
    num_lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void a_line_is_logfmt(void **state) {
    (void)state;
    gs_log_info("rank left", "job=%s rank=%d", "j-1", 3);
    assert_non_null(strstr(last_line, " level=info msg=\"rank left\" job=j-1 rank=3"));
    assert_memory_equal(last_line, "ts=20", 5);
}

static void below_the_level_nothing_is_written(void **state) {
    (void)state;
    num_lines = 0;
    gs_log_debug("hidden", "x=%d", 1);
    assert_int_equal(num_lines, 0);
    gs_log_set_level(GS_LOG_DEBUG);
    gs_log_debug("seen", "x=%d", 1);
    assert_int_equal(num_lines, 1);
    gs_log_set_level(GS_LOG_INFO);
}

static void a_newline_cannot_forge_a_second_line(void **state) {
    (void)state;
    gs_log_warn("bad input", "text=%s", "a\nts=1 level=error msg=forged");
    assert_null(strchr(last_line, '\n'));
}

static void nothing_in_a_line_drives_a_terminal(void **state) {
    (void)state;
    gs_log_warn("bad input", "text=%s", "\033[2J\a\b\t\x7f\xc2\x9b\x31m\xc3\xa9");
    for (const char *c = last_line; *c; c++) assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
    assert_null(strstr(last_line, "\xc2\x9b"));
    assert_non_null(strstr(last_line, "1m\xc3\xa9"));  // what is no control character stays
    char text[16];
    assert_string_equal(gs_log_quote(text, sizeof text, "a\x7f" "b"), "\"a b\"");
}

static void a_long_line_is_cut(void **state) {
    (void)state;
    char text[5000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    gs_log_info("long", "text=%s", text);
    assert_in_range(strlen(last_line), 1000, 2047);
}

static void values_are_quoted_where_they_must_be(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(gs_log_quote(text, sizeof text, "plain"), "plain");
    assert_string_equal(gs_log_quote(text, sizeof text, "two words"), "\"two words\"");
    assert_string_equal(gs_log_quote(text, sizeof text, "a\"b"), "\"a\\\"b\"");
    assert_string_equal(gs_log_quote(text, sizeof text, ""), "\"\"");
    char tiny[8];
    gs_log_quote(tiny, sizeof tiny, "much too long a value");
    assert_true(strlen(tiny) < sizeof tiny);
}

static void levels_have_names(void **state) {
    (void)state;
    gs_log_level level;
    assert_true(gs_log_level_from_name(&level, "warn"));
    assert_int_equal(level, GS_LOG_WARN);
    assert_string_equal(gs_log_level_name(level), "warn");
    assert_false(gs_log_level_from_name(&level, "loud"));
}

int main(void) {
    gs_log_set_sink(keep_line, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_logfmt),
        cmocka_unit_test(below_the_level_nothing_is_written),
        cmocka_unit_test(a_newline_cannot_forge_a_second_line),
        cmocka_unit_test(nothing_in_a_line_drives_a_terminal),
        cmocka_unit_test(a_long_line_is_cut),
        cmocka_unit_test(values_are_quoted_where_they_must_be),
        cmocka_unit_test(levels_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
