#include "gradsync/optim/grad_scaler.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

static gs_grad_scaler_options usual(void) {
    return (gs_grad_scaler_options){
        .init_scale = 1024, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 3};
}

static gs_grad_scaler make_scaler(const gs_grad_scaler_options *options) {
    gs_grad_scaler scaler;
    gs_status status = gs_grad_scaler_init(&scaler, options);
    assert_string_equal(status.message, "");
    return scaler;
}

static void scale_grows_after_an_interval_without_overflow(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    gs_grad_scaler scaler = make_scaler(&options);
    for (int step = 1; step <= 7; step++) {
        gs_grad_scaler_update(&scaler, &options, false);
        assert_true(scaler.scale == (step < 3 ? 1024.0f : step < 6 ? 2048.0f : 4096.0f));
        assert_int_equal(scaler.growth_tracker, step % 3);
    }
}

static void overflow_backs_off_and_counts_anew(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    gs_grad_scaler scaler = make_scaler(&options);
    gs_grad_scaler_update(&scaler, &options, false);
    gs_grad_scaler_update(&scaler, &options, false);
    gs_grad_scaler_update(&scaler, &options, true);
    assert_true(scaler.scale == 512.0f);
    assert_int_equal(scaler.growth_tracker, 0);
}

static void new_scale_is_a_double_product_rounded_once(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    options.growth_factor = 1.1;  // not a float
    options.growth_interval = 1;
    gs_grad_scaler scaler = make_scaler(&options);
    float expected = 1024;
    for (int step = 0; step < 200; step++) {
        gs_grad_scaler_update(&scaler, &options, false);
        expected = (float)((double)expected * 1.1);
        assert_memory_equal(&scaler.scale, &expected, sizeof expected);
    }
}

static void growth_and_fall_end_where_scale_or_inverse_would_be_infinite(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    options.init_scale = FLT_MAX;
    options.growth_interval = 1;
    gs_grad_scaler scaler = make_scaler(&options);
    gs_grad_scaler_update(&scaler, &options, false);
    assert_true(scaler.scale == FLT_MAX);
    for (int step = 0; step < 400; step++) gs_grad_scaler_update(&scaler, &options, true);
    assert_true(scaler.scale > 0);
    // Gradients that are not zero times an infinite inverse would be the end of the parameters.
    assert_true(scaler.scale < 1e-38f && isfinite(gs_grad_scaler_inverse(&scaler)));
}

// Two overflows change nothing, the third and those behind it do; a growth forgives as many again.
static void hysteresis_forgives_the_first_overflows(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    options.hysteresis = 3;
    gs_grad_scaler scaler = make_scaler(&options);
    const struct {
        bool overflow;
        float scale;
    } steps[] = {{true, 1024}, {false, 1024}, {true, 1024}, {true, 512}, {true, 256}, {false, 256},
                 {false, 256}, {false, 512},  {true, 512},  {true, 512}, {true, 256}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        gs_grad_scaler_update(&scaler, &options, steps[i].overflow);
        if (scaler.scale != steps[i].scale) fail_msg("step %zu: %g", i, (double)scaler.scale);
    }
}

// A checkpoint may hold any number, and be gone on with under other options.
static void counts_out_of_any_range_overflow_nothing(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    options.hysteresis = 3;
    gs_grad_scaler scaler = make_scaler(&options);
    scaler.num_forgiven = INT32_MAX;
    gs_grad_scaler_update(&scaler, &options, true);
    assert_true(scaler.scale == 512);
    scaler.num_forgiven = INT32_MIN;
    for (int overflow = 0; overflow < 2; overflow++) gs_grad_scaler_update(&scaler, &options, true);
    assert_true(scaler.scale == 512);
    gs_grad_scaler_update(&scaler, &options, true);
    assert_true(scaler.scale == 256);
    scaler.growth_tracker = INT64_MAX;
    gs_grad_scaler_update(&scaler, &options, false);
    assert_true(scaler.scale == 512 && scaler.growth_tracker == 0);
}

// Options as a program has them whose headers end before, or go on behind, those of the library.
static void options_of_other_headers_are_taken_or_refused(void **state) {
    (void)state;
    struct {
        gs_grad_scaler_options known;
        int64_t more;
    } newer = {.known = usual()};
    gs_grad_scaler scaler;
    assert_ok(gs_grad_scaler_init_sized(&scaler, &newer.known, sizeof newer));
    newer.more = 1;
    gs_status status = gs_grad_scaler_init_sized(&scaler, &newer.known, sizeof newer);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "gs_grad_scaler_options: an option is set"));

    newer.known.hysteresis = 3;  // which older headers do not have
    const size_t older = offsetof(gs_grad_scaler_options, hysteresis);
    assert_ok(gs_grad_scaler_init_sized(&scaler, &newer.known, older));
    gs_grad_scaler_update_sized(&scaler, &newer.known, older, true);
    assert_true(scaler.scale == 512);
}

static void scale_falls_to_its_minimum_and_no_further(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    options.min_scale = 300;
    gs_grad_scaler scaler = make_scaler(&options);
    static const float scales[] = {512, 300, 300};
    for (int step = 0; step < 3; step++) {
        gs_grad_scaler_update(&scaler, &options, true);
        assert_true(scaler.scale == scales[step]);
    }
}

static void no_scaling_is_a_factor_of_one_for_ever(void **state) {
    (void)state;
    gs_grad_scaler_options options = usual();
    gs_grad_scaler scaler = {0}, zero = {0};
    for (int step = 0; step < 10; step++) gs_grad_scaler_update(&scaler, &options, step % 2 == 0);
    assert_memory_equal(&scaler, &zero, sizeof zero);
    assert_true(gs_grad_scaler_scale(&scaler) == 1 && gs_grad_scaler_inverse(&scaler) == 1);
}

static void unscaling_finds_what_is_not_finite_wherever_it_is(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    gs_device *device = test_device_open(2);
    gs_grad_scaler scaler = {.scale = 1000};
    float *memory = device_memory_alloc(device, COUNT * sizeof *memory);
    float *grad = calloc(COUNT, sizeof *grad), inverse = (float)(1.0 / 1000);
    for (size_t at = 0; at <= COUNT; at += 2500) {
        for (size_t i = 0; i < COUNT; i++) grad[i] = (float)i;
        if (at < COUNT) grad[at] = at % 5000 ? INFINITY : NAN;
        device_memory_write(device, memory, grad, COUNT * sizeof *grad);
        assert_int_equal(gs_grad_scaler_unscale(&scaler, memory, COUNT, device), at < COUNT);
        device_memory_read(device, grad, memory, COUNT * sizeof *grad);
        for (size_t i = 0; i < COUNT; i++) {
            assert_true(i == at ? !isfinite(grad[i]) : grad[i] == (float)i * inverse);
        }
    }
    free(grad);
    device_memory_free(device, memory);
    test_device_close(device);
}

static void options_that_make_no_sense_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *name;
        gs_grad_scaler_options options;
    } cases[] = {
        {"init_scale", {0, 2, 0.5, 1, 0, 0}},
        {"init_scale", {INFINITY, 2, 0.5, 1, 0, 0}},
        {"init_scale", {NAN, 2, 0.5, 1, 0, 0}},
        {"init_scale", {1e-40f, 2, 0.5, 1, 0, 0}},
        {"growth_factor", {1, 0.5, 0.5, 1, 0, 0}},
        {"growth_factor", {1, (double)NAN, 0.5, 1, 0, 0}},
        {"backoff_factor", {1, 2, 1, 1, 0, 0}},
        {"backoff_factor", {1, 2, 0, 1, 0, 0}},
        {"growth_interval", {1, 2, 0.5, 0, 0, 0}},
        {"hysteresis", {1, 2, 0.5, 1, -1, 0}},
        {"min_scale", {1, 2, 0.5, 1, 0, 1.5f}},
        {"min_scale", {1, 2, 0.5, 1, 0, NAN}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_grad_scaler scaler;
        gs_status status = gs_grad_scaler_init(&scaler, &cases[i].options);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_memory_equal(status.message, cases[i].name, strlen(cases[i].name));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_grows_after_an_interval_without_overflow),
        cmocka_unit_test(overflow_backs_off_and_counts_anew),
        cmocka_unit_test(new_scale_is_a_double_product_rounded_once),
        cmocka_unit_test(growth_and_fall_end_where_scale_or_inverse_would_be_infinite),
        cmocka_unit_test(hysteresis_forgives_the_first_overflows),
        cmocka_unit_test(counts_out_of_any_range_overflow_nothing),
        cmocka_unit_test(options_of_other_headers_are_taken_or_refused),
        cmocka_unit_test(scale_falls_to_its_minimum_and_no_further),
        cmocka_unit_test(no_scaling_is_a_factor_of_one_for_ever),
        cmocka_unit_test(unscaling_finds_what_is_not_finite_wherever_it_is),
        cmocka_unit_test(options_that_make_no_sense_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
