// Codes of 8 bits against the formulas, written down as plainly as they can be, and what codes must never do.
#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

#define LEAST 1.1920929e-7  // of fp32's eps

typedef struct coded {
    gs_quantized numbers;
    double *in, *out;  // fp32 lies in the first half of its bytes
} coded;

static double get(const coded *c, const double *from, size_t i) {
    return c->numbers.dtype == GS_FP64 ? from[i] : (double)((const float *)(const void *)from)[i];
}

static void set(const coded *c, double *to, size_t i, double value) {
    if (c->numbers.dtype == GS_FP64)
        to[i] = value;
    else
        ((float *)(void *)to)[i] = (float)value;
}

static size_t count_segments(const coded *c) {
    const gs_quantized *numbers = &c->numbers;
    return numbers->count / numbers->segment_count + (numbers->count % numbers->segment_count != 0);
}

static coded make_coded(gs_dtype dtype, size_t count, size_t segment_count) {
    coded c = {.numbers = {.count = count, .segment_count = segment_count, .dtype = dtype}};
    c.numbers.codes = malloc(count + 1);
    c.numbers.scales = calloc(2 * count_segments(&c) + 1, sizeof(double));
    c.in = calloc(count + 1, sizeof(double));
    c.out = calloc(count + 1, sizeof(double));
    assert_true(c.numbers.codes && c.numbers.scales && c.in && c.out);
    memset(c.numbers.codes, 0x5a, count + 1);
    return c;
}

static void free_coded(coded *c) {
    free(c->numbers.codes);
    free(c->numbers.scales);
    free(c->in);
    free(c->out);
}

static void quantize(gs_device *device, coded *c, double least_scale) {
    gs_device_kernels(device)->quantize(gs_device_stream(device), &c->numbers, c->in, least_scale);
}

static void dequantize(gs_device *device, coded *c, double factor) {
    gs_device_kernels(device)->dequantize(gs_device_stream(device), c->out, &c->numbers, 1, 0,
                                          factor);
}

static double scale_of(const coded *c, size_t segment) {
    return get(c, c->numbers.scales, 2 * segment);
}
static double zero_of(const coded *c, size_t segment) {
    return get(c, c->numbers.scales, 2 * segment + 1);
}

// One rounding to the type.
static double rounded(const coded *c, double value) {
    return c->numbers.dtype == GS_FP64 ? value : (double)(float)value;
}

static double limited(double code) {
    return fmin(255, fmax(0, code));
}

static void check_segment(const coded *c, size_t segment, double least_scale) {
    const gs_quantized *numbers = &c->numbers;
    const size_t first = segment * numbers->segment_count;
    size_t end = first + numbers->segment_count;
    if (end > numbers->count) end = numbers->count;
    double lo = 0, hi = 0;
    for (size_t i = first; i < end; i++) {
        lo = fmin(lo, get(c, c->in, i));
        hi = fmax(hi, get(c, c->in, i));
    }
    double scale = rounded(c, rounded(c, hi - lo) / 255);
    scale = fmax(scale, rounded(c, least_scale));
    double zero = limited(rint(rounded(c, -lo / scale)));
    if (scale_of(c, segment) != scale || zero_of(c, segment) != zero)
        fail_msg("segment %zu of %zu: scale %a and zero %g, not %a and %g", segment,
                 numbers->segment_count, scale_of(c, segment), zero_of(c, segment), scale, zero);
    for (size_t i = first; i < end; i++) {
        double code = limited(rint(rounded(c, get(c, c->in, i) / scale)) + zero);
        if (numbers->codes[i] != (uint8_t)code)
            fail_msg("element %zu of %zu: %a is %d, not %g", i, numbers->count, get(c, c->in, i),
                     numbers->codes[i], code);
    }
}

// Numbers of both signs or one, of all sizes; multiples of half a step are ties.
static void draw_numbers(const coded *c, uint64_t seed) {
    const size_t stride = c->numbers.count > 100000 ? 997 : 1;
    const gs_random_key key = {.seed = 5, .stream = seed};
    const double size = ldexp(1, (int)(gs_random_u64(key, 1u << 30) % 40) - 30);
    for (size_t i = 0; i < c->numbers.count; i += stride) {
        uint64_t bits = gs_random_u64(key, i);
        double value = (double)((int64_t)(bits >> 40) - (1 << 23)) * 0x1p-23;
        if (bits % 4 == 0) value = (double)((int)(bits >> 8 & 255) - 128) / 128;
        if (seed % 4 == 1) value = fabs(value);
        if (seed % 4 == 2) value = -fabs(value);
        set(c, c->in, i, bits % 32 == 1 ? 0 : size * value);
    }
}

static void codes_and_scales_are_as_the_formulas_say(void **state) {
    static const size_t counts[] = {1, 511, 512, 513, 70000, 4300000};
    static const size_t segments[] = {512, 700, 65536, (size_t)1 << 40};
    uint64_t seed = 0;
    for (size_t i = 0; i < 6; i++) {
        for (size_t j = 0; j < 8; j++, seed++) {
            coded c = make_coded(j % 2 ? GS_FP64 : GS_FP32, counts[i], segments[j / 2]);
            if (counts[i] > 100000 && j != 6) {  // one range from several parts
                free_coded(&c);
                continue;
            }
            draw_numbers(&c, seed);
            quantize(*state, &c, LEAST);
            for (size_t s = 0; s < count_segments(&c); s++) check_segment(&c, s, LEAST);
            assert_int_equal(c.numbers.codes[counts[i]], 0x5a);
            free_coded(&c);
        }
    }
    assert_stream_ok(*state);
}

static void numbers_come_back_within_half_a_step_and_zeros_exactly(void **state) {
    for (int way = 0; way < 8; way++) {
        coded c = make_coded(way % 2 ? GS_FP64 : GS_FP32, 3000, 512);
        draw_numbers(&c, (uint64_t)way + 100);
        quantize(*state, &c, 0x1p-126);
        dequantize(*state, &c, 1);
        for (size_t i = 0; i < c.numbers.count; i++) {
            double in = get(&c, c.in, i), out = get(&c, c.out, i), step = scale_of(&c, i / 512);
            // Half a step, and at the ends what zero was rounded by: half another one.
            if (!(fabs(out - in) <= 1.001 * step) || (in == 0 && out != 0))
                fail_msg("element %zu: %a came back as %a, step %a", i, in, out, step);
        }
        free_coded(&c);
    }
    assert_stream_ok(*state);
}

static void sums_run_in_the_order_of_messages_and_are_scaled_once(void **state) {
    enum { COUNT = 1500, INPUTS = 5, STRIDE = 1600 };
    static uint8_t memory[INPUTS * STRIDE] __attribute__((aligned(8)));
    float scales[2 * INPUTS], out[COUNT];
    const gs_random_key key = {.seed = 6};
    for (size_t i = 0; i < sizeof memory; i++) memory[i] = (uint8_t)gs_random_u64(key, i);
    for (int k = 0; k < INPUTS; k++) {
        scales[2 * k] = 0.1f * (float)(k * k + 1);
        scales[2 * k + 1] = (float)(50 * k);
        memcpy(memory + k * STRIDE + COUNT + 4, &scales[2 * k], 2 * sizeof(float));
    }
    gs_quantized from = {.codes = memory,
                         .scales = memory + COUNT + 4,
                         .count = COUNT,
                         .segment_count = COUNT,
                         .dtype = GS_FP32};
    gs_device_kernels(*state)->dequantize(gs_device_stream(*state), out, &from, INPUTS, STRIDE,
                                          1.0 / 3);
    for (size_t i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int k = 0; k < INPUTS; k++)
            sum += scales[2 * k] * ((float)memory[(size_t)k * STRIDE + i] - scales[2 * k + 1]);
        assert_true(out[i] == sum * (float)(1.0 / 3));
    }
    assert_stream_ok(*state);
}

// One number that is none, anywhere: its whole segment is none, and no other.
static void nan_and_infinity_take_their_segment_along(void **state) {
    static const double bad[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38};
    for (int way = 0; way < 10; way++) {
        for (size_t at = 0; at < 1200; at += 171) {
            coded c = make_coded(way % 2 ? GS_FP64 : GS_FP32, 1200, 400);
            draw_numbers(&c, at + 4);
            double value = bad[way / 2];
            if (way / 2 == 4) {  // finite, but the distance is not
                if (way % 2) value = 1.7e308;
                set(&c, c.in, at / 400 * 400 + (at + 1) % 400, -value);
            }
            set(&c, c.in, at, value);
            quantize(*state, &c, LEAST);
            dequantize(*state, &c, 0.5);
            for (size_t i = 0; i < 1200; i++) {
                if (isnan(get(&c, c.out, i)) != (i / 400 == at / 400))
                    fail_msg("%g at %zu: element %zu is %g", value, at, i, get(&c, c.out, i));
            }
            free_coded(&c);
        }
    }
    assert_stream_ok(*state);
}

static void zeros_and_the_smallest_numbers_keep_to_the_least_scale(void **state) {
    coded c = make_coded(GS_FP32, 100, 50);
    for (size_t i = 50; i < 100; i++) set(&c, c.in, i, 0x1p-140 * (double)i);
    set(&c, c.in, 3, -0.0);
    quantize(*state, &c, 0x1p-126);
    dequantize(*state, &c, 1);
    for (size_t i = 0; i < 50; i++) assert_true(get(&c, c.out, i) == 0);
    for (size_t i = 50; i < 100; i++)
        assert_true(fabs(get(&c, c.out, i) - get(&c, c.in, i)) <= 0x1p-127);
    assert_true(scale_of(&c, 0) == 0x1p-126 && scale_of(&c, 1) == 0x1p-126);
    free_coded(&c);
}

static void misuse_fails_the_stream(void **state) {
    uint8_t code = 7;
    float scale[2] = {0}, number = 1;
    gs_quantized numbers = {&code, scale, 1, 1, GS_BF16};
    gs_device_kernels(*state)->quantize(gs_device_stream(*state), &numbers, &number, LEAST);
    assert_stream_failed(*state, "codes of bf16");
    gs_device_kernels(*state)->dequantize(gs_device_stream(*state), &number, &numbers, 1, 0, 1);
    assert_stream_failed(*state, "codes of bf16");
    assert_true(code == 7 && number == 1);
    numbers = (gs_quantized){.segment_count = 512, .dtype = GS_FP32};
    gs_device_kernels(*state)->quantize(gs_device_stream(*state), &numbers, NULL, LEAST);
    gs_device_kernels(*state)->dequantize(gs_device_stream(*state), NULL, &numbers, 3, 0, 1);
    assert_stream_ok(*state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_and_scales_are_as_the_formulas_say),
        cmocka_unit_test(numbers_come_back_within_half_a_step_and_zeros_exactly),
        cmocka_unit_test(sums_run_in_the_order_of_messages_and_are_scaled_once),
        cmocka_unit_test(nan_and_infinity_take_their_segment_along),
        cmocka_unit_test(zeros_and_the_smallest_numbers_keep_to_the_least_scale),
        cmocka_unit_test(misuse_fails_the_stream),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
