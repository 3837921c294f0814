#include "worker/control/mailbox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void the_first_abort_reason_stays(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    gs_status status = gs_mailbox_check(&mailbox);
    assert_int_equal(status.code, GS_OK);
    gs_mailbox_abort(&mailbox, 0, "rank 1 died");
    gs_mailbox_abort(&mailbox, 1, "something else");
    status = gs_mailbox_check(&mailbox);
    assert_int_equal(status.code, GS_ABORTED);
    assert_string_equal(status.message, "rank 1 died");
    gs_mailbox_release(&mailbox);
}

static void check_ended(gs_mailbox *mailbox, const char *reason) {
    gs_status status = gs_mailbox_check(mailbox);
    assert_int_equal(status.code, reason ? GS_ABORTED : GS_OK);
    assert_int_equal(gs_mailbox_aborted(mailbox), reason != NULL);
    if (reason) assert_string_equal(status.message, reason);
}

static void an_abort_ends_its_generation_and_not_the_next(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    gs_mailbox_begin(&mailbox, 3);
    gs_mailbox_abort(&mailbox, 3, "rank 1 died");
    check_ended(&mailbox, "rank 1 died");
    gs_mailbox_begin(&mailbox, 4);
    check_ended(&mailbox, NULL);
    gs_mailbox_abort(&mailbox, 4, "rank 2 died");
    check_ended(&mailbox, "rank 2 died");
    gs_mailbox_release(&mailbox);
}

static void an_abort_that_comes_late_is_dropped(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    gs_mailbox_begin(&mailbox, 3);
    gs_mailbox_begin(&mailbox, 4);
    gs_mailbox_abort(&mailbox, 3, "rank 1 died");
    check_ended(&mailbox, NULL);
    gs_mailbox_release(&mailbox);
}

static void an_abort_that_comes_early_waits_for_its_generation(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    gs_mailbox_begin(&mailbox, 3);
    gs_mailbox_abort(&mailbox, 4, "rank 2 died");
    check_ended(&mailbox, "rank 2 died");  // where there is a later one this is over
    gs_mailbox_begin(&mailbox, 4);
    check_ended(&mailbox, "rank 2 died");
    gs_mailbox_begin(&mailbox, 5);
    check_ended(&mailbox, NULL);
    gs_mailbox_release(&mailbox);
}

static void what_ends_the_process_ends_every_generation(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    gs_mailbox_begin(&mailbox, 3);
    gs_mailbox_abort(&mailbox, GS_EVERY_GENERATION, "refused");
    gs_mailbox_begin(&mailbox, 4);
    check_ended(&mailbox, "refused");
    gs_mailbox_release(&mailbox);
}

static void a_signal_drains_and_saves(void **state) {
    (void)state;
    volatile sig_atomic_t signalled = 0;
    bool save = true;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    mailbox.drain_signal = &signalled;
    assert_false(gs_mailbox_drains(&mailbox, &save));
    assert_false(save);
    signalled = 1;
    assert_true(gs_mailbox_drains(&mailbox, &save));
    assert_true(save);
    gs_mailbox_release(&mailbox);
}

static void a_request_to_drain_says_whether_to_save(void **state) {
    (void)state;
    bool save = true;
    gs_mailbox mailbox;
    gs_mailbox_init(&mailbox);
    gs_mailbox_ask_to_drain(&mailbox, false);
    assert_true(gs_mailbox_drains(&mailbox, &save));
    assert_false(save);
    gs_mailbox_release(&mailbox);
}

static gs_plan_offer make_offer(uint32_t generation, uint64_t digest) {
    gs_param_spec param = gs_param_spec_make(GS_FP32, 3, 0, "p");
    gs_plan_offer offer = {.generation = generation, .digest = digest};
    assert_int_equal(gs_bucket_plan_one_host(&offer.plan, &param, 1, NULL).code, GS_OK);
    return offer;
}

static void the_newest_plan_is_taken_once(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_plan_offer first = make_offer(3, 10), second = make_offer(3, 11), taken;
    gs_mailbox_init(&mailbox);
    assert_false(gs_mailbox_take_plan(&mailbox, &taken, 3));
    gs_mailbox_offer_plan(&mailbox, &first);
    gs_mailbox_offer_plan(&mailbox, &second);
    assert_true(gs_mailbox_take_plan(&mailbox, &taken, 3));
    assert_true(taken.digest == 11);
    assert_int_equal(taken.plan.num_params, 1);
    gs_plan_offer_release(&taken);
    assert_false(gs_mailbox_take_plan(&mailbox, &taken, 3));
    gs_mailbox_release(&mailbox);
}

static void a_plan_of_another_generation_is_dropped(void **state) {
    (void)state;
    gs_mailbox mailbox;
    gs_plan_offer late = make_offer(3, 10), left = make_offer(4, 11), taken;
    gs_mailbox_init(&mailbox);
    gs_mailbox_offer_plan(&mailbox, &late);
    assert_false(gs_mailbox_take_plan(&mailbox, &taken, 4));
    assert_true(taken.digest == 0);
    gs_mailbox_offer_plan(&mailbox, &left);
    gs_mailbox_release(&mailbox);  // nothing leaks
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_abort_reason_stays),
        cmocka_unit_test(an_abort_ends_its_generation_and_not_the_next),
        cmocka_unit_test(an_abort_that_comes_late_is_dropped),
        cmocka_unit_test(an_abort_that_comes_early_waits_for_its_generation),
        cmocka_unit_test(what_ends_the_process_ends_every_generation),
        cmocka_unit_test(a_signal_drains_and_saves),
        cmocka_unit_test(a_request_to_drain_says_whether_to_save),
        cmocka_unit_test(the_newest_plan_is_taken_once),
        cmocka_unit_test(a_plan_of_another_generation_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
