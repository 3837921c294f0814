// A kill between the row of a deletion and the files of its job: the next start removes what is left, and nothing else.
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/leftovers.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

#define DELETED 7
#define ADOPTED_AGAIN 8
#define UNKNOWN 9
#define DELETED_BEFORE 10

static void path_of(char path[600], const char *root, uint64_t id) {
    char text[GS_JOB_ID_LEN];
    gs_job_id_format(text, id);
    snprintf(path, 600, "%s/jobs/%s", root, text);
}

static void make_log(const char *root, uint64_t id) {
    char path[600], file[620];
    path_of(path, root, id);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(file, sizeof file, "%s/log-0.ndjson", path);
    FILE *log = fopen(file, "we");
    assert_non_null(log);
    fclose(log);
}

static bool is_there(const char *root, uint64_t id) {
    char path[600];
    path_of(path, root, id);
    return access(path, F_OK) == 0;
}

static size_t count_folders(const char *root) {
    char path[600];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/jobs", root);
    DIR *list = opendir(path);
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));) count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

static int wake_fd;

static gs_writer *start_writer(const char *root) {
    char path[600];
    gs_store_start facts;
    gs_job_store *store = NULL;
    gs_writer *writer = NULL;
    snprintf(path, sizeof path, "%s/store.db", root);
    assert_ok(gs_job_store_open(&store, &facts, path));
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_ok(gs_writer_start(&writer, store, wake_fd, NULL));
    return writer;
}

static void what_a_deletion_left_is_removed(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), path[600];
    snprintf(path, sizeof path, "%s/jobs", root);
    assert_int_equal(mkdir(path, 0700), 0);
    for (uint64_t id = DELETED; id <= DELETED_BEFORE; id++) make_log(root, id);
    gs_job_spec spec = {0};
    gs_job_table jobs = {0};
    gs_job_table_add(&jobs, gs_job_create(ADOPTED_AGAIN, &spec));
    gs_job_table_bury(&jobs, &(gs_tombstone){.job = ADOPTED_AGAIN});
    gs_job_table_bury(&jobs, &(gs_tombstone){.job = DELETED});

    char aside[GS_ASIDE_LEN];  // by a life that was killed then
    path_of(path, root, DELETED_BEFORE);
    assert_ok(gs_leftovers_put_aside(aside, path));
    assert_int_equal(access(aside, F_OK), 0);

    gs_writer *writer = start_writer(root);
    gs_write *write = gs_leftovers_create(&jobs, root, writer);
    assert_non_null(write);
    gs_writer_submit(writer, write);
    gs_deadline deadline = soon();
    while (count_folders(root) > 2) {
        assert_false(gs_deadline_passed(deadline));
        gs_writer_collect(writer);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    gs_writer_stop(writer);
    close(wake_fd);
    assert_false(is_there(root, DELETED));
    assert_true(is_there(root, ADOPTED_AGAIN));
    assert_true(is_there(root, UNKNOWN));
    gs_job_table_release(&jobs);
    gs_temp_dir_remove(root);
}

#define NUM_FILES 50

// Of a removal that has begun, until the process is to end.
static const atomic_bool *holds_until;
static atomic_int num_removed;

int __real_unlinkat(int directory, const char *name, int flags);
int __wrap_unlinkat(int directory, const char *name, int flags);

int __wrap_unlinkat(int directory, const char *name, int flags) {
    atomic_fetch_add(&num_removed, 1);
    while (holds_until && !atomic_load(holds_until)) gs_sleep_ns(GS_NS_PER_MS);
    return __real_unlinkat(directory, name, flags);
}

// A tree of any size holds no end of the process up, and the next start goes on with it.
static void who_ends_waits_for_no_tree(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), path[600], file[620], aside[GS_ASIDE_LEN];
    snprintf(path, sizeof path, "%s/jobs", root);
    assert_int_equal(mkdir(path, 0700), 0);
    make_log(root, DELETED);
    path_of(path, root, DELETED);
    for (int i = 0; i < NUM_FILES; i++) {
        snprintf(file, sizeof file, "%s/%d", path, i);
        assert_int_equal(mkdir(file, 0700), 0);
    }
    assert_ok(gs_leftovers_put_aside(aside, path));
    gs_writer *writer = start_writer(root);
    holds_until = gs_writer_stopping(writer);
    atomic_store(&num_removed, 0);
    gs_leftovers_remove(writer, aside);
    for (gs_deadline deadline = soon(); atomic_load(&num_removed) == 0; gs_sleep_ns(GS_NS_PER_MS)) assert_false(gs_deadline_passed(deadline));
    gs_writer_stop(writer);
    holds_until = NULL;
    close(wake_fd);
    assert_int_equal(atomic_load(&num_removed), 1);
    assert_int_equal(access(aside, F_OK), 0);
    gs_temp_dir_remove(root);
}

static void without_deletions_nothing_is_looked_at(void **state) {
    (void)state;
    gs_job_table jobs = {0};
    assert_null(gs_leftovers_create(&jobs, "/nonexistent", NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_deletion_left_is_removed),
        cmocka_unit_test(who_ends_waits_for_no_tree),
        cmocka_unit_test(without_deletions_nothing_is_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
