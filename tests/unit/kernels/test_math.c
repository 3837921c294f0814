#include "tests/unit/kernels/kernel_test.h"

#include <float.h>
#include <math.h>

#define GS_ISA baseline
#include "kernels/cpu/math.h"

static void exp_is_within_two_ulp(void **state) {
    (void)state;
    for (int i = -860000; i <= 887000; i += 7) {
        float x = (float)i * 1e-4f;
        double want = exp((double)x);
        double ulp = (double)(nextafterf((float)want, INFINITY) - (float)want);
        double error = fabs((double)exp_fp32(x) - want);
        if (!(error <= 2 * ulp)) fail_msg("exp(%.9g) is off by %.2f ulp", (double)x, error / ulp);
    }
}

static void exp_saturates_and_keeps_nan(void **state) {
    (void)state;
    assert_true(exp_fp32(0.0f) == 1.0f);
    assert_true(exp_fp32(-INFINITY) == 0.0f);
    assert_true(exp_fp32(-100.0f) == 0.0f);
    assert_true(exp_fp32(INFINITY) == INFINITY);
    assert_true(exp_fp32(89.0f) == INFINITY);
    assert_true(exp_fp32(88.7f) < FLT_MAX);
    assert_true(isnan(exp_fp32(NAN)));
}

static void log_is_within_1e_15(void **state) {
    (void)state;
    for (double x = 1e-30; x < 1e30; x *= 1.0173) {
        double want = log(x);
        assert_true(fabs(log_fp64(x) - want) <= 1e-15 * (1 + fabs(want)));
    }
    assert_true(log_fp64(1.0) == 0.0);
    assert_true(log_fp64(0.0) == -INFINITY);
    assert_true(isinf(log_fp64(INFINITY)) && isnan(log_fp64(NAN)));
}

static double gelu_fp64(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void gelu_matches_the_tanh_form(void **state) {
    (void)state;
    for (int i = -20000; i <= 20000; i++) {
        float x = (float)i * 1e-3f;
        double want = gelu_fp64((double)x);
        assert_true(fabs((double)gelu_fp32(x) - want) <= 1e-7 + 5e-7 * fabs(want));
        double slope = (gelu_fp64((double)x + 1e-5) - gelu_fp64((double)x - 1e-5)) / 2e-5;
        assert_true(fabs((double)gelu_slope_fp32(x) - slope) <= 1e-6);
    }
}

static void gelu_of_huge_values_is_finite(void **state) {
    (void)state;
    assert_true(gelu_fp32(1e30f) == 1e30f);
    assert_true(fabsf(gelu_fp32(-1e20f)) < 1e-6f);
    assert_true(gelu_slope_fp32(1e30f) == 1.0f);
    assert_true(fabsf(gelu_slope_fp32(-1e30f)) < 1e-20f);
    assert_true(isnan(gelu_fp32(NAN)) && isnan(gelu_slope_fp32(NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(exp_saturates_and_keeps_nan),
        cmocka_unit_test(log_is_within_1e_15),
        cmocka_unit_test(gelu_matches_the_tanh_form),
        cmocka_unit_test(gelu_of_huge_values_is_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
