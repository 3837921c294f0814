#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/rules/settle.h"

static void a_laggard_applies_its_complete_copy(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = true, .applied_step = 11},
                                  {.survived = true, .applied_step = 10, .complete = true}};
    assert_int_equal(gs_settle_decide(members, 2, 11, 0), 11);
    assert_false(members[0].apply);
    assert_true(members[1].apply);
    assert_true(members[0].save);
    assert_false(members[1].save);
}

static void a_step_that_a_dead_rank_reported_is_not_lost(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = true, .applied_step = 10, .complete = true},
                                  {.survived = false, .applied_step = 11}};
    assert_int_equal(gs_settle_decide(members, 2, 11, 0), 11);
    assert_true(members[0].apply);
    assert_true(members[0].save);
}

// None of the survivors could have entered its commit, whatever somebody has told.
static void a_step_that_nobody_can_have_come_to_counts_for_nothing(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = true, .applied_step = 10, .complete = true},
                                  {.survived = true, .applied_step = 10, .complete = true},
                                  {.survived = false, .applied_step = 90}};
    assert_int_equal(gs_settle_decide(members, 3, 90, 0), 11);
    assert_true(members[0].apply && members[1].apply);
    assert_true(members[0].save && !members[1].save);
}

// Two stand together, and the third says that it is further than anybody can be: they keep what they hold.
static void who_is_alone_takes_no_step_from_the_others(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = true, .applied_step = 10, .complete = true},
                                  {.survived = true, .applied_step = 11},
                                  {.survived = true, .applied_step = 900, .complete = true}};
    assert_int_equal(gs_settle_decide(members, 3, 11, 0), 11);
    assert_true(members[0].apply && !members[1].apply && !members[2].apply);
    assert_true(members[0].save && !members[1].save && !members[2].save);
    // With updates of its own it may be that far.
    for (int i = 0; i < 3; i++) members[i].survived = members[i].is_apart = true;
    assert_int_equal(gs_settle_decide(members, 3, 11, 0), 900);
}

static void a_step_that_all_hold_is_applied_by_all(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = true, .applied_step = 10, .complete = true},
                                  {.survived = true, .applied_step = 10, .complete = true}};
    assert_int_equal(gs_settle_decide(members, 2, 10, 0), 11);
    assert_true(members[0].apply && members[1].apply);
}

static void a_step_that_one_does_not_hold_is_redone(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = true, .applied_step = 10, .complete = true},
                                  {.survived = true, .applied_step = 10}};
    assert_int_equal(gs_settle_decide(members, 2, 10, 0), 10);
    assert_false(members[0].apply || members[1].apply);
}

static void one_saves_and_only_what_is_new(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = false},
                                  {.survived = true, .applied_step = 10},
                                  {.survived = true, .applied_step = 10}};
    gs_settle_decide(members, 3, 10, 7);
    assert_true(members[1].save && !members[2].save && !members[0].save);
    gs_settle_decide(members, 3, 10, 10);
    assert_false(members[1].save || members[2].save);
}

static void without_survivors_nothing_is_decided(void **state) {
    (void)state;
    gs_settle_member members[] = {{.survived = false, .applied_step = 10, .complete = true}};
    assert_int_equal(gs_settle_decide(members, 1, 10, 0), -1);
    assert_false(members[0].apply || members[0].save);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_laggard_applies_its_complete_copy),
        cmocka_unit_test(a_step_that_a_dead_rank_reported_is_not_lost),
        cmocka_unit_test(a_step_that_nobody_can_have_come_to_counts_for_nothing),
        cmocka_unit_test(who_is_alone_takes_no_step_from_the_others),
        cmocka_unit_test(a_step_that_all_hold_is_applied_by_all),
        cmocka_unit_test(a_step_that_one_does_not_hold_is_redone),
        cmocka_unit_test(one_saves_and_only_what_is_new),
        cmocka_unit_test(without_survivors_nothing_is_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
