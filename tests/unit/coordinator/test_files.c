// What of a checkpoint's files is gone, and what a disk only refuses to show.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/file_work.h"
#include "coordinator/store/files.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define AN_HOUR 3600
#define LONG_AGO 1000000000  // seconds since the epoch

// What a checkpoint's manifest is.
typedef enum manifest { WHOLE, MISSING, UNREADABLE } manifest;

// One that points to itself cannot be looked up, whoever asks: as if the disk failed.
static void make_checkpoint(const char *root, const char *name, manifest kind) {
    char path[600];
    const struct timespec old[2] = {{.tv_sec = LONG_AGO}, {.tv_sec = LONG_AGO}};
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/MANIFEST.json", root, name);
    if (kind == UNREADABLE) assert_int_equal(symlink("MANIFEST.json", path), 0);
    if (kind == WHOLE) close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

static bool is_there(const char *root, const char *name) {
    char path[600];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", root, name);
    return lstat(path, &info) == 0;
}

static void a_sweep_removes_what_has_no_manifest(void **state) {
    (void)state;
    char *root = gs_temp_dir_make();
    make_checkpoint(root, "whole", WHOLE);
    make_checkpoint(root, "garbage", MISSING);
    make_checkpoint(root, "unreadable", UNREADABLE);
    assert_ok(gs_file_sweep(root, AN_HOUR));
    assert_true(is_there(root, "whole"));
    assert_false(is_there(root, "garbage"));
    assert_true(is_there(root, "unreadable"));
    gs_temp_dir_remove(root);
}

static void what_cannot_be_looked_up_is_not_missed(void **state) {
    (void)state;
    static const char *const names[] = {"whole", "missing", "unreadable"};
    char *root = gs_temp_dir_make(), directory[600];
    gs_job *job = gs_job_create(77, &(gs_job_spec){0});
    snprintf(directory, sizeof directory, "%s/%s", root, job->id_text);
    assert_int_equal(mkdir(directory, 0700), 0);
    for (int i = 0; i < 3; i++) {
        make_checkpoint(directory, names[i], (manifest)i);
        gs_checkpoints_add(&job->checkpoints, names[i])->state = GS_CHECKPOINT_GOOD;
    }
    // A disk that refuses one of them has not answered.
    gs_work *work = gs_file_work_check(&(gs_file_root){.checkpoints_dir = root}, job);
    assert_int_not_equal(work->base.run(&work->base, NULL).code, GS_OK);
    gs_work_destroy(work);
    job->checkpoints.items[UNREADABLE].state = GS_CHECKPOINT_DELETING;  // nobody starts from it
    work = gs_file_work_check(&(gs_file_root){.checkpoints_dir = root}, job);
    assert_ok(work->base.run(&work->base, NULL));
    assert_int_equal(work->num_names, 1);
    assert_string_equal(work->names[0], "missing");
    gs_work_destroy(work);
    for (int i = 0; i < 3; i++) {
        work = gs_file_work_remove_parts(&(gs_file_root){.checkpoints_dir = root}, job, names[i]);
        assert_ok(work->base.run(&work->base, NULL));
        gs_work_destroy(work);
        assert_int_equal(is_there(directory, names[i]), i != MISSING);
    }
    gs_job_destroy(job);
    gs_temp_dir_remove(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sweep_removes_what_has_no_manifest),
        cmocka_unit_test(what_cannot_be_looked_up_is_not_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
