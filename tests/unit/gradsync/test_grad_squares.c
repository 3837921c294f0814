#include "gradsync/bucket/grad_squares.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/device_memory.h"

#define COUNT 1003

static gs_device *open_device(int num_threads) {
    return test_device_open(num_threads);
}

// As gs_grad_squares, of a copy on the device.
static bool measure(double *squares, const float *grad, size_t count, gs_device *device) {
    float *copy = device_memory_copy(device, grad, count * sizeof *grad);
    bool finite = gs_grad_squares(squares, copy, count, device);
    device_memory_free(device, copy);
    return finite;
}

// Of the host's memory, or of a copy on the GPU.
static bool measure_main(double *squares, const void *grad, gs_dtype dtype, size_t count,
                    gs_device *device) {
    if (gs_device_is_host(device)) return gs_grad_squares_main(squares, grad, dtype, count, device);
    void *copy = device_memory_copy(device, grad, count * gs_dtype_bytes(dtype));
    gs_status status = gs_grad_squares_fetch(squares, copy, dtype, count, device);
    assert_string_equal(status.message, "");
    device_memory_free(device, copy);
    return !isnan(*squares);
}

static void squares_are_the_same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    enum { LARGE = 100003 };
    float *grad = malloc(LARGE * sizeof *grad);
    gs_random_fill_normal(grad, LARGE, (gs_random_key){.seed = 1}, 0, 0, 1);
    double expected = 0, first = 0;
    for (size_t i = 0; i < LARGE; i++) expected += (double)grad[i] * grad[i];
    for (int num_threads = 1; num_threads <= 3; num_threads++) {
        gs_device *device = open_device(num_threads);
        double squares;
        assert_true(measure(&squares, grad, LARGE, device));
        assert_true(fabs(squares / expected - 1) < 1e-6);
        if (num_threads == 1) first = squares;
        assert_memory_equal(&squares, &first, sizeof squares);
        test_device_close(device);
    }
    free(grad);
}

static void infinity_and_nan_are_seen_wherever_they_are(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int b = 0; b < 3; b++) {
        for (size_t at = 0; at < 67; at += 11) {
            float grad[67] = {0};
            double squares;
            grad[at] = bad[b];
            assert_false(measure(&squares, grad, 67, device));
            assert_true(measure(&squares, grad, at, device));
        }
    }
    test_device_close(device);
}

static void squares_beyond_fp32_are_right(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    const float grad[] = {3e25f, 4e25f};
    double squares;
    assert_true(measure(&squares, grad, 2, device));
    assert_true(fabs(sqrt(squares) / 5e25 - 1) < 1e-6);
    test_device_close(device);
}

static void squares_tell_infinite_and_nan_from_large(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    double grad[COUNT], squares, expected = 0;
    for (int i = 0; i < COUNT; i++) {
        grad[i] = (double)i / 8;
        expected += grad[i] * grad[i];
    }
    assert_true(measure_main(&squares, grad, GS_FP64, COUNT, device));
    assert_true(fabs(squares / expected - 1) < 1e-14);
    for (size_t i = 0; i < 3; i++) {
        grad[17] = bad[i];
        assert_false(measure_main(&squares, grad, GS_FP64, COUNT, device));
        assert_true(isnan(squares));
        float single[] = {1, (float)bad[i]};
        assert_false(measure_main(&squares, single, GS_FP32, 2, device));
        assert_true(isnan(squares));
    }
    grad[17] = 1e200;
    assert_true(measure_main(&squares, grad, GS_FP64, COUNT, device));
    assert_true(isinf(squares));
    test_device_close(device);
}

static void squares_of_doubles_are_the_same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    enum { LARGE = 100000 };
    static double grad[LARGE];
    for (int i = 0; i < LARGE; i++) grad[i] = sin(i);
    double one, three;
    gs_device *device = open_device(1);
    assert_true(measure_main(&one, grad, GS_FP64, LARGE, device));
    test_device_close(device);
    device = open_device(3);
    assert_true(measure_main(&three, grad, GS_FP64, LARGE, device));
    test_device_close(device);
    assert_memory_equal(&one, &three, sizeof one);
}

static void no_elements_have_no_squares(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    double squares = 1;
    assert_true(measure_main(&squares, NULL, GS_FP32, 0, device));
    assert_true(squares == 0);
    squares = 1;
    assert_true(measure_main(&squares, NULL, GS_FP64, 0, device));
    assert_true(squares == 0);
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(squares_are_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(infinity_and_nan_are_seen_wherever_they_are),
        cmocka_unit_test(squares_beyond_fp32_are_right),
        cmocka_unit_test(squares_tell_infinite_and_nan_from_large),
        cmocka_unit_test(squares_of_doubles_are_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(no_elements_have_no_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
