#include "worker/control/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/control/member_messages.h"

static void kinds_follow_codes(void **state) {
    (void)state;
    assert_int_equal(gs_fault_of(gs_error(GS_DEADLINE_EXCEEDED, "x"), NULL, NULL).kind, GS_FAULT_TIMEOUT);
    assert_int_equal(gs_fault_of(gs_error(GS_ABORTED, "x"), NULL, NULL).kind, GS_FAULT_PEER_LOST);
    assert_int_equal(gs_fault_of(gs_error(GS_FAILED_PRECONDITION, "x"), NULL, NULL).kind, GS_FAULT_MISMATCH);
    assert_int_equal(gs_fault_of(gs_error(GS_DATA_LOSS, "x"), NULL, NULL).kind, GS_FAULT_DATA);
    assert_int_equal(gs_fault_of(gs_error(GS_INTERNAL, "x"), NULL, NULL).kind, GS_FAULT_INTERNAL);
    // Ranks that did not come together: whom it was for is known, unless it failed for something else.
    gs_comm_failure unreached = {.kind = GS_COMM_FAILURE_PEER_LOST, .reporter = 2, .bucket = -1};
    gs_comm_failure_accuse(&unreached, 1);
    gs_fault fault = gs_fault_of(gs_error(GS_UNAVAILABLE, "x"), NULL, &unreached);
    assert_int_equal(fault.kind, GS_FAULT_PEER_LOST);
    assert_int_equal(fault.comm.reporter, 2);
    assert_true(gs_comm_failure_names(&fault.comm, 1));
    fault = gs_fault_of(gs_error(GS_DATA_LOSS, "x"), NULL, &unreached);
    assert_int_equal(fault.kind, GS_FAULT_DATA);
    assert_int_equal(gs_comm_failure_num_accused(&fault.comm), 0);
}

static void expect_ranks_1_and_70(const gs_json *ranks) {
    assert_int_equal(gs_json_count(ranks), 2);
    int64_t first = -1, second = -1;
    assert_true(gs_json_int(&first, gs_json_at(ranks, 0)));
    assert_true(gs_json_int(&second, gs_json_at(ranks, 1)));
    assert_int_equal(first, 1);
    assert_int_equal(second, 70);
}

static void coordinators_of_before_find_the_accused_too(void **state) {
    (void)state;
    gs_fault fault = {.kind = GS_FAULT_TIMEOUT, .comm = {.reporter = 0, .bucket = -1}};
    gs_comm_failure_accuse(&fault.comm, 70);
    gs_comm_failure_accuse(&fault.comm, 1);
    gs_json *message = gs_member_message_fault(&fault);
    expect_ranks_1_and_70(gs_json_get(message, "accused"));
    expect_ranks_1_and_70(gs_json_get(message, "suspects"));
    gs_json_release(message);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_follow_codes),
        cmocka_unit_test(coordinators_of_before_find_the_accused_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
