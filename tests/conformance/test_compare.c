// The referee itself: what compare_floats must not let pass.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/conformance/replica.h"

static const tolerance allowed = {.relative = 1e-3, .floor = 1e-3};

static gs_code compare(float a, float b, float c, const float *wanted) {
    const float got[] = {a, b, c};
    return compare_floats("x", got, wanted, 3, allowed).code;
}

static void a_distance_counts_against_the_largest_value(void **state) {
    (void)state;
    const float wanted[] = {1.0f, -10.0f, 0.0f};
    assert_int_equal(compare(1.0f, -10.0f, 0.0f, wanted), GS_OK);
    assert_int_equal(compare(1.005f, -10.0f, -0.005f, wanted), GS_OK);
    assert_int_equal(compare(1.02f, -10.0f, 0.0f, wanted), GS_DATA_LOSS);
    assert_int_equal(compare(1.0f, -10.0f, 0.02f, wanted), GS_DATA_LOSS);
}

// At every place, also before values that are right.
static void nan_and_infinity_never_pass(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY}, right[] = {1.0f, 2.0f, 3.0f};
    for (size_t i = 0; i < 3; i++)
        for (size_t at = 0; at < 3; at++) {
            float other[] = {1.0f, 2.0f, 3.0f};
            other[at] = bad[i];
            assert_int_equal(compare(other[0], other[1], other[2], right), GS_DATA_LOSS);
            assert_int_equal(compare(right[0], right[1], right[2], other), GS_DATA_LOSS);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_distance_counts_against_the_largest_value),
        cmocka_unit_test(nan_and_infinity_never_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
