#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double element(const float *matrix, bool transposed, size_t stride, size_t row, size_t col) {
    return (double)(transposed ? matrix[col * stride + row] : matrix[row * stride + col]);
}

// |error| <= 1e-6 · Σ|a||b|: fp32 sums of k products.
static void assert_product(gs_device *device, gs_matmul shape, size_t padding) {
    size_t stride_a = (shape.transpose_a ? shape.m : shape.k) + padding;
    size_t stride_b = (shape.transpose_b ? shape.k : shape.n) + padding;
    size_t stride_c = shape.n + padding;
    if (padding) {
        shape.stride_a = stride_a;
        shape.stride_b = stride_b;
        shape.stride_c = stride_c;
    }
    float *a = make_uniform((shape.transpose_a ? shape.k : shape.m) * stride_a, 1, -1, 1);
    float *b = make_uniform((shape.transpose_b ? shape.n : shape.k) * stride_b, 2, -1, 1);
    float *c = make_uniform(shape.m * stride_c, 3, -1, 1),
          *before = make_uniform(shape.m * stride_c, 3, -1, 1);
    gs_device_kernels(device)->matmul(gs_device_stream(device), c, a, b, &shape);
    assert_stream_ok(device);
    for (size_t row = 0; row < shape.m; row++) {
        for (size_t col = 0; col < stride_c; col++) {
            double was = (double)before[row * stride_c + col];
            if (col >= shape.n) {
                assert_true((double)c[row * stride_c + col] == was);
                continue;
            }
            double sum = 0, magnitude = fabs(was) + 1;
            for (size_t i = 0; i < shape.k; i++) {
                double term = element(a, shape.transpose_a, stride_a, row, i) *
                              element(b, shape.transpose_b, stride_b, i, col);
                sum += term;
                magnitude += fabs(term);
            }
            double want = (double)shape.alpha * sum + (double)shape.beta * was;
            double got = (double)c[row * stride_c + col];
            if (!(fabs(got - want) <= 1e-6 * magnitude)) {
                fail_msg("%zux%zux%zu [%zu][%zu]: got %g, want %g", shape.m, shape.n, shape.k, row,
                         col, got, want);
            }
        }
    }
    free(a);
    free(b);
    free(c);
    free(before);
}

static void all_transposes_shapes_and_factors(void **state) {
    static const size_t shapes[][3] = {{1, 1, 1},   {1, 7, 5},     {5, 1, 3},    {17, 13, 33},
                                       {3, 4, 0},   {0, 4, 3},     {64, 64, 64}, {131, 67, 29},
                                       {5, 300, 2}, {130, 260, 70}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int transposes = 0; transposes < 4; transposes++) {
            for (int factors = 0; factors < 3; factors++) {
                gs_matmul shape = {.transpose_a = transposes & 1,
                                   .transpose_b = transposes & 2,
                                   .m = shapes[s][0],
                                   .n = shapes[s][1],
                                   .k = shapes[s][2],
                                   .alpha = factors ? 0.5f : 1.0f,
                                   .beta = (float)factors * 0.5f};
                assert_product(*state, shape, 0);
                assert_product(*state, shape, 3);
            }
        }
    }
}

static void split_products_cover_every_element(void **state) {
    gs_matmul shape = {.transpose_b = true, .m = 37, .n = 1001, .k = 40, .alpha = 1};
    assert_product(*state, shape, 1);
    shape = (gs_matmul){.transpose_a = true, .m = 1001, .n = 37, .k = 40, .alpha = 1};
    assert_product(*state, shape, 0);
    shape = (gs_matmul){.m = 1100, .n = 1030, .k = 3, .alpha = 1, .beta = 1};
    assert_product(*state, shape, 0);
}

static void beta_zero_overwrites_nan(void **state) {
    float a[] = {2}, b[] = {3}, c[] = {NAN};
    gs_matmul shape = {.m = 1, .n = 1, .k = 1, .alpha = 1, .beta = 0};
    gs_device_kernels(*state)->matmul(gs_device_stream(*state), c, a, b, &shape);
    assert_true(c[0] == 6.0f);
    c[0] = NAN;
    shape.k = 0;
    gs_device_kernels(*state)->matmul(gs_device_stream(*state), c, a, b, &shape);
    assert_true(c[0] == 0.0f);
}

static void nan_in_an_operand_reaches_the_product(void **state) {
    float a[] = {1, NAN}, b[] = {1, 0}, c[] = {0};
    gs_matmul shape = {.m = 1, .n = 1, .k = 2, .alpha = 1};
    gs_device_kernels(*state)->matmul(gs_device_stream(*state), c, a, b, &shape);
    assert_true(isnan(c[0]));
}

static void sizes_beyond_an_int_fail_the_stream(void **state) {
    float one[] = {1};
    gs_matmul shape = {.m = 1, .n = 1, .k = (size_t)1 << 31, .alpha = 1};
    gs_device_kernels(*state)->matmul(gs_device_stream(*state), one, one, one, &shape);
    assert_stream_failed(*state, "1×1×2147483648");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_transposes_shapes_and_factors),
        cmocka_unit_test(split_products_cover_every_element),
        cmocka_unit_test(beta_zero_overwrites_nan),
        cmocka_unit_test(nan_in_an_operand_reaches_the_product),
        cmocka_unit_test(sizes_beyond_an_int_fail_the_stream),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
