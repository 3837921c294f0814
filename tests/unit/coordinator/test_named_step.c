// An operator has a job go on from an earlier step: what is later goes, behind proof that the named one is there, and nothing else does.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/disk_play.h"

#define LONG_NS (120 * GS_NS_PER_SEC)

static void expect_nothing_lost(gs_play *play) {
    assert_int_equal(disk_play_job(play)->go_on_step, 0);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
    assert_int_equal(play->num_removals, 0);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// Later checkpoints are removed for one that the disk has, and for no other.
static void later_checkpoints_stay_until_the_named_one_is_seen(void **state) {
    gs_play *play = *state;
    gs_status answer;
    disk_play_save(play, "step-5", 5);
    disk_play_save(play, "step-9", 9);
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    play->list_says = GS_UNAVAILABLE;
    disk_play_release(play, 5);
    assert_int_equal(play->answer.code, GS_UNAVAILABLE);
    expect_nothing_lost(play);
    play->list_says = GS_OK;
    play->disk_waits = true;  // it says nothing
    disk_play_release(play, 5);
    gs_call call = play->last_call;
    assert_false(gs_play_is_answered(play, call, &answer));
    gs_play_wait(play, 11 * GS_NS_PER_SEC);
    assert_true(gs_play_is_answered(play, call, &answer));
    assert_int_equal(answer.code, GS_UNAVAILABLE);
    play->disk_waits = false;  // and then something: nobody waits for it any more
    gs_play_wait(play, GS_NS_PER_SEC);
    expect_nothing_lost(play);
    play->missing = "step-5";
    disk_play_release(play, 5);
    assert_int_equal(play->answer.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(play->answer.message, "there are: 3, 9"));
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    play->missing = NULL;
    disk_play_release(play, 3);
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 3);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
}

// Who has said Bye is missed by nobody: the others train on, and what they save is of the run that there is.
static void a_run_that_a_release_does_not_end_keeps_its_checkpoints(void **state) {
    gs_play *play = *state;
    disk_play_save(play, "step-9", 9);
    gs_engine_event bye = gs_play_message(play, 0, GS_ON_BYE);
    bye.bye.reason = GS_BYE_TARGET_REACHED;
    gs_play_hear(play, &bye);
    gs_engine_event gone = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
    gone.gone.call = gs_play_run(play)->members[0].stream.call;
    gs_play_hear(play, &gone);
    gs_play_lose_worker(play);
    disk_play_release(play, 3);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);
    expect_nothing_lost(play);
    assert_int_equal(gs_play_run(play)->members[0].stage, GS_MEMBER_LEAVING);
}

// Its manifest was there, and its bytes are not what they were: a rank finds out, and what is later is still there.
static void a_named_checkpoint_that_is_damaged_loses_nothing(void **state) {
    gs_play *play = *state;
    disk_play_save(play, "step-9", 9);
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    play->watched_reason = "NamedCheckpointLost";
    gs_job *job = gs_play_run(play)->job;
    disk_play_release(play, 3);
    assert_int_equal(play->answer.code, GS_OK);
    job->spec.checkpoint.keep_last = 1;  // it is the oldest
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(disk_play_job(play)->run);
    disk_play_hear_of(play, GS_ON_CHECKPOINTS_CHECKED, "another");
    assert_int_equal(disk_play_state_of(play, "step-3"), GS_CHECKPOINT_GOOD);
    play->missing = "step-3";  // it is bad-step-3 now
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_int_equal(disk_play_job(play)->go_on_step, 0);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 9);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
}

static void an_operator_names_the_step_to_go_on_from(void **state) {
    gs_play *play = *state;
    disk_play_save(play, "step-5", 5);
    disk_play_save(play, "step-9", 9);
    disk_play_release(play, 5);
    assert_int_equal(play->answer.code, GS_FAILED_PRECONDITION);  // its ranks are heard
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    uint64_t former = gs_play_run(play)->members[0].incarnation;
    disk_play_release(play, 7);
    assert_int_equal(play->answer.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(play->answer.message, "there are: 3, 5, 9"));
    assert_int_equal(gs_play_run(play)->members[0].incarnation, former);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 9);
    disk_play_release(play, 5);
    assert_int_equal(play->answer.code, GS_OK);
    assert_int_equal(disk_play_job(play)->go_on_step, 5);
    play->list_says = GS_UNAVAILABLE;
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_null(disk_play_job(play)->run);  // the disk is asked for it, as ever
    play->list_says = GS_OK;
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(disk_play_job(play)->run);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 5);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);  // until the ranks have begun
    // A later one of the set before it is none; one of the set that goes on from there is.
    assert_int_equal(disk_play_job(play)->go_on_step, 5);
    disk_play_save(play, "step-9b", 9);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 5);
    disk_play_begin_from(play, 5);
    assert_int_equal(disk_play_job(play)->go_on_step, 0);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_DELETING);
    disk_play_save(play, "step-9c", 9);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 9);
}

// What is being read when a step is named, and what is found behind that, is neither waited for nor left on the disk.
static void what_is_later_goes_also_when_it_is_still_being_read(void **state) {
    gs_play *play = *state;
    disk_play_save(play, "step-5", 5);
    play->verify_waits = true;
    disk_play_save(play, "step-9", 9);
    gs_play_close_lines(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    disk_play_release(play, 5);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(disk_play_job(play)->run);
    disk_play_find_whole(play, "step-9b", 9);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_VERIFYING);
    int removals = play->num_removals;
    disk_play_begin_from(play, 5);
    assert_int_equal(play->num_removals, removals + 2);
    disk_play_hear_of(play, GS_ON_VERIFIED, "step-9");
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 5);
}

static void a_step_that_was_named_outlives_the_coordinator(void **state) {
    gs_play *play = *state;
    disk_play_save(play, "step-9", 9);
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, LONG_NS);
    disk_play_expect_wait(play);
    gs_play_lose_worker(play);
    play->list_says = GS_OK;
    disk_play_release(play, 3);
    assert_int_equal(play->answer.code, GS_OK);
    gs_play_reopen_without_worker(play);
    assert_int_equal(disk_play_job(play)->go_on_step, 3);
    assert_int_equal(disk_play_job(play)->checkpoints.most_step, 3);
    // Its row was not durable, and its files are gone: no start from the beginning beside later ones.
    play->watched_reason = "NamedCheckpointLost";
    play->num_watched = 0;
    int num_finds = play->num_finds;
    gs_play_find_worker(play);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(play->num_watched, 1);
    assert_int_equal(disk_play_job(play)->go_on_step, 0);
    assert_int_equal(play->num_finds, num_finds + 2);  // also those that were not taken
    assert_non_null(disk_play_job(play)->run);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, disk_play_set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_named_checkpoint_that_is_damaged_loses_nothing),
        TEST(an_operator_names_the_step_to_go_on_from),
        TEST(what_is_later_goes_also_when_it_is_still_being_read),
        TEST(later_checkpoints_stay_until_the_named_one_is_seen),
        TEST(a_run_that_a_release_does_not_end_keeps_its_checkpoints),
        TEST(a_step_that_was_named_outlives_the_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
