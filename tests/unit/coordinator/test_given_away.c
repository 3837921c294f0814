// A coordinator comes back, and its job's ranks have been adopted by another cluster.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/engine_play.h"

static int set_up(void **state) {
    gs_play_set_up_training(state);
    gs_play *play = *state;
    gs_play_wait(play, GS_NS_PER_SEC / 2);
    gs_play_reopen_without_worker(play);
    return 0;
}

// Nobody is told to end, and nothing is started.
static void expect_given_away(gs_play *play) {
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    const gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    assert_int_equal(job->state, GS_JOB_CANCELLED);
    assert_string_equal(job->reason, "AdoptedElsewhere");
    assert_null(job->run);
    for (int i = 0; i < GS_PLAY_RANKS; i++)
        assert_false(play->ranks[i].ordered_to_stop || play->ranks[i].ordered_to_die);
}

static void ranks_that_were_adopted_while_nobody_was_here_train_on(void **state) {
    gs_play *play = *state;
    gs_play_find_worker_of(play, "c-elsewhere");
    expect_given_away(play);
}

// Their worker came too late: the run is over here, and the job waits for slots.
static void no_other_set_takes_the_place_of_adopted_ranks(void **state) {
    gs_play *play = *state;
    gs_play_wait(play, 1300 * GS_NS_PER_SEC);
    const gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    assert_null(job->run);
    assert_false(gs_job_state_terminal(job->state));
    gs_play_find_worker_of(play, "c-elsewhere");
    expect_given_away(play);
}

static void expect_kept(gs_play *play) {
    gs_play_wait(play, GS_NS_PER_SEC);
    const gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    assert_false(job->stop_asked);
    assert_false(gs_job_state_terminal(job->state));
}

// It has a key of a worker, and knows a job's id.
static void another_worker_gives_nobodys_job_away(void **state) {
    gs_play *play = *state;
    play->shows_key_of = "w";
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    play->shows_key_of = play->says_it_is = "v";
    play->says_it_runs = 1234;
    play->ahead = UINT32_MAX - gs_play_run(play)->generation;
    gs_play_find_worker_of(play, "c-ffffffffffffffff");
    expect_kept(play);
    play->says_it_runs = 0;  // nor with the incarnations of its ranks
    gs_play_find_worker_of(play, "c-ffffffffffffffff");
    expect_kept(play);
    assert_non_null(gs_play_run(play));
}

static void nor_a_job_that_waits(void **state) {
    gs_play *play = *state;
    gs_play_wait(play, 1300 * GS_NS_PER_SEC);
    assert_null(gs_play_run(play));
    play->shows_key_of = play->says_it_is = "v";
    gs_play_find_worker_of(play, "c-elsewhere");
    expect_kept(play);
}

static void the_worker_that_had_the_ranks_is_believed_with_its_key(void **state) {
    gs_play *play = *state;
    gs_play_wait(play, 1300 * GS_NS_PER_SEC);
    assert_null(gs_play_run(play));
    play->shows_key_of = "w";
    gs_play_find_worker_of(play, "c-elsewhere");
    expect_given_away(play);
}

// They were started anew there: the incarnations are others.
static void so_it_is_of_ranks_that_were_started_elsewhere(void **state) {
    gs_play *play = *state;
    play->shows_key_of = "w";
    play->says_it_runs = 1234;
    play->ahead = 7;
    gs_play_find_worker_of(play, "c-elsewhere");
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    assert_string_equal(gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job)->reason, "AdoptedElsewhere");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(ranks_that_were_adopted_while_nobody_was_here_train_on),
        TEST(no_other_set_takes_the_place_of_adopted_ranks),
        TEST(another_worker_gives_nobodys_job_away),
        TEST(nor_a_job_that_waits),
        TEST(the_worker_that_had_the_ranks_is_believed_with_its_key),
        TEST(so_it_is_of_ranks_that_were_started_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
