// Causal attention, forward and backward: every head size that has kernels of its own, sizes
// between them that are padded, rows that start on no 16-byte boundary, lengths around the tiles.
#include "tests/gpu/kernel_case.h"

// Where sums are fp32 the two differ by the order of additions and by exp2 of a hardware table.
static const kernel_bound float_bound = {1e-5, 1e-4, "fp32 sums in another order, exp2 for exp"};

// The CPU rounds the result once. A device also rounds each probability, and each derivative of a
// score, to the type before it meets the other matrix: independent errors of half a unit in the
// last place at most, of which the relative norm is below the unit itself: 2^-8 for bf16, 2^-11 for
// fp16.
static kernel_bound half_bound(const kernel_test *test) {
    kernel_bound bound = {1.0 / 256, 1.0 / 32, "probabilities rounded to bf16"};
    if (kernel_half_dtype(test) == GS_FP16) {
        bound = (kernel_bound){1.0 / 2048, 1.0 / 256, "probabilities rounded to fp16"};
    }
    return bound;
}

static size_t count_channels(const gs_attention *shape) {
    return shape->heads * shape->head_channels;
}

static size_t count_rows(const gs_attention *shape) {
    return shape->batch * shape->positions;
}

typedef struct attention_case {
    gs_attention shape;
    bool aligned;
    float sharpness;  // multiplies Q: the larger, the more one key takes all
} attention_case;

// Tiles are of 32, 64 and 128 rows, of 16 for the largest heads.
static const attention_case fixed_cases[] = {
    {{1, 1, 1, 64}, true, 1},    {{2, 1, 3, 64}, false, 1},   {{1, 2, 1, 64}, true, 1},
    {{1, 63, 2, 64}, true, 1},   {{1, 64, 1, 64}, true, 1},   {{1, 65, 1, 64}, true, 4},
    {{2, 127, 2, 64}, true, 1},  {{1, 128, 1, 64}, true, 1},  {{1, 129, 2, 64}, false, 1},
    {{1, 200, 1, 64}, true, 30}, {{1, 77, 2, 32}, true, 1},   {{1, 131, 1, 32}, false, 1},
    {{1, 66, 2, 80}, true, 1},   {{1, 97, 1, 80}, false, 1},  {{1, 70, 2, 96}, true, 1},
    {{1, 65, 1, 96}, true, 8},   {{1, 67, 2, 128}, true, 1},  {{1, 130, 1, 128}, false, 1},
    {{1, 35, 1, 256}, true, 1},  {{1, 68, 1, 256}, false, 2}, {{1, 33, 3, 2}, true, 1},
    {{1, 40, 2, 3}, true, 1},    {{2, 50, 3, 8}, true, 1},    {{1, 45, 2, 20}, true, 1},
    {{1, 66, 1, 40}, true, 1},   {{1, 34, 2, 72}, true, 1},   {{1, 41, 1, 100}, true, 1},
    {{1, 37, 1, 160}, true, 1},  {{1, 18, 1, 201}, true, 1},  {{0, 5, 2, 64}, true, 1},
};
#define NUM_FIXED (sizeof fixed_cases / sizeof *fixed_cases)
// More heads than one group of blocks has, and no multiple of it (plan_attention: 96 of fp32).
static const attention_case two_groups = {{1, 64, 100, 256}, true, 1};
static const attention_case too_wide = {{1, 2, 1, 257}, true, 1};
static const char too_wide_text[] = "257 channels a head, at most 256 on CUDA";
static const attention_case too_narrow = {{1, 2, 2, 1}, true, 1};

static attention_case draw_case(kernel_test *test) {
    static const size_t sizes[] = {64, 64, 64, 32, 80, 96, 128, 256, 24, 48, 7};
    const size_t most = kernel_in_simulator() ? 150 : 1200;
    attention_case drawn = {
        .shape = {.batch = 1 + (size_t)kernel_random(test, 3),
                  .positions = 1 + (size_t)kernel_random(test, most),
                  .heads = 1 + (size_t)kernel_random(test, kernel_in_simulator() ? 2 : 12),
                  .head_channels = sizes[kernel_random(test, sizeof sizes / sizeof *sizes)]},
        .aligned = kernel_random(test, 4) > 0,
        .sharpness = kernel_real(test, 0.2f, 6.0f)};
    return drawn;
}

static void begin_case(kernel_test *test, const attention_case *chosen) {
    const gs_attention *shape = &chosen->shape;
    kernel_begin(test, "%zu sequences of %zu, %zu heads of %zu, sharpness %g%s", shape->batch,
                 shape->positions, shape->heads, shape->head_channels, (double)chosen->sharpness,
                 chosen->aligned ? "" : ", anywhere");
    if (chosen->aligned) kernel_align(test);
}

static int input_qkv(kernel_test *test, const attention_case *chosen, gs_dtype dtype) {
    const size_t channels = count_channels(&chosen->shape), rows = count_rows(&chosen->shape);
    const int qkv = kernel_input(test, "qkv", dtype, 3 * rows * channels, KERNEL_UNIT);
    void *data = kernel_data(test, qkv);
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < channels; i++) {
            const size_t at = row * 3 * channels + i;
            if (dtype == GS_FP32) {
                ((float *)data)[at] *= chosen->sharpness;
            } else if (dtype == GS_FP16) {
                uint16_t *bits = (uint16_t *)data + at;
                *bits = gs_fp32_to_fp16(gs_fp16_to_fp32(*bits) * chosen->sharpness);
            } else {
                uint16_t *bits = (uint16_t *)data + at;
                *bits = gs_fp32_to_bf16(gs_bf16_to_fp32(*bits) * chosen->sharpness);
            }
        }
    }
    return qkv;
}

// ---- forward: out, logsumexp, qkv

static void launch_attention(const kernel_run *run) {
    run->kernels->attention(run->stream, run->at[0], run->at[1], run->at[2], run->shape);
}

static void launch_half_attention(const kernel_run *run) {
    run->half->attention(run->stream, run->at[0], run->at[1], run->at[2], run->shape);
}

static void name_forward(kernel_test *test, const attention_case *chosen, gs_dtype dtype,
                         kernel_bound bound) {
    const gs_attention *shape = &chosen->shape;
    begin_case(test, chosen);
    kernel_output(test, "out", dtype, count_rows(shape) * count_channels(shape), bound);
    kernel_output(test, "logsumexp", GS_FP32, count_rows(shape) * shape->heads, float_bound);
    input_qkv(test, chosen, dtype);
}

static void check_forward(kernel_test *test, const attention_case *chosen, gs_dtype dtype,
                          kernel_bound bound) {
    name_forward(test, chosen, dtype, bound);
    kernel_check(test, dtype == GS_FP32 ? launch_attention : launch_half_attention, &chosen->shape);
}

static void test_attention(kernel_test *test) {
    for (size_t i = 0; i < NUM_FIXED; i++)
        check_forward(test, &fixed_cases[i], GS_FP32, float_bound);
    for (int i = 0; i < 12; i++) {
        const attention_case drawn = draw_case(test);
        check_forward(test, &drawn, GS_FP32, float_bound);
    }
    check_forward(test, &two_groups, GS_FP32, float_bound);
    name_forward(test, &too_wide, GS_FP32, float_bound);
    kernel_check_device_fails(test, launch_attention, &too_wide.shape, too_wide_text);
}

static void test_half_attention(kernel_test *test) {
    const gs_dtype dtype = kernel_half_dtype(test);
    for (size_t i = 0; i < NUM_FIXED; i++)
        check_forward(test, &fixed_cases[i], dtype, half_bound(test));
    for (int i = 0; i < 12; i++) {
        const attention_case drawn = draw_case(test);
        check_forward(test, &drawn, dtype, half_bound(test));
    }
    name_forward(test, &too_wide, dtype, half_bound(test));
    kernel_check_device_fails(test, launch_half_attention, &too_wide.shape, too_wide_text);
}

// ---- backward: dqkv, dout, qkv, out, logsumexp

static void launch_attention_backward(const kernel_run *run) {
    run->kernels->attention_backward(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                     run->at[4], run->shape);
}

static void launch_half_attention_backward(const kernel_run *run) {
    run->half->attention_backward(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                                  run->at[4], run->shape);
}

// out and logsumexp are those that the CPU's forward makes of qkv.
static void name_backward(kernel_test *test, const attention_case *chosen, gs_dtype dtype,
                          kernel_bound bound) {
    const gs_attention *shape = &chosen->shape;
    const size_t numbers = count_rows(shape) * count_channels(shape);
    begin_case(test, chosen);
    const int dqkv = kernel_output(test, "dqkv", dtype, 3 * numbers, bound);
    // Of few positions dq and dk hang on one or two roundings, of one alone on nothing else.
    if (shape->positions >= 16) kernel_split(test, dqkv, 3 * count_channels(shape), 3);
    kernel_input(test, "dout", dtype, numbers, KERNEL_UNIT);
    const int qkv = input_qkv(test, chosen, dtype);
    const int out = kernel_input(test, "out", dtype, numbers, KERNEL_ZEROS);
    const int logsumexp =
        kernel_input(test, "logsumexp", GS_FP32, count_rows(shape) * shape->heads, KERNEL_ZEROS);
    kernel_run forward = *kernel_cpu(test);
    forward.at[0] = kernel_data(test, out);
    forward.at[1] = kernel_data(test, logsumexp);
    forward.at[2] = kernel_data(test, qkv);
    forward.shape = shape;
    if (dtype == GS_FP32)
        launch_attention(&forward);
    else
        launch_half_attention(&forward);
}

static void check_backward(kernel_test *test, const attention_case *chosen, gs_dtype dtype,
                           kernel_bound bound) {
    name_backward(test, chosen, dtype, bound);
    kernel_check(test,
                 dtype == GS_FP32 ? launch_attention_backward : launch_half_attention_backward,
                 &chosen->shape);
}

static void test_attention_backward(kernel_test *test) {
    for (size_t i = 0; i < NUM_FIXED; i++)
        check_backward(test, &fixed_cases[i], GS_FP32, float_bound);
    for (int i = 0; i < 12; i++) {
        const attention_case drawn = draw_case(test);
        check_backward(test, &drawn, GS_FP32, float_bound);
    }
    name_backward(test, &too_wide, GS_FP32, float_bound);
    kernel_check_device_fails(test, launch_attention_backward, &too_wide.shape, too_wide_text);
}

static void test_half_attention_backward(kernel_test *test) {
    const gs_dtype dtype = kernel_half_dtype(test);
    for (size_t i = 0; i < NUM_FIXED; i++)
        check_backward(test, &fixed_cases[i], dtype, half_bound(test));
    for (int i = 0; i < 12; i++) {
        const attention_case drawn = draw_case(test);
        check_backward(test, &drawn, dtype, half_bound(test));
    }
    name_backward(test, &too_wide, dtype, half_bound(test));
    kernel_check_device_fails(test, launch_half_attention_backward, &too_wide.shape, too_wide_text);
    name_backward(test, &too_narrow, dtype, half_bound(test));
    kernel_check_device_fails(test, launch_half_attention_backward, &too_narrow.shape,
                              "1 channel a head, at least 2 on CUDA");
}

static const kernel_case cases[] = {KERNEL_CASE(attention), KERNEL_CASE(attention_backward),
                                    KERNEL_HALF_CASE(attention),
                                    KERNEL_HALF_CASE(attention_backward)};
const kernel_family kernel_family_attention = {cases, sizeof cases / sizeof *cases};
