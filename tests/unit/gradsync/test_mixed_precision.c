#include "gradsync/mixed_precision.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/optimizer.h"

#define NUM_PARAMS 3

static const int64_t counts[NUM_PARAMS] = {700, 1, 33};

typedef struct fixture {
    gs_device *device;
    gs_param_spec specs[NUM_PARAMS];
    float *masters[NUM_PARAMS], *grads[NUM_PARAMS];
    gs_mixed_precision *mixed;
    gs_dtype dtype;
} fixture;

static void open_fixture(fixture *f, gs_dtype dtype, bool adds_passes) {
    *f = (fixture){.dtype = dtype};
    gs_status status = gs_device_open(&f->device, "cpu", &(gs_device_options){0});
    assert_string_equal(status.message, "");
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        f->specs[p] = gs_param_spec_make(dtype, counts[p], 0, "p%zu", p);
        f->masters[p] = calloc((size_t)counts[p], sizeof(float));
        f->grads[p] = calloc((size_t)counts[p], sizeof(float));
        gs_random_fill_normal(f->masters[p], (size_t)counts[p], (gs_random_key){.seed = p}, 0, 0,
                              1);
    }
    status = gs_mixed_precision_create(&f->mixed,
                                       &(gs_mixed_precision_options){.dtype = dtype,
                                                                     .params = f->specs,
                                                                     .num_params = NUM_PARAMS,
                                                                     .masters = f->masters,
                                                                     .keeps_params = true,
                                                                     .keeps_values = true,
                                                                     .adds_passes = adds_passes,
                                                                     .device = f->device});
    assert_string_equal(status.message, "");
}

static void close_fixture(fixture *f) {
    gs_mixed_precision_destroy(f->mixed);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        free(f->masters[p]);
        free(f->grads[p]);
    }
    gs_device_close(f->device);
}

static uint16_t narrow(gs_dtype dtype, float value) {
    return dtype == GS_FP16 ? gs_fp32_to_fp16(value) : gs_fp32_to_bf16(value);
}

static float rounded(gs_dtype dtype, float value) {
    uint16_t bits = narrow(dtype, value);
    return dtype == GS_FP16 ? gs_fp16_to_fp32(bits) : gs_bf16_to_fp32(bits);
}

static void params_and_values_are_the_rounded_masters(void **state) {
    (void)state;
    const gs_dtype dtypes[] = {GS_FP16, GS_BF16};
    for (int d = 0; d < 2; d++) {
        fixture f;
        open_fixture(&f, dtypes[d], false);
        gs_mixed_precision_write_back(f.mixed);
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            const uint16_t *params = gs_mixed_precision_params(f.mixed)[p];
            const float *values = gs_mixed_precision_values(f.mixed)[p];
            for (int64_t i = 0; i < counts[p]; i++) {
                assert_int_equal(params[i], narrow(f.dtype, f.masters[p][i]));
                float wanted = rounded(f.dtype, f.masters[p][i]);
                assert_memory_equal(&values[i], &wanted, sizeof wanted);
            }
        }
        close_fixture(&f);
    }
}

// An update below half a unit of the 16-bit parameter is lost there, and not in the master.
static void masters_keep_updates_that_params_cannot_hold(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BF16, false);
    for (size_t p = 0; p < NUM_PARAMS; p++) f.specs[p].dtype = GS_FP32;
    gs_optimizer *optimizer;
    gs_status status = gs_optimizer_create(&optimizer, &(gs_optimizer_options){.kind = "sgd"},
                                           f.specs, NULL, NUM_PARAMS, f.device);
    assert_string_equal(status.message, "");
    f.masters[1][0] = 1;
    f.grads[1][0] = -1;
    gs_mixed_precision_write_back(f.mixed);
    const float *value = gs_mixed_precision_values(f.mixed)[1];
    for (int step = 1; step <= 8; step++) {
        status = gs_optimizer_step(optimizer, (void *const *)f.masters, f.grads, NULL, 0x1p-9f, 1);
        assert_string_equal(status.message, "");
        gs_mixed_precision_write_back(f.mixed);
        assert_true(f.masters[1][0] == 1 + (float)step * 0x1p-9f);
        assert_true(*value == rounded(GS_BF16, f.masters[1][0]));
    }
    assert_true(*value == 1 + 0x1p-6f);  // the ninth bit alone would never have moved it
    gs_optimizer_destroy(optimizer);
    close_fixture(&f);
}

// 400 passes of 1 + 1/512: bf16 sums stop growing at 256, the main gradient does not.
static void passes_are_rounded_and_their_sum_is_not(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BF16, true);
    for (int pass = 0; pass < 400; pass++) {
        bool accumulate = pass > 0;
        float *const *grads = gs_mixed_precision_pass_grads(f.mixed, f.grads, accumulate);
        assert_true((grads == (float *const *)f.grads) == !accumulate);
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            for (int64_t i = 0; i < counts[p]; i++) grads[p][i] = 1 + 0x1p-9f;
            gs_mixed_precision_finish_grad(f.mixed, f.grads, accumulate, p);
        }
    }
    for (size_t p = 0; p < NUM_PARAMS; p++)
        for (int64_t i = 0; i < counts[p]; i++) assert_true(f.grads[p][i] == 400);
    close_fixture(&f);
}

static void gradient_beyond_fp16_becomes_infinite(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_FP16, true);
    for (int pass = 0; pass < 2; pass++) {
        float *const *grads = gs_mixed_precision_pass_grads(f.mixed, f.grads, pass > 0);
        for (int64_t i = 0; i < counts[0]; i++) grads[0][i] = 65504;
        grads[0][40] = pass ? -65520 : 1;
        gs_mixed_precision_finish_grad(f.mixed, f.grads, pass > 0, 0);
    }
    assert_true(isinf(f.grads[0][40]));
    assert_true(f.grads[0][41] == 2 * 65504.0f);  // the sum is fp32: no overflow
    close_fixture(&f);
}

static void memory_that_was_not_asked_for_is_not_there(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_FP16, false);
    assert_null(gs_mixed_precision_pass_grads(f.mixed, f.grads, true));
    assert_int_equal(gs_mixed_precision_dtype(f.mixed), GS_FP16);
    close_fixture(&f);
}

static void other_types_are_refused(void **state) {
    (void)state;
    gs_mixed_precision *mixed;
    gs_param_spec spec = gs_param_spec_make(GS_FP32, 4, 0, "p");
    gs_status status = gs_mixed_precision_create(
        &mixed, &(gs_mixed_precision_options){.dtype = GS_FP32, .params = &spec, .num_params = 1});
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_null(mixed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_and_values_are_the_rounded_masters),
        cmocka_unit_test(masters_keep_updates_that_params_cannot_hold),
        cmocka_unit_test(passes_are_rounded_and_their_sum_is_not),
        cmocka_unit_test(gradient_beyond_fp16_becomes_infinite),
        cmocka_unit_test(memory_that_was_not_asked_for_is_not_there),
        cmocka_unit_test(other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
