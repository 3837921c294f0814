// A Bye is answered when it is durable, and known to every later life.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/engine_play.h"

static gs_call say_bye(gs_play *play, int rank) {
    gs_engine_event bye = gs_play_message(play, rank, GS_ON_BYE);
    bye.bye.reason = GS_BYE_TARGET_REACHED;
    bye.bye.exit_code = 0;
    gs_call call = bye.from.call;
    gs_play_hear(play, &bye);
    return call;
}

static gs_job_state state_of_job(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job)->state;
}

// However many ranks leave: one write at a time, and the next for all that came meanwhile.
static void byes_wait_for_their_row_and_share_it(void **state) {
    gs_play *play = *state;
    gs_status answer;
    play->disk_waits = true;
    play->num_job_rows = 0;
    gs_call first = say_bye(play, 0), second = say_bye(play, 1), again = say_bye(play, 1);
    assert_int_equal(play->num_job_rows, 1);
    assert_false(gs_play_is_answered(play, first, &answer));
    assert_true(gs_play_is_answered(play, second, &answer));  // said again: only the last one waits
    assert_int_equal(answer.code, GS_ABORTED);
    play->disk_waits = false;
    gs_play_wait(play, gs_engine_state(play->engine)->timing.tick_ns);
    assert_true(gs_play_is_answered(play, first, &answer));
    assert_ok(answer);
    assert_true(gs_play_is_answered(play, again, &answer));
    assert_ok(answer);
    assert_int_equal(play->num_job_rows, 2);
}

static void a_disk_that_is_full_or_hangs_holds_no_rank(void **state) {
    gs_play *play = *state;
    gs_status answer;
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_call full = say_bye(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_false(gs_play_is_answered(play, full, &answer));
    play->disk_waits = true;
    gs_call hangs = say_bye(play, 1);
    gs_play_wait(play, 4 * GS_NS_PER_SEC);
    assert_true(gs_play_is_answered(play, full, &answer));
    assert_int_equal(answer.code, GS_UNAVAILABLE);
    assert_true(gs_play_is_answered(play, hangs, &answer));
    assert_int_equal(answer.code, GS_UNAVAILABLE);
    // This life knows it all the same.
    for (int i = 0; i < 2; i++) {
        gs_engine_event exited = gs_play_message(play, i, GS_ON_EXITED);
        exited.exited.exit_code = 0;
        gs_play_hear(play, &exited);
    }
    assert_int_equal(state_of_job(play), GS_JOB_SUCCEEDED);
}

static void a_bye_that_could_not_be_written_is_written_when_it_can_be(void **state) {
    gs_play *play = *state;
    gs_status answer;
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_call call = say_bye(play, 0);
    gs_play_wait(play, GS_NS_PER_SEC);
    play->disk_says = GS_OK;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(gs_play_is_answered(play, call, &answer));
    assert_ok(answer);
}

static void whose_ranks_have_left_is_done_in_the_next_life(void **state) {
    gs_play *play = *state;
    for (int i = 0; i < 2; i++) {
        say_bye(play, i);
        play->ranks[i].is_gone = true;
    }
    gs_play_reopen(play);
    assert_int_equal(state_of_job(play), GS_JOB_SUCCEEDED);
}

// Nor is anybody waited for whose worker does not come back.
static void whose_ranks_have_left_is_done_without_their_worker(void **state) {
    gs_play *play = *state;
    for (int i = 0; i < 2; i++) say_bye(play, i);
    gs_play_reopen_without_worker(play);
    gs_play_wait(play, 2 * gs_engine_state(play->engine)->timing.agent_dead_ns);
    assert_int_equal(state_of_job(play), GS_JOB_SUCCEEDED);
}

static void who_has_left_is_not_waited_for_to_come_back(void **state) {
    gs_play *play = *state;
    say_bye(play, 0);
    play->ranks[0].is_gone = true;
    gs_play_reopen(play);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_RELOADING);
    gs_play_say(play, 1, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(play)->members[0].bye.reason, GS_BYE_TARGET_REACHED);
}

static void who_leaves_without_coming_back_is_not_waited_for(void **state) {
    gs_play *play = *state;
    gs_play_reopen(play);
    gs_play_say(play, 1, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_RELOADING);
    say_bye(play, 0);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// An operator gives up who is out of reach: of one that has left nobody misses anything.
static void who_has_left_is_given_up_without_harm(void **state) {
    gs_play *play = *state;
    say_bye(play, 0);
    gs_engine_event gone = {.kind = GS_ON_CALL_GONE, .from = {.generation = -1}};
    gone.gone.call = gs_play_run(play)->members[0].stream.call;
    gs_play_hear(play, &gone);
    gs_play_lose_worker(play);
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    release.release.job = play->job_text;
    gs_play_hear(play, &release);
    assert_ok(play->answer);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    say_bye(play, 1);
    for (int i = 0; i < 2; i++) play->ranks[i].is_gone = true;
    gs_play_find_worker(play);
    assert_int_equal(state_of_job(play), GS_JOB_SUCCEEDED);
}

static int set_up_launched(void **state) {
    gs_play *play = calloc(1, sizeof *play);
    if (!play) abort();
    gs_play_open(play);
    *state = play;
    return 0;
}

// It has not told what it has, and nothing differs for that: its run begins anew, and the job is not to blame.
static void who_leaves_before_its_hello_is_not_compared(void **state) {
    gs_play *play = *state;
    gs_engine_event bye = gs_play_message(play, 0, GS_ON_BYE);
    bye.bye = (gs_bye_report){.reason = GS_BYE_OTHER, .exit_code = 75, .class = "", .error = "", .hint = ""};
    gs_play_hear(play, &bye);
    gs_play_say(play, 1, GS_ON_HELLO);
    gs_play_say(play, 1, GS_ON_PARAMS);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_LAUNCHING);
    assert_false(gs_play_run(play)->cause.set);
    gs_engine_event exited = gs_play_message(play, 0, GS_ON_EXITED);
    exited.exited.exit_code = 75;
    gs_play_hear(play, &exited);
    assert_true(gs_play_run(play)->cause.set);
    assert_false(gs_play_run(play)->no_restart);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_play_set_up_training, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(byes_wait_for_their_row_and_share_it),
        TEST(a_disk_that_is_full_or_hangs_holds_no_rank),
        TEST(a_bye_that_could_not_be_written_is_written_when_it_can_be),
        TEST(whose_ranks_have_left_is_done_in_the_next_life),
        TEST(whose_ranks_have_left_is_done_without_their_worker),
        TEST(who_has_left_is_not_waited_for_to_come_back),
        TEST(who_leaves_without_coming_back_is_not_waited_for),
        TEST(who_has_left_is_given_up_without_harm),
        cmocka_unit_test_setup_teardown(who_leaves_before_its_hello_is_not_compared, set_up_launched, gs_play_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
