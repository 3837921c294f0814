#include "gradsync/bucket/main_grad.h"

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
    gs_main_grad_zero(NULL, GS_FP32, 0, gs_work_stream_of(device));
    gs_main_grad_add(NULL, NULL, GS_FP64, 0, gs_work_stream_of(device));
    gs_main_grad_scale(NULL, 2, GS_FP32, 0, gs_work_stream_of(device));
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_keep_what_floats_would_lose),
        cmocka_unit_test(floats_are_scaled_by_the_rounded_factor),
        cmocka_unit_test(nothing_is_done_to_no_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
