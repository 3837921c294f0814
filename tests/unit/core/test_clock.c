#include "core/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <limits.h>
#include <math.h>

static void a_zero_deadline_has_passed(void **state) {
    (void)state;
    gs_deadline deadline = {0};
    assert_true(gs_deadline_passed(deadline));
    assert_int_equal(gs_deadline_left_ns(deadline), 0);
    assert_int_equal(gs_deadline_left_ms(deadline), 0);
}

static void the_furthest_deadline_does_not_overflow(void **state) {
    (void)state;
    gs_deadline deadlines[] = {gs_deadline_in_ns(INT64_MAX), gs_deadline_in_ms(INT64_MAX),
                               gs_deadline_in_seconds(1e300)};
    for (size_t i = 0; i < sizeof deadlines / sizeof deadlines[0]; i++) {
        assert_false(gs_deadline_passed(deadlines[i]));
        assert_true(gs_deadline_left_ns(deadlines[i]) > GS_DEADLINE_MAX_NS / 2);
        assert_int_equal(gs_deadline_left_ms(deadlines[i]), INT_MAX);
    }
}

static void negative_and_nan_deadlines_have_passed(void **state) {
    (void)state;
    assert_true(gs_deadline_passed(gs_deadline_in_ns(-1)));
    assert_true(gs_deadline_passed(gs_deadline_in_seconds(-5)));
    assert_true(gs_deadline_passed(gs_deadline_in_seconds((double)NAN)));
}

static void min_takes_the_earlier(void **state) {
    (void)state;
    gs_deadline soon = gs_deadline_in_ms(10), late = gs_deadline_in_ms(10000);
    assert_true(gs_deadline_min(soon, late).at_ns == soon.at_ns);
    assert_true(gs_deadline_min(late, soon).at_ns == soon.at_ns);
}

static void what_is_left_rounds_up_to_milliseconds(void **state) {
    (void)state;
    // So that a poll with it does not return early and spin.
    assert_in_range(gs_deadline_left_ms(gs_deadline_in_ns(100)), 0, 1);
    assert_true(gs_deadline_left_ms(gs_deadline_in_ms(5000)) > 4000);
}

static void sleep_lasts_at_least_as_long_as_asked(void **state) {
    (void)state;
    int64_t before = gs_now_ns();
    gs_sleep_ns(2 * GS_NS_PER_MS);
    assert_true(gs_now_ns() - before >= 2 * GS_NS_PER_MS);
    gs_sleep_ns(-1);
}

static void timestamps_are_rfc_3339_in_utc(void **state) {
    (void)state;
    char text[GS_TIMESTAMP_LEN];
    gs_timestamp_format(text, INT64_C(1772366400123));
    assert_string_equal(text, "2026-03-01T12:00:00.123Z");
    gs_timestamp_format(text, 0);
    assert_string_equal(text, "1970-01-01T00:00:00.000Z");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zero_deadline_has_passed),
        cmocka_unit_test(the_furthest_deadline_does_not_overflow),
        cmocka_unit_test(negative_and_nan_deadlines_have_passed),
        cmocka_unit_test(min_takes_the_earlier),
        cmocka_unit_test(what_is_left_rounds_up_to_milliseconds),
        cmocka_unit_test(sleep_lasts_at_least_as_long_as_asked),
        cmocka_unit_test(timestamps_are_rfc_3339_in_utc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
