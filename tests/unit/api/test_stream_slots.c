#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/live/stream_slots.h"

enum { MOST = 8 };

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

static void one_holder_has_half_of_them_at_most(void **state) {
    (void)state;
    assert_int_equal(take_all("a"), MOST / 2);
    assert_int_equal(take_all("b"), MOST / 2);
    assert_int_equal(take_all("c"), 0);
    gs_stream_slots_give(here.slots, "a");
    assert_int_equal(take_all("b"), 0);
    assert_int_equal(take_all("c"), 1);
    assert_int_equal(gs_stream_slots_taken(here.slots), MOST);
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
        cmocka_unit_test_setup_teardown(one_holder_has_half_of_them_at_most, make, drop),
        cmocka_unit_test_setup_teardown(nobody_in_particular_may_have_all, make, drop),
        cmocka_unit_test_setup_teardown(many_holders_come_and_go, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
