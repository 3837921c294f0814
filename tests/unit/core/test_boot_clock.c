#include "core/boot_clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/slept_host.h"

// Seconds of the boot clock, and of the other one, that passed while the host slept.
static int seconds_of_sleep(void *ctx) {
    const int64_t *before = ctx;
    bool is_counted = gs_seconds_since_boot_ns(before[0]) >= SLEPT_SECONDS;
    bool stood = gs_seconds_since(before[1]) < SLEPT_SECONDS / 2;
    return is_counted && stood ? 0 : 1;
}

static void the_time_in_which_the_host_slept_counts(void **state) {
    (void)state;
    int64_t before[] = {gs_boot_ns(), gs_now_ns()};
    int found = behind_sleep(seconds_of_sleep, before);
    if (found == SLEPT_CANNOT) skip();
    assert_int_equal(found, 0);
}

static void it_never_goes_back(void **state) {
    (void)state;
    int64_t last_ns = gs_boot_ns();
    assert_true(last_ns > 0);
    for (int i = 0; i < 10000; i++) {
        int64_t now_ns = gs_boot_ns();
        assert_true(now_ns >= last_ns);
        last_ns = now_ns;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_in_which_the_host_slept_counts),
        cmocka_unit_test(it_never_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
