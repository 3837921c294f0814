#include "core/directory.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

static int set_up(void **state) {
    *state = gs_temp_dir_make();
    return 0;
}

static int tear_down(void **state) {
    gs_temp_dir_remove(*state);
    return 0;
}

static const char *join(const char *directory, const char *name) {
    static char path[4][1000];
    static int next;
    char made[sizeof path[0]];  // `directory` may be one of them
    snprintf(made, sizeof made, "%s/%s", directory, name);
    next = (next + 1) % 4;
    memcpy(path[next], made, sizeof made);
    return path[next];
}

static void expect(gs_status status, gs_code code, const char *named) {
    assert_int_equal(status.code, code);
    if (!strstr(status.message, named)) fail_msg("\"%s\" does not name %s", status.message, named);
}

static void opens(const char *path, int levels) {
    gs_directory found;
    assert_ok(gs_directory_open(&found, path, levels));
    assert_ok(gs_directory_confirm(&found, path, levels));
    gs_directory_close(&found);
}

static void the_last_names_are_no_links_and_those_above_may_be(void **state) {
    const char *root = *state;
    gs_directory found;
    assert_int_equal(mkdir(join(root, "real"), 0700), 0);
    assert_int_equal(mkdir(join(root, "real/job"), 0700), 0);
    assert_int_equal(mkdir(join(root, "real/job/step"), 0700), 0);
    assert_int_equal(symlink("real", join(root, "link")), 0);
    opens(join(root, "real/job/step"), 2);
    opens(join(root, "link/job/step"), 2);
    opens(join(root, "link/job/step//"), 2);
    opens(join(root, "link"), 0);
    opens(root, 1);
    opens("/", 2);
    opens(".", 0);
    expect(gs_directory_open(&found, join(root, "link/job/step"), 3), GS_PERMISSION_DENIED, join(root, "link"));
    expect(gs_directory_open(&found, join(root, "link"), 1), GS_PERMISSION_DENIED, "is a symbolic link");
    expect(gs_directory_open(&found, join(root, "real/none/step"), 2), GS_NOT_FOUND, join(root, "real/none"));
    expect(gs_directory_open(&found, join(root, "real/../real"), 2), GS_INVALID_ARGUMENT, "..");
}

// It was opened from where the process stood.
static void more_levels_than_a_path_has_names_begin_at_its_root(void **state) {
    (void)state;
    static const char *const paths[] = {"/", "/proc", "//proc//"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        gs_directory found;
        struct stat facts, wanted;
        assert_ok(gs_directory_open(&found, paths[i], 3));
        assert_int_equal(fstat(found.fd, &facts) | stat(paths[i], &wanted), 0);
        assert_true(facts.st_dev == wanted.st_dev && facts.st_ino == wanted.st_ino);
        gs_directory_close(&found);
    }
}

static void a_place_that_another_has_taken_is_told(void **state) {
    gs_directory job;
    const char *path = join(*state, "job");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_ok(gs_directory_open(&job, path, 1));
    assert_int_equal(rename(path, join(*state, "aside")), 0);
    expect(gs_directory_confirm(&job, path, 1), GS_NOT_FOUND, path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(gs_directory_confirm(&job, path, 1), GS_PERMISSION_DENIED, path);
    gs_directory_close(&job);
}

static unsigned mode_of(const char *path) {
    struct stat facts;
    assert_int_equal(lstat(path, &facts), 0);
    return facts.st_mode & 07777;
}

// A directory and a file in it, of mode 0600 as it is made.
static void make_both(const char *root, const char *name, unsigned mask) {
    gs_directory above, made;
    mode_t usual = umask(mask);
    assert_ok(gs_directory_open(&above, root, 0));
    assert_ok(gs_directory_make_in(&made, &above, name, true));
    int fd = openat(made.fd, "file", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(gs_file_place_share((gs_file_place){&made, "file"}, fd));
    close(fd);
    expect(gs_directory_make_in(&made, &above, name, true), GS_ALREADY_EXISTS, name);
    gs_directory_close(&made);
    assert_ok(gs_directory_make_in(&made, &above, name, false));
    gs_directory_close(&made);
    gs_directory_close(&above);
    umask(usual);
}

static void what_is_made_is_its_makers_unless_the_directory_is_shared(void **state) {
    static const struct {
        unsigned root, mask, directory, file;
    } rows[] = {
        {0755, 0022, 0755, 0600},  {0755, 0077, 0700, 0600},  {0770, 0007, 0750, 0600},
        {02755, 0022, 02755, 0600},  // set-group-ID alone says which group, not that it may
        {02770, 0007, 02770, 0640}, {02770, 0022, 02770, 0640}, {02770, 0077, 02770, 0640},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[16];
        snprintf(name, sizeof name, "root-%zu", i);
        const char *root = join(*state, name);
        assert_int_equal(mkdir(root, 0700), 0);
        assert_int_equal(chmod(root, rows[i].root), 0);
        make_both(root, "job", rows[i].mask);
        assert_int_equal(mode_of(join(root, "job")), rows[i].directory);
        assert_int_equal(mode_of(join(root, "job/file")), rows[i].file);
    }
}

static int walk_through(const char *root) {
    gs_directory deep, job;
    if (setuid(54321) != 0) return 10;
    if (gs_directory_open(&job, join(root, "deep/job"), 2).code) return 1;
    gs_directory_close(&job);
    if (gs_directory_open(&deep, join(root, "deep"), 1).code) return 2;
    if (gs_directory_make_in(&job, &deep, "job", false).code) return 3;
    gs_directory_close(&job);
    // Nobody can say that its name is on the disk.
    if (gs_directory_make_in(&job, &deep, "new", false).code != GS_PERMISSION_DENIED) return 4;
    gs_directory_close(&deep);
    return 0;
}

static void what_may_be_walked_through_need_not_be_read(void **state) {
    const char *root = *state, *deep = join(root, "deep"), *job = join(root, "deep/job");
    if (geteuid() != 0) {
        print_message("skipped: other users are root's to be\n");
        skip();
    }
    assert_int_equal(chmod(root, 0711), 0);
    assert_int_equal(mkdir(deep, 0300), 0);
    assert_int_equal(mkdir(job, 0700), 0);
    assert_int_equal(chown(deep, 54321, 54321) + chown(job, 54321, 54321), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(walk_through(root));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_last_names_are_no_links_and_those_above_may_be, set_up, tear_down),
        cmocka_unit_test(more_levels_than_a_path_has_names_begin_at_its_root),
        cmocka_unit_test_setup_teardown(a_place_that_another_has_taken_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_made_is_its_makers_unless_the_directory_is_shared, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_may_be_walked_through_need_not_be_read, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
