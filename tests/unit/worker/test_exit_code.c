#include "worker/exit_code.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void assert_reason(gs_code code, int exit_code, const char *error_class) {
    gs_exit_reason reason = gs_exit_reason_of(gs_error(code, "x"));
    assert_int_equal(reason.exit_code, exit_code);
    assert_string_equal(reason.error_class, error_class);
}

static void what_the_user_can_correct_is_never_restarted(void **state) {
    (void)state;
    assert_reason(GS_INVALID_ARGUMENT, 65, "user");
    assert_reason(GS_DATA_LOSS, 65, "user");
    assert_reason(GS_NOT_FOUND, 66, "user");
    assert_reason(GS_PERMISSION_DENIED, 77, "user");
    assert_reason(GS_FAILED_PRECONDITION, 78, "user");
}

static void what_may_pass_is_restarted(void **state) {
    (void)state;
    assert_reason(GS_ABORTED, 75, "infrastructure");
    assert_reason(GS_UNAVAILABLE, 75, "infrastructure");
    assert_reason(GS_DEADLINE_EXCEEDED, 75, "infrastructure");
    assert_reason(GS_RESOURCE_EXHAUSTED, 71, "infrastructure");
    assert_reason(GS_INTERNAL, 70, "system");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_user_can_correct_is_never_restarted),
        cmocka_unit_test(what_may_pass_is_restarted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
