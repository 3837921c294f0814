// Whose checkpoints of a deleted job are: the removal's, or the job's that has come back with its trainers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/file_work.h"
#include "rpc/checkpoint/place_mark.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define JOB 7
#define CLUSTER "c-here"
#define NEVER_NS INT64_MAX

typedef struct fixture {
    char *root, path[700];
    gs_purges *purges;
} fixture;

static int set_up(void **state) {
    fixture *it = calloc(1, sizeof *it);
    char job[GS_JOB_ID_LEN];
    it->root = gs_temp_dir_make();
    it->purges = gs_purges_create();
    gs_job_id_format(job, JOB);
    snprintf(it->path, sizeof it->path, "%s/%s", it->root, job);
    assert_int_equal(mkdir(it->path, 0700), 0);
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    fixture *it = *state;
    gs_purges_destroy(it->purges);
    gs_temp_dir_remove(it->root);
    free(it);
    return 0;
}

static bool is_due(fixture *it) {
    uint64_t job = 0;
    bool is = gs_purges_next(it->purges, &job, NEVER_NS);
    if (is) assert_int_equal(job, JOB);
    return is;
}

static gs_work *make(const fixture *it) {
    return gs_file_work_purge(&(gs_file_root){.checkpoints_dir = it->root}, it->purges, CLUSTER, JOB);
}

// Owed, and then in the queue of the thread that removes.
static gs_work *ask(fixture *it) {
    gs_purges_owe(it->purges, JOB, 0);
    assert_true(is_due(it));
    return make(it);
}

static gs_code run(gs_work *work) {
    gs_status status = work->base.run(&work->base, NULL);
    gs_work_destroy(work);
    return status.code;
}

static bool is_there(const fixture *it) { return access(it->path, F_OK) == 0; }

static void what_a_job_has_back_is_not_removed(void **state) {
    fixture *it = *state;
    gs_work *queued = ask(it);
    assert_true(gs_purges_hold(it->purges, JOB));
    gs_purges_owe(it->purges, JOB, 0);  // said late
    assert_false(is_due(it));
    assert_int_equal(run(queued), GS_CANCELLED);
    assert_true(is_there(it));
    gs_purges_release(it->purges, JOB, true, 0);
    assert_false(is_due(it));
}

static void what_it_could_not_have_back_is_owed_as_before(void **state) {
    fixture *it = *state;
    gs_work *queued = ask(it);
    assert_true(gs_purges_hold(it->purges, JOB));
    gs_purges_release(it->purges, JOB, false, 0);
    assert_int_equal(run(queued), GS_CANCELLED);
    assert_true(is_due(it));
    gs_work *again = make(it);
    assert_int_equal(run(again), GS_OK);
    assert_false(is_there(it));
}

// Nobody may have what is half removed, until it is known how that went.
static void what_is_being_removed_is_nobodys(void **state) {
    fixture *it = *state;
    gs_work *first = ask(it), *second = make(it);
    assert_int_equal(run(first), GS_OK);
    assert_false(gs_purges_hold(it->purges, JOB));
    assert_int_equal(run(second), GS_CANCELLED);  // one removal at a time
    gs_purges_release(it->purges, JOB, false, 0);  // of the row that was refused
    assert_false(gs_purges_hold(it->purges, JOB));
    gs_purges_owe(it->purges, JOB, 5);  // it had failed
    assert_true(gs_purges_hold(it->purges, JOB));
    gs_purges_release(it->purges, JOB, true, 0);
    assert_false(is_due(it));
}

// Its disk is not mounted: neither the job's directory is seen, nor anything else of this cluster.
static void what_is_not_seen_is_not_gone(void **state) {
    fixture *it = *state;
    assert_int_equal(rmdir(it->path), 0);
    assert_int_equal(run(ask(it)), GS_UNAVAILABLE);
    gs_purges_forget(it->purges, JOB);
    assert_ok(gs_place_mark_leave(it->root, "c-elsewhere", 1));
    assert_int_equal(run(ask(it)), GS_UNAVAILABLE);
    gs_purges_forget(it->purges, JOB);
    assert_ok(gs_place_mark_leave(it->root, CLUSTER, 1));
    assert_int_equal(run(ask(it)), GS_OK);
}

static void none_begins_at_the_end_of_the_process(void **state) {
    fixture *it = *state;
    gs_work *queued = ask(it);
    gs_purges_stop(it->purges);
    assert_int_equal(run(queued), GS_CANCELLED);
    assert_true(is_there(it));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_a_job_has_back_is_not_removed),
        TEST(what_it_could_not_have_back_is_owed_as_before),
        TEST(what_is_being_removed_is_nobodys),
        TEST(what_is_not_seen_is_not_gone),
        TEST(none_begins_at_the_end_of_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
