#include "worker/control/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void kinds_follow_codes(void **state) {
    (void)state;
    assert_int_equal(gs_fault_of(gs_error(GS_DEADLINE_EXCEEDED, "x"), NULL).kind, GS_FAULT_TIMEOUT);
    assert_int_equal(gs_fault_of(gs_error(GS_ABORTED, "x"), NULL).kind, GS_FAULT_PEER_LOST);
    assert_int_equal(gs_fault_of(gs_error(GS_FAILED_PRECONDITION, "x"), NULL).kind, GS_FAULT_MISMATCH);
    assert_int_equal(gs_fault_of(gs_error(GS_DATA_LOSS, "x"), NULL).kind, GS_FAULT_DATA);
    assert_int_equal(gs_fault_of(gs_error(GS_INTERNAL, "x"), NULL).kind, GS_FAULT_INTERNAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_follow_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
