#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/work.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define LOOK_US 20000
#define SLOW_US 200000
#define MANY 50
#define PATIENCE_NS (20 * GS_NS_PER_SEC)

static atomic_int num_looks, num_looks_at_purge, num_begun, num_done;
static atomic_bool is_verified, verify_waited;

static gs_status look(gs_write *write, gs_job_store *store) {
    (void)write;
    (void)store;
    int64_t until_ns = gs_now_ns() + PATIENCE_NS;
    while (!atomic_load(&is_verified) && gs_now_ns() < until_ns) usleep(1000);
    if (!atomic_load(&is_verified)) atomic_store(&verify_waited, true);
    usleep(LOOK_US);  // a purge that does not wait has time to come
    atomic_fetch_add(&num_looks, 1);
    return gs_ok();
}

static gs_status verify(gs_write *write, gs_job_store *store) {
    (void)write;
    (void)store;
    atomic_store(&is_verified, true);
    return gs_ok();
}

static gs_status purge(gs_write *write, gs_job_store *store) {
    (void)write;
    (void)store;
    atomic_store(&num_looks_at_purge, atomic_load(&num_looks));
    return gs_ok();
}

static void done(gs_write *write, gs_status status) {
    if (status.code != GS_CANCELLED || write->lane != GS_LANE_TREES) assert_ok(status);
    atomic_fetch_add(&num_done, 1);
    gs_work_destroy((gs_work *)write);
}

static void submit(gs_writer *writer, gs_work_kind kind, gs_status (*run)(gs_write *, gs_job_store *)) {
    gs_work *work = gs_work_create(sizeof *work, kind, 7, "", run);
    work->base.done = done;
    gs_writer_submit(writer, &work->base);
}

static gs_writer *start(char **directory, int wake_fd) {
    char path[600];
    gs_store_start facts;
    gs_job_store *store = NULL;
    gs_writer *writer = NULL;
    *directory = gs_temp_dir_make();
    snprintf(path, sizeof path, "%s/store.db", *directory);
    assert_ok(gs_job_store_open(&store, &facts, path));
    assert_ok(gs_writer_start(&writer, store, wake_fd, NULL));
    return writer;
}

static gs_status slow_purge(gs_write *write, gs_job_store *store) {
    (void)write;
    (void)store;
    atomic_fetch_add(&num_begun, 1);
    usleep(SLOW_US);
    return gs_ok();
}

static void the_end_waits_for_no_tree_that_was_not_begun(void **state) {
    (void)state;
    char *directory;
    int wake_fd = eventfd(0, EFD_CLOEXEC);
    gs_writer *writer = start(&directory, wake_fd);
    atomic_store(&num_begun, 0);
    atomic_store(&num_done, 0);
    for (int i = 0; i < MANY; i++) submit(writer, GS_WORK_PURGE, slow_purge);
    gs_writer_stop(writer);
    assert_true(atomic_load(&num_begun) < MANY);
    assert_int_equal(atomic_load(&num_done), MANY);
    close(wake_fd);
    gs_temp_dir_remove(directory);
}

// A look that makes a manifest in a directory that is being removed leaves it there for ever. Verifying waits for none.
static void a_purge_is_behind_the_looks_that_were_asked_before(void **state) {
    (void)state;
    for (int stops_at_once = 0; stops_at_once < 2; stops_at_once++) {
        char *directory;
        int wake_fd = eventfd(0, EFD_CLOEXEC);
        gs_writer *writer = start(&directory, wake_fd);
        atomic_store(&num_looks, 0);
        atomic_store(&is_verified, false);
        atomic_store(&num_looks_at_purge, -1);
        for (int i = 0; i < 3; i++) submit(writer, GS_WORK_LOOK_AT_PARTS, look);
        submit(writer, GS_WORK_VERIFY, verify);
        submit(writer, GS_WORK_PURGE, purge);
        int64_t until_ns = gs_now_ns() + PATIENCE_NS;
        while (!stops_at_once && atomic_load(&num_looks_at_purge) < 0 && gs_now_ns() < until_ns) usleep(1000);
        gs_writer_stop(writer);
        bool was_dropped = stops_at_once && atomic_load(&num_looks_at_purge) < 0;
        if (!was_dropped) assert_int_equal(num_looks_at_purge, 3);
        assert_false(verify_waited);
        close(wake_fd);
        gs_temp_dir_remove(directory);
    }
}

static atomic_bool may_go_on;

static gs_status read_for_long(gs_write *write, gs_job_store *store) {
    (void)write;
    (void)store;
    int64_t until_ns = gs_now_ns() + PATIENCE_NS;
    while (!atomic_load(&may_go_on) && gs_now_ns() < until_ns) usleep(1000);
    return gs_ok();
}

static gs_status note_row(gs_write *write, gs_job_store *store) {
    (void)write;
    assert_non_null(store);
    atomic_fetch_add(&num_begun, 1);
    return gs_ok();
}

// Neither for one that is read whole, nor for a row that is recalled, a search, a look or a tree: a job is accepted while all of these go on.
static void a_commit_waits_for_no_file(void **state) {
    (void)state;
    char *directory;
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gs_writer *writer = start(&directory, wake_fd);
    atomic_store(&num_begun, 0);
    atomic_store(&num_done, 0);
    static const gs_work_kind kinds[] = {GS_WORK_VERIFY, GS_WORK_LOOK_AT_PARTS, GS_WORK_PURGE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) submit(writer, kinds[i], read_for_long);
    gs_work *recall = gs_work_create(sizeof *recall, GS_WORK_LOOK_AT_PARTS, 7, "", read_for_long);
    recall->base.lane = GS_LANE_READS;
    recall->base.done = done;
    gs_writer_submit(writer, &recall->base);
    gs_work *search = gs_work_create(sizeof *search, GS_WORK_LOOK_AT_PARTS, 7, "", read_for_long);
    search->base.lane = GS_LANE_LOGS;
    search->base.done = done;
    gs_writer_submit(writer, &search->base);
    submit(writer, GS_WORK_PRUNE_KEYS, note_row);
    int64_t until_ns = gs_now_ns() + PATIENCE_NS / 2;
    while (atomic_load(&num_done) == 0 && gs_now_ns() < until_ns) {
        gs_writer_collect(writer);
        usleep(1000);
    }
    assert_int_equal(atomic_load(&num_begun), 1);
    assert_int_equal(atomic_load(&num_done), 1);
    atomic_store(&may_go_on, true);
    gs_writer_stop(writer);
    close(wake_fd);
    gs_temp_dir_remove(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_commit_waits_for_no_file),
                                       cmocka_unit_test(the_end_waits_for_no_tree_that_was_not_begun),
                                       cmocka_unit_test(a_purge_is_behind_the_looks_that_were_asked_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
