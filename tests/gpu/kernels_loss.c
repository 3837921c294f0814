// Softmax and cross-entropy, with and without the gradient.
#include "tests/gpu/kernel_case.h"

static const kernel_bound loss_bound = {1e-5, 1e-4, "another exponential, sums in another order"};

static kernel_bound gradient_bound(gs_dtype dtype) {
    const char *why = "another exponential, sums in another order, rounding";
    if (dtype == GS_BF16) return (kernel_bound){0x1p-7, 0x1p-7, why};
    if (dtype == GS_FP16) return (kernel_bound){0x1p-9, 0x1p-8, why};
    return (kernel_bound){1e-5, 1e-4, why};
}

typedef struct loss_shape {
    size_t rows, classes, stride;
    float dloss;
    bool gradient, counts;
} loss_shape;

static loss_shape draw_shape(kernel_test *test) {
    loss_shape shape = {.classes = kernel_dim(test, 1, kernel_in_simulator() ? 9000 : 50257)};
    if (kernel_random(test, 4) == 0) shape.classes = 1 + kernel_random(test, 20);
    shape.stride = shape.classes + (kernel_random(test, 2) ? kernel_random(test, 70) : 0);
    if (kernel_random(test, 2)) shape.stride = (shape.stride + 63) / 64 * 64;
    shape.rows = kernel_count(test, ((size_t)1 << 21) / shape.stride);
    shape.dloss = kernel_real(test, 0.01f, 1.0f);
    shape.gradient = kernel_random(test, 4);
    shape.counts = kernel_random(test, 4);
    return shape;
}

static void launch_softmax_loss(const kernel_run *run) {
    const loss_shape *s = run->shape;
    run->kernels->softmax_loss(run->stream, run->at[0], run->at[1], s->counts ? run->at[2] : NULL,
                               run->at[3], s->rows, s->classes, s->stride, s->dloss, s->gradient);
}

static void launch_half_softmax_loss(const kernel_run *run) {
    const loss_shape *s = run->shape;
    run->half->softmax_loss(run->stream, run->at[0], run->at[1], s->counts ? run->at[2] : NULL,
                            run->at[3], s->rows, s->classes, s->stride, s->dloss, s->gradient);
}

// The index of the targets.
static int add_tensors(kernel_test *test, gs_dtype dtype, const loss_shape *s, kernel_fill fill) {
    kernel_begin(test, "rows %zu, classes %zu, stride %zu, gradient %d, counts %d, fill %d",
                 s->rows, s->classes, s->stride, s->gradient, s->counts, fill);
    kernel_output(test, "losses", GS_FP32, s->rows, loss_bound);
    if (s->gradient) {
        kernel_inout(test, "logits", dtype, s->rows * s->stride, fill, gradient_bound(dtype));
    } else {
        kernel_input(test, "logits", dtype, s->rows * s->stride, fill);
    }
    if (s->counts) {
        kernel_number(test, "num_correct", GS_I64, KERNEL_SAME_BITS);
    } else {
        kernel_input(test, "no num_correct", GS_I64, 1, KERNEL_ZEROS);
    }
    return kernel_tokens(test, "targets", s->rows, s->classes);
}

// Logits that are often equal: the prediction is the first of the largest, and often the target.
static void add_ties(kernel_test *test, gs_dtype dtype, const loss_shape *s) {
    int32_t *targets = kernel_data(test, add_tensors(test, dtype, s, KERNEL_ZEROS));
    unsigned char *logits = kernel_data(test, 1);
    for (size_t row = 0; row < s->rows; row++) {
        for (int k = 0; k < 4; k++) {
            const size_t chosen = kernel_random(test, s->classes), at = row * s->stride + chosen;
            if (dtype == GS_FP32) {
                ((float *)(void *)logits)[at] = 2.0f;
            } else {
                ((uint16_t *)(void *)logits)[at] =
                    dtype == GS_BF16 ? gs_fp32_to_bf16(2.0f) : gs_fp32_to_fp16(2.0f);
            }
            if (k == 0 || kernel_random(test, 2)) targets[row] = (int32_t)chosen;
        }
    }
}

static void check_loss(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    for (int round = 0; round < 32; round++) {
        loss_shape shape = draw_shape(test);
        kernel_fill fill = KERNEL_UNIT;
        // Losses that are nearly nothing are compared beside others that are not.
        if (round % 4 == 0 && shape.rows >= 16 && shape.classes >= 4) fill = KERNEL_WIDE;
        if (round % 8 == 1) fill = KERNEL_SPECIAL;
        if (round % 4 == 3) {
            shape.counts = true;
            add_ties(test, dtype, &shape);
        } else {
            add_tensors(test, dtype, &shape, fill);
        }
        kernel_check(test, launch, &shape);
    }
    // More than the shared memory of a block.
    loss_shape longest = {
        .rows = 2, .classes = 120001, .stride = 120008, .dloss = 0.5f, .gradient = true, .counts = true};
    add_tensors(test, dtype, &longest, KERNEL_UNIT);
    kernel_check(test, launch, &longest);
    for (int round = 0; round < 6; round++) {
        loss_shape shape = draw_shape(test);
        if (shape.rows == 0) shape.rows = 1;
        const int targets = add_tensors(test, dtype, &shape, KERNEL_UNIT);
        const size_t row = round ? kernel_random(test, shape.rows) : shape.rows - 1;
        const int32_t target = round % 2 ? -1 : (int32_t)shape.classes;
        ((int32_t *)kernel_data(test, targets))[row] = target;
        kernel_check_fails(test, launch, &shape,
                           kernel_text(test, "row %zu: target %d", row, target));
    }
}

static void test_softmax_loss(kernel_test *test) {
    check_loss(test, GS_FP32, launch_softmax_loss);
}

static void test_half_softmax_loss(kernel_test *test) {
    check_loss(test, kernel_half_dtype(test), launch_half_softmax_loss);
}

static const kernel_case cases[] = {KERNEL_CASE(softmax_loss), KERNEL_HALF_CASE(softmax_loss)};
const kernel_family kernel_family_loss = {cases, sizeof cases / sizeof *cases};
