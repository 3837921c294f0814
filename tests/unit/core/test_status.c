#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

static void ok_has_no_message(void **state) {
    (void)state;
    gs_status status = gs_ok();
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(status.message, "");
}

static void a_long_message_is_cut_not_overrun(void **state) {
    (void)state;
    char text[600];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    gs_status status = gs_error(GS_INTERNAL, "%s", text);
    assert_int_equal(strlen(status.message), sizeof status.message - 1);
    status = gs_status_prefix(status, "bucket %d", 7);
    assert_int_equal(strlen(status.message), sizeof status.message - 1);
    assert_memory_equal(status.message, "bucket 7: xxx", 13);
    status = gs_status_prefix(status, "%s", text);
    assert_int_equal(strlen(status.message), sizeof status.message - 1);
}

static void prefix_leaves_ok_alone(void **state) {
    (void)state;
    gs_status status = gs_status_prefix(gs_ok(), "context");
    assert_int_equal(status.code, GS_OK);
    assert_string_equal(status.message, "");
}

static void every_code_has_a_name_of_its_own(void **state) {
    (void)state;
    for (int code = 0; code < GS_NUM_CODES; code++) {
        for (int other = 0; other < code; other++)
            assert_string_not_equal(gs_code_name((gs_code)code), gs_code_name((gs_code)other));
    }
    assert_string_equal(gs_code_name((gs_code)99), "UNKNOWN");
    assert_string_equal(gs_code_name((gs_code)-1), "UNKNOWN");
}

static void errno_keeps_its_meaning_and_text(void **state) {
    (void)state;
    gs_status status = gs_error_from_errno(ENOENT, "open %s", "train.bin");
    assert_int_equal(status.code, GS_NOT_FOUND);
    assert_string_equal(status.message, "open train.bin: No such file or directory");
    assert_int_equal(gs_error_from_errno(ENOSPC, "write").code, GS_RESOURCE_EXHAUSTED);
    assert_int_equal(gs_error_from_errno(ECONNREFUSED, "connect").code, GS_UNAVAILABLE);
}

static gs_status fail_when(bool fails) {
    GS_TRY(fails ? gs_error(GS_ABORTED, "stop") : gs_ok());
    return gs_error(GS_UNKNOWN, "went on");
}

static void try_passes_the_first_error_on(void **state) {
    (void)state;
    assert_int_equal(fail_when(true).code, GS_ABORTED);
    assert_int_equal(fail_when(false).code, GS_UNKNOWN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ok_has_no_message),
        cmocka_unit_test(a_long_message_is_cut_not_overrun),
        cmocka_unit_test(prefix_leaves_ok_alone),
        cmocka_unit_test(every_code_has_a_name_of_its_own),
        cmocka_unit_test(errno_keeps_its_meaning_and_text),
        cmocka_unit_test(try_passes_the_first_error_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
