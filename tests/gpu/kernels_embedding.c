// Embeddings, their gradients, and sums by row. All of it is promised to the bit: the order of
// additions is that of the rows on every device.
#include "tests/gpu/kernel_case.h"

typedef struct embedding_shape {
    size_t batch, positions, channels, vocab;
    bool with_tokens, accumulate;
} embedding_shape;

// Many rows of few columns, also in the simulator: sorts in several pieces.
static size_t bound_rows(size_t most_rows, size_t cols) {
    const size_t most = (kernel_in_simulator() ? (size_t)1 << 17 : (size_t)1 << 23) / cols + 1;
    return most < most_rows ? most : most_rows;
}

static embedding_shape draw_shape(kernel_test *test, size_t most_rows) {
    embedding_shape shape = {.channels = kernel_dim(test, 1, 1100)};
    const size_t most = bound_rows(most_rows, shape.channels);
    shape.positions = kernel_dim(test, 1, most < 1024 ? most : 1024);
    shape.batch = kernel_dim(test, 0, most / shape.positions);
    const size_t most_tokens =
        ((size_t)1 << 20) / shape.channels;  // all of GPT-2's with few channels
    shape.vocab = 1 + kernel_random(test, 3);
    if (kernel_random(test, 3))
        shape.vocab = kernel_dim(test, 1, most_tokens < 50257 ? most_tokens : 50257);
    shape.with_tokens = kernel_random(test, 8);
    shape.accumulate = kernel_random(test, 2);
    kernel_begin(test, "batch %zu, positions %zu, channels %zu, vocab %zu, dwte %d, accumulate %d",
                 shape.batch, shape.positions, shape.channels, shape.vocab, shape.with_tokens,
                 shape.accumulate);
    return shape;
}

// ---- forward

static void launch_embedding(const kernel_run *run) {
    const embedding_shape *s = run->shape;
    run->kernels->embedding(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], s->batch,
                            s->positions, s->channels, s->vocab);
}

static void launch_half_embedding(const kernel_run *run) {
    const embedding_shape *s = run->shape;
    run->half->embedding(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], s->batch,
                         s->positions, s->channels, s->vocab);
}

// The index of the tokens.
static int add_forward(kernel_test *test, gs_dtype dtype, const embedding_shape *s) {
    kernel_output(test, "out", dtype, s->batch * s->positions * s->channels, KERNEL_SAME_BITS);
    const int tokens = kernel_tokens(test, "tokens", s->batch * s->positions, s->vocab);
    kernel_input(test, "wte", dtype, s->vocab * s->channels, KERNEL_WIDE);
    kernel_input(test, "wpe", dtype, (s->positions + 1) * s->channels, KERNEL_WIDE);
    return tokens;
}

// One token that is none, at the first, the last or some row; its message says which.
static void spoil_token(kernel_test *test, int tokens, const embedding_shape *s,
                        kernel_launch launch) {
    const size_t rows = s->batch * s->positions,
                 rows_tried[] = {0, rows - 1, kernel_random(test, rows)};
    const int32_t wrong[] = {-1, (int32_t)s->vocab, INT32_MIN};
    const size_t row = rows_tried[kernel_random(test, 3)];
    const int32_t token = wrong[kernel_random(test, 3)];
    ((int32_t *)kernel_data(test, tokens))[row] = token;
    kernel_check_fails(test, launch, s, kernel_text(test, "row %zu: token %d", row, token));
}

static void check_forward(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    for (int round = 0; round < 20; round++) {
        const embedding_shape shape = draw_shape(test, 2048);
        add_forward(test, dtype, &shape);
        kernel_check(test, launch, &shape);
    }
    for (int round = 0; round < 6; round++) {
        embedding_shape shape = draw_shape(test, 2048);
        if (shape.batch == 0) shape.batch = 1;
        spoil_token(test, add_forward(test, dtype, &shape), &shape, launch);
    }
}

static void test_embedding(kernel_test *test) {
    check_forward(test, GS_FP32, launch_embedding);
}

static void test_half_embedding(kernel_test *test) {
    check_forward(test, kernel_half_dtype(test), launch_half_embedding);
}

// ---- backward

static void launch_embedding_backward(const kernel_run *run) {
    const embedding_shape *s = run->shape;
    run->kernels->embedding_backward(run->stream, s->with_tokens ? run->at[0] : NULL, run->at[1],
                                     run->at[2], run->at[3], s->batch, s->positions, s->channels,
                                     s->vocab, s->accumulate);
}

static void launch_half_embedding_backward(const kernel_run *run) {
    const embedding_shape *s = run->shape;
    run->half->embedding_backward(run->stream, s->with_tokens ? run->at[0] : NULL, run->at[1],
                                  run->at[2], run->at[3], s->batch, s->positions, s->channels,
                                  s->vocab, s->accumulate);
}

static int add_backward(kernel_test *test, gs_dtype dtype, const embedding_shape *s) {
    const size_t positions = s->positions * s->channels;
    kernel_inout(test, "dwte", GS_FP32, s->vocab * s->channels, KERNEL_UNIT, KERNEL_SAME_BITS);
    if (s->accumulate) {
        kernel_inout(test, "dwpe", GS_FP32, positions, KERNEL_UNIT, KERNEL_SAME_BITS);
    } else {
        kernel_output(test, "dwpe", GS_FP32, positions, KERNEL_SAME_BITS);
    }
    kernel_input(test, "dout", dtype, s->batch * positions, KERNEL_WIDE);
    return kernel_tokens(test, "tokens", s->batch * s->positions, s->vocab);
}

static void check_backward(kernel_test *test, gs_dtype dtype, kernel_launch launch) {
    for (int round = 0; round < 20; round++) {
        const embedding_shape shape = draw_shape(test, 8192);
        add_backward(test, dtype, &shape);
        kernel_check(test, launch, &shape);
    }
    for (int round = 0; round < 6; round++) {
        embedding_shape shape = draw_shape(test, 2048);
        if (shape.batch == 0) shape.batch = 1;
        spoil_token(test, add_backward(test, dtype, &shape), &shape, launch);
    }
}

static void test_embedding_backward(kernel_test *test) {
    check_backward(test, GS_FP32, launch_embedding_backward);
}

static void test_half_embedding_backward(kernel_test *test) {
    check_backward(test, kernel_half_dtype(test), launch_half_embedding_backward);
}

// ---- sums by row

typedef struct rows_shape {
    size_t num_rows, cols;
} rows_shape;

static void launch_add_rows(const kernel_run *run) {
    const rows_shape *s = run->shape;
    run->kernels->add_rows(run->stream, run->at[0], run->at[1], run->at[2], s->num_rows, s->cols);
}

static void test_add_rows(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        rows_shape shape = {.cols = kernel_dim(test, 1, 600)};
        shape.num_rows = kernel_dim(test, 0, bound_rows(20000, shape.cols));
        const size_t out_rows = round % 4 ? kernel_dim(test, 1, 70000 / shape.cols) : 1;
        kernel_begin(test, "rows %zu into %zu, cols %zu", shape.num_rows, out_rows, shape.cols);
        kernel_inout(test, "out", GS_FP32, out_rows * shape.cols, KERNEL_UNIT, KERNEL_SAME_BITS);
        kernel_tokens(test, "rows", shape.num_rows, out_rows);
        kernel_input(test, "in", GS_FP32, shape.num_rows * shape.cols, KERNEL_WIDE);
        kernel_check(test, launch_add_rows, &shape);
    }
}

static const kernel_case cases[] = {KERNEL_CASE(embedding), KERNEL_CASE(embedding_backward),
                                    KERNEL_CASE(add_rows), KERNEL_HALF_CASE(embedding),
                                    KERNEL_HALF_CASE(embedding_backward)};
const kernel_family kernel_family_embedding = {cases, sizeof cases / sizeof *cases};
