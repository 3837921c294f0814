#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/observe/reports/series.h"

static void a_curve_never_outgrows_its_bound_and_keeps_its_peak(void **state) {
    (void)state;
    gs_series series = {0};
    for (int64_t step = 1; step <= 20000; step++) {
        gs_series_add(&series, step, step == 777 ? 1000.0 : step == 15000 ? -1000.0 : 1.0);
        assert_true(series.count <= GS_SERIES_MAX_POINTS);
    }
    double most = 0, least = 0;
    for (size_t i = 0; i < series.count; i++) {
        if (i > 0) assert_true(series.points[i].step > series.points[i - 1].step);
        if (series.points[i].value > most) most = series.points[i].value;
        if (series.points[i].value < least) least = series.points[i].value;
    }
    assert_true(most == 1000.0 && least == -1000.0);
    assert_int_equal(series.points[0].step, 1);
    assert_int_equal(series.points[series.count - 1].step, 20000);
    gs_series_release(&series);
}

static void a_long_curve_is_as_fine_at_its_beginning(void **state) {
    (void)state;
    gs_series series = {0};
    for (int64_t step = 0; step < 300000; step++) gs_series_add(&series, step, sin((double)step));
    int64_t most_apart = 0;
    for (size_t i = 1; i < series.count; i++) {
        int64_t apart = series.points[i].step - series.points[i - 1].step;
        if (apart > most_apart) most_apart = apart;
    }
    assert_true(most_apart <= 2 * 300000 / (GS_SERIES_MAX_POINTS / 4));
    gs_series_release(&series);
}

static void redone_steps_replace_what_was_drawn(void **state) {
    (void)state;
    gs_series series = {0};
    for (int64_t step = 1; step <= 10; step++) gs_series_add(&series, step, 1);
    gs_series_add(&series, 6, 2);
    assert_int_equal(series.count, 6);
    assert_true(series.points[5].value == 2);
    gs_series_release(&series);
}

static void thinning_gives_no_more_than_asked_and_in_order(void **state) {
    (void)state;
    gs_series_point points[100], out[100];
    for (int i = 0; i < 100; i++) points[i] = (gs_series_point){i, i == 50 ? NAN : sin(i)};
    for (size_t most = 2; most <= 100; most++) {
        size_t count = gs_series_thin(out, points, 100, most);
        assert_true(count <= most && count >= 2);
        for (size_t i = 1; i < count; i++) assert_true(out[i].step > out[i - 1].step);
        assert_int_equal(out[count - 1].step, 99);
    }
}

static void what_is_no_number_stays_visible(void **state) {
    (void)state;
    gs_series_point points[1000], out[20];
    for (int i = 0; i < 1000; i++) points[i] = (gs_series_point){i, i == 333 ? NAN : 1};
    size_t count = gs_series_thin(out, points, 1000, 20);
    int found = 0;
    for (size_t i = 0; i < count; i++) found += isnan(out[i].value);
    assert_int_equal(found, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_curve_never_outgrows_its_bound_and_keeps_its_peak),
        cmocka_unit_test(a_long_curve_is_as_fine_at_its_beginning),
        cmocka_unit_test(redone_steps_replace_what_was_drawn),
        cmocka_unit_test(thinning_gives_no_more_than_asked_and_in_order),
        cmocka_unit_test(what_is_no_number_stays_visible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
