// Codes of 8 bits and sums of what they stand for: the CPU's bits.
#include "tests/gpu/kernel_case.h"

#include <string.h>

#define MOST ((size_t)1 << 19)
#define MOST_INPUTS 9

typedef struct quantize_shape {
    gs_dtype dtype;
    size_t count, segment_count, num_inputs, stride_bytes;
    double least_scale, factor;
} quantize_shape;

static size_t count_segments(const quantize_shape *shape) {
    return shape->count / shape->segment_count + (shape->count % shape->segment_count != 0);
}

// Powers of two and others, of a warp and of several blocks, and all in one.
static quantize_shape draw_shape(kernel_test *test, int round) {
    static const size_t segments[] = {512, 1, 65536, 4097, 700, (size_t)1 << 40, 4096, 3};
    quantize_shape shape = {.dtype = round % 2 ? GS_FP64 : GS_FP32,
                            .count = kernel_count(test, MOST),
                            .segment_count = segments[round / 2 % 8],
                            .num_inputs = 1 + (size_t)kernel_random(test, MOST_INPUTS),
                            .least_scale = round % 3 ? 0x1p-23 : 0x1p-126,
                            .factor = (double)kernel_real(test, -2.0f, 2.0f)};
    if (shape.segment_count < 100) shape.count = shape.count % 20000;
    kernel_begin(test, "%s, count %zu in segments of %zu, %zu inputs, factor %g",
                 gs_dtype_name(shape.dtype), shape.count, shape.segment_count, shape.num_inputs,
                 shape.factor);
    return shape;
}

static gs_quantized numbers_of(const quantize_shape *shape, void *codes, void *scales) {
    return (gs_quantized){.codes = codes,
                          .scales = scales,
                          .count = shape->count,
                          .segment_count = shape->segment_count,
                          .dtype = shape->dtype};
}

static void launch_quantize(const kernel_run *run) {
    const quantize_shape *shape = run->shape;
    gs_quantized to = numbers_of(shape, run->at[0], run->at[1]);
    run->kernels->quantize(run->stream, &to, run->at[2], shape->least_scale);
}

static void test_quantize(kernel_test *test) {
    for (int round = 0; round < 32; round++) {
        quantize_shape shape = draw_shape(test, round);
        kernel_output(test, "codes", GS_U8, shape.count, KERNEL_SAME_BITS);
        kernel_output(test, "scales", shape.dtype, 2 * count_segments(&shape), KERNEL_SAME_BITS);
        kernel_input(test, "in", shape.dtype, shape.count,
                     round % 5 == 4   ? KERNEL_SPECIAL
                     : round % 5 == 3 ? KERNEL_POSITIVE
                                      : KERNEL_WIDE);
        kernel_check(test, launch_quantize, &shape);
    }
    quantize_shape wrong = {.dtype = GS_BF16, .count = 10, .segment_count = 10};
    kernel_begin(test, "bf16");
    kernel_inout(test, "codes", GS_U8, 10, KERNEL_UNIT, KERNEL_SAME_BITS);
    kernel_inout(test, "scales", GS_FP32, 2, KERNEL_UNIT, KERNEL_SAME_BITS);
    kernel_input(test, "in", GS_BF16, 10, KERNEL_UNIT);
    kernel_check_fails(test, launch_quantize, &wrong, "codes of bf16");
}

static void launch_dequantize(const kernel_run *run) {
    const quantize_shape *shape = run->shape;
    gs_quantized from = numbers_of(shape, run->at[1], run->at[2]);
    run->kernels->dequantize(run->stream, run->at[0], &from, shape->num_inputs, shape->stride_bytes,
                             shape->factor);
}

// The codes of all inputs in one tensor, their scales in another, both by the same stride.
static void test_dequantize(kernel_test *test) {
    for (int round = 0; round < 32; round++) {
        quantize_shape shape = draw_shape(test, round);
        const size_t width = gs_dtype_bytes(shape.dtype);
        size_t stride = 2 * count_segments(&shape) * width;
        if (shape.count > stride) stride = shape.count;
        shape.stride_bytes = (stride / width + 1) * width;
        const size_t bytes = shape.stride_bytes * shape.num_inputs;
        kernel_output(test, "out", shape.dtype, shape.count, KERNEL_SAME_BITS);
        const int codes = kernel_input(test, "codes", GS_U8, bytes, KERNEL_ZEROS);
        uint8_t *data = kernel_data(test, codes);
        for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)kernel_random(test, 256);
        kernel_input(test, "scales", shape.dtype, bytes / width,
                     round % 4 == 3 ? KERNEL_SPECIAL : KERNEL_WIDE);
        kernel_check(test, launch_dequantize, &shape);
    }
    quantize_shape wrong = {.dtype = GS_FP16, .count = 10, .segment_count = 10, .num_inputs = 1};
    kernel_begin(test, "fp16");
    kernel_inout(test, "out", GS_FP16, 10, KERNEL_UNIT, KERNEL_SAME_BITS);
    kernel_input(test, "codes", GS_U8, 10, KERNEL_UNIT);
    kernel_input(test, "scales", GS_FP32, 2, KERNEL_UNIT);
    kernel_check_fails(test, launch_dequantize, &wrong, "codes of fp16");
}

static const kernel_case cases[] = {KERNEL_CASE(quantize), KERNEL_CASE(dequantize)};
const kernel_family kernel_family_quantize = {cases, sizeof cases / sizeof *cases};
