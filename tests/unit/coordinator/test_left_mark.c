// The mark among the checkpoints: left as soon as it can be, and only where they are.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/model/job_table.h"
#include "coordinator/observe/hosts/left_mark.h"
#include "coordinator/store/file_work.h"
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

typedef struct place {
    char *root, path[600];
    int wake_fd;
    gs_writer *writer;
    gs_marked_root *marked;
    gs_left_mark *mark;
    gs_agent_table agents;
} place;

static int set_up(void **state) {
    place *it = calloc(1, sizeof *it);
    it->root = gs_temp_dir_make();
    snprintf(it->path, sizeof it->path, "%s/disk/checkpoints", it->root);
    it->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *state = it;
    return 0;
}

// A start of the coordinator.
static void begin(place *it, uint64_t life, bool is_new) {
    it->writer = start_writer(it->root, it->wake_fd);
    it->marked = gs_marked_root_create(&(gs_marked_root_options){
        .data_dir = it->root, .path = it->path, .cluster = "one", .life = life, .is_new = is_new});
    it->mark = gs_left_mark_create(it->writer, it->marked, &it->agents);
    assert_non_null(it->mark);
}

static void end(place *it) {
    gs_writer_stop(it->writer);
    gs_left_mark_destroy(it->mark);
    gs_marked_root_destroy(it->marked);
}

static int tear_down(void **state) {
    place *it = *state;
    close(it->wake_fd);
    gs_agent_table_release(&it->agents);
    gs_temp_dir_remove(it->root);
    free(it);
    return 0;
}

// Of what was asked for.
static void take_done(place *it) {
    uint64_t count;
    gs_deadline deadline = soon();
    while (read(it->wake_fd, &count, sizeof count) < 0) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(GS_NS_PER_MS);
    }
    gs_writer_collect(it->writer);
}

static void make(place *it, const char *below) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", it->root, below);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void move(place *it, const char *from, const char *to) {
    char before[700], behind[700];
    snprintf(before, sizeof before, "%s/%s", it->root, from);
    snprintf(behind, sizeof behind, "%s/%s", it->root, to);
    assert_int_equal(rename(before, behind), 0);
}

static void expect_life(place *it, uint64_t wanted) {
    uint64_t life = 0;
    assert_ok(gs_marked_root_check(it->marked));
    assert_true(gs_left_mark_is_to_be_seen(it->mark, INT64_MAX));
    assert_ok(gs_place_mark_read(&life, it->path, "one"));
    assert_int_equal(life, wanted);
}

static void expect_away(place *it) {
    assert_int_equal(gs_marked_root_check(it->marked).code, GS_UNAVAILABLE);
    assert_false(gs_left_mark_is_to_be_seen(it->mark, INT64_MAX));
}

static void it_is_left_again_until_it_is_there(void **state) {
    place *it = *state;
    begin(it, LIFE, false);
    take_done(it);  // there is no such directory
    assert_false(gs_left_mark_is_to_be_seen(it->mark, INT64_MAX));
    assert_ok(gs_marked_root_check(it->marked));  // nor was there ever
    make(it, "disk");
    gs_agent *agent = gs_agent_table_add(&it->agents, "early");
    assert_non_null(agent);
    gs_left_mark_tick(it->mark, gs_now_ns() + LATER_NS);
    take_done(it);
    expect_life(it, LIFE);
    // Who looked just before does so again in a while.
    assert_true(gs_left_mark_is_to_be_seen(it->mark, gs_now_ns() + LATER_NS));
    assert_false(gs_left_mark_is_to_be_seen(it->mark, 0));
    end(it);
}

static void who_could_leave_it_before_anybody_looked_is_believed_at_once(void **state) {
    place *it = *state;
    make(it, "disk");
    begin(it, LIFE, false);
    take_done(it);
    assert_true(gs_left_mark_is_to_be_seen(it->mark, 0));
    gs_left_mark_tick(it->mark, INT64_MAX);  // nothing is left to do
    end(it);
    assert_true(gs_left_mark_is_to_be_seen(NULL, 0));
}

// A disk that is not mounted: neither is its directory made, nor does an empty one pass for it.
static void another_directory_does_not_pass_for_the_one_that_was_marked(void **state) {
    place *it = *state;
    make(it, "disk");
    begin(it, LIFE, false);
    take_done(it);
    end(it);
    move(it, "disk", "away");
    begin(it, LIFE + 1, false);
    take_done(it);
    expect_away(it);
    make(it, "disk");
    make(it, "disk/checkpoints");
    gs_left_mark_tick(it->mark, gs_now_ns() + LATER_NS);
    take_done(it);
    expect_away(it);
    uint64_t life;
    assert_int_equal(gs_place_mark_read(&life, it->path, "one").code, GS_NOT_FOUND);
    move(it, "disk", "empty");
    move(it, "away", "disk");  // it is back
    gs_left_mark_tick(it->mark, gs_now_ns() + LATER_NS);
    take_done(it);
    expect_life(it, LIFE + 1);
    end(it);
}

// Not a start finds that out, but who misses something: what is not there is not gone then, and the mark is looked for again.
static void a_disk_that_goes_while_the_coordinator_lives_is_missed(void **state) {
    place *it = *state;
    make(it, "disk");
    begin(it, LIFE, false);
    take_done(it);
    assert_ok(gs_marked_root_confirm(it->marked));
    gs_job *job = gs_job_create(77, &(gs_job_spec){0});
    gs_file_root root = {.checkpoints_dir = it->path, .marked = it->marked};
    gs_work *work = gs_file_work_remove_checkpoint(&root, job, "step-1");
    assert_ok(work->base.run(&work->base, NULL));  // it is gone
    gs_work_destroy(work);
    move(it, "disk", "away");
    make(it, "disk");
    make(it, "disk/checkpoints");
    work = gs_file_work_remove_checkpoint(&root, job, "step-1");
    assert_int_equal(work->base.run(&work->base, NULL).code, GS_UNAVAILABLE);
    gs_work_destroy(work);
    int64_t now_ns = gs_now_ns() + LATER_NS;
    gs_left_mark_tick(it->mark, now_ns);
    expect_away(it);
    gs_left_mark_tick(it->mark, now_ns + LATER_NS);
    take_done(it);
    expect_away(it);
    move(it, "disk", "empty");
    move(it, "away", "disk");  // it is back
    gs_left_mark_tick(it->mark, now_ns + 2 * LATER_NS);
    take_done(it);
    expect_life(it, LIFE);
    gs_job_destroy(job);
    end(it);
}

static void an_operator_may_say_that_it_is_a_new_one(void **state) {
    place *it = *state;
    char path[GS_ROOT_PATH_LEN];
    make(it, "disk");
    assert_false(gs_marked_root_recall(path, it->root, it->path));
    begin(it, LIFE, false);
    take_done(it);
    end(it);
    assert_true(gs_marked_root_recall(path, it->root, it->path));
    assert_string_equal(path, it->path);
    assert_false(gs_marked_root_recall(path, it->root, "elsewhere"));
    move(it, "disk", "away");
    make(it, "disk");
    begin(it, LIFE + 1, true);
    take_done(it);
    expect_life(it, LIFE + 1);
    end(it);
    begin(it, LIFE + 2, false);  // it is the known one now
    take_done(it);
    expect_life(it, LIFE + 2);
    end(it);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

// On a copy of its data directory, or the original of one, at the same time.
static gs_marked_root *open_other(const place *it, const char *cluster, uint64_t life) {
    char data_dir[700];
    snprintf(data_dir, sizeof data_dir, "%s/copy", it->root);
    mkdir(data_dir, 0700);
    return gs_marked_root_create(&(gs_marked_root_options){.data_dir = data_dir, .path = it->path, .cluster = cluster, .life = life});
}

static void one_of_a_cluster_has_it_at_a_time(void **state) {
    place *it = *state;
    make(it, "disk");
    begin(it, LIFE, false);
    take_done(it);
    assert_int_equal(gs_marked_root_claim(it->marked), GS_ROOT_TRIED);
    gs_marked_root *other = open_other(it, "one", LIFE + 1);
    assert_int_equal(gs_marked_root_claim(other), GS_ROOT_UNCLAIMED);
    assert_ok(gs_marked_root_refused(other));
    gs_status status = gs_marked_root_leave(other);
    assert_int_equal(status.code, GS_ALREADY_EXISTS);
    assert_non_null(strstr(status.message, it->root));  // whose it is
    assert_int_equal(gs_marked_root_claim(other), GS_ROOT_OF_ANOTHER);
    assert_int_equal(gs_marked_root_refused(other).code, GS_ALREADY_EXISTS);
    expect_life(it, LIFE);
    gs_marked_root *elsewhere = open_other(it, "two", LIFE + 2);
    assert_ok(gs_marked_root_leave(elsewhere));
    gs_marked_root_destroy(elsewhere);
    end(it);
    // What was refused is for good; who comes anew has it.
    assert_int_equal(gs_marked_root_refused(other).code, GS_ALREADY_EXISTS);
    gs_marked_root_destroy(other);
    other = open_other(it, "one", LIFE + 1);
    assert_ok(gs_marked_root_leave(other));
    begin(it, LIFE + 3, false);
    take_done(it);
    assert_int_equal(gs_marked_root_refused(it->marked).code, GS_ALREADY_EXISTS);
    end(it);
    gs_marked_root_destroy(other);
}

// It holds the one that it has locked, and on another disk nothing.
static void a_disk_that_is_exchanged_is_locked_anew(void **state) {
    place *it = *state;
    make(it, "disk");
    begin(it, LIFE, false);
    take_done(it);
    move(it, "disk", "away");
    make(it, "disk");
    assert_int_equal(gs_marked_root_leave(it->marked).code, GS_UNAVAILABLE);
    gs_marked_root *other = open_other(it, "one", LIFE + 1);
    assert_ok(gs_marked_root_leave(other));  // it knows of no mark
    end(it);
    begin(it, LIFE + 2, true);
    take_done(it);
    assert_int_equal(gs_marked_root_refused(it->marked).code, GS_ALREADY_EXISTS);
    end(it);
    gs_marked_root_destroy(other);
}

// Whoever writes checkpoints could make it, and hold it.
static void a_lock_that_others_made_keeps_nobody_out(void **state) {
    place *it = *state;
    char path[800];
    if (geteuid() != 0) skip();
    make(it, "disk");
    make(it, "disk/checkpoints");
    snprintf(path, sizeof path, "%s/COORDINATOR-one.lock", it->path);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_int_equal(fchown(file, 4711, 4711), 0);
    assert_int_equal(flock(file, LOCK_EX), 0);
    begin(it, LIFE, false);
    take_done(it);
    assert_ok(gs_marked_root_refused(it->marked));
    expect_life(it, LIFE);
    end(it);
    close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(it_is_left_again_until_it_is_there),
        TEST(who_could_leave_it_before_anybody_looked_is_believed_at_once),
        TEST(another_directory_does_not_pass_for_the_one_that_was_marked),
        TEST(a_disk_that_goes_while_the_coordinator_lives_is_missed),
        TEST(an_operator_may_say_that_it_is_a_new_one),
        TEST(one_of_a_cluster_has_it_at_a_time),
        TEST(a_disk_that_is_exchanged_is_locked_anew),
        TEST(a_lock_that_others_made_keeps_nobody_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
