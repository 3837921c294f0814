#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

gs_device *open_cpu_device(const char *isa, int num_threads) {
    gs_device *device = NULL;
    gs_device_options options = {.num_threads = num_threads, .isa = isa};
    gs_status status = gs_device_open(&device, "cpu", &options);
    if (status.code) fail_msg("%s", status.message);
    return device;
}

int open_test_device(void **state) {
    *state = open_cpu_device(NULL, 2);
    return 0;
}

int close_test_device(void **state) {
    gs_device_close(*state);
    return 0;
}

float *make_zeros(size_t count) {
    float *values = calloc(count ? count : 1, sizeof *values);
    assert_non_null(values);
    return values;
}

float *make_uniform(size_t count, uint64_t seed, float low, float high) {
    float *values = make_zeros(count);
    gs_random_fill_uniform(values, count, (gs_random_key){seed, 1}, 0, low, high);
    return values;
}

double *widen(const float *values, size_t count) {
    double *wide = calloc(count ? count : 1, sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < count; i++) wide[i] = (double)values[i];
    return wide;
}

void assert_close(const float *got, const double *want, size_t count, double absolute,
                  double relative) {
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - want[i]);
        if (error <= absolute + relative * fabs(want[i])) continue;
        fail_msg("element %zu of %zu: got %.9g, want %.9g", i, count, (double)got[i], want[i]);
    }
}

void assert_same_bits(const void *got, const void *want, size_t bytes) {
    if (memcmp(got, want, bytes) == 0) return;
    for (size_t i = 0; i < bytes; i++) {
        if (((const char *)got)[i] != ((const char *)want)[i]) {
            fail_msg("byte %zu of %zu differs", i, bytes);
        }
    }
}

void assert_gradient(const float *got, double *x, size_t count, double (*f)(void *ctx), void *ctx,
                     double tolerance) {
    const double step = 1e-5;
    double largest = 1.0, *slopes = calloc(count ? count : 1, sizeof *slopes);
    assert_non_null(slopes);
    for (size_t i = 0; i < count; i++) {
        const double at = x[i];
        x[i] = at + step;
        const double above = f(ctx);
        x[i] = at - step;
        slopes[i] = (above - f(ctx)) / (2 * step);
        x[i] = at;
        if (fabs(slopes[i]) > largest) largest = fabs(slopes[i]);
    }
    assert_close(got, slopes, count, tolerance * largest, 0.0);
    free(slopes);
}

void assert_stream_ok(gs_device *device) {
    gs_status status = gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(60));
    if (status.code) fail_msg("%s", status.message);
}

void assert_stream_failed(gs_device *device, const char *text) {
    gs_status status = gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, text)) fail_msg("'%s' is not in '%s'", text, status.message);
    assert_stream_ok(device);
}
