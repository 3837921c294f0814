#include "core/below.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

static void put_file(const char *dir, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("x", file);
    assert_int_equal(fclose(file), 0);
}

static gs_code code_of(int root_fd, const char *name) {
    int fd = -1;
    gs_status status = gs_open_below(&fd, root_fd, name, 0);
    if (fd >= 0) close(fd);
    return status.code;
}

static void what_leads_out_is_refused_and_what_stays_is_followed(void **state) {
    char *dir = gs_temp_dir_make(), path[600], outside[600];
    (void)state;
    snprintf(path, sizeof path, "%s/root", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file(dir, "outside");
    put_file(path, "..data");
    snprintf(outside, sizeof outside, "%s/outside", dir);
    int root_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(root_fd >= 0);
    assert_int_equal(symlinkat(outside, root_fd, "absolute"), 0);
    assert_int_equal(symlinkat("../outside", root_fd, "relative"), 0);
    assert_int_equal(symlinkat("..data", root_fd, "below"), 0);
    assert_int_equal(code_of(root_fd, "below"), GS_OK);
    assert_int_equal(code_of(root_fd, "absolute"), GS_PERMISSION_DENIED);
    assert_int_equal(code_of(root_fd, "relative"), GS_PERMISSION_DENIED);
    assert_int_equal(code_of(root_fd, "../outside"), GS_PERMISSION_DENIED);
    assert_int_equal(code_of(root_fd, outside), GS_PERMISSION_DENIED);
    assert_int_equal(code_of(root_fd, "missing"), GS_NOT_FOUND);
    close(root_fd);
    gs_temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_leads_out_is_refused_and_what_stays_is_followed),
    };
    return cmocka_run_group_tests_name("core below", tests, NULL, NULL);
}
