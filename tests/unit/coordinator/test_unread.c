// Checkpoints that nobody has read yet: whom they keep waiting, and whom not; and those that could not be read.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/disk_play.h"

#define PAUSE_NS (5 * GS_NS_PER_SEC)

static void begin_again(gs_play *play) {
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, PAUSE_NS);
}

static bool is_known(const gs_play *play, const char *directory) {
    return gs_checkpoints_find(&disk_play_job(play)->checkpoints, directory) != NULL;
}

static void tell_verdict(gs_play *play, const char *directory, gs_code code) {
    play->verify_says = code;
    gs_engine_event event = {.kind = GS_ON_VERIFIED, .from = {.generation = -1}};
    event.done = (gs_completion){.job = play->job, .directory = directory};
    if (code) event.done.status = gs_error(code, "no");
    gs_play_hear(play, &event);
    play->verify_says = GS_OK;
}

static void what_ranks_have_saved_starts_before_somebody_else_has_read_it(void **state) {
    gs_play *play = *state;
    play->verify_waits = true;
    disk_play_save(play, "step-9", 9);
    begin_again(play);
    assert_non_null(disk_play_job(play)->run);
    assert_int_equal(disk_play_job(play)->begun_step, 9);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_VERIFYING);
    disk_play_hear_of(play, GS_ON_VERIFIED, "step-9");
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
}

// Nobody has told of it in this life: it is read first, unless that takes long.
static void what_was_found_is_read_first_for_a_while(void **state) {
    gs_play *play = *state;
    play->verify_waits = true;
    disk_play_find_whole(play, "step-9", 9);
    begin_again(play);
    assert_null(gs_play_run(play) && gs_play_run(play)->num_members && !gs_run_all_exited(gs_play_run(play)) ? play : NULL);
    gs_play_wait(play, 2 * PAUSE_NS);
    assert_non_null(disk_play_job(play)->run);
    assert_int_equal(disk_play_job(play)->begun_step, 9);
}

// Its ranks read all of it, too: one that is not as it should be ends their start, and the next takes an older one.
static void one_that_is_damaged_after_all_costs_a_start(void **state) {
    gs_play *play = *state;
    play->verify_waits = true;
    disk_play_save(play, "step-9", 9);
    begin_again(play);
    assert_int_equal(disk_play_job(play)->begun_step, 9);
    tell_verdict(play, "step-9", GS_DATA_LOSS);
    assert_false(is_known(play, "step-9"));
    begin_again(play);
    assert_non_null(disk_play_job(play)->run);
    assert_int_equal(disk_play_job(play)->begun_step, 3);
}

// A rank has put it aside before it was read here.
static void one_that_is_gone_before_it_is_read_is_started_from_once(void **state) {
    gs_play *play = *state;
    play->verify_waits = true;
    disk_play_save(play, "step-9", 9);
    begin_again(play);
    assert_int_equal(disk_play_job(play)->begun_step, 9);
    play->missing = "step-9";
    begin_again(play);
    assert_non_null(disk_play_job(play)->run);
    assert_int_equal(disk_play_job(play)->begun_step, 3);
    tell_verdict(play, "step-9", GS_NOT_FOUND);
    assert_int_equal(gs_checkpoints_newest_step(&disk_play_job(play)->checkpoints), 3);
}

// Who could not read it may be right: a start waits until somebody can.
static void what_cannot_be_read_is_not_started_from(void **state) {
    gs_play *play = *state;
    play->verify_says = GS_UNAVAILABLE;
    disk_play_save(play, "step-9", 9);
    begin_again(play);
    assert_true(gs_run_all_exited(gs_play_run(play)));
    play->verify_says = GS_OK;
    gs_play_wait(play, PAUSE_NS);
    assert_int_equal(disk_play_job(play)->begun_step, 9);
    assert_false(gs_run_all_exited(gs_play_run(play)));
}

// A later one was started from meanwhile: it is the job's all the same, and not a directory that nobody knows.
static void what_could_not_be_read_stays_the_jobs(void **state) {
    gs_play *play = *state;
    play->verify_says = GS_UNAVAILABLE;
    disk_play_save(play, "step-8", 8);
    play->list_says = GS_UNAVAILABLE;
    play->verify_says = GS_OK;
    disk_play_save(play, "step-9", 9);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 4 * PAUSE_NS);
    disk_play_expect_wait(play);
    disk_play_release(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    disk_play_begin_from(play, 9);
    assert_int_equal(disk_play_state_of(play, "step-8"), GS_CHECKPOINT_VERIFYING);
    play->list_says = GS_OK;
    gs_play_wait(play, 3 * PAUSE_NS);
    assert_int_equal(disk_play_state_of(play, "step-8"), GS_CHECKPOINT_GOOD);
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
}

// Nothing waits for it, and what it leaves has been read when it is over; a disk that hangs does not keep it.
static void an_end_waits_for_what_is_read_and_not_for_ever(void **state) {
    gs_play *play = *state;
    play->verify_waits = true;
    disk_play_save(play, "step-9", 9);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_engine_event bye = gs_play_message(play, i, GS_ON_BYE);
        bye.bye.reason = GS_BYE_TARGET_REACHED;
        gs_play_hear(play, &bye);
    }
    begin_again(play);
    assert_false(gs_job_state_terminal(disk_play_job(play)->state));
    gs_play_wait(play, 2 * PAUSE_NS);
    assert_int_equal(disk_play_job(play)->state, GS_JOB_SUCCEEDED);
    disk_play_hear_of(play, GS_ON_VERIFIED, "step-9");
    assert_int_equal(disk_play_state_of(play, "step-9"), GS_CHECKPOINT_GOOD);
}

// Nobody asks any more, and it is not remembered as being read.
static void behind_an_end_what_cannot_be_read_is_let_go(void **state) {
    gs_play *play = *state;
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = 0};
    gs_play_hear(play, &stop);
    play->verify_says = GS_UNAVAILABLE;
    disk_play_save(play, "step-9", 9);
    play->list_says = GS_UNAVAILABLE;
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 60 * GS_NS_PER_SEC);
    assert_int_equal(disk_play_job(play)->state, GS_JOB_CANCELLED);
    assert_false(is_known(play, "step-9"));
    assert_false(gs_checkpoints_pending(&disk_play_job(play)->checkpoints));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, disk_play_set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_ranks_have_saved_starts_before_somebody_else_has_read_it),
        TEST(what_was_found_is_read_first_for_a_while),
        TEST(one_that_is_damaged_after_all_costs_a_start),
        TEST(one_that_is_gone_before_it_is_read_is_started_from_once),
        TEST(what_cannot_be_read_is_not_started_from),
        TEST(what_could_not_be_read_stays_the_jobs),
        TEST(an_end_waits_for_what_is_read_and_not_for_ever),
        TEST(behind_an_end_what_cannot_be_read_is_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
