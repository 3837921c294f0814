// Where a coordinator keeps its data when nobody says so.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/data_dir.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

typedef struct surroundings {
    const char *service, *state, *home;
    bool is_root;
    const char *path;  // NULL: none
} surroundings;

static void set(const char *name, const char *value) {
    if (value) setenv(name, value, 1);
    else unsetenv(name);
}

static void the_default_is_absolute_and_the_users_own(void **state) {
    (void)state;
    static const surroundings rows[] = {
        {NULL, NULL, "/home/u", false, "/home/u/.local/state/gradsync"},
        {NULL, "/s", "/home/u", false, "/s/gradsync"},
        {NULL, "relative", "/home/u", false, "/home/u/.local/state/gradsync"},
        {NULL, "", "/home/u", false, "/home/u/.local/state/gradsync"},
        {NULL, "/s", "/root", true, "/var/lib/gradsync"},
        {"/var/lib/a", "/s", "/root", true, "/var/lib/a"},
        {"/var/lib/a:/var/lib/b", NULL, NULL, false, "/var/lib/a"},
        {"relative", NULL, "/home/u", false, "/home/u/.local/state/gradsync"},
        {NULL, NULL, NULL, false, NULL},
        {NULL, NULL, "relative", false, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[200];
        set("STATE_DIRECTORY", rows[i].service);
        set("XDG_STATE_HOME", rows[i].state);
        set("HOME", rows[i].home);
        gs_status status = gs_data_dir_default(path, sizeof path, rows[i].is_root);
        assert_int_equal(status.code, rows[i].path ? GS_OK : GS_FAILED_PRECONDITION);
        if (rows[i].path) assert_string_equal(path, rows[i].path);
    }
}

static void a_path_that_does_not_fit_is_refused(void **state) {
    (void)state;
    char path[10];
    set("STATE_DIRECTORY", "/0123456789");
    gs_status status = gs_data_dir_default(path, sizeof path, false);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
}

// Two on one directory would command the same workers and write the same rows.
static void a_directory_has_one_coordinator(void **state) {
    (void)state;
    char *directory = gs_temp_dir_make(), words[60];
    int first = -1, second = -1;
    assert_ok(gs_data_dir_lock(&first, directory));
    gs_status status = gs_data_dir_lock(&second, directory);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    snprintf(words, sizeof words, "in use by another coordinator (pid %ld,", (long)getpid());
    assert_non_null(strstr(status.message, words));
    close(first);
    assert_ok(gs_data_dir_lock(&second, directory));
    close(second);
    gs_temp_dir_remove(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_absolute_and_the_users_own),
        cmocka_unit_test(a_path_that_does_not_fit_is_refused),
        cmocka_unit_test(a_directory_has_one_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
