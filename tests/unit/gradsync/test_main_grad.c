#include "gradsync/bucket/main_grad.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/device_memory.h"

#define COUNT 1003

static gs_device *open_device(int num_threads) {
    return test_device_open(num_threads);
}

// Of the host's memory, or of a copy on the GPU.
static bool measure(double *squares, const void *grad, gs_dtype dtype, size_t count,
                    gs_device *device) {
    if (gs_device_is_host(device)) return gs_main_grad_squares(squares, grad, dtype, count, device);
    void *copy = device_memory_copy(device, grad, count * gs_dtype_bytes(dtype));
    gs_status status = gs_main_grad_fetch_squares(squares, copy, dtype, count, device);
    assert_string_equal(status.message, "");
    device_memory_free(device, copy);
    return !isnan(*squares);
}

static void doubles_keep_what_floats_would_lose(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    double left[COUNT], right[COUNT];
    for (int i = 0; i < COUNT; i++) {
        left[i] = 1 + (double)i * 0x1p-40;
        right[i] = 0x1p-50;
    }
    double *sum = device_memory_copy(device, left, sizeof left);
    double *grad = device_memory_copy(device, right, sizeof right);
    gs_main_grad_add(sum, grad, GS_FP64, COUNT, gs_work_stream_of(device));
    device_memory_read(device, left, sum, sizeof left);
    for (int i = 0; i < COUNT; i++) assert_true(left[i] == 1 + (double)i * 0x1p-40 + 0x1p-50);
    gs_main_grad_scale(sum, 1.0 / 3, GS_FP64, COUNT, gs_work_stream_of(device));
    device_memory_read(device, left, sum, sizeof left);
    for (int i = 0; i < COUNT; i++)
        assert_true(left[i] == (1 + (double)i * 0x1p-40 + 0x1p-50) * (1.0 / 3));
    gs_main_grad_zero(sum, GS_FP64, COUNT - 1, gs_work_stream_of(device));
    device_memory_read(device, left, sum, sizeof left);
    device_memory_free(device, sum);
    device_memory_free(device, grad);
    for (int i = 0; i < COUNT - 1; i++) assert_true(left[i] == 0);
    assert_true(left[COUNT - 1] > 0);
    test_device_close(device);
}

static void floats_are_scaled_by_the_rounded_factor(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    float sum[COUNT];
    for (int i = 0; i < COUNT; i++) sum[i] = (float)(i + 1);
    float *left = device_memory_copy(device, sum, sizeof sum);
    float *right = device_memory_copy(device, sum, sizeof sum);
    gs_main_grad_add(left, right, GS_FP32, COUNT, gs_work_stream_of(device));
    gs_main_grad_scale(left, 1.0 / 7, GS_FP32, COUNT, gs_work_stream_of(device));
    device_memory_read(device, sum, left, sizeof sum);
    device_memory_free(device, left);
    device_memory_free(device, right);
    const float factor = (float)(1.0 / 7);
    for (int i = 0; i < COUNT; i++) assert_true(sum[i] == (float)(2 * (i + 1)) * factor);
    test_device_close(device);
}

static void nothing_is_done_to_no_elements(void **state) {
    (void)state;
    gs_device *device = open_device(1);
    double squares = 1;
    gs_main_grad_zero(NULL, GS_FP32, 0, gs_work_stream_of(device));
    gs_main_grad_add(NULL, NULL, GS_FP64, 0, gs_work_stream_of(device));
    gs_main_grad_scale(NULL, 2, GS_FP32, 0, gs_work_stream_of(device));
    assert_true(measure(&squares, NULL, GS_FP32, 0, device));
    assert_true(squares == 0);
    assert_true(measure(&squares, NULL, GS_FP64, 0, device));
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
    assert_true(measure(&squares, grad, GS_FP64, COUNT, device));
    assert_true(fabs(squares / expected - 1) < 1e-14);
    for (size_t i = 0; i < 3; i++) {
        grad[17] = bad[i];
        assert_false(measure(&squares, grad, GS_FP64, COUNT, device));
        assert_true(isnan(squares));
        float single[] = {1, (float)bad[i]};
        assert_false(measure(&squares, single, GS_FP32, 2, device));
        assert_true(isnan(squares));
    }
    grad[17] = 1e200;
    assert_true(measure(&squares, grad, GS_FP64, COUNT, device));
    assert_true(isinf(squares));
    test_device_close(device);
}

static void squares_have_the_same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    enum { LARGE = 100000 };
    static double grad[LARGE];
    for (int i = 0; i < LARGE; i++) grad[i] = sin(i);
    double one, three;
    gs_device *device = open_device(1);
    assert_true(measure(&one, grad, GS_FP64, LARGE, device));
    test_device_close(device);
    device = open_device(3);
    assert_true(measure(&three, grad, GS_FP64, LARGE, device));
    test_device_close(device);
    assert_memory_equal(&one, &three, sizeof one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_keep_what_floats_would_lose),
        cmocka_unit_test(floats_are_scaled_by_the_rounded_factor),
        cmocka_unit_test(nothing_is_done_to_no_elements),
        cmocka_unit_test(squares_tell_infinite_and_nan_from_large),
        cmocka_unit_test(squares_have_the_same_bits_for_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
