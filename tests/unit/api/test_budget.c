#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "api/access/budget.h"
#include "core/clock.h"
#include "core/thread.h"

static int make(void **state) {
    *state = gs_budget_create(10);
    return *state ? 0 : -1;
}

static int drop(void **state) {
    gs_budget_destroy(*state);
    return 0;
}

static void no_more_is_taken_than_there_is(void **state) {
    assert_true(gs_budget_take(*state, 6, gs_deadline_in_ms(0)));
    assert_false(gs_budget_take(*state, 5, gs_deadline_in_ms(10)));
    assert_true(gs_budget_take(*state, 4, gs_deadline_in_ms(0)));
    assert_false(gs_budget_take(*state, 1, gs_deadline_in_ms(0)));
    gs_budget_give(*state, 6);
    gs_budget_give(*state, 4);
    assert_true(gs_budget_take(*state, 10, gs_deadline_in_ms(0)));
}

static void who_wants_more_than_there_ever_is_does_not_wait(void **state) {
    int64_t begin_ns = gs_now_ns();
    assert_false(gs_budget_take(*state, 11, gs_deadline_in_seconds(60)));
    assert_true(gs_seconds_since(begin_ns) < 30);
}

static void give_late(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    gs_sleep_ns(50 * GS_NS_PER_MS);
    gs_budget_give(ctx, 8);
}

static void who_waits_is_given_what_others_give_back(void **state) {
    gs_thread *giver = NULL;
    assert_true(gs_budget_take(*state, 8, gs_deadline_in_ms(0)));
    assert_int_equal(gs_thread_start(&giver, "giver", give_late, *state).code, GS_OK);
    assert_true(gs_budget_take(*state, 5, gs_deadline_in_seconds(60)));
    gs_thread_stop(giver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_more_is_taken_than_there_is, make, drop),
        cmocka_unit_test_setup_teardown(who_wants_more_than_there_ever_is_does_not_wait, make, drop),
        cmocka_unit_test_setup_teardown(who_waits_is_given_what_others_give_back, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
