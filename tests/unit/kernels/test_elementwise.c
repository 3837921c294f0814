#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Around lanes, vectors and chunks, and a large one that is odd.
static const size_t counts[] = {0,  1,  3,    15,    16,    17,    31,   32,
                                33, 64, 1000, 16383, 16384, 16385, 70001};
#define NUM_COUNTS (sizeof counts / sizeof *counts)

static void flat_kernels_match_their_formula(void **state) {
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    for (size_t c = 0; c < NUM_COUNTS; c++) {
        size_t count = counts[c];
        // One past the boundary: kernels take any element-aligned pointer.
        float *a = make_uniform(count + 1, 1, -2, 2), *b = make_uniform(count, 2, -2, 2);
        float *out = make_zeros(count + 1);
        k->add(stream, out + 1, a + 1, b, count);
        for (size_t i = 0; i < count; i++) assert_true(out[i + 1] == a[i + 1] + b[i]);
        k->scale(stream, out, b, 3.5f, count);
        for (size_t i = 0; i < count; i++) assert_true(out[i] == b[i] * 3.5f);
        k->copy(stream, out, b, count * sizeof *b);
        k->axpy(stream, out, a + 1, 0.25f, count);
        for (size_t i = 0; i < count; i++) assert_true(out[i] == b[i] + 0.25f * a[i + 1]);
        k->fill(stream, out, -7.0f, count);
        for (size_t i = 0; i < count; i++) assert_true(out[i] == -7.0f);
        free(a);
        free(b);
        free(out);
    }
}

static void nothing_beyond_the_count_is_written(void **state) {
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    float *a = make_uniform(200, 1, -2, 2), *out = make_zeros(200);
    for (size_t count = 0; count < 100; count++) {
        k->fill(stream, out + 50, 1.0f, count);
        k->add(stream, out + 50, a, a, count);
        k->scale(stream, out + 50, a, 2.0f, count);
        k->axpy(stream, out + 50, a, 2.0f, count);
        k->copy(stream, out + 50, a, count * sizeof *a);
        assert_true(out[49] == 0.0f && out[50 + count] == 0.0f);
    }
    free(a);
    free(out);
}

static void output_may_be_an_input(void **state) {
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    size_t count = 20011;
    float *a = make_uniform(count, 1, -2, 2), *b = make_uniform(count, 2, -2, 2);
    float *out = make_zeros(count);
    memcpy(out, a, count * sizeof *out);
    k->add(stream, out, out, b, count);
    k->add(stream, out, b, out, count);
    k->add(stream, out, out, out, count);
    k->scale(stream, out, out, 0.5f, count);
    for (size_t i = 0; i < count; i++) assert_true(out[i] == b[i] + (a[i] + b[i]));
    free(a);
    free(b);
    free(out);
}

static void sum_squares_is_within_1e_12(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    for (size_t c = 0; c < NUM_COUNTS; c++) {
        float *in = make_uniform(counts[c], 3, -10, 10);
        double want = 0, got = -1;
        for (size_t i = 0; i < counts[c]; i++) want += (double)in[i] * (double)in[i];
        gs_device_kernels(*state)->sum_squares(stream, &got, in, counts[c]);
        assert_true(fabs(got - want) <= 1e-12 * want);
        free(in);
    }
}

static void sum_squares_does_not_overflow_where_fp32_would(void **state) {
    float in[3] = {1e30f, 2e30f, 0.0f};
    double got;
    gs_device_kernels(*state)->sum_squares(gs_device_stream(*state), &got, in, 3);
    assert_true(fabs(got / 5e60 - 1) < 1e-6);
    in[2] = NAN;
    gs_device_kernels(*state)->sum_squares(gs_device_stream(*state), &got, in, 3);
    assert_true(isnan(got));
    in[2] = -INFINITY;
    gs_device_kernels(*state)->sum_squares(gs_device_stream(*state), &got, in, 3);
    assert_true(isinf(got));
}

static void count_nonfinite_counts_each_kind(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    size_t count = 40007;
    float *in = make_uniform(count, 4, -1, 1);
    uint64_t got = 99;
    gs_device_kernels(*state)->count_nonfinite(stream, &got, in, count);
    assert_int_equal(got, 0);
    in[0] = NAN;
    in[16384] = INFINITY;
    in[20000] = -INFINITY;
    in[count - 1] = -NAN;
    in[5] = 3.4e38f;
    gs_device_kernels(*state)->count_nonfinite(stream, &got, in, count);
    assert_int_equal(got, 4);
    gs_device_kernels(*state)->count_nonfinite(stream, &got, in, 0);
    assert_int_equal(got, 0);
    free(in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_kernels_match_their_formula),
        cmocka_unit_test(nothing_beyond_the_count_is_written),
        cmocka_unit_test(output_may_be_an_input),
        cmocka_unit_test(sum_squares_is_within_1e_12),
        cmocka_unit_test(sum_squares_does_not_overflow_where_fp32_would),
        cmocka_unit_test(count_nonfinite_counts_each_kind),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
