#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/rules/restart_policy.h"

static gs_job_spec make_spec(void) {
    gs_job_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.restart.on_worker_lost = GS_ON_RESCALE;
    spec.restart.on_worker_error = GS_ON_FAIL;
    spec.restart.max_restarts = 5;
    spec.restart.backoff_initial_seconds = 2;
    spec.restart.backoff_max_seconds = 10;
    return spec;
}

static void a_first_loss_of_a_healthy_job_restarts_at_once(void **state) {
    (void)state;
    gs_job_spec spec = make_spec();
    gs_restart_facts facts = {.kind = GS_FAILURE_LOST, .exit_code = -1, .committed = true};
    gs_restart_decision decision = gs_restart_decide(&spec, &facts);
    assert_int_equal(decision.action, GS_RESTART_RESCALE);
    assert_true(decision.backoff_seconds == 0);
}

static void a_loop_of_losses_backs_off_and_then_fails(void **state) {
    (void)state;
    gs_job_spec spec = make_spec();
    const double expected[] = {0, 2, 4, 8, 10};
    for (int i = 0; i < 5; i++) {
        gs_restart_facts facts = {.exit_code = -1, .committed = true, .restarts_in_window = i};
        gs_restart_decision decision = gs_restart_decide(&spec, &facts);
        assert_int_equal(decision.action, GS_RESTART_RESCALE);
        assert_true(decision.backoff_seconds == expected[i]);
    }
    gs_restart_facts facts = {.exit_code = -1, .committed = true, .restarts_in_window = 5};
    gs_restart_decision decision = gs_restart_decide(&spec, &facts);
    assert_int_equal(decision.action, GS_RESTART_FAIL);
    assert_string_equal(decision.reason, "RestartBudgetExhausted");
}

static void an_error_of_the_trainer_fails_unless_asked_otherwise(void **state) {
    (void)state;
    gs_job_spec spec = make_spec();
    gs_restart_facts facts = {.kind = GS_FAILURE_ERROR, .exit_code = 1, .committed = true};
    assert_int_equal(gs_restart_decide(&spec, &facts).action, GS_RESTART_FAIL);
    spec.restart.on_worker_error = GS_ON_RESTART;
    assert_int_equal(gs_restart_decide(&spec, &facts).action, GS_RESTART_SAME);
}

static void wrong_input_is_never_tried_again(void **state) {
    (void)state;
    gs_job_spec spec = make_spec();
    spec.restart.on_worker_error = GS_ON_RESTART;
    const int codes[] = {65, 66, 77, 78};
    for (int i = 0; i < 4; i++) {
        gs_restart_facts facts = {.kind = GS_FAILURE_ERROR, .exit_code = codes[i], .committed = true};
        assert_int_equal(gs_restart_decide(&spec, &facts).action, GS_RESTART_FAIL);
    }
}

static void a_failure_before_the_first_step_restarts_once(void **state) {
    (void)state;
    gs_job_spec spec = make_spec();
    gs_restart_facts facts = {.exit_code = -1, .startup_failures = 1};
    assert_int_equal(gs_restart_decide(&spec, &facts).action, GS_RESTART_RESCALE);
    facts.startup_failures = 2;
    assert_int_equal(gs_restart_decide(&spec, &facts).action, GS_RESTART_FAIL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_first_loss_of_a_healthy_job_restarts_at_once),
        cmocka_unit_test(a_loop_of_losses_backs_off_and_then_fails),
        cmocka_unit_test(an_error_of_the_trainer_fails_unless_asked_otherwise),
        cmocka_unit_test(wrong_input_is_never_tried_again),
        cmocka_unit_test(a_failure_before_the_first_step_restarts_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
