#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/live/stream_slots.h"

enum { MOST = 32, FEW = MOST / 16 };

typedef struct place {
    gs_api_metrics *metrics;
    gs_stream_slots *slots;
} place;

static place here;

static int make(void **state) {
    (void)state;
    here.metrics = gs_api_metrics_create();
    here.slots = gs_stream_slots_create(MOST, here.metrics);
    return here.slots ? 0 : -1;
}

static int drop(void **state) {
    (void)state;
    gs_stream_slots_destroy(here.slots);
    gs_api_metrics_destroy(here.metrics);
    return 0;
}

static int take_all(const char *holder) {
    int count = 0;
    while (count < 100 && gs_stream_slots_take(here.slots, holder)) count++;
    return count;
}

static void who_wants_many_has_no_more_than_are_left_and_two_keep_nobody_out(void **state) {
    (void)state;
    assert_int_equal(take_all("a"), MOST / 2);
    assert_int_equal(take_all("b"), MOST / 4);
    assert_int_equal(take_all("c"), MOST / 8);
    assert_int_equal(take_all("a") + take_all("b") + take_all("c"), 0);
    gs_stream_slots_give(here.slots, "a");
    assert_int_equal(take_all("a"), 0);
    assert_int_equal(take_all("c"), 1);
    // What is left is for those who have few.
    assert_int_equal(take_all("d"), FEW);
    assert_int_equal(take_all("e"), FEW);
    assert_int_equal(take_all("f"), 0);
    assert_int_equal(gs_stream_slots_taken(here.slots), MOST);
}

static void two_that_take_turns_leave_a_third_of_them(void **state) {
    (void)state;
    int num_a = 0, num_b = 0;
    while (gs_stream_slots_take(here.slots, "a") && ++num_a && gs_stream_slots_take(here.slots, "b")) num_b++;
    assert_true(num_a + num_b <= 2 * MOST / 3 + 1);
    assert_true(gs_stream_slots_take(here.slots, "c"));
}

static void nobody_in_particular_may_have_all(void **state) {
    (void)state;
    assert_int_equal(take_all(""), MOST);
    for (int i = 0; i < MOST; i++) gs_stream_slots_give(here.slots, "");
    assert_int_equal(gs_stream_slots_taken(here.slots), 0);
}

static void many_holders_come_and_go(void **state) {
    (void)state;
    char holder[] = "t-a";
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < MOST; i++) {
            holder[2] = (char)('a' + (round + i) % 26);
            assert_true(gs_stream_slots_take(here.slots, holder));
        }
        for (int i = 0; i < MOST; i++) {
            holder[2] = (char)('a' + (round + i) % 26);
            gs_stream_slots_give(here.slots, holder);
        }
    }
    assert_int_equal(take_all("a"), MOST / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_wants_many_has_no_more_than_are_left_and_two_keep_nobody_out, make, drop),
        cmocka_unit_test_setup_teardown(two_that_take_turns_leave_a_third_of_them, make, drop),
        cmocka_unit_test_setup_teardown(nobody_in_particular_may_have_all, make, drop),
        cmocka_unit_test_setup_teardown(many_holders_come_and_go, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
