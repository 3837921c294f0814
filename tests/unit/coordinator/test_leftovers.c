// A kill between the row of a deletion and the files of its job: the next start removes what is left, and nothing else.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/leftovers.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define DELETED 7
#define ADOPTED_AGAIN 8
#define UNKNOWN 9

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

static void what_a_deletion_left_is_removed(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), path[600];
    snprintf(path, sizeof path, "%s/jobs", root);
    assert_int_equal(mkdir(path, 0700), 0);
    for (uint64_t id = DELETED; id <= UNKNOWN; id++) make_log(root, id);
    gs_job_spec spec = {0};
    gs_job_table jobs = {0};
    gs_job_table_add(&jobs, gs_job_create(ADOPTED_AGAIN, &spec));
    gs_job_table_bury(&jobs, &(gs_tombstone){.job = ADOPTED_AGAIN});
    gs_job_table_bury(&jobs, &(gs_tombstone){.job = DELETED});

    gs_write *write = gs_leftovers_create(&jobs, root);
    assert_non_null(write);
    gs_status status = write->run(write, NULL);
    write->done(write, status);
    assert_ok(status);
    assert_false(is_there(root, DELETED));
    assert_true(is_there(root, ADOPTED_AGAIN));
    assert_true(is_there(root, UNKNOWN));
    gs_job_table_release(&jobs);
    gs_temp_dir_remove(root);
}

static void without_deletions_nothing_is_looked_at(void **state) {
    (void)state;
    gs_job_table jobs = {0};
    assert_null(gs_leftovers_create(&jobs, "/nonexistent"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_deletion_left_is_removed),
        cmocka_unit_test(without_deletions_nothing_is_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
