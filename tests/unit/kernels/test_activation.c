#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t shapes[][2] = {{0, 5},    {1, 1},     {1, 33},  {3, 7},
                                   {65, 128}, {200, 129}, {7, 5000}};
#define NUM_SHAPES (sizeof shapes / sizeof *shapes)

static void bias_is_added_to_each_row(void **state) {
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        size_t rows = shapes[s][0], cols = shapes[s][1], count = rows * cols;
        float *x = make_uniform(count, 1, -2, 2), *was = make_uniform(count, 1, -2, 2);
        float *bias = make_uniform(cols, 2, -2, 2);
        gs_device_kernels(*state)->bias_add(gs_device_stream(*state), x, bias, rows, cols);
        for (size_t i = 0; i < count; i++) assert_true(x[i] == was[i] + bias[i % cols]);
        free(x);
        free(was);
        free(bias);
    }
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void bias_gelu_keeps_the_sum_and_writes_gelu(void **state) {
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        size_t rows = shapes[s][0], cols = shapes[s][1], count = rows * cols;
        float *x = make_uniform(count, 1, -4, 4), *was = make_uniform(count, 1, -4, 4);
        float *bias = make_uniform(cols, 2, -1, 1), *out = make_zeros(count);
        gs_device_kernels(*state)->bias_gelu(gs_device_stream(*state), out, x, bias, rows, cols);
        for (size_t i = 0; i < count; i++) {
            assert_true(x[i] == was[i] + bias[i % cols]);
            double want = gelu((double)x[i]);
            assert_close(&out[i], &want, 1, 1e-7, 5e-7);
        }
        free(x);
        free(was);
        free(bias);
        free(out);
    }
}

static void gelu_backward_is_its_slope_even_in_place(void **state) {
    enum { COUNT = 40001 };
    float *x = make_uniform(COUNT, 3, -6, 6), *dy = make_uniform(COUNT, 4, -1, 1);
    float *dx = make_zeros(COUNT);
    const gs_kernels *k = gs_device_kernels(*state);
    k->gelu_backward(gs_device_stream(*state), dx, dy, x, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        double slope = (gelu((double)x[i] + 1e-5) - gelu((double)x[i] - 1e-5)) / 2e-5;
        double want = (double)dy[i] * slope;
        assert_close(&dx[i], &want, 1, 1e-6, 0);
    }
    k->gelu_backward(gs_device_stream(*state), dy, dy, x, COUNT);
    assert_same_bits(dy, dx, COUNT * sizeof *dx);
    free(x);
    free(dy);
    free(dx);
}

static void bias_backward_sums_the_columns(void **state) {
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        size_t rows = shapes[s][0], cols = shapes[s][1];
        float *dy = make_uniform(rows * cols, 5, -1, 1), *dbias = make_uniform(cols, 6, -1, 1);
        double *want = widen(dbias, cols);
        const gs_kernels *k = gs_device_kernels(*state);
        for (size_t i = 0; i < rows * cols; i++) want[i % cols] += (double)dy[i];
        k->bias_backward(gs_device_stream(*state), dbias, dy, rows, cols, true);
        assert_close(dbias, want, cols, 1e-5, 1e-6);
        memset(want, 0, cols * sizeof *want);
        for (size_t i = 0; i < rows * cols; i++) want[i % cols] += (double)dy[i];
        for (size_t i = 0; i < cols; i++) dbias[i] = NAN;
        k->bias_backward(gs_device_stream(*state), dbias, dy, rows, cols, false);
        assert_close(dbias, want, cols, 1e-5, 1e-6);
        free(dy);
        free(dbias);
        free(want);
    }
}

static void relu_cuts_and_masks(void **state) {
    float x[] = {-1, 0, 2, -INFINITY, INFINITY, NAN, -0.0f}, out[7], dx[7];
    float dy[] = {1, 2, 3, 4, 5, 6, 7};
    const gs_kernels *k = gs_device_kernels(*state);
    k->relu(gs_device_stream(*state), out, x, 7);
    assert_true(out[0] == 0 && out[1] == 0 && out[2] == 2 && out[3] == 0);
    assert_true(out[4] == INFINITY && isnan(out[5]) && out[6] == 0);
    k->relu_backward(gs_device_stream(*state), dx, dy, out, 7);
    assert_true(dx[0] == 0 && dx[1] == 0 && dx[2] == 3 && dx[4] == 5);
    k->relu(gs_device_stream(*state), x, x, 5);
    assert_same_bits(x, out, 5 * sizeof *x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bias_is_added_to_each_row),
        cmocka_unit_test(bias_gelu_keeps_the_sum_and_writes_gelu),
        cmocka_unit_test(gelu_backward_is_its_slope_even_in_place),
        cmocka_unit_test(bias_backward_sums_the_columns),
        cmocka_unit_test(relu_cuts_and_masks),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
