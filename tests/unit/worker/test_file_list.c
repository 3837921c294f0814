#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/worker/data_files.h"

#include "worker/data/dataset.h"
#include "worker/data/data_file.h"

static gs_status find(gs_file_list *list, const char *root, const char *pattern) {
    return gs_file_list_find(list, root, &pattern, 1);
}

static void expect_code(const char *root, const char *pattern, gs_code code) {
    gs_file_list list;
    gs_status status = find(&list, root, pattern);
    if (status.code != code) fail_msg("\"%s\": %s", pattern, status.message);
    gs_file_list_release(&list);
}

static void names_come_sorted_and_once(void **state) {
    const char *root = *state;
    write_file(root, "b.txt", "b", 1);
    write_file(root, "a.txt", "a", 1);
    write_file(root, "c.bin", "c", 1);
    const char *patterns[] = {"*.txt", "a.*", "c.bin"};
    gs_file_list list;
    assert_int_equal(gs_file_list_find(&list, root, patterns, 3).code, GS_OK);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.names[0], "a.txt");
    assert_string_equal(list.names[1], "b.txt");
    assert_string_equal(list.names[2], "c.bin");
    gs_file_list_release(&list);
}

static void stars_work_in_directories_too(void **state) {
    const char *root = *state;
    make_subdir(root, "x1");
    make_subdir(root, "x2");
    make_subdir(root, "y");
    write_file(root, "x1/part-0", "0", 1);
    write_file(root, "x2/part-1", "1", 1);
    write_file(root, "y/part-2", "2", 1);
    gs_file_list list;
    assert_int_equal(find(&list, root, "x*/part-*").code, GS_OK);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.names[0], "x1/part-0");
    assert_string_equal(list.names[1], "x2/part-1");
    gs_file_list_release(&list);
}

static void patterns_that_could_leave_the_root_are_refused(void **state) {
    const char *bad[] = {"/etc/passwd", "../x", "a/../b", ".hidden", "a/.b", "a//b", "",
                         "a/",          "a b",  "a?",     "[ab]",    "~x",   "a\nb"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_code(*state, bad[i], GS_INVALID_ARGUMENT);
}

static void a_pattern_without_files_is_not_found(void **state) {
    write_file(*state, "a.txt", "a", 1);
    expect_code(*state, "*.bin", GS_NOT_FOUND);
    expect_code(*state, "nodir/*", GS_NOT_FOUND);
    expect_code(*state, "a.txt/b", GS_NOT_FOUND);
}

static void no_pattern_at_all_is_refused(void **state) {
    gs_file_list list;
    assert_int_equal(gs_file_list_find(&list, *state, NULL, 0).code, GS_INVALID_ARGUMENT);
}

static void hidden_files_never_match(void **state) {
    write_file(*state, ".secret", "s", 1);
    expect_code(*state, "*", GS_NOT_FOUND);
}

static gs_status open_one(const char *root, const char *name, gs_data_file *file) {
    int root_fd = open(root, O_RDONLY | O_DIRECTORY);
    assert_true(root_fd >= 0);
    gs_status status = gs_data_file_open(file, root_fd, name);
    close(root_fd);
    return status;
}

static void a_link_out_of_the_root_is_refused(void **state) {
    char *outside = gs_temp_dir_make();
    write_file(outside, "secret", "s", 1);
    char link_path[512], target[512];
    snprintf(link_path, sizeof link_path, "%s/link", (char *)*state);
    snprintf(target, sizeof target, "%s/secret", outside);
    assert_int_equal(symlink(target, link_path), 0);
    gs_data_file file = {0};
    assert_int_equal(open_one(*state, "link", &file).code, GS_PERMISSION_DENIED);
    gs_data_file_close(&file);
    gs_temp_dir_remove(outside);
}

static void a_link_to_an_outside_directory_is_not_followed(void **state) {
    char *outside = gs_temp_dir_make();
    write_file(outside, "secret", "s", 1);
    char link_path[512];
    snprintf(link_path, sizeof link_path, "%s/dir", (char *)*state);
    assert_int_equal(symlink(outside, link_path), 0);
    expect_code(*state, "dir/*", GS_PERMISSION_DENIED);
    gs_temp_dir_remove(outside);
}

static void a_pipe_is_no_data_file_and_does_not_hang(void **state) {
    char path[512];
    snprintf(path, sizeof path, "%s/pipe", (char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    gs_data_file file = {0};
    assert_int_equal(open_one(*state, "pipe", &file).code, GS_INVALID_ARGUMENT);
    gs_data_file_close(&file);
}

// For the rest of this process openat2 is unknown, as on old kernels and in tight sandboxes.
static void forbid_openat2(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        skip();
}

// Must be the last test of this process.
static void without_openat2_files_open_and_no_link_is_followed(void **state) {
    forbid_openat2();
    make_subdir(*state, "deep");
    write_file(*state, "deep/file", "abc", 3);
    char inside[512], dir_link[512];
    snprintf(inside, sizeof inside, "%s/link", (char *)*state);
    snprintf(dir_link, sizeof dir_link, "%s/dir", (char *)*state);
    assert_int_equal(symlink("deep/file", inside), 0);
    assert_int_equal(symlink("/etc", dir_link), 0);
    gs_data_file file = {0};
    assert_int_equal(open_one(*state, "deep/file", &file).code, GS_OK);
    char text[3];
    assert_int_equal(gs_data_file_read(&file, text, 0, sizeof text).code, GS_OK);
    assert_memory_equal(text, "abc", 3);
    gs_data_file_close(&file);
    assert_int_equal(open_one(*state, "link", &file).code, GS_PERMISSION_DENIED);
    assert_int_not_equal(open_one(*state, "dir/passwd", &file).code, GS_OK);
    assert_int_equal(open_one(*state, "../x", &file).code, GS_PERMISSION_DENIED);
    assert_int_equal(open_one(*state, "/etc/passwd", &file).code, GS_PERMISSION_DENIED);
    assert_int_equal(open_one(*state, "deep/none", &file).code, GS_NOT_FOUND);
    gs_file_list list;
    assert_int_equal(find(&list, *state, "deep/*").code, GS_OK);
    assert_int_equal(list.count, 1);
    gs_file_list_release(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_come_sorted_and_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(stars_work_in_directories_too, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(patterns_that_could_leave_the_root_are_refused, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_pattern_without_files_is_not_found, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(no_pattern_at_all_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(hidden_files_never_match, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_link_out_of_the_root_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_link_to_an_outside_directory_is_not_followed, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_pipe_is_no_data_file_and_does_not_hang, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(without_openat2_files_open_and_no_link_is_followed,
                                        make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
