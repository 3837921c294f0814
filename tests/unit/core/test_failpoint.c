#include "core/failpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef GRADSYNC_FAILPOINTS

static gs_status pass_place(void) {
    GS_FAILPOINT("here");
    return gs_ok();
}

static void triggers_at_the_pass_that_was_named_and_once(void **state) {
    (void)state;
    assert_int_equal(pass_place().code, GS_OK);
    assert_int_equal(pass_place().code, GS_OK);
    gs_status status = pass_place();
    assert_int_equal(status.code, GS_INTERNAL);
    assert_string_equal(status.message, "failpoint here");
    assert_int_equal(pass_place().code, GS_OK);
}

static void several_passes_may_be_named_by_several_entries(void **state) {
    (void)state;
    const int failing[] = {2, 3, 5};
    for (int pass = 1, next = 0; pass < 8; pass++) {
        bool fails = next < 3 && failing[next] == pass;
        assert_int_equal(gs_failpoint_pass("often").code, fails ? GS_INTERNAL : GS_OK);
        next += fails;
    }
}

static void another_rank_does_not_trigger(void **state) {
    (void)state;
    assert_int_equal(gs_failpoint_pass("elsewhere").code, GS_OK);
    assert_int_equal(gs_failpoint_pass("mine").code, GS_INTERNAL);
}

int main(void) {
    setenv("RANK", "2", 1);
    setenv("GRADSYNC_FAILPOINTS", "here=error@3,elsewhere#1=error,mine#2=error,broken,often=error@2-3,often=error@5", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(triggers_at_the_pass_that_was_named_and_once),
        cmocka_unit_test(several_passes_may_be_named_by_several_entries),
        cmocka_unit_test(another_rank_does_not_trigger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static gs_status pass_place(void) {
    GS_FAILPOINT("here");
    return gs_ok();
}

static void a_release_contains_none(void **state) {
    (void)state;
    assert_int_equal(pass_place().code, GS_OK);
}

int main(void) {
    setenv("GRADSYNC_FAILPOINTS", "here=error", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_release_contains_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
