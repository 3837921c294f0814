#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "api/access/rates.h"
#include "core/clock.h"

enum { BURST = 5 };

static int make(void **state) {
    *state = gs_rates_create(2, BURST);
    return *state ? 0 : -1;
}

static int drop(void **state) {
    gs_rates_destroy(*state);
    return 0;
}

static int64_t at(double seconds) {
    return GS_NS_PER_SEC + (int64_t)(seconds * (double)GS_NS_PER_SEC);
}

static int count_taken(gs_rates *rates, const char *key, double seconds) {
    int count = 0;
    while (count < 100 && gs_rates_take(rates, key, at(seconds)) == 0) count++;
    return count;
}

static void a_burst_then_a_steady_rate(void **state) {
    assert_int_equal(count_taken(*state, "a", 0), BURST);
    double wait_seconds = gs_rates_take(*state, "a", at(0));
    assert_true(wait_seconds > 0.4 && wait_seconds < 0.6);
    assert_int_equal(count_taken(*state, "a", 1.1), 2);
    assert_int_equal(count_taken(*state, "a", 100), BURST);
}

static void nobody_takes_from_another(void **state) {
    assert_int_equal(count_taken(*state, "a", 0), BURST);
    assert_int_equal(count_taken(*state, "b", 0), BURST);
}

static void who_was_not_heard_of_for_longest_gives_way(void **state) {
    char key[32];
    assert_int_equal(count_taken(*state, "first", 0), BURST);
    for (int i = 0; i < GS_RATES_MOST; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(count_taken(*state, key, 0.001 * (i + 1)), BURST);
    }
    assert_int_equal(count_taken(*state, "first", 0.4), BURST);
    assert_int_equal(count_taken(*state, key, 0.4), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_burst_then_a_steady_rate, make, drop),
        cmocka_unit_test_setup_teardown(nobody_takes_from_another, make, drop),
        cmocka_unit_test_setup_teardown(who_was_not_heard_of_for_longest_gives_way, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
