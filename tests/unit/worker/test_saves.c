// When a save by the clock comes next.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/trainer/saves.h"

#define DEFAULT_SECONDS 300.0

static void first_saves_come_soon_and_then_at_the_cadence(void **state) {
    (void)state;
    const double seconds[] = {5, 10, 20, 40, 80, 160, 300, 300};
    for (int i = 0; i < 8; i++) assert_true(gs_saves_interval(DEFAULT_SECONDS, i, 0.01) == seconds[i]);
    assert_true(gs_saves_interval(DEFAULT_SECONDS, 1000000, 0.01) == DEFAULT_SECONDS);
}

static void a_shorter_cadence_is_kept(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) assert_true(gs_saves_interval(0.5, i, 0.01) == 0.5);
    assert_true(gs_saves_interval(12, 1, 0) == 10);
    assert_true(gs_saves_interval(12, 2, 0) == 12);
}

// Unless the cadence itself asks for more.
static void saves_that_take_long_take_a_twentieth_of_the_time(void **state) {
    (void)state;
    assert_true(gs_saves_interval(DEFAULT_SECONDS, 1, 2) == 40);
    assert_true(gs_saves_interval(DEFAULT_SECONDS, 5, 2) == 160);
    assert_true(gs_saves_interval(DEFAULT_SECONDS, 1, 100) == DEFAULT_SECONDS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_saves_come_soon_and_then_at_the_cadence),
        cmocka_unit_test(a_shorter_cadence_is_kept),
        cmocka_unit_test(saves_that_take_long_take_a_twentieth_of_the_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
