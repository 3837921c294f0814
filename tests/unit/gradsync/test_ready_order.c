#include "gradsync/reducer/ready_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NUM_PARAMS 5

static gs_bucket_plan make_plan(void) {
    gs_param_spec params[NUM_PARAMS];
    for (size_t i = 0; i < NUM_PARAMS; i++)
        params[i] = gs_param_spec_make(GS_FP32, 10, 0, "p%zu", i);
    gs_bucket_plan plan;
    gs_status status = gs_bucket_plan_parity(&plan, params, NUM_PARAMS, 40, 40, NULL);
    assert_string_equal(status.message, "");
    return plan;
}

static void order_is_the_plans_until_a_pass_was_recorded(void **state) {
    (void)state;
    gs_bucket_plan plan = make_plan();
    gs_ready_order order;
    assert_int_equal(gs_ready_order_init(&order, &plan).code, GS_OK);
    const size_t expected[NUM_PARAMS] = {4, 3, 2, 1, 0};
    assert_memory_equal(order.last, expected, sizeof expected);
    gs_ready_order_release(&order);
    gs_bucket_plan_release(&plan);
}

static void unmarked_parameters_follow_in_plan_order(void **state) {
    (void)state;
    gs_bucket_plan plan = make_plan();
    gs_ready_order order;
    assert_int_equal(gs_ready_order_init(&order, &plan).code, GS_OK);
    gs_ready_order_begin(&order);
    gs_ready_order_add(&order, 1);
    gs_ready_order_add(&order, 4);
    const uint32_t marks[NUM_PARAMS] = {6, 7, 6, 0, 7};
    const size_t during[NUM_PARAMS] = {4, 3, 2, 1, 0};
    assert_memory_equal(order.last, during, sizeof during);
    gs_ready_order_finish(&order, &plan, marks, 7);
    assert_int_equal(order.num_ready, 2);
    assert_int_equal(order.num_passes, 1);
    const size_t expected[NUM_PARAMS] = {1, 4, 3, 2, 0};
    assert_memory_equal(order.last, expected, sizeof expected);
    gs_ready_order_release(&order);
    gs_bucket_plan_release(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_the_plans_until_a_pass_was_recorded),
        cmocka_unit_test(unmarked_parameters_follow_in_plan_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
