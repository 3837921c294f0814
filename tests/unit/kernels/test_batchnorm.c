#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>

typedef struct batchnorm_fp64 {
    size_t rows, channels;
    double *x, *weight, *bias, *dy, *out, *mean, *variance; // variance biased
} batchnorm_fp64;

// Σ dy · batchnorm(x)
static double batchnorm_loss(void *ctx) {
    const batchnorm_fp64 *n = ctx;
    const size_t C = n->channels;
    double loss = 0;
    for (size_t c = 0; c < C; c++) {
        double mean = 0, variance = 0;
        for (size_t row = 0; row < n->rows; row++) mean += n->x[row * C + c] / (double)n->rows;
        for (size_t row = 0; row < n->rows; row++) {
            double distance = n->x[row * C + c] - mean;
            variance += distance * distance / (double)n->rows;
        }
        for (size_t row = 0; row < n->rows; row++) {
            double normal = (n->x[row * C + c] - mean) / sqrt(variance + 1e-5);
            n->out[row * C + c] = normal * n->weight[c] + n->bias[c];
            loss += n->dy[row * C + c] * n->out[row * C + c];
        }
        n->mean[c] = mean;
        n->variance[c] = variance;
    }
    return loss;
}

typedef struct fixture {
    size_t count;
    gs_batchnorm shape;
    float *x, *weight, *bias, *dy, *out, *save_mean, *save_rstd;
    float *mean, *var, *next_mean, *next_var, *dx, *dweight, *dbias;
    batchnorm_fp64 wide;
} fixture;

static fixture make_fixture(size_t rows, size_t channels) {
    fixture f = {.count = rows * channels,
                 .shape = {.rows = rows, .channels = channels, .momentum = 0.1f, .eps = 1e-5f}};
    f.x = make_uniform(f.count, 1, -2, 3);
    f.weight = make_uniform(channels, 2, 0.5f, 1.5f);
    f.bias = make_uniform(channels, 3, -1, 1);
    f.dy = make_uniform(f.count, 4, -1, 1);
    f.out = make_zeros(f.count);
    f.save_mean = make_zeros(channels);
    f.save_rstd = make_zeros(channels);
    f.mean = make_uniform(channels, 5, -1, 1);
    f.var = make_uniform(channels, 6, 0.5f, 2);
    f.next_mean = make_zeros(channels);
    f.next_var = make_zeros(channels);
    f.dx = make_zeros(f.count);
    f.dweight = make_uniform(channels, 7, -1, 1);
    f.dbias = make_uniform(channels, 8, -1, 1);
    f.wide = (batchnorm_fp64){rows,
                              channels,
                              widen(f.x, f.count),
                              widen(f.weight, channels),
                              widen(f.bias, channels),
                              widen(f.dy, f.count),
                              widen(f.out, f.count),
                              widen(f.mean, channels),
                              widen(f.mean, channels)};
    return f;
}

static void release_fixture(fixture *f) {
    void *all[] = {
        f->x,         f->weight,    f->bias,         f->dy,          f->out,       f->save_mean,
        f->save_rstd, f->mean,      f->var,          f->next_mean,   f->next_var,  f->dx,
        f->dweight,   f->dbias,     f->wide.x,       f->wide.weight, f->wide.bias, f->wide.dy,
        f->wide.out,  f->wide.mean, f->wide.variance};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void train(gs_device *device, fixture *f) {
    gs_device_kernels(device)->batchnorm(gs_device_stream(device), f->out, f->save_mean,
                                         f->save_rstd, f->next_mean, f->next_var, f->x, f->weight,
                                         f->bias, f->mean, f->var, &f->shape);
}

static void training_uses_biased_and_stores_unbiased_variance(void **state) {
    static const size_t shapes[][2] = {{2, 1}, {3, 65}, {64, 7}, {33, 200}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t rows = shapes[s][0], channels = shapes[s][1];
        fixture f = make_fixture(rows, channels);
        train(*state, &f);
        assert_stream_ok(*state);
        batchnorm_loss(&f.wide);
        assert_close(f.out, f.wide.out, f.count, 1e-5, 1e-5);
        assert_close(f.save_mean, f.wide.mean, channels, 1e-6, 0);
        for (size_t c = 0; c < channels; c++) {
            double unbiased = f.wide.variance[c] * (double)rows / (double)(rows - 1);
            double want = 0.9 * (double)f.var[c] + 0.1 * unbiased;
            assert_close(&f.next_var[c], &want, 1, 1e-6, 1e-6);
            want = 0.9 * (double)f.mean[c] + 0.1 * f.wide.mean[c];
            assert_close(&f.next_mean[c], &want, 1, 1e-6, 1e-6);
        }
        release_fixture(&f);
    }
}

static void training_leaves_the_running_values_alone(void **state) {
    fixture f = make_fixture(4, 9), g = make_fixture(4, 9);
    train(*state, &f);
    assert_same_bits(f.mean, g.mean, 9 * sizeof *f.mean);
    assert_same_bits(f.var, g.var, 9 * sizeof *f.var);
    release_fixture(&f);
    release_fixture(&g);
}

static void one_row_of_training_fails_the_stream(void **state) {
    fixture f = make_fixture(1, 3);
    train(*state, &f);
    assert_stream_failed(*state, "at least 2 rows, got 1");
    release_fixture(&f);
}

static void evaluation_uses_the_running_values(void **state) {
    fixture f = make_fixture(1, 70);
    gs_device_kernels(*state)->batchnorm_eval(gs_device_stream(*state), f.out, f.x, f.weight,
                                              f.bias, f.mean, f.var, &f.shape);
    assert_stream_ok(*state);
    for (size_t c = 0; c < 70; c++) {
        double want = ((double)f.x[c] - (double)f.mean[c]) / sqrt((double)f.var[c] + 1e-5) *
                          (double)f.weight[c] +
                      (double)f.bias[c];
        assert_close(&f.out[c], &want, 1, 1e-6, 1e-6);
    }
    release_fixture(&f);
}

static void backward_matches_finite_differences(void **state) {
    static const size_t shapes[][2] = {{2, 1}, {5, 3}, {9, 67}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t channels = shapes[s][1];
        fixture f = make_fixture(shapes[s][0], channels);
        train(*state, &f);
        gs_device_kernels(*state)->batchnorm_backward(gs_device_stream(*state), f.dx, f.dweight,
                                                      f.dbias, f.dy, f.x, f.weight, f.save_mean,
                                                      f.save_rstd, &f.shape, false);
        assert_gradient(f.dx, f.wide.x, f.count, batchnorm_loss, &f.wide, 1e-5);
        assert_gradient(f.dweight, f.wide.weight, channels, batchnorm_loss, &f.wide, 1e-5);
        assert_gradient(f.dbias, f.wide.bias, channels, batchnorm_loss, &f.wide, 1e-5);
        release_fixture(&f);
    }
}

static void backward_accumulates_on_request(void **state) {
    fixture f = make_fixture(6, 5);
    train(*state, &f);
    const gs_kernels *k = gs_device_kernels(*state);
    float dweight[5], dbias[5];
    k->batchnorm_backward(gs_device_stream(*state), f.dx, dweight, dbias, f.dy, f.x, f.weight,
                          f.save_mean, f.save_rstd, &f.shape, false);
    float was_weight = f.dweight[4], was_bias = f.dbias[4];
    k->batchnorm_backward(gs_device_stream(*state), f.dx, f.dweight, f.dbias, f.dy, f.x, f.weight,
                          f.save_mean, f.save_rstd, &f.shape, true);
    assert_true(f.dweight[4] == was_weight + dweight[4] && f.dbias[4] == was_bias + dbias[4]);
    release_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_uses_biased_and_stores_unbiased_variance),
        cmocka_unit_test(training_leaves_the_running_values_alone),
        cmocka_unit_test(one_row_of_training_fails_the_stream),
        cmocka_unit_test(evaluation_uses_the_running_values),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(backward_accumulates_on_request),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
