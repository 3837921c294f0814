#include "gradsync/bucket/grad_norm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

static gs_device *open_device(int num_threads) {
    return test_device_open(num_threads);
}

// One tensor of the device, as a list.
typedef struct one_grad {
    void *grad;
    size_t count;
    gs_grad_list list;
} one_grad;

static void open_one(one_grad *one, const float *values, size_t count, gs_device *device) {
    one->grad = device_memory_copy(device, values, count * sizeof *values);
    one->count = count;
    one->list = (gs_grad_list){&one->grad, &one->count, 1};
}

static void clip_factor_is_pytorchs(void **state) {
    (void)state;
    assert_near(gs_grad_clip_factor(4, 1), (float)(1 / (4 + 1e-6)), 0);
    assert_near(gs_grad_clip_factor(0.5, 1), 1, 0);
    assert_near(gs_grad_clip_factor(1e9, 0), 1, 0);
    assert_near(gs_grad_clip_factor(INFINITY, 1), 0, 0);
    assert_true(isnan(gs_grad_clip_factor(NAN, 1)));
}

static void norms_of_a_list_are_the_textbooks(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    float a[] = {3, -4}, b[] = {12};
    void *grads[] = {device_memory_copy(device, a, sizeof a),
                     device_memory_copy(device, b, sizeof b)};
    const size_t counts[] = {2, 1};
    const gs_grad_list list = {grads, counts, 2};
    const struct {
        double p, norm;
    } cases[] = {{1, 19}, {2, 13}, {3, cbrt(27 + 64 + 1728)}, {(double)INFINITY, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double norm = gs_grad_list_norm(&list, cases[i].p, device);
        assert_true(fabs(norm / cases[i].norm - 1) < 1e-12);
    }
    gs_grad_list_clip(&list, 13, 6.5, device);
    device_memory_read(device, a, grads[0], sizeof a);
    device_memory_read(device, b, grads[1], sizeof b);
    device_memory_free(device, grads[0]);
    device_memory_free(device, grads[1]);
    assert_true(fabsf(b[0] - 6) < 1e-5f && fabsf(a[1] + 2) < 1e-5f);
    test_device_close(device);
}

// 12^1000 is no fp64, 0.001^1000 is zero.
static void large_powers_stay_in_range(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    for (double unit = 1e-30; unit < 1e31; unit *= 1e10) {
        const float values[] = {(float)(3 * unit), (float)(-12 * unit), (float)unit};
        one_grad one;
        open_one(&one, values, 3, device);
        for (double p = 10; p < 1e7; p *= 10)
            assert_true(fabs(gs_grad_list_norm(&one.list, p, device) / (12 * unit) - 1) < 1e-6);
        assert_true(fabs(gs_grad_list_norm(&one.list, 1, device) / (16 * unit) - 1) < 1e-6);
        device_memory_free(device, one.grad);
    }
    test_device_close(device);
}

// A NaN must not be lost behind a larger number, nor behind an infinity.
static void nan_is_the_largest_of_all(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    for (size_t at = 0; at < 3; at++) {
        float values[] = {1, INFINITY, 2};
        one_grad one;
        open_one(&one, values, 3, device);
        for (double p = 1; p <= 3; p++)
            assert_true(isinf(gs_grad_list_norm(&one.list, p, device)));
        assert_true(isinf(gs_grad_list_norm(&one.list, (double)INFINITY, device)));
        values[at] = NAN;
        device_memory_write(device, one.grad, values, sizeof values);
        for (double p = 1; p <= 3; p++)
            assert_true(isnan(gs_grad_list_norm(&one.list, p, device)));
        assert_true(isnan(gs_grad_list_norm(&one.list, (double)INFINITY, device)));
        device_memory_free(device, one.grad);
    }
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clip_factor_is_pytorchs),
        cmocka_unit_test(norms_of_a_list_are_the_textbooks),
        cmocka_unit_test(large_powers_stay_in_range),
        cmocka_unit_test(nan_is_the_largest_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
