// The mark among the checkpoints, where it could not be left at the start.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/observe/hosts/left_mark.h"
#include "core/clock.h"
#include "rpc/checkpoint/place_mark.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

#define LIFE 5
#define LATER_NS (70 * GS_NS_PER_SEC)

static gs_writer *start_writer(const char *root, int wake_fd) {
    char path[600];
    gs_store_start facts;
    gs_job_store *store = NULL;
    gs_writer *writer = NULL;
    snprintf(path, sizeof path, "%s/store.db", root);
    assert_ok(gs_job_store_open(&store, &facts, path));
    assert_ok(gs_writer_start(&writer, store, wake_fd, NULL));
    return writer;
}

static void it_is_left_again_until_it_is_there(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), path[600];
    snprintf(path, sizeof path, "%s/checkpoints", root);
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gs_writer *writer = start_writer(root, wake_fd);
    gs_left_mark *mark = gs_left_mark_create(writer, path, "one", LIFE);  // there is no such directory
    assert_non_null(mark);
    assert_false(gs_left_mark_is_to_be_seen(mark, gs_now_ns() + LATER_NS));

    assert_int_equal(mkdir(path, 0700), 0);
    uint64_t life = 0;
    gs_deadline deadline = soon();
    int64_t later_ns = gs_now_ns() + LATER_NS;
    while (!gs_left_mark_is_to_be_seen(mark, INT64_MAX) && !gs_deadline_passed(deadline)) {
        gs_left_mark_tick(mark, later_ns);
        gs_writer_collect(writer);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    assert_ok(gs_place_mark_read(&life, path, "one"));
    assert_int_equal(life, LIFE);
    // Who looked just before does so again in a while.
    assert_true(gs_left_mark_is_to_be_seen(mark, gs_now_ns() + LATER_NS));
    assert_false(gs_left_mark_is_to_be_seen(mark, 0));
    gs_writer_stop(writer);
    gs_left_mark_destroy(mark);
    close(wake_fd);
    gs_temp_dir_remove(root);
}

static void who_could_leave_it_is_believed_at_once(void **state) {
    (void)state;
    char *root = gs_temp_dir_make();
    gs_left_mark *mark = gs_left_mark_create(NULL, root, "one", LIFE);
    assert_true(gs_left_mark_is_to_be_seen(mark, gs_now_ns()));
    gs_left_mark_tick(mark, INT64_MAX);  // nothing is left to do
    gs_left_mark_destroy(mark);
    assert_true(gs_left_mark_is_to_be_seen(NULL, 0));
    gs_temp_dir_remove(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_left_again_until_it_is_there),
        cmocka_unit_test(who_could_leave_it_is_believed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
