// The table of hooks.
#include "gradsync/hooks/comm_hook.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void hooks_are_found_by_their_names(void **state) {
    (void)state;
    assert_ptr_equal(gs_comm_hook_find("allreduce"), &gs_hook_allreduce);
    assert_ptr_equal(gs_comm_hook_find("compress"), &gs_hook_compress);
    assert_null(gs_comm_hook_find("all"));
    assert_null(gs_comm_hook_find("allreduce "));
    assert_null(gs_comm_hook_find(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hooks_are_found_by_their_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
