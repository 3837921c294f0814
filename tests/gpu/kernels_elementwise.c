// Flat arrays: what is elementwise must be the CPU's to the bit; sums have an order of their own.
#include "tests/gpu/kernel_case.h"

#include <stdint.h>

#define ROUNDS 24
#define MOST ((size_t)1 << 22)

// Sums of fp64 in two orders: n·2^-53 of the sum of magnitudes at most, n ≤ 2^22.
static const kernel_bound sum_bound = {1e-9, 0, "fp64 sums in another order"};

typedef struct flat_shape {
    size_t count;
    float factor;
} flat_shape;

static flat_shape draw_flat(kernel_test *test, const char *what) {
    flat_shape shape = {kernel_count(test, MOST), kernel_real(test, -3.0f, 3.0f)};
    kernel_begin(test, "%s, count %zu, factor %g", what, shape.count, (double)shape.factor);
    return shape;
}

static void launch_fill(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->fill(run->stream, run->at[0], shape->factor, shape->count);
}

static void test_fill(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "fill");
        kernel_output(test, "out", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_check(test, launch_fill, &shape);
    }
}

static void launch_copy(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->copy(run->stream, run->at[0], run->at[1], shape->count);
}

static void launch_copy_to_itself(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->copy(run->stream, run->at[0], run->at[0], shape->count);
}

static void test_copy(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "copy of bytes");
        kernel_output(test, "out", GS_U8, shape.count, KERNEL_SAME_BITS);
        kernel_input(test, "in", GS_U8, shape.count, KERNEL_UNIT);
        kernel_check(test, launch_copy, &shape);
    }
    flat_shape shape = draw_flat(test, "copy to itself");
    kernel_inout(test, "out", GS_U8, shape.count, KERNEL_UNIT, KERNEL_SAME_BITS);
    kernel_check(test, launch_copy_to_itself, &shape);
}

static void launch_clear(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->clear(run->stream, run->at[0], shape->count);
}

static void test_clear(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "clear of bytes");
        kernel_output(test, "out", GS_U8, shape.count, KERNEL_SAME_BITS);
        kernel_check(test, launch_clear, &shape);
    }
}

static void launch_add(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->add(run->stream, run->at[0], run->at[1], run->at[2], shape->count);
}

static void launch_add_in_place(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->add(run->stream, run->at[0], run->at[1], run->at[0], shape->count);
}

static void test_add(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "add");
        kernel_output(test, "out", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_input(test, "a", GS_FP32, shape.count, KERNEL_SPECIAL);
        kernel_input(test, "b", GS_FP32, shape.count, KERNEL_SPECIAL);
        kernel_check(test, launch_add, &shape);
        shape = draw_flat(test, "add in place");
        kernel_inout(test, "out", GS_FP32, shape.count, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_input(test, "a", GS_FP32, shape.count, KERNEL_WIDE);
        kernel_check(test, launch_add_in_place, &shape);
    }
}

static void launch_scale(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->scale(run->stream, run->at[0], run->at[1], shape->factor, shape->count);
}

static void launch_scale_in_place(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->scale(run->stream, run->at[0], run->at[0], shape->factor, shape->count);
}

static void test_scale(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "scale");
        kernel_output(test, "out", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_input(test, "in", GS_FP32, shape.count, KERNEL_SPECIAL);
        kernel_check(test, launch_scale, &shape);
        shape = draw_flat(test, "scale in place");
        kernel_inout(test, "out", GS_FP32, shape.count, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_check(test, launch_scale_in_place, &shape);
    }
}

static void launch_axpy(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->axpy(run->stream, run->at[0], run->at[1], shape->factor, shape->count);
}

static void test_axpy(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "axpy");
        kernel_inout(test, "y", GS_FP32, shape.count, KERNEL_WIDE, KERNEL_SAME_BITS);
        kernel_input(test, "x", GS_FP32, shape.count, KERNEL_WIDE);
        kernel_check(test, launch_axpy, &shape);
    }
}

static void launch_sum_squares(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->sum_squares(run->stream, run->at[0], run->at[1], shape->count);
}

static void test_sum_squares(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "sum_squares");
        kernel_number(test, "out", GS_FP64, sum_bound);
        kernel_input(test, "in", GS_FP32, shape.count, round % 4 ? KERNEL_WIDE : KERNEL_SPECIAL);
        kernel_check(test, launch_sum_squares, &shape);
    }
}

static void launch_count_nonfinite(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->count_nonfinite(run->stream, run->at[0], run->at[1], shape->count);
}

static void test_count_nonfinite(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "count_nonfinite");
        kernel_number(test, "out", GS_I64, KERNEL_SAME_BITS);
        kernel_input(test, "in", GS_FP32, shape.count, round % 4 ? KERNEL_SPECIAL : KERNEL_WIDE);
        kernel_check(test, launch_count_nonfinite, &shape);
    }
}

static void launch_add_mean(const kernel_run *run) {
    const flat_shape *shape = run->shape;
    run->kernels->add_mean(run->stream, run->at[0], run->at[1], shape->count);
}

static void test_add_mean(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        flat_shape shape = draw_flat(test, "add_mean");
        kernel_inout(test, "sum", GS_FP64, 1, KERNEL_POSITIVE, sum_bound);
        kernel_input(test, "in", GS_FP32, shape.count, KERNEL_POSITIVE);
        kernel_check(test, launch_add_mean, &shape);
    }
}

static const kernel_case cases[] = {
    KERNEL_CASE(fill),     KERNEL_CASE(copy),        KERNEL_CASE(clear),
    KERNEL_CASE(add),      KERNEL_CASE(scale),       KERNEL_CASE(axpy),
    KERNEL_CASE(add_mean), KERNEL_CASE(sum_squares), KERNEL_CASE(count_nonfinite)};
const kernel_family kernel_family_elementwise = {cases, sizeof cases / sizeof *cases};
