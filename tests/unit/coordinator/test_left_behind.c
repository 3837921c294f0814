// What ranks save that were given up, and what a job leaves on the disk: whose it is, and until when it is looked for.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/store/file_work.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/disk_play.h"

// Its ranks are gone, and these are on the disk, which takes long to look at each.
static void end_and_find(gs_play *play, const char *const *names, size_t num_names) {
    play->disk_waits = true;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_engine_event list = {.kind = GS_ON_DIRECTORIES_FOUND, .from = {.generation = -1}};
    list.done = (gs_completion){.job = play->job, .names = names, .num_names = num_names};
    gs_play_hear(play, &list);
}

// An operator had the job start without it: what was asked before that is told behind it, and is of ranks that were given up.
static void what_a_slow_disk_tells_behind_a_start_without_it_is_left_behind(void **state) {
    gs_play *play = *state;
    const char *names[] = {"step-7", "step-8", "step-9"};
    uint32_t former = disk_play_job(play)->generation;
    end_and_find(play, names, 3);
    play->verify_waits = true;
    disk_play_find_whole_of(play, former, "step-7", 7);
    assert_int_equal(disk_play_state_of(play, "step-7"), GS_CHECKPOINT_VERIFYING);
    gs_play_wait(play, 15 * GS_NS_PER_SEC);
    disk_play_expect_wait(play);
    disk_play_release(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(play)->generation, 0);
    disk_play_expect_unknown(play, "step-7");
    disk_play_hear_of(play, GS_ON_VERIFIED, "step-7");
    disk_play_find_whole_of(play, former, "step-8", 8);
    disk_play_expect_unknown(play, "step-8");
    disk_play_begin_from(play, 3);
    disk_play_find_whole_of(play, former, "step-9", 9);
    disk_play_expect_unknown(play, "step-9");
    disk_play_find_whole(play, "step-5", 5);  // it does not say whose it is
    assert_int_equal(disk_play_state_of(play, "step-5"), GS_CHECKPOINT_VERIFYING);
}

static void start_without_disk(gs_play *play) {
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    disk_play_expect_wait(play);
    disk_play_release(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(disk_play_job(play)->left_generation, disk_play_job(play)->generation);
    play->list_says = GS_OK;
}

static void form_generation(gs_play *play) {
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_PREPARING);
}

// Its ranks have taken no step, also where they had a generation already: what lies there is lost for nothing.
static void a_start_without_a_disk_that_comes_to_nothing_loses_nothing(void **state) {
    for (int is_formed = 0; is_formed < 2; is_formed++) {
        gs_play *play = *state;
        if (is_formed) disk_play_set_up(state), play = *state;
        play->found_generation = disk_play_job(play)->generation;
        start_without_disk(play);
        if (is_formed) form_generation(play);
        assert_int_equal(disk_play_job(play)->generation > play->found_generation, is_formed);
        gs_play_run(play)->job->checkpoints.looking++;
        disk_play_find_whole_of(play, play->found_generation, "step-9", 9);
        disk_play_expect_unknown(play, "step-9");
        play->found = "step-9";
        play->found_step = 9;
        gs_play_say_all(play, GS_ON_EXITED);
        gs_play_wait(play, 30 * GS_NS_PER_SEC);
        assert_non_null(disk_play_job(play)->run);
        assert_int_equal(disk_play_job(play)->left_generation, 0);
        assert_int_equal(disk_play_job(play)->begun_step, 9);
        assert_string_equal(disk_play_job(play)->begun_directory, "step-9");
        if (!is_formed) gs_play_tear_down(state);
    }
}

static void start_anew(gs_play *play) {
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(play)->generation, 0);
    assert_int_equal(disk_play_job(play)->begun_step, 3);
}

// Nobody sees it end: no run of it is in the job's row.
static void nor_does_one_that_the_coordinator_does_not_outlive(void **state) {
    gs_play *play = *state;
    play->found_generation = disk_play_job(play)->generation;
    start_without_disk(play);
    form_generation(play);
    play->found = "step-9";
    play->found_step = 9;
    gs_play_reopen(play);
    assert_null(gs_play_run(play));
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_string_equal(disk_play_job(play)->begun_directory, "step-9");
}

// Ranks that were given up save late, while others begin from an earlier step: it would be the newest for as long as those have not come
// as far, what they save would go for it, and the next start would go on from it.
static void what_is_saved_late_is_left_behind_by_ranks_that_begin(void **state) {
    gs_play *play = *state;
    uint32_t former = disk_play_job(play)->generation;
    start_anew(play);
    gs_play_run(play)->job->checkpoints.looking++;
    disk_play_find_whole_of(play, former, "step-40", 40);
    disk_play_expect_unknown(play, "step-40");
    disk_play_begin_from(play, 3);
    gs_play_run(play)->job->checkpoints.looking++;
    disk_play_find_whole_of(play, former, "step-41", 41);
    disk_play_expect_unknown(play, "step-41");
    gs_play_run(play)->job->checkpoints.looking++;
    disk_play_find_whole_of(play, disk_play_job(play)->generation, "step-6", 6);
    assert_int_equal(disk_play_state_of(play, "step-6"), GS_CHECKPOINT_GOOD);
}

// Where they do not come to begin it is the job's, whether it starts again or ends.
static void what_is_saved_late_is_the_jobs_where_no_rank_has_begun(void **state) {
    for (int ends = 0; ends < 2; ends++) {
        gs_play *play = *state;
        if (ends) disk_play_set_up(state), play = *state;
        uint32_t former = disk_play_job(play)->generation;
        start_anew(play);
        gs_play_run(play)->job->checkpoints.looking++;
        disk_play_find_whole_of(play, former, "step-40", 40);
        disk_play_expect_unknown(play, "step-40");
        play->found = "step-40";
        play->found_step = 40;
        play->found_generation = former;
        gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
        stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
        if (ends) gs_play_hear(play, &stop);
        gs_play_say_all(play, GS_ON_EXITED);
        gs_play_wait(play, 30 * GS_NS_PER_SEC);
        assert_int_equal(gs_job_state_terminal(disk_play_job(play)->state), ends);
        assert_int_equal(disk_play_state_of(play, "step-40"), GS_CHECKPOINT_GOOD);
        if (!ends) assert_int_equal(disk_play_job(play)->begun_step, 40);
        if (!ends) gs_play_tear_down(state);
    }
}

// Behind the long work on files: neither a start nor a commit waits for it.
static void a_job_is_swept_until_its_last_save_must_be_over(void **state) {
    gs_play *play = *state;
    gs_play_wait(play, 1300 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, 2);
    gs_work *work = gs_file_work_sweep(&(gs_file_root){.checkpoints_dir = "/nowhere"}, disk_play_job(play));
    assert_int_equal(work->base.lane, GS_LANE_BULK);
    gs_work_destroy(work);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
    gs_play_hear(play, &stop);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 700 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, 3);
    gs_play_wait(play, 4200 * GS_NS_PER_SEC);
    assert_in_range(play->num_sweeps, 10, 11);
    const int last = play->num_sweeps;
    gs_play_wait(play, 7200 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, last);
}

static void ended_earlier(gs_play *play, int seconds) {
    gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    job->ended_ns -= seconds * GS_NS_PER_SEC;
}

// What a life has seen of it goes with the life: the next one looks as long, at jobs that ended shortly before it.
static void a_job_that_ended_before_this_life_is_swept_if_it_was_lately(void **state) {
    gs_play *play = *state;
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
    gs_play_hear(play, &stop);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_reopen_without_worker(play);
    assert_int_equal(disk_play_job(play)->state, GS_JOB_CANCELLED);
    ended_earlier(play, 3000);
    gs_play_wait(play, 9000 * GS_NS_PER_SEC);
    assert_in_range(play->num_sweeps, 7, 8);
    const int last = play->num_sweeps;
    gs_play_reopen_without_worker(play);
    ended_earlier(play, 9000);
    gs_play_wait(play, 9000 * GS_NS_PER_SEC);
    assert_int_equal(play->num_sweeps, last);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, disk_play_set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_job_is_swept_until_its_last_save_must_be_over),
        TEST(a_job_that_ended_before_this_life_is_swept_if_it_was_lately),
        TEST(what_a_slow_disk_tells_behind_a_start_without_it_is_left_behind),
        TEST(a_start_without_a_disk_that_comes_to_nothing_loses_nothing),
        TEST(nor_does_one_that_the_coordinator_does_not_outlive),
        TEST(what_is_saved_late_is_left_behind_by_ranks_that_begin),
        TEST(what_is_saved_late_is_the_jobs_where_no_rank_has_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
