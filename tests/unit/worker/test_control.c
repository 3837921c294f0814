#include "worker/control/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void kinds_follow_codes(void **state) {
    (void)state;
    assert_string_equal(gs_fault_of(gs_error(GS_DEADLINE_EXCEEDED, "x"), NULL).kind, "timeout");
    assert_string_equal(gs_fault_of(gs_error(GS_ABORTED, "x"), NULL).kind, "peer_lost");
    assert_string_equal(gs_fault_of(gs_error(GS_FAILED_PRECONDITION, "x"), NULL).kind, "mismatch");
    assert_string_equal(gs_fault_of(gs_error(GS_DATA_LOSS, "x"), NULL).kind, "data");
    assert_string_equal(gs_fault_of(gs_error(GS_INTERNAL, "x"), NULL).kind, "internal");
}

static void the_first_abort_reason_stays(void **state) {
    (void)state;
    gs_control control;
    gs_control_init(&control, NULL, NULL);
    gs_status status = gs_control_check(&control);
    assert_int_equal(status.code, GS_OK);
    gs_control_abort(&control, "rank 1 died");
    gs_control_abort(&control, "something else");
    status = gs_control_check(&control);
    assert_int_equal(status.code, GS_ABORTED);
    assert_string_equal(status.message, "rank 1 died");
    gs_control_release(&control);
}

static void a_signal_drains_and_saves(void **state) {
    (void)state;
    volatile sig_atomic_t signalled = 0;
    bool save = true;
    gs_control control;
    gs_control_init(&control, NULL, NULL);
    control.drain_signal = &signalled;
    assert_false(gs_control_drains(&control, &save));
    assert_false(save);
    signalled = 1;
    assert_true(gs_control_drains(&control, &save));
    assert_true(save);
    gs_control_release(&control);
}

static void a_request_to_drain_says_whether_to_save(void **state) {
    (void)state;
    bool save = true;
    gs_control control;
    gs_control_init(&control, NULL, NULL);
    gs_control_ask_to_drain(&control, false);
    assert_true(gs_control_drains(&control, &save));
    assert_false(save);
    gs_control_release(&control);
}

static gs_plan_offer make_offer(uint32_t generation, uint64_t digest) {
    gs_param_spec param = gs_param_spec_make(GS_FP32, 3, 0, "p");
    gs_plan_offer offer = {.generation = generation, .digest = digest};
    assert_int_equal(gs_bucket_plan_one_host(&offer.plan, &param, 1, NULL).code, GS_OK);
    return offer;
}

static void the_newest_plan_is_taken_once(void **state) {
    (void)state;
    gs_control control;
    gs_plan_offer first = make_offer(3, 10), second = make_offer(3, 11), taken;
    gs_control_init(&control, NULL, NULL);
    assert_false(gs_control_take_plan(&control, &taken, 3));
    gs_control_offer_plan(&control, &first);
    gs_control_offer_plan(&control, &second);
    assert_true(gs_control_take_plan(&control, &taken, 3));
    assert_true(taken.digest == 11);
    assert_int_equal(taken.plan.num_params, 1);
    gs_plan_offer_release(&taken);
    assert_false(gs_control_take_plan(&control, &taken, 3));
    gs_control_release(&control);
}

static void a_plan_of_another_generation_is_dropped(void **state) {
    (void)state;
    gs_control control;
    gs_plan_offer late = make_offer(3, 10), left = make_offer(4, 11), taken;
    gs_control_init(&control, NULL, NULL);
    gs_control_offer_plan(&control, &late);
    assert_false(gs_control_take_plan(&control, &taken, 4));
    assert_true(taken.digest == 0);
    gs_control_offer_plan(&control, &left);
    gs_control_release(&control);  // nothing leaks
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_follow_codes),
        cmocka_unit_test(the_first_abort_reason_stays),
        cmocka_unit_test(a_signal_drains_and_saves),
        cmocka_unit_test(a_request_to_drain_says_whether_to_save),
        cmocka_unit_test(the_newest_plan_is_taken_once),
        cmocka_unit_test(a_plan_of_another_generation_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
