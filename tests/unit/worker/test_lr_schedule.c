#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "worker/trainer/lr_schedule.h"

static void warmup_rises_linearly_to_the_peak(void **state) {
    (void)state;
    gs_lr_schedule schedule = {
        .kind = GS_LR_COSINE, .peak = 4.0, .warmup_steps = 4, .total_steps = 100};
    assert_near(gs_lr_at(&schedule, 0), 1.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 1), 2.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 3), 4.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 4), 4.0, 1e-12);
}

static void constant_stays_at_the_peak_for_ever(void **state) {
    (void)state;
    gs_lr_schedule schedule = {
        .kind = GS_LR_CONSTANT, .peak = 3.0, .total_steps = 10, .final_ratio = 0.1};
    assert_near(gs_lr_at(&schedule, 0), 3.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 1000000), 3.0, 1e-12);
}

static void linear_falls_to_its_final_ratio(void **state) {
    (void)state;
    gs_lr_schedule schedule = {.kind = GS_LR_LINEAR,
                               .peak = 2.0,
                               .warmup_steps = 10,
                               .total_steps = 110,
                               .final_ratio = 0.5};
    assert_near(gs_lr_at(&schedule, 10), 2.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 60), 1.5, 1e-12);
    assert_near(gs_lr_at(&schedule, 110), 1.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 5000), 1.0, 1e-12);
}

static void cosine_is_half_way_in_the_middle(void **state) {
    (void)state;
    gs_lr_schedule schedule = {
        .kind = GS_LR_COSINE, .peak = 2.0, .total_steps = 100, .final_ratio = 0.1};
    assert_near(gs_lr_at(&schedule, 0), 2.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 50), 1.1, 1e-12);
    assert_near(gs_lr_at(&schedule, 100), 0.2, 1e-12);
}

static void warmup_longer_than_the_run_never_divides_by_zero(void **state) {
    (void)state;
    gs_lr_schedule schedule = {
        .kind = GS_LR_LINEAR, .peak = 1.0, .warmup_steps = 10, .total_steps = 10};
    assert_near(gs_lr_at(&schedule, 9), 1.0, 1e-12);
    assert_near(gs_lr_at(&schedule, 10), 0.0, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_rises_linearly_to_the_peak),
        cmocka_unit_test(constant_stays_at_the_peak_for_ever),
        cmocka_unit_test(linear_falls_to_its_final_ratio),
        cmocka_unit_test(cosine_is_half_way_in_the_middle),
        cmocka_unit_test(warmup_longer_than_the_run_never_divides_by_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
