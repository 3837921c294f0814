// Batch norm in one piece and in parts. What follows from given statistics is promised to the bit.
#include "tests/gpu/kernel_case.h"

static const kernel_bound fp64_bound = {1e-12, 1e-9, "fp64 sums in another order"};
static const kernel_bound fp32_bound = {2e-6, 5e-5, "fp64 sums in another order, rounded to fp32"};

typedef struct norm_shape {
    gs_batchnorm norm;
    double total_rows;
    bool accumulate;
} norm_shape;

static norm_shape draw_shape(kernel_test *test, size_t least_rows) {
    norm_shape shape = {.norm.channels = kernel_dim(test, 1, 1100)};
    shape.norm.rows = kernel_count_from(test, least_rows, ((size_t)1 << 20) / shape.norm.channels);
    shape.norm.momentum = kernel_real(test, 0.0f, 1.0f);
    shape.norm.eps = 1e-5f;
    shape.total_rows = (double)shape.norm.rows + 2.0 + (double)kernel_random(test, 500);
    shape.accumulate = kernel_random(test, 2);
    kernel_begin(test, "rows %zu, channels %zu, total rows %.0f, accumulate %d", shape.norm.rows,
                 shape.norm.channels, shape.total_rows, shape.accumulate);
    return shape;
}

static void add_columns(kernel_test *test, const norm_shape *s, const char *const names[],
                        kernel_fill fill) {
    for (int i = 0; names[i]; i++) kernel_input(test, names[i], GS_FP32, s->norm.channels, fill);
}

static void add_column_outputs(kernel_test *test, const norm_shape *s, const char *const names[],
                               gs_dtype dtype, kernel_bound bound) {
    for (int i = 0; names[i]; i++) kernel_output(test, names[i], dtype, s->norm.channels, bound);
}

static size_t count_of(const norm_shape *s) {
    return s->norm.rows * s->norm.channels;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ROUNDS 20

// ---- forward

static void launch_batchnorm(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], run->at[4],
                            run->at[5], run->at[6], run->at[7], run->at[8], run->at[9], &s->norm);
}

static void add_forward(kernel_test *test, const norm_shape *s, kernel_bound bound) {
    kernel_output(test, "out", GS_FP32, count_of(s), bound);
    add_column_outputs(test, s, NAMES("save_mean", "save_rstd", "next_mean", "next_var"), GS_FP32,
                       bound);
    kernel_input(test, "x", GS_FP32, count_of(s), KERNEL_UNIT);
    add_columns(test, s, NAMES("weight", "bias", "running_mean"), KERNEL_UNIT);
    add_columns(test, s, NAMES("running_var"), KERNEL_POSITIVE);
}

static void test_batchnorm(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test, 8);
        add_forward(test, &shape, fp32_bound);
        kernel_check(test, launch_batchnorm, &shape);
    }
    for (size_t rows = 0; rows < 2; rows++) {
        norm_shape shape = draw_shape(test, 2);
        shape.norm.rows = rows;
        add_forward(test, &shape, fp32_bound);
        kernel_check_fails(test, launch_batchnorm, &shape, "training needs at least 2 rows");
    }
}

static void launch_batchnorm_eval(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm_eval(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                 run->at[4], run->at[5], &s->norm);
}

static void test_batchnorm_eval(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test, 0);
        kernel_output(test, "out", GS_FP32, count_of(&shape), KERNEL_SAME_BITS);
        kernel_input(test, "x", GS_FP32, count_of(&shape), KERNEL_WIDE);
        add_columns(test, &shape, NAMES("weight", "bias", "running_mean"), KERNEL_UNIT);
        add_columns(test, &shape, NAMES("running_var"), KERNEL_POSITIVE);
        kernel_check(test, launch_batchnorm_eval, &shape);
    }
}

// ---- backward

static void launch_batchnorm_backward(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm_backward(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                     run->at[4], run->at[5], run->at[6], run->at[7], &s->norm,
                                     s->accumulate);
}

static void add_sum(kernel_test *test, const char *name, const norm_shape *s) {
    if (s->accumulate) {
        kernel_inout(test, name, GS_FP32, s->norm.channels, KERNEL_UNIT, fp32_bound);
    } else {
        kernel_output(test, name, GS_FP32, s->norm.channels, fp32_bound);
    }
}

static void test_batchnorm_backward(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test, 1);
        kernel_output(test, "dx", GS_FP32, count_of(&shape), fp32_bound);
        add_sum(test, "dweight", &shape);
        add_sum(test, "dbias", &shape);
        kernel_input(test, "dy", GS_FP32, count_of(&shape), KERNEL_UNIT);
        kernel_input(test, "x", GS_FP32, count_of(&shape), KERNEL_UNIT);
        add_columns(test, &shape, NAMES("weight", "save_mean"), KERNEL_UNIT);
        add_columns(test, &shape, NAMES("save_rstd"), KERNEL_POSITIVE);
        kernel_check(test, launch_batchnorm_backward, &shape);
    }
}

// ---- parts

static void launch_batchnorm_measure(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm_measure(run->stream, run->at[0], run->at[1], run->at[2], &s->norm);
}

static void test_batchnorm_measure(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test, 0);
        add_column_outputs(test, &shape, NAMES("mean", "m2"), GS_FP64, fp64_bound);
        kernel_input(test, "x", GS_FP32, count_of(&shape), KERNEL_UNIT);
        kernel_check(test, launch_batchnorm_measure, &shape);
    }
}

static void launch_batchnorm_apply(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm_apply(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                  run->at[4], run->at[5], run->at[6], run->at[7], run->at[8],
                                  run->at[9], run->at[10], run->at[11], s->total_rows, &s->norm);
}

static void test_batchnorm_apply(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        norm_shape shape = draw_shape(test, 0);
        add_forward(test, &shape, KERNEL_SAME_BITS);
        kernel_input(test, "mean", GS_FP64, shape.norm.channels, KERNEL_UNIT);
        kernel_input(test, "m2", GS_FP64, shape.norm.channels, KERNEL_POSITIVE);
        if (round) {
            kernel_check(test, launch_batchnorm_apply, &shape);
        } else {
            shape.total_rows = 1.0;
            kernel_check_fails(test, launch_batchnorm_apply, &shape,
                               "needs at least 2 rows, got 1");
        }
    }
}

static void launch_batchnorm_sums(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm_sums(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                 run->at[4], run->at[5], run->at[6], run->at[7], &s->norm,
                                 s->accumulate);
}

static void test_batchnorm_sums(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test, 0);
        add_column_outputs(test, &shape, NAMES("sum", "dot"), GS_FP64, fp64_bound);
        add_sum(test, "dweight", &shape);
        add_sum(test, "dbias", &shape);
        kernel_input(test, "dy", GS_FP32, count_of(&shape), KERNEL_UNIT);
        kernel_input(test, "x", GS_FP32, count_of(&shape), KERNEL_UNIT);
        add_columns(test, &shape, NAMES("save_mean"), KERNEL_UNIT);
        add_columns(test, &shape, NAMES("save_rstd"), KERNEL_POSITIVE);
        kernel_check(test, launch_batchnorm_sums, &shape);
    }
}

static void launch_batchnorm_backward_apply(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->batchnorm_backward_apply(run->stream, run->at[0], run->at[1], run->at[2],
                                           run->at[3], run->at[4], run->at[5], run->at[6],
                                           run->at[7], s->total_rows, &s->norm);
}

static void test_batchnorm_backward_apply(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test, 0);
        kernel_output(test, "dx", GS_FP32, count_of(&shape), KERNEL_SAME_BITS);
        kernel_input(test, "dy", GS_FP32, count_of(&shape), KERNEL_WIDE);
        kernel_input(test, "x", GS_FP32, count_of(&shape), KERNEL_WIDE);
        add_columns(test, &shape, NAMES("weight", "save_mean"), KERNEL_UNIT);
        add_columns(test, &shape, NAMES("save_rstd"), KERNEL_POSITIVE);
        kernel_input(test, "sum", GS_FP64, shape.norm.channels, KERNEL_WIDE);
        kernel_input(test, "dot", GS_FP64, shape.norm.channels, KERNEL_WIDE);
        kernel_check(test, launch_batchnorm_backward_apply, &shape);
    }
}

static const kernel_case cases[] = {KERNEL_CASE(batchnorm),
                                    KERNEL_CASE(batchnorm_eval),
                                    KERNEL_CASE(batchnorm_backward),
                                    KERNEL_CASE(batchnorm_measure),
                                    KERNEL_CASE(batchnorm_apply),
                                    KERNEL_CASE(batchnorm_sums),
                                    KERNEL_CASE(batchnorm_backward_apply)};
const kernel_family kernel_family_batchnorm = {cases, sizeof cases / sizeof *cases};
