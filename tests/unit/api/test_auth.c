#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/http/auth.h"

static void loopback_names_are_local(void **state) {
    (void)state;
    const char *const names[] = {"localhost", "LOCALHOST:8470", "127.0.0.1", "127.0.0.1:1",
                                 "127.9.9.9", "[::1]",          "[::1]:8470"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(gs_auth_host_is_local(names[i]));
}

static void other_names_are_foreign(void **state) {
    (void)state;
    const char *const names[] = {"evil.example",
                                 "localhost.evil.example",
                                 "127.0.0.1.evil.example",
                                 "10.0.0.1",
                                 "[::2]",
                                 "[::1",
                                 "localhost:80evil",
                                 "",
                                 "127.0.0.1@evil",
                                 "localhost evil"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_false(gs_auth_host_is_local(names[i]));
    assert_false(gs_auth_host_is_local(NULL));
}

static void only_pages_of_this_machine_may_call(void **state) {
    (void)state;
    assert_true(gs_auth_origin_is_local(NULL));
    assert_true(gs_auth_origin_is_local("http://localhost:8470"));
    assert_true(gs_auth_origin_is_local("https://127.0.0.1"));
    assert_false(gs_auth_origin_is_local("null"));
    assert_false(gs_auth_origin_is_local("http://evil.example"));
    assert_false(gs_auth_origin_is_local("file://localhost"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_names_are_local),
        cmocka_unit_test(other_names_are_foreign),
        cmocka_unit_test(only_pages_of_this_machine_may_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
