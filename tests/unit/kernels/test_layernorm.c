#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// In fp64: loss = Σ dy·layernorm(x), for references and finite differences.
typedef struct norm {
    size_t rows, channels;
    double *x, *weight, *bias, *dy;
    double *out;
} norm;

static double norm_loss(void *ctx) {
    const norm *n = ctx;
    double loss = 0;
    for (size_t row = 0; row < n->rows; row++) {
        const double *x = n->x + row * n->channels;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < n->channels; i++) mean += x[i] / (double)n->channels;
        for (size_t i = 0; i < n->channels; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (double)n->channels;
        }
        for (size_t i = 0; i < n->channels; i++) {
            double out = (x[i] - mean) / sqrt(variance + 1e-5) * n->weight[i] + n->bias[i];
            n->out[row * n->channels + i] = out;
            loss += n->dy[row * n->channels + i] * out;
        }
    }
    return loss;
}

typedef struct fixture {
    float *x, *weight, *bias, *dy, *out, *mean, *rstd;
    norm wide;
} fixture;

static fixture make_fixture(size_t rows, size_t channels) {
    size_t count = rows * channels;
    fixture f = {make_uniform(count, 1, -2, 3),
                 make_uniform(channels, 2, 0.5f, 1.5f),
                 make_uniform(channels, 3, -1, 1),
                 make_uniform(count, 4, -1, 1),
                 make_zeros(count),
                 make_zeros(rows),
                 make_zeros(rows),
                 {0}};
    f.wide = (norm){rows,
                    channels,
                    widen(f.x, count),
                    widen(f.weight, channels),
                    widen(f.bias, channels),
                    widen(f.dy, count),
                    widen(f.out, count)};
    return f;
}

static void release_fixture(fixture *f) {
    free(f->x);
    free(f->weight);
    free(f->bias);
    free(f->dy);
    free(f->out);
    free(f->mean);
    free(f->rstd);
    free(f->wide.x);
    free(f->wide.weight);
    free(f->wide.bias);
    free(f->wide.dy);
    free(f->wide.out);
}

static const size_t shapes[][2] = {{0, 8}, {1, 1}, {1, 2}, {5, 33}, {70, 31}, {3, 1600}};
#define NUM_SHAPES (sizeof shapes / sizeof *shapes)

static void forward_matches_fp64(void **state) {
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        size_t rows = shapes[s][0], channels = shapes[s][1];
        fixture f = make_fixture(rows, channels);
        gs_device_kernels(*state)->layernorm(gs_device_stream(*state), f.out, f.mean, f.rstd, f.x,
                                             f.weight, f.bias, rows, channels);
        norm_loss(&f.wide);
        // Two channels that nearly agree lose digits in x - mean.
        assert_close(f.out, f.wide.out, rows * channels, 2e-5, 1e-5);
        release_fixture(&f);
    }
}

static void residual_form_equals_add_then_norm(void **state) {
    size_t rows = 9, channels = 37, count = rows * channels;
    fixture f = make_fixture(rows, channels);
    float *b = make_uniform(count, 6, -1, 1), *residual = make_zeros(count);
    float *sum = make_zeros(count), *want = make_zeros(count);
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        const float *bias_b = with_bias ? f.dy : NULL;
        for (size_t i = 0; i < count; i++) {
            sum[i] = f.x[i] + (with_bias ? b[i] + bias_b[i % channels] : b[i]);
        }
        k->layernorm(stream, want, f.mean, f.rstd, sum, f.weight, f.bias, rows, channels);
        k->residual_layernorm(stream, residual, f.out, f.mean, f.rstd, f.x, b, bias_b, f.weight,
                              f.bias, rows, channels);
        assert_same_bits(residual, sum, count * sizeof *sum);
        assert_same_bits(f.out, want, count * sizeof *want);
    }
    // In place: the residual stream is its own input.
    memcpy(residual, f.x, count * sizeof *residual);
    k->residual_layernorm(stream, residual, f.out, f.mean, f.rstd, residual, b, f.dy, f.weight,
                          f.bias, rows, channels);
    assert_same_bits(residual, sum, count * sizeof *sum);
    release_fixture(&f);
    free(b);
    free(residual);
    free(sum);
    free(want);
}

static void backward_matches_finite_differences(void **state) {
    static const size_t tiny[][2] = {{1, 1}, {1, 5}, {3, 7}, {20, 33}};
    for (size_t s = 0; s < sizeof tiny / sizeof *tiny; s++) {
        size_t rows = tiny[s][0], channels = tiny[s][1], count = rows * channels;
        fixture f = make_fixture(rows, channels);
        float *dx = make_zeros(count), *scratch = make_zeros(2 * 64 * channels);
        float *dweight = make_uniform(channels, 8, -9, 9),
              *dbias = make_uniform(channels, 9, -9, 9);
        const gs_kernels *k = gs_device_kernels(*state);
        k->layernorm(gs_device_stream(*state), f.out, f.mean, f.rstd, f.x, f.weight, f.bias, rows,
                     channels);
        k->layernorm_backward(gs_device_stream(*state), dx, dweight, dbias, scratch, f.dy, f.x,
                              f.weight, f.mean, f.rstd, rows, channels, false);
        assert_gradient(dx, f.wide.x, count, norm_loss, &f.wide, 1e-5);
        assert_gradient(dweight, f.wide.weight, channels, norm_loss, &f.wide, 1e-5);
        assert_gradient(dbias, f.wide.bias, channels, norm_loss, &f.wide, 1e-5);
        release_fixture(&f);
        free(dx);
        free(scratch);
        free(dweight);
        free(dbias);
    }
}

static void backward_adds_into_dx_and_accumulates_on_request(void **state) {
    // More rows than parts, so that parts hold several rows and the last is short.
    size_t rows = 1030, channels = 19, count = rows * channels;
    fixture f = make_fixture(rows, channels);
    float *once = make_zeros(count), *twice = make_zeros(count);
    float *scratch = make_uniform(2 * 64 * channels, 1, 5, 6);
    float *dweight = make_zeros(2 * channels), *dbias = make_zeros(2 * channels);
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    k->layernorm(stream, f.out, f.mean, f.rstd, f.x, f.weight, f.bias, rows, channels);
    k->layernorm_backward(stream, once, dweight, dbias, scratch, f.dy, f.x, f.weight, f.mean,
                          f.rstd, rows, channels, false);
    for (int pass = 0; pass < 2; pass++) {
        k->layernorm_backward(stream, twice, dweight + channels, dbias + channels, scratch, f.dy,
                              f.x, f.weight, f.mean, f.rstd, rows, channels, true);
    }
    for (size_t i = 0; i < count; i++) assert_true(fabsf(twice[i] - 2 * once[i]) <= 1e-6f);
    for (size_t i = 0; i < channels; i++) {
        assert_true(dweight[channels + i] == 2 * dweight[i] && dbias[channels + i] == 2 * dbias[i]);
        double want = 0;
        for (size_t row = 0; row < rows; row++) want += (double)f.dy[row * channels + i];
        assert_close(&dbias[i], &want, 1, 1e-5, 1e-6);
    }
    release_fixture(&f);
    free(once);
    free(twice);
    free(scratch);
    free(dweight);
    free(dbias);
}

static void nan_stays_in_its_row(void **state) {
    fixture f = make_fixture(3, 8);
    f.x[9] = NAN;
    gs_device_kernels(*state)->layernorm(gs_device_stream(*state), f.out, f.mean, f.rstd, f.x,
                                         f.weight, f.bias, 3, 8);
    for (size_t i = 0; i < 24; i++) assert_int_equal(!!isnan(f.out[i]), i / 8 == 1);
    release_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_fp64),
        cmocka_unit_test(residual_form_equals_add_then_norm),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(backward_adds_into_dx_and_accumulates_on_request),
        cmocka_unit_test(nan_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
