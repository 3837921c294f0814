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

// Statistics and sums of one part are those of the whole: what a single rank computes does not change
// when it is asked to share.
static void one_part_gives_the_bits_of_the_whole(void **state) {
    enum { ROWS = 33, CHANNELS = 130 };
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    fixture whole = make_fixture(ROWS, CHANNELS), part = make_fixture(ROWS, CHANNELS);
    double mean[CHANNELS], m2[CHANNELS];
    train(*state, &whole);
    k->batchnorm_measure(stream, mean, m2, part.x, &part.shape);
    k->batchnorm_apply(stream, part.out, part.save_mean, part.save_rstd, part.next_mean,
                       part.next_var, part.x, part.weight, part.bias, part.mean, part.var, mean, m2,
                       ROWS, &part.shape);
    assert_same_bits(part.out, whole.out, whole.count * sizeof *whole.out);
    assert_same_bits(part.next_mean, whole.next_mean, CHANNELS * sizeof(float));
    assert_same_bits(part.next_var, whole.next_var, CHANNELS * sizeof(float));

    k->batchnorm_backward(stream, whole.dx, whole.dweight, whole.dbias, whole.dy, whole.x,
                          whole.weight, whole.save_mean, whole.save_rstd, &whole.shape, true);
    k->batchnorm_sums(stream, mean, m2, part.dweight, part.dbias, part.dy, part.x, part.save_mean,
                      part.save_rstd, &part.shape, true);
    k->batchnorm_backward_apply(stream, part.dx, part.dy, part.x, part.weight, part.save_mean,
                                part.save_rstd, mean, m2, ROWS, &part.shape);
    assert_same_bits(part.dx, whole.dx, whole.count * sizeof *whole.dx);
    assert_same_bits(part.dweight, whole.dweight, CHANNELS * sizeof(float));
    assert_same_bits(part.dbias, whole.dbias, CHANNELS * sizeof(float));
    assert_stream_ok(*state);
    release_fixture(&whole);
    release_fixture(&part);
}

static void part_without_rows_measures_zero(void **state) {
    fixture f = make_fixture(2, 70);
    double mean[70], m2[70], sum[70], dot[70];
    f.shape.rows = 0;
    const gs_kernels *k = gs_device_kernels(*state);
    k->batchnorm_measure(gs_device_stream(*state), mean, m2, f.x, &f.shape);
    k->batchnorm_sums(gs_device_stream(*state), sum, dot, f.dweight, f.dbias, f.dy, f.x,
                      f.save_mean, f.save_rstd, &f.shape, false);
    for (size_t c = 0; c < 70; c++) {
        assert_true(mean[c] == 0.0 && m2[c] == 0.0 && sum[c] == 0.0 && dot[c] == 0.0);
        assert_true(f.dweight[c] == 0.0f && f.dbias[c] == 0.0f);
    }
    release_fixture(&f);
}

static void one_row_in_all_parts_fails_the_stream(void **state) {
    fixture f = make_fixture(1, 3);
    double mean[3] = {0}, m2[3] = {0};
    gs_device_kernels(*state)->batchnorm_apply(
        gs_device_stream(*state), f.out, f.save_mean, f.save_rstd, f.next_mean, f.next_var, f.x,
        f.weight, f.bias, f.mean, f.var, mean, m2, 1, &f.shape);
    assert_stream_failed(*state, "at least 2 rows, got 1");
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
        cmocka_unit_test(one_part_gives_the_bits_of_the_whole),
        cmocka_unit_test(part_without_rows_measures_zero),
        cmocka_unit_test(one_row_in_all_parts_fails_the_stream),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
