#include "coordinator/observe/timelines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void ranges_are_read_as_written(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t last, from, to;
    } good[] = {{NULL, 3, 0, 0},         {"last:1", 1, 0, 0},  {"last:1024", 1024, 0, 0},
                {"100-102", 0, 100, 102}, {"7", 0, 7, 7},       {"0-0", 0, 0, 0}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        gs_timeline_range range;
        gs_status status = gs_timeline_range_parse(&range, good[i].text);
        assert_string_equal(status.message, "");
        assert_int_equal(range.last, good[i].last);
        assert_int_equal(range.from_step, good[i].from);
        assert_int_equal(range.to_step, good[i].to);
    }
}

static void what_is_no_range_is_refused_with_its_words(void **state) {
    (void)state;
    static const char *const bad[] = {"",       "last:",   "last:0", "last:1025", "last:-1", "3-",
                                      "5-4",    "-3",      "1-2-3",  "x",         " 1",      "1 ",
                                      "last:3x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_timeline_range range;
        gs_status status = gs_timeline_range_parse(&range, bad[i]);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_non_null(strstr(status.message, "steps: \""));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_read_as_written),
        cmocka_unit_test(what_is_no_range_is_refused_with_its_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
