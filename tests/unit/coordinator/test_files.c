// What of a checkpoint's files is gone, and what a disk only refuses to show.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/file_work.h"
#include "coordinator/store/files/files.h"
#include "coordinator/store/files/sweeper.h"
#include "core/clock.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define AN_HOUR_NS (3600 * GS_NS_PER_SEC)
#define MOST_WATCHED 5
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

// Somebody else removes the same: each file is gone a moment before its turn.
static bool others_are_first;

static int removals_left = -1;  // before the process is killed; below 0: it is not

static void count_removal(void) {
    if (removals_left == 0) raise(SIGKILL);
    if (removals_left > 0) removals_left--;
}

int __real_remove(const char *path);
int __wrap_remove(const char *path);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __real_unlinkat(int directory, const char *name, int flags);
int __wrap_unlinkat(int directory, const char *name, int flags);

// Somebody else exchanges a directory for a link, behind the first file that goes out of it. Both names; NULL: nobody does.
static const char *exchanged, *leads_to;

static void exchange(void) {
    char aside[700];
    const char *path = exchanged;
    if (!path) return;
    exchanged = NULL;
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(leads_to, path), 0);
}

int __wrap_remove(const char *path) {
    count_removal();
    int removed = __real_remove(path);
    exchange();
    if (!others_are_first || removed != 0) return removed;
    errno = ENOENT;
    return -1;
}

int __wrap_unlink(const char *path) {
    count_removal();
    return __real_unlink(path);
}

int __wrap_unlinkat(int directory, const char *name, int flags) {
    count_removal();
    int removed = __real_unlinkat(directory, name, flags);
    exchange();
    if (!others_are_first || removed != 0) return removed;
    errno = ENOENT;
    return -1;
}

#define NUM_PARTS 4

static void make_parts(const char *root, const char *name) {
    make_checkpoint(root, name, WHOLE);
    for (int i = 0; i < NUM_PARTS; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s/part-%d.safetensors", root, name, i);
        int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_int_equal(write(file, "weights", 7), 7);
        close(file);
    }
}

static void assert_whole(const char *root, const char *name) {
    for (int i = 0; i < NUM_PARTS; i++) {
        char path[600], digest[GS_DIGEST_TEXT_LEN];
        snprintf(path, sizeof path, "%s/%s/part-%d.safetensors", root, name, i);
        gs_digest_format(digest, gs_digest_of("weights", 7));
        assert_ok(gs_file_verify(path, 0, 7, digest));
    }
}

// Before its manifest goes, its parts, and itself; and once not at all.
static void a_removal_that_is_killed_leaves_a_checkpoint_or_garbage(void **state) {
    (void)state;
    for (int place = 0; place <= NUM_PARTS + 2; place++) {
        char *root = gs_temp_dir_make(), old[600];
        snprintf(old, sizeof old, "%s/old", root);
        make_parts(root, "old");
        make_parts(root, "newer");
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            removals_left = place;
            _exit(gs_file_remove_checkpoint(old).code != GS_OK);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (place == NUM_PARTS + 2) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (is_there(root, "old/MANIFEST.json")) assert_whole(root, "old");
        assert_int_equal(is_there(root, "old/MANIFEST.json"), place == 0);
        assert_true(is_there(root, "newer/MANIFEST.json"));
        assert_whole(root, "newer");
        // The next life goes on with it.
        gs_status again = gs_file_remove_checkpoint(old);
        assert_int_equal(again.code, place == NUM_PARTS + 2 ? GS_NOT_FOUND : GS_OK);
        assert_false(is_there(root, "old"));
        gs_temp_dir_remove(root);
    }
}

// Whoever may write there could have the coordinator remove what only the coordinator may.
static void a_link_that_is_put_in_the_way_of_a_walk_leads_nowhere(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), *elsewhere = gs_temp_dir_make(), path[600];
    const char *const names[] = {"a", "b", "c"};
    snprintf(path, sizeof path, "%s/job", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/job/old", root);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/job/old/%s", root, names[i]);
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        snprintf(path, sizeof path, "%s/%s", elsewhere, names[i]);
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    char job[600];
    snprintf(job, sizeof job, "%s/job", root);
    snprintf(path, sizeof path, "%s/job/old", root);
    exchanged = path;
    leads_to = elsewhere;
    gs_status status = gs_file_remove_tree(job, 1);
    assert_null(exchanged);
    (void)status.code;  // what it says of a tree that changes meanwhile is not asked here
    for (int i = 0; i < 3; i++) assert_true(is_there(elsewhere, names[i]));
    assert_ok(gs_file_remove_tree(job, 1));
    assert_false(is_there(root, "job"));
    for (int i = 0; i < 3; i++) assert_true(is_there(elsewhere, names[i]));
    gs_temp_dir_remove(root);
    gs_temp_dir_remove(elsewhere);
}

static void a_sweep_removes_what_has_no_manifest(void **state) {
    (void)state;
    char *root = gs_temp_dir_make();
    make_checkpoint(root, "whole", WHOLE);
    make_checkpoint(root, "garbage", MISSING);
    make_checkpoint(root, "unreadable", UNREADABLE);
    gs_sweeper *sweeper = gs_sweeper_create(AN_HOUR_NS, MOST_WATCHED);
    assert_ok(gs_sweeper_run(sweeper, root, 5));
    assert_ok(gs_sweeper_run(sweeper, root, 4 + AN_HOUR_NS));
    assert_true(is_there(root, "garbage"));
    assert_ok(gs_sweeper_run(sweeper, root, 5 + AN_HOUR_NS));
    assert_true(is_there(root, "whole"));
    assert_false(is_there(root, "garbage"));
    assert_true(is_there(root, "unreadable"));
    assert_int_equal(gs_sweeper_count(sweeper), 0);
    gs_sweeper_destroy(sweeper);
    gs_temp_dir_remove(root);
}

// The directory of a job, and that of a checkpoint: neither leads to where others have theirs.
static void nothing_is_removed_behind_a_link(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), *elsewhere = gs_temp_dir_make(), job[600], path[700];
    snprintf(job, sizeof job, "%s/job", root);
    assert_int_equal(symlink(elsewhere, job), 0);
    make_checkpoint(elsewhere, "old", WHOLE);
    make_checkpoint(elsewhere, "garbage", MISSING);
    snprintf(path, sizeof path, "%s/old", job);
    assert_int_equal(gs_file_remove_checkpoint(path).code, GS_PERMISSION_DENIED);
    gs_sweeper *sweeper = gs_sweeper_create(0, MOST_WATCHED);
    assert_int_equal(gs_sweeper_run(sweeper, job, 5).code, GS_PERMISSION_DENIED);
    assert_int_equal(gs_sweeper_run(sweeper, job, 6).code, GS_PERMISSION_DENIED);
    snprintf(path, sizeof path, "%s/linked", root);
    snprintf(job, sizeof job, "%s/old", elsewhere);
    assert_int_equal(symlink(job, path), 0);
    assert_int_equal(gs_file_remove_checkpoint(path).code, GS_PERMISSION_DENIED);
    assert_true(is_there(elsewhere, "old/MANIFEST.json"));
    assert_true(is_there(elsewhere, "garbage"));
    gs_sweeper_destroy(sweeper);
    gs_temp_dir_remove(root);
    gs_temp_dir_remove(elsewhere);
}

// Its job is over, or was purged.
static void what_nobody_looks_at_is_not_watched(void **state) {
    (void)state;
    char *first = gs_temp_dir_make(), *second = gs_temp_dir_make();
    make_checkpoint(first, "saving", MISSING);
    gs_sweeper *sweeper = gs_sweeper_create(AN_HOUR_NS, MOST_WATCHED);
    assert_ok(gs_sweeper_run(sweeper, first, 5));
    assert_ok(gs_sweeper_run(sweeper, second, 5 + AN_HOUR_NS));
    assert_int_equal(gs_sweeper_count(sweeper), 1);
    assert_ok(gs_sweeper_run(sweeper, second, 6 + AN_HOUR_NS));
    assert_int_equal(gs_sweeper_count(sweeper), 0);
    assert_true(is_there(first, "saving"));
    gs_sweeper_destroy(sweeper);
    gs_temp_dir_remove(first);
    gs_temp_dir_remove(second);
}

// Above the bound nothing is watched, and told; one that has gone makes room for the next.
static void no_more_directories_are_watched_than_a_bound(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), path[600];
    for (int i = 0; i <= MOST_WATCHED; i++) {
        snprintf(path, sizeof path, "%s/%d", root, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    gs_sweeper *sweeper = gs_sweeper_create(AN_HOUR_NS, MOST_WATCHED);
    assert_ok(gs_sweeper_run(sweeper, root, 5));
    assert_int_equal(gs_sweeper_count(sweeper), MOST_WATCHED);
    assert_int_equal(gs_sweeper_num_refused(sweeper), 1);
    assert_ok(gs_sweeper_run(sweeper, root, 5 + AN_HOUR_NS));
    assert_int_equal(gs_sweeper_count(sweeper), 0);
    assert_ok(gs_sweeper_run(sweeper, root, 6 + AN_HOUR_NS));
    assert_int_equal(gs_sweeper_count(sweeper), 1);
    assert_int_equal(gs_sweeper_num_refused(sweeper), 2);
    gs_sweeper_destroy(sweeper);
    gs_temp_dir_remove(root);
}

// Its files bear times of long ago: a save goes on in it, on a machine whose clock is set back.
static void what_still_changes_is_not_swept(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), part[600];
    make_checkpoint(root, "saving", MISSING);
    gs_sweeper *sweeper = gs_sweeper_create(AN_HOUR_NS, MOST_WATCHED);
    snprintf(part, sizeof part, "%s/saving/part-0", root);
    for (int64_t now_ns = 1; now_ns < 5 * AN_HOUR_NS; now_ns += AN_HOUR_NS) {
        int file = open(part, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        gs_sleep_ns(20 * GS_NS_PER_MS);  // a disk's clock has its own ticks
        assert_int_equal(write(file, "x", 1), 1);
        close(file);
        assert_ok(gs_sweeper_run(sweeper, root, now_ns));
        assert_true(is_there(root, "saving"));
    }
    assert_int_equal(gs_sweeper_count(sweeper), 1);
    assert_ok(gs_file_remove_tree(root, 1));
    assert_ok(gs_sweeper_run(sweeper, root, 9 * AN_HOUR_NS));
    assert_int_equal(gs_sweeper_count(sweeper), 0);
    gs_sweeper_destroy(sweeper);
    free(root);
}


static void a_walk_ends_with_the_process(void **state) {
    (void)state;
    char *root = gs_temp_dir_make();
    make_checkpoint(root, "a", WHOLE);
    atomic_bool stopping;
    atomic_init(&stopping, true);
    assert_int_equal(gs_file_remove_tree_unless(root, &stopping).code, GS_CANCELLED);
    assert_true(is_there(root, "a"));
    atomic_store(&stopping, false);
    assert_ok(gs_file_remove_tree_unless(root, &stopping));
    assert_true(gs_file_is_gone(root));
    free(root);
}

static void a_tree_that_another_removes_is_removed(void **state) {
    (void)state;
    char *root = gs_temp_dir_make();
    for (char name[] = "a"; *name < 'm'; (*name)++) make_checkpoint(root, name, WHOLE);
    others_are_first = true;
    gs_status status = gs_file_remove_tree(root, 1);
    others_are_first = false;
    assert_ok(status);
    assert_true(gs_file_is_gone(root));
    assert_ok(gs_file_remove_tree(root, 1));
    free(root);
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

static void write_file(const char *directory, const char *name, const char *text) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static gs_status verify(const char *root, const gs_job *job, const gs_checkpoint_report *report) {
    const gs_checkpoint item = {.directory = "step-3", .step = 3, .digest = "xxh3:3"};
    gs_work *work = gs_file_work_verify(&(gs_file_root){.checkpoints_dir = root}, job, &item, report);
    gs_status status = work->base.run(&work->base, NULL);
    gs_work_destroy(work);
    return status;
}

// By its size, its digest and its name; and the manifest beside the parts.
static void only_what_was_reported_verifies(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), directory[620];
    gs_job *job = gs_job_create(77, &(gs_job_spec){0});
    snprintf(directory, sizeof directory, "%s/%s", root, job->id_text);
    assert_int_equal(mkdir(directory, 0700), 0);
    strcat(directory, "/step-3");
    assert_int_equal(mkdir(directory, 0700), 0);
    write_file(directory, "MANIFEST.json", "{}");
    write_file(directory, "first", "abc");
    write_file(directory, "last", "def");
    gs_checkpoint_file files[] = {{.name = "first", .bytes = 3}, {.name = "last", .bytes = 3}};
    gs_checkpoint_report report = {.files = files, .num_files = 2};
    gs_digest_format(report.manifest_digest, gs_digest_of("{}", 2));
    gs_digest_format(files[0].digest, gs_digest_of("abc", 3));
    gs_digest_format(files[1].digest, gs_digest_of("def", 3));
    assert_ok(verify(root, job, &report));
    write_file(directory, "last", "deF");
    assert_int_equal(verify(root, job, &report).code, GS_DATA_LOSS);
    write_file(directory, "last", "defg");
    assert_int_equal(verify(root, job, &report).code, GS_DATA_LOSS);
    write_file(directory, "last", "def");
    write_file(directory, "MANIFEST.json", "[]");
    assert_int_equal(verify(root, job, &report).code, GS_DATA_LOSS);
    write_file(directory, "MANIFEST.json", "{}");
    assert_ok(verify(root, job, &report));
    snprintf(files[1].name, sizeof files[1].name, "../step-3/last");
    assert_int_equal(verify(root, job, &report).code, GS_INVALID_ARGUMENT);
    gs_job_destroy(job);
    gs_temp_dir_remove(root);
}

static void write_manifest(const char *directory, const gs_job *job, int step, const char *state_digest) {
    char text[600], path[700], digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, gs_digest_of("abc", 3));
    snprintf(text, sizeof text,
             "{\"job\":\"%s\",\"position\":{\"step\":%d},\"state_digest\":\"%s\",\"tensors\":[],"
             "\"parts\":[{\"name\":\"part-0.safetensors\",\"bytes\":3,\"digest\":\"%s\"}]}",
             job->id_text, step, state_digest, digest);
    gs_json *content = NULL;
    uint64_t bytes;
    gs_digest sealed;
    assert_ok(gs_json_parse(&content, text, strlen(text)));
    snprintf(path, sizeof path, "%s/MANIFEST.json", directory);
    assert_ok(gs_sealed_json_write(content, path, &bytes, &sealed));
}

// What could not be read when it was reported is read as its manifest says, if that is of the step that was reported.
static void what_is_read_again_is_what_was_reported(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), directory[620];
    gs_job *job = gs_job_create(77, &(gs_job_spec){0});
    snprintf(directory, sizeof directory, "%s/%s", root, job->id_text);
    assert_int_equal(mkdir(directory, 0700), 0);
    strcat(directory, "/step-3");
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(verify(root, job, NULL).code, GS_NOT_FOUND);
    write_manifest(directory, job, 3, "xxh3:3");
    write_file(directory, "part-0.safetensors", "abc");
    assert_ok(verify(root, job, NULL));
    write_file(directory, "part-0.safetensors", "abC");
    assert_int_equal(verify(root, job, NULL).code, GS_DATA_LOSS);
    write_file(directory, "part-0.safetensors", "abc");
    write_manifest(directory, job, 4, "xxh3:3");
    assert_int_equal(verify(root, job, NULL).code, GS_DATA_LOSS);
    write_manifest(directory, job, 3, "xxh3:4");
    assert_int_equal(verify(root, job, NULL).code, GS_DATA_LOSS);
    gs_job *other = gs_job_create(78, &(gs_job_spec){0});
    write_manifest(directory, other, 3, "xxh3:3");
    assert_int_equal(verify(root, job, NULL).code, GS_DATA_LOSS);
    gs_job_destroy(other);
    gs_job_destroy(job);
    gs_temp_dir_remove(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_that_is_put_in_the_way_of_a_walk_leads_nowhere),
        cmocka_unit_test(a_removal_that_is_killed_leaves_a_checkpoint_or_garbage),
        cmocka_unit_test(a_sweep_removes_what_has_no_manifest),
        cmocka_unit_test(nothing_is_removed_behind_a_link),
        cmocka_unit_test(what_nobody_looks_at_is_not_watched),
        cmocka_unit_test(what_still_changes_is_not_swept),
        cmocka_unit_test(no_more_directories_are_watched_than_a_bound),
        cmocka_unit_test(a_walk_ends_with_the_process),
        cmocka_unit_test(a_tree_that_another_removes_is_removed),
        cmocka_unit_test(what_cannot_be_looked_up_is_not_missed),
        cmocka_unit_test(only_what_was_reported_verifies),
        cmocka_unit_test(what_is_read_again_is_what_was_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
