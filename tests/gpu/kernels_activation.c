// Bias, GELU and ReLU.
#include "tests/gpu/kernel_case.h"

static const kernel_bound gelu_bound = {2e-6, 1e-5,
                                        "the device's exponential and fused multiply-adds"};

typedef struct rows_shape {
    size_t rows, cols;
    bool accumulate;
} rows_shape;

// Few or many of either, 2^22 elements at most.
static rows_shape draw_rows(kernel_test *test) {
    rows_shape shape = {.cols = kernel_dim(test, 1, 4096)};
    shape.rows = kernel_count(test, ((size_t)1 << 22) / shape.cols);
    shape.accumulate = kernel_random(test, 2);
    kernel_begin(test, "rows %zu, cols %zu, accumulate %d", shape.rows, shape.cols,
                 shape.accumulate);
    return shape;
}

// ---- flat

static void launch_relu(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->relu(run->stream, run->at[0], run->at[1], *count);
}

static void launch_relu_in_place(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->relu(run->stream, run->at[0], run->at[0], *count);
}

static void test_relu(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        const size_t count = kernel_count(test, (size_t)1 << 22);
        kernel_begin(test, "count %zu", count);
        kernel_output(test, "out", GS_FP32, count, KERNEL_SAME_BITS);
        kernel_input(test, "in", GS_FP32, count, KERNEL_SPECIAL);
        kernel_check(test, launch_relu, &count);
        kernel_begin(test, "count %zu in place", count);
        kernel_inout(test, "out", GS_FP32, count, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_check(test, launch_relu_in_place, &count);
    }
}

static void launch_relu_backward(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->relu_backward(run->stream, run->at[0], run->at[1], run->at[2], *count);
}

static void test_relu_backward(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        const size_t count = kernel_count(test, (size_t)1 << 22);
        kernel_begin(test, "count %zu", count);
        kernel_output(test, "dx", GS_FP32, count, KERNEL_SAME_BITS);
        kernel_input(test, "dy", GS_FP32, count, KERNEL_SPECIAL);
        kernel_input(test, "out", GS_FP32, count, KERNEL_SPECIAL);
        kernel_check(test, launch_relu_backward, &count);
    }
}

static void launch_gelu_backward(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->gelu_backward(run->stream, run->at[0], run->at[1], run->at[2], *count);
}

static void launch_gelu_backward_in_place(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->gelu_backward(run->stream, run->at[0], run->at[0], run->at[1], *count);
}

static void test_gelu_backward(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        const size_t count = kernel_count(test, (size_t)1 << 21);
        const kernel_fill fill = round % 3 ? KERNEL_UNIT : KERNEL_WIDE;
        kernel_begin(test, "count %zu", count);
        kernel_output(test, "dx", GS_FP32, count, gelu_bound);
        kernel_input(test, "dy", GS_FP32, count, KERNEL_UNIT);
        const int x = kernel_input(test, "x", GS_FP32, count, fill);
        if (count) ((float *)kernel_data(test, x))[count / 2] = __builtin_nanf("");
        kernel_check(test, launch_gelu_backward, &count);
        kernel_begin(test, "count %zu in place", count);
        kernel_inout(test, "dx", GS_FP32, count, KERNEL_UNIT, gelu_bound);
        kernel_input(test, "x", GS_FP32, count, fill);
        kernel_check(test, launch_gelu_backward_in_place, &count);
    }
}

// ---- rows

static void launch_bias_add(const kernel_run *run) {
    const rows_shape *shape = run->shape;
    run->kernels->bias_add(run->stream, run->at[0], run->at[1], shape->rows, shape->cols);
}

static void test_bias_add(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        const rows_shape shape = draw_rows(test);
        kernel_inout(test, "x", GS_FP32, shape.rows * shape.cols, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_input(test, "bias", GS_FP32, shape.cols, KERNEL_WIDE);
        kernel_check(test, launch_bias_add, &shape);
    }
}

static void launch_bias_gelu(const kernel_run *run) {
    const rows_shape *shape = run->shape;
    run->kernels->bias_gelu(run->stream, run->at[0], run->at[1], run->at[2], shape->rows,
                            shape->cols);
}

static void test_bias_gelu(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        const rows_shape shape = draw_rows(test);
        const kernel_fill fill = round % 3 ? KERNEL_UNIT : KERNEL_WIDE;
        kernel_output(test, "out", GS_FP32, shape.rows * shape.cols, gelu_bound);
        kernel_inout(test, "x", GS_FP32, shape.rows * shape.cols, fill, KERNEL_SAME_BITS);
        kernel_input(test, "bias", GS_FP32, shape.cols, KERNEL_UNIT);
        kernel_check(test, launch_bias_gelu, &shape);
    }
}

static void launch_bias_backward(const kernel_run *run) {
    const rows_shape *shape = run->shape;
    run->kernels->bias_backward(run->stream, run->at[0], run->at[1], shape->rows, shape->cols,
                                shape->accumulate);
}

static void launch_half_bias_backward(const kernel_run *run) {
    const rows_shape *shape = run->shape;
    run->half->bias_backward(run->stream, run->at[0], run->at[1], shape->rows, shape->cols,
                             shape->accumulate);
}

static void check_bias_backward(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    const rows_shape shape = draw_rows(test);
    if (shape.accumulate) {
        kernel_inout(test, "dbias", GS_FP32, shape.cols, KERNEL_UNIT, KERNEL_SAME_BITS);
    } else {
        kernel_output(test, "dbias", GS_FP32, shape.cols, KERNEL_SAME_BITS);
    }
    kernel_input(test, "dy", dtype, shape.rows * shape.cols, KERNEL_WIDE);
    kernel_check(test, launch, &shape);
}

static void test_bias_backward(kernel_test *test) {
    for (int round = 0; round < 24; round++)
        check_bias_backward(test, GS_FP32, launch_bias_backward);
}

static void test_half_bias_backward(kernel_test *test) {
    for (int round = 0; round < 24; round++)
        check_bias_backward(test, kernel_half_dtype(test), launch_half_bias_backward);
}

static const kernel_case cases[] = {
    KERNEL_CASE(bias_add),          KERNEL_CASE(bias_gelu), KERNEL_CASE(bias_backward),
    KERNEL_CASE(gelu_backward),     KERNEL_CASE(relu),      KERNEL_CASE(relu_backward),
    KERNEL_HALF_CASE(bias_backward)};
const kernel_family kernel_family_activation = {cases, sizeof cases / sizeof *cases};
