#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Every 16-bit pattern, for both types, on every instruction set.
#define PATTERNS 65536

static void cast(gs_device *device, void *out, gs_dtype out_dtype, const void *in,
                 gs_dtype in_dtype, float scale, size_t count) {
    gs_device_kernels(device)->cast(gs_device_stream(device), out, out_dtype, in, in_dtype, scale,
                                    count);
    assert_stream_ok(device);
}

static void every_half_widens_as_core_says(void **state) {
    (void)state;
    gs_device *devices[] = {open_cpu_device("baseline", 1), open_cpu_device(NULL, 2)};
    uint16_t *in = calloc(PATTERNS, sizeof *in);
    float *out = make_zeros(PATTERNS);
    for (size_t i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i;
    for (int d = 0; d < 2; d++) {
        for (int type = 0; type < 2; type++) {
            cast(devices[d], out, GS_FP32, in, type ? GS_BF16 : GS_FP16, 1.0f, PATTERNS);
            for (size_t i = 0; i < PATTERNS; i++) {
                float want = type ? gs_bf16_to_fp32(in[i]) : gs_fp16_to_fp32(in[i]);
                if (isnan(want)) {
                    assert_true(isnan(out[i]));
                } else {
                    assert_same_bits(&out[i], &want, sizeof want);
                }
            }
        }
        gs_device_close(devices[d]);
    }
    free(in);
    free(out);
}

static void narrowing_rounds_as_core_says(void **state) {
    (void)state;
    gs_device *devices[] = {open_cpu_device("baseline", 1), open_cpu_device(NULL, 2)};
    float *in = make_zeros(PATTERNS);
    uint16_t *out = calloc(PATTERNS, sizeof *out);
    for (uint32_t i = 0; i < PATTERNS; i++) {
        // All exponents and signs; ties, and their neighbours, in the mantissa.
        static const uint32_t low[] = {0x0000, 0x1000, 0x0fff, 0x1001,
                                       0x8000, 0x7fff, 0x8001, 0xffff};
        uint32_t bits = i << 16 | low[i % 8];
        memcpy(&in[i], &bits, sizeof bits);
    }
    for (int d = 0; d < 2; d++) {
        for (int type = 0; type < 2; type++) {
            cast(devices[d], out, type ? GS_BF16 : GS_FP16, in, GS_FP32, 1.0f, PATTERNS);
            for (size_t i = 0; i < PATTERNS; i++) {
                // A signalling NaN is made quiet by the product; so compare after it.
                float product = in[i] * 1.0f;
                uint16_t want = type ? gs_fp32_to_bf16(product) : gs_fp32_to_fp16(product);
                if (out[i] != want) fail_msg("%zu: %04x, want %04x", i, out[i], want);
            }
        }
        gs_device_close(devices[d]);
    }
    free(in);
    free(out);
}

static void scale_is_an_fp32_product_before_rounding(void **state) {
    enum { COUNT = 1013 };
    float *in = make_uniform(COUNT, 5, -8, 8);
    uint16_t out[COUNT];
    cast(*state, out, GS_BF16, in, GS_FP32, 1.0f / 3, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(out[i], gs_fp32_to_bf16(in[i] * (1.0f / 3)));
    }
    free(in);
}

static void fp64_goes_both_ways(void **state) {
    enum { COUNT = 700 };
    float *in = make_uniform(COUNT, 6, -8, 8), out[COUNT];
    double wide[COUNT];
    cast(*state, wide, GS_FP64, in, GS_FP32, 0.1f, COUNT);
    for (size_t i = 0; i < COUNT; i++) assert_true(wide[i] == (double)in[i] * (double)0.1f);
    cast(*state, out, GS_FP32, wide, GS_FP64, 10.0f, COUNT);
    for (size_t i = 0; i < COUNT; i++) assert_true(out[i] == (float)(wide[i] * 10.0));
    free(in);
}

static void overflow_is_infinity_and_nan_stays(void **state) {
    float in[4] = {70000.0f, -70000.0f, NAN, INFINITY};
    uint16_t out[4];
    cast(*state, out, GS_FP16, in, GS_FP32, 1.0f, 4);
    assert_true(isinf(gs_fp16_to_fp32(out[0])) && gs_fp16_to_fp32(out[1]) < 0);
    assert_true(isnan(gs_fp16_to_fp32(out[2])) && isinf(gs_fp16_to_fp32(out[3])));
    cast(*state, out, GS_BF16, in, GS_FP32, 1e35f, 4);
    assert_true(isinf(gs_bf16_to_fp32(out[0])) && isnan(gs_bf16_to_fp32(out[2])));
}

static void same_size_types_cast_in_place(void **state) {
    float values[3] = {1, 2, 3};
    cast(*state, values, GS_FP32, values, GS_FP32, 2.0f, 3);
    assert_true(values[0] == 2 && values[1] == 4 && values[2] == 6);
}

// On every instruction set, with more elements than a block and an odd rest; in place and added.
static void rounding_is_there_and_back(void **state) {
    (void)state;
    enum { COUNT = 1531 };
    gs_device *devices[] = {open_cpu_device("baseline", 1), open_cpu_device(NULL, 2)};
    for (int d = 0; d < 4; d++) {
        gs_device *device = devices[d / 2];
        gs_dtype dtype = d % 2 ? GS_BF16 : GS_FP16;
        float *in = make_uniform(COUNT, 9, -70000, 70000), *sums = make_uniform(COUNT, 10, -1, 1);
        float *before = make_uniform(COUNT, 10, -1, 1), wide[COUNT];
        uint16_t narrow[COUNT];
        cast(device, narrow, dtype, in, GS_FP32, 1.0f, COUNT);
        cast(device, wide, GS_FP32, narrow, dtype, 1.0f, COUNT);
        const gs_kernels *k = gs_device_kernels(device);
        k->round(gs_device_stream(device), sums, in, dtype, COUNT, true);
        k->round(gs_device_stream(device), in, in, dtype, COUNT, false);
        assert_stream_ok(device);
        assert_same_bits(in, wide, sizeof wide);
        for (size_t i = 0; i < COUNT; i++) assert_true(sums[i] == before[i] + wide[i]);
        free(in);
        free(sums);
        free(before);
    }
    gs_device_close(devices[0]);
    gs_device_close(devices[1]);
}

static void misuse_fails_the_stream(void **state) {
    float values[3] = {1, 2, 3};
    const gs_kernels *k = gs_device_kernels(*state);
    k->cast(gs_device_stream(*state), values, GS_I32, values, GS_FP32, 1.0f, 3);
    assert_stream_failed(*state, "fp32 to i32");
    k->cast(gs_device_stream(*state), values, GS_BF16, values, GS_FP32, 1.0f, 3);
    assert_stream_failed(*state, "in place");
    k->round(gs_device_stream(*state), values, values, GS_FP64, 3, false);
    assert_stream_failed(*state, "round: fp64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_widens_as_core_says),
        cmocka_unit_test(narrowing_rounds_as_core_says),
        cmocka_unit_test(scale_is_an_fp32_product_before_rounding),
        cmocka_unit_test(fp64_goes_both_ways),
        cmocka_unit_test(overflow_is_infinity_and_nan_stays),
        cmocka_unit_test(same_size_types_cast_in_place),
        cmocka_unit_test(rounding_is_there_and_back),
        cmocka_unit_test(misuse_fails_the_stream),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
