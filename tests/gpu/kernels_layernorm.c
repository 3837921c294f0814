// Layer norm, alone and behind the residual sum.
#include "tests/gpu/kernel_case.h"

static const kernel_bound mean_bound = {3e-5, 1e-3, "sums of either sign in another order"};
static const kernel_bound rstd_bound = {2e-6, 1e-5, "sums in another order"};
static const kernel_bound sums_bound = {5e-5, 2e-3,
                                        "sums over rows of either sign in another order"};

// What a kernel computes in fp32 may round to the neighbour in 16 bits: one unit in the last place.
static kernel_bound bound_of(gs_dtype dtype) {
    const char *why = "sums in another order, then rounding";
    if (dtype == GS_BF16) return (kernel_bound){0x1p-7, 0x1p-7, why};
    if (dtype == GS_FP16) return (kernel_bound){0x1p-10, 0x1p-10, why};
    return (kernel_bound){1e-5, 2e-4, "sums in another order"};
}

typedef struct norm_shape {
    size_t rows, channels;
    bool with_bias, first, accumulate;
} norm_shape;

// GPT-2's widths, and others: odd, tiny, beyond what fits into registers.
static norm_shape draw_shape(kernel_test *test) {
    static const size_t usual[] = {768, 1024, 1280, 1600, 4096, 5000, 2049};
    norm_shape shape = {.channels = kernel_dim(test, 1, 3000)};
    if (kernel_random(test, 3) == 0) shape.channels = usual[kernel_random(test, 7)];
    // Two or three long sums of either sign may all come out near 0; of many channels some do not.
    const size_t most = shape.channels < 8 ? 64 : ((size_t)1 << 21) / shape.channels;
    shape.rows = shape.channels < 8 ? kernel_dim(test, 0, most) : kernel_count(test, most);
    shape.with_bias = kernel_random(test, 2);
    shape.first = kernel_random(test, 2);
    shape.accumulate = kernel_random(test, 2);
    kernel_begin(test, "rows %zu, channels %zu, with_bias %d, first %d, accumulate %d", shape.rows,
                 shape.channels, shape.with_bias, shape.first, shape.accumulate);
    return shape;
}

#define ROUNDS 32

// ---- layernorm

static void launch_layernorm(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->layernorm(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], run->at[4],
                            run->at[5], s->rows, s->channels);
}

static void launch_half_layernorm(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->half->layernorm(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], run->at[4],
                         run->at[5], s->rows, s->channels);
}

static void check_layernorm(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test);
        kernel_output(test, "out", dtype, shape.rows * shape.channels, bound_of(dtype));
        kernel_output(test, "mean", GS_FP32, shape.rows, mean_bound);
        kernel_output(test, "rstd", GS_FP32, shape.rows, rstd_bound);
        kernel_input(test, "x", dtype, shape.rows * shape.channels,
                     round % 4 ? KERNEL_UNIT : KERNEL_WIDE);
        kernel_input(test, "weight", dtype, shape.channels, KERNEL_UNIT);
        kernel_input(test, "bias", dtype, shape.channels, KERNEL_UNIT);
        kernel_check(test, launch, &shape);
    }
}

static void test_layernorm(kernel_test *test) {
    check_layernorm(test, GS_FP32, launch_layernorm);
}

static void test_half_layernorm(kernel_test *test) {
    check_layernorm(test, kernel_half_dtype(test), launch_half_layernorm);
}

// ---- behind the residual

static void launch_residual_layernorm(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->residual_layernorm(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                     run->at[4], run->at[5], s->with_bias ? run->at[8] : NULL,
                                     run->at[6], run->at[7], s->rows, s->channels);
}

static void launch_half_residual_layernorm(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->half->residual_layernorm(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                  run->at[4], run->at[5], run->at[6], run->at[7], s->rows,
                                  s->channels);
}

static void check_residual(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test);
        const size_t count = shape.rows * shape.channels;
        const kernel_fill fill = round % 4 ? KERNEL_UNIT : KERNEL_WIDE;
        kernel_output(test, "residual", dtype, count, KERNEL_SAME_BITS);
        kernel_output(test, "out", dtype, count, bound_of(dtype));
        kernel_output(test, "mean", GS_FP32, shape.rows, mean_bound);
        kernel_output(test, "rstd", GS_FP32, shape.rows, rstd_bound);
        kernel_input(test, "a", dtype, count, fill);
        kernel_input(test, "b", dtype, count, fill);
        kernel_input(test, "weight", dtype, shape.channels, KERNEL_UNIT);
        kernel_input(test, "bias", dtype, shape.channels, KERNEL_UNIT);
        kernel_input(test, "bias_b", dtype, shape.channels, KERNEL_UNIT);
        kernel_check(test, launch, &shape);
    }
}

static void test_residual_layernorm(kernel_test *test) {
    check_residual(test, GS_FP32, launch_residual_layernorm);
}

static void test_half_residual_layernorm(kernel_test *test) {
    check_residual(test, kernel_half_dtype(test), launch_half_residual_layernorm);
}

// ---- backward

static void launch_layernorm_backward(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->kernels->layernorm_backward(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                     run->at[4], run->at[5], run->at[6], run->at[7], run->at[8],
                                     s->rows, s->channels, s->accumulate);
}

static void launch_half_layernorm_backward(const kernel_run *run) {
    const norm_shape *s = run->shape;
    run->half->layernorm_backward(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                  run->at[4], run->at[5], run->at[6], run->at[7], run->at[8],
                                  s->rows, s->channels, s->first, s->accumulate);
}

static void add_sum(kernel_test *test, const char *name, const norm_shape *shape) {
    if (shape->accumulate) {
        kernel_inout(test, name, GS_FP32, shape->channels, KERNEL_UNIT, sums_bound);
    } else {
        kernel_output(test, name, GS_FP32, shape->channels, sums_bound);
    }
}

// Statistics that belong to x, from the CPU's forward pass.
static void add_statistics(kernel_test *test, gs_dtype dtype, int x, int weight,
                           const norm_shape *s) {
    const int mean = kernel_input(test, "mean", GS_FP32, s->rows, KERNEL_ZEROS);
    const int rstd = kernel_input(test, "rstd", GS_FP32, s->rows, KERNEL_ZEROS);
    const kernel_run *cpu = kernel_cpu(test);
    void *out = kernel_memory(test, s->rows * s->channels * sizeof(float));
    if (dtype == GS_FP32) {
        cpu->kernels->layernorm(cpu->stream, out, kernel_data(test, mean), kernel_data(test, rstd),
                                kernel_data(test, x), kernel_data(test, weight),
                                kernel_data(test, weight), s->rows, s->channels);
    } else {
        cpu->half->layernorm(cpu->stream, out, kernel_data(test, mean), kernel_data(test, rstd),
                             kernel_data(test, x), kernel_data(test, weight),
                             kernel_data(test, weight), s->rows, s->channels);
    }
}

static void check_backward(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    for (int round = 0; round < ROUNDS; round++) {
        const norm_shape shape = draw_shape(test);
        const size_t count = shape.rows * shape.channels;
        if (dtype != GS_FP32 && shape.first) {
            kernel_output(test, "dx", dtype, count, bound_of(dtype));
        } else {
            kernel_inout(test, "dx", dtype, count, KERNEL_UNIT, bound_of(dtype));
        }
        add_sum(test, "dweight", &shape);
        add_sum(test, "dbias", &shape);
        kernel_scratch(test, 2 * 64 * shape.channels * sizeof(float));
        kernel_input(test, "dy", dtype, count, KERNEL_UNIT);
        const int x = kernel_input(test, "x", dtype, count, KERNEL_UNIT);
        const int weight = kernel_input(test, "weight", dtype, shape.channels, KERNEL_UNIT);
        add_statistics(test, dtype, x, weight, &shape);
        kernel_check(test, launch, &shape);
    }
}

static void test_layernorm_backward(kernel_test *test) {
    check_backward(test, GS_FP32, launch_layernorm_backward);
}

static void test_half_layernorm_backward(kernel_test *test) {
    check_backward(test, kernel_half_dtype(test), launch_half_layernorm_backward);
}

static const kernel_case cases[] = {KERNEL_CASE(layernorm),
                                    KERNEL_CASE(residual_layernorm),
                                    KERNEL_CASE(layernorm_backward),
                                    KERNEL_HALF_CASE(layernorm),
                                    KERNEL_HALF_CASE(residual_layernorm),
                                    KERNEL_HALF_CASE(layernorm_backward)};
const kernel_family kernel_family_layernorm = {cases, sizeof cases / sizeof *cases};
