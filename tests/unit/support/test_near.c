#include "tests/support/near.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const double inf = (double)INFINITY, nan_value = (double)NAN;

static void a_number_that_is_not_finite_is_near_nothing(void **state) {
    (void)state;
    const double values[] = {0, 1, -1e300, inf, -inf, nan_value};
    const gs_near wide = {.absolute = 1e300, .relative = inf};
    for (size_t i = 0; i < 6; i++) {
        for (size_t j = 0; j < 6; j++) {
            if (i < 3 && j < 3) continue;
            assert_false(is_near(values[i], values[j], wide));
            assert_false(is_near(values[i], values[j], (gs_near){0}));
        }
    }
}

static void the_same_nonfinite_number_passes_where_it_may(void **state) {
    (void)state;
    const gs_near within = {.absolute = 1, .nonfinite = true};
    assert_true(is_near(nan_value, nan_value, within));
    assert_true(is_near(-inf, -inf, within));
    assert_false(is_near(inf, -inf, within));
    assert_false(is_near(nan_value, inf, within));
    assert_false(is_near(nan_value, 0, within));
    assert_false(is_near(0, nan_value, within));
    assert_false(is_near(1e300, inf, within));
}

static void bounds_are_absolute_and_relative_to_what_is_wanted(void **state) {
    (void)state;
    assert_true(is_near(0, -0.0, (gs_near){0}));
    assert_false(is_near(1, 1 + 0x1p-52, (gs_near){0}));
    assert_true(is_near(1.5, 1, (gs_near){.absolute = 0.5}));
    assert_false(is_near(1.501, 1, (gs_near){.absolute = 0.5}));
    assert_true(is_near(-150, -100, (gs_near){.relative = 0.5}));
    assert_false(is_near(-100, -40, (gs_near){.relative = 0.5}));
    assert_true(is_near(160, 100, (gs_near){.absolute = 10, .relative = 0.5}));
}

static void a_list_names_the_first_element_that_is_not_near(void **state) {
    (void)state;
    const float wanted[] = {1, 2, 3, 4}, got[] = {1, 2.25f, NAN, 5};
    assert_int_equal(check_near_fp32("x", got, wanted, 2, (gs_near){.absolute = 0.25}).code, GS_OK);
    gs_status status = check_near_fp32("x", got, wanted, 4, (gs_near){.absolute = 0.25});
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_ptr_equal(strstr(status.message, "x[2] is nan"), status.message);
    assert_non_null(strstr(status.message, "of 3"));
    assert_true(norm_distance(wanted, wanted, 4) == 0);
    assert_true(isinf(norm_distance(got, wanted, 4)) && isinf(norm_distance(wanted, got, 4)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_that_is_not_finite_is_near_nothing),
        cmocka_unit_test(the_same_nonfinite_number_passes_where_it_may),
        cmocka_unit_test(bounds_are_absolute_and_relative_to_what_is_wanted),
        cmocka_unit_test(a_list_names_the_first_element_that_is_not_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
