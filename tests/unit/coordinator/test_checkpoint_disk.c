// A start whose checkpoints cannot be asked for: it waits, visibly, until the disk answers or somebody decides, and never
// takes an older one for the newest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/store/file_work.h"
#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define LONG_NS (120 * GS_NS_PER_SEC)

static const char other_spec[] =
    "{\"name\":\"other\",\"world\":{\"min\":2,\"max\":2},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},\"optimizer\":{\"kind\":\"sgd\"},\"steps\":{\"target\":1000}}";

static void both(gs_play *play, gs_engine_event_kind kind) {
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, kind);
}

static const gs_job *job_of(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

// It has trained, has a checkpoint of step 3, and its ranks are gone.
static int set_up(void **state) {
    gs_play *play = calloc(1, sizeof *play);
    gs_play_open(play);
    both(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    both(play, GS_ON_READY);
    both(play, GS_ON_COMM_UP);
    both(play, GS_ON_STEP);
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 3);
    play->watched_reason = "CheckpointsUnavailable";
    *state = play;
    return 0;
}

static int tear_down(void **state) {
    gs_play_close(*state);
    free(*state);
    return 0;
}

static void expect_wait(const gs_play *play) {
    assert_null(job_of(play)->run);
    assert_string_equal(job_of(play)->reason, "CheckpointsUnavailable");
    assert_int_equal(play->num_watched, 1);
}

static void a_start_waits_until_the_disk_answers(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    both(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
    assert_non_null(strstr(job_of(play)->message, "it is away"));
    play->list_says = GS_OK;
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
    assert_string_equal(job_of(play)->reason, "RestoringCheckpoint");
}

static void who_waits_for_a_disk_keeps_no_slots(void **state) {
    gs_play *play = *state;
    play->list_says = GS_PERMISSION_DENIED;
    both(play, GS_ON_EXITED);
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    const gs_job *other = gs_play_submit(play, other_spec);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(other->run);
    assert_null(job_of(play)->run);
}

static void a_disk_that_says_nothing_is_away(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    both(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(job_of(play)->run);
}

// Its list has come, late, and what it names is looked at: that is asked anew, and may take as long.
static void a_disk_that_answers_late_is_there(void **state) {
    gs_play *play = *state;
    play->disk_waits = true;
    both(play, GS_ON_EXITED);
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    expect_wait(play);
    const char *names[] = {"step-9"};
    gs_engine_event found = {.kind = GS_ON_DIRECTORIES_FOUND, .from = {.generation = -1}};
    found.done = (gs_completion){.job = play->job, .names = names, .num_names = 1};
    gs_play_hear(play, &found);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
}

static void an_operator_may_go_on_without_it(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    both(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    expect_wait(play);
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    release.release.job = play->job_text;
    play->watched_reason = "Released";
    play->num_watched = 0;
    gs_play_hear(play, &release);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_non_null(job_of(play)->run);
    assert_string_equal(job_of(play)->reason, "RestoringCheckpoint");
}

static void an_operator_may_stop_it(void **state) {
    gs_play *play = *state;
    play->list_says = GS_UNAVAILABLE;
    both(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    assert_int_equal(job_of(play)->state, GS_JOB_CANCELLED);
}

static gs_status run_work(gs_work *work) {
    gs_status status = work->base.run(&work->base, NULL);
    size_t num_names = work->num_names;
    gs_work_destroy(work);
    if (!status.code && num_names) return gs_error(GS_NOT_FOUND, "%zu are gone", num_names);
    return status;
}

// A mount point without its file system.
static void a_directory_that_had_checkpoints_is_not_gone_when_nobody_sees_it(void **state) {
    gs_play *play = *state;
    char root[] = "/tmp/test-checkpoint-disk-XXXXXX", path[200];
    assert_non_null(mkdtemp(root));
    const gs_file_root files = {.checkpoints_dir = root};
    assert_int_equal(run_work(gs_file_work_find_directories(&files, job_of(play))).code, GS_UNAVAILABLE);
    assert_int_equal(run_work(gs_file_work_check(&files, job_of(play))).code, GS_UNAVAILABLE);
    // Somebody says that there are none.
    snprintf(path, sizeof path, "%s/%s", root, play->job_text);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(run_work(gs_file_work_find_directories(&files, job_of(play))).code, GS_OK);
    assert_int_equal(run_work(gs_file_work_check(&files, job_of(play))).code, GS_NOT_FOUND);
    rmdir(path);
    rmdir(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_start_waits_until_the_disk_answers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_waits_for_a_disk_keeps_no_slots, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_says_nothing_is_away, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_answers_late_is_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_operator_may_go_on_without_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_operator_may_stop_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_directory_that_had_checkpoints_is_not_gone_when_nobody_sees_it, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
