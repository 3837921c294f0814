// Two coordinators on copies of one database, one after the other at the same address: trainers and workers have seen the
// one or the other. Which of them ends?
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define OF_COPY 99  // the life that a copy drew at its start

static const gs_seen_life first_life = {"c", 1, 1}, second_life = {"c", 2, 2}, life_of_copy = {"c", 2, OF_COPY};

// It has trained in the first life, and this is the third; in the second's place a copy was there for a moment.
static int set_up(void **state) {
    gs_play_set_up_training(state);
    gs_play *play = *state;
    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_reopen_without_worker(play);
    assert_int_equal(gs_engine_state(play->engine)->cluster.epoch, 3);
    return 0;
}

// Its stream stays open: it is welcome.
static bool is_welcome(gs_play *play, int rank, gs_seen_life seen) {
    gs_engine_event hello = gs_play_message(play, rank, GS_ON_HELLO);
    hello.hello.seen = seen;
    gs_play_hear(play, &hello);
    if (play->answered) assert_int_equal(play->answer.code, GS_UNAVAILABLE);  // it asks again
    return !play->answered;
}

static bool is_old(const gs_play *play) { return gs_engine_state(play->engine)->cluster.is_old_copy; }

static void find_worker(gs_play *play, gs_seen_life seen) {
    play->seen_by_worker = seen;
    gs_play_find_worker(play);
}

static void a_trainer_that_a_copy_has_welcomed_does_not_end_the_right_one(void **state) {
    gs_play *play = *state;
    uint32_t generation = gs_play_run(play)->generation;
    assert_false(is_welcome(play, 0, life_of_copy));  // before any worker is there
    assert_false(is_old(play));
    gs_play_wait(play, GS_NS_PER_SEC);
    find_worker(play, second_life);
    assert_true(is_welcome(play, 0, life_of_copy));
    assert_true(is_welcome(play, 1, second_life));
    gs_play_wait(play, 2 * gs_timing_default.grace_ns);
    assert_false(is_old(play));
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->generation, generation);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

static void nobody_is_judged_before_a_worker_has_spoken(void **state) {
    gs_play *play = *state;
    assert_false(is_welcome(play, 0, life_of_copy));
    gs_play_wait(play, gs_timing_default.grace_ns - GS_NS_PER_SEC);
    assert_false(is_old(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_RELOADING);
    // None does.
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_true(is_old(play));
    assert_int_equal(gs_engine_state(play->engine)->cluster.later_epoch, 2);
    for (int i = 0; i < GS_PLAY_RANKS; i++)
        assert_false(play->ranks[i].ordered_to_stop || play->ranks[i].ordered_to_die);
}

// It has heard nobody meanwhile: who denies it may be about to.
static void a_standstill_is_no_time_to_deny(void **state) {
    gs_play *play = *state;
    assert_false(is_welcome(play, 0, life_of_copy));
    gs_play_wait(play, GS_NS_PER_SEC);
    play->now_ns += 30 * GS_NS_PER_SEC;
    gs_play_wait(play, gs_timing_default.grace_ns - 2 * GS_NS_PER_SEC);
    assert_false(is_old(play));
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_true(is_old(play));
}

// On the copy: the worker has not heard of the life that it is behind, and a trainer has.
static void a_worker_that_knows_less_denies_nothing(void **state) {
    gs_play *play = *state;
    find_worker(play, first_life);
    assert_false(is_welcome(play, 0, life_of_copy));
    gs_play_wait(play, gs_timing_default.grace_ns + GS_NS_PER_SEC);
    assert_true(is_old(play));
}

static void a_later_life_is_denied_by_nobody(void **state) {
    gs_play *play = *state;
    find_worker(play, second_life);
    gs_play_wait(play, 2 * gs_timing_default.agent_grace_ns);
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 4, 4}));
    gs_play_wait(play, gs_timing_default.grace_ns + GS_NS_PER_SEC);
    assert_true(is_old(play));
}

// It was cut off while a copy was there, and the right one all the while.
static void a_worker_that_has_stayed_knows_the_life_that_it_is_in(void **state) {
    gs_play *play = *state;
    find_worker(play, second_life);
    assert_true(is_welcome(play, 1, second_life));
    gs_play_wait(play, gs_timing_default.agent_grace_ns);
    assert_true(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY}));
    assert_false(is_old(play));
}

// A copy that was started when this one was has the same epoch: workers that come back know only the life before.
static void workers_have_the_time_to_know_the_life_that_they_are_in(void **state) {
    gs_play *play = *state;
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY}));
    gs_play_wait(play, GS_NS_PER_SEC);
    find_worker(play, second_life);
    gs_play_wait(play, gs_timing_default.agent_grace_ns - GS_NS_PER_SEC);
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY}));
    assert_false(is_old(play));
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_true(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY}));
    assert_false(is_old(play));
}

// And no longer than that.
static void a_worker_that_leaves_knows_nothing(void **state) {
    gs_play *play = *state;
    find_worker(play, second_life);
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY}));
    gs_play_wait(play, gs_timing_default.agent_grace_ns - GS_NS_PER_SEC);
    assert_false(is_old(play));
    gs_play_lose_worker(play);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(is_old(play));
}

static void what_a_worker_says_is_believed(void **state) {
    gs_play *play = *state;
    find_worker(play, life_of_copy);
    assert_true(is_old(play));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_trainer_that_a_copy_has_welcomed_does_not_end_the_right_one),
        TEST(nobody_is_judged_before_a_worker_has_spoken),
        TEST(a_standstill_is_no_time_to_deny),
        TEST(a_worker_that_knows_less_denies_nothing),
        TEST(a_later_life_is_denied_by_nobody),
        TEST(a_worker_that_has_stayed_knows_the_life_that_it_is_in),
        TEST(workers_have_the_time_to_know_the_life_that_they_are_in),
        TEST(a_worker_that_leaves_knows_nothing),
        TEST(what_a_worker_says_is_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
