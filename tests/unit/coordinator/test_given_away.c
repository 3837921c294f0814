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

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(ranks_that_were_adopted_while_nobody_was_here_train_on),
        TEST(no_other_set_takes_the_place_of_adopted_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
