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

static const gs_seen_life first_life = {"c", 1, 1, false}, second_life = {"c", 2, 2, false}, life_of_copy = {"c", 2, OF_COPY, false};

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
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 4, 4, false}));
    gs_play_wait(play, gs_timing_default.grace_ns + GS_NS_PER_SEC);
    assert_true(is_old(play));
}

// It was cut off while a copy was there, and the right one all the while.
static void a_worker_that_has_stayed_knows_the_life_that_it_is_in(void **state) {
    gs_play *play = *state;
    find_worker(play, second_life);
    assert_true(is_welcome(play, 1, second_life));
    gs_play_wait(play, gs_timing_default.agent_grace_ns);
    assert_true(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY, false}));
    assert_false(is_old(play));
}

// A copy that was started when this one was has the same epoch: workers that come back know only the life before.
static void workers_have_the_time_to_know_the_life_that_they_are_in(void **state) {
    gs_play *play = *state;
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY, false}));
    gs_play_wait(play, GS_NS_PER_SEC);
    find_worker(play, second_life);
    gs_play_wait(play, gs_timing_default.agent_grace_ns - GS_NS_PER_SEC);
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY, false}));
    assert_false(is_old(play));
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_true(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY, false}));
    assert_false(is_old(play));
}

// And no longer than that.
static void a_worker_that_leaves_knows_nothing(void **state) {
    gs_play *play = *state;
    find_worker(play, second_life);
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 3, OF_COPY, false}));
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

// For the moment until its process ends.
static void who_speaks_to_an_old_copy_is_refused(void **state) {
    gs_play *play = *state;
    find_worker(play, life_of_copy);
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    release.release.job = play->job_text;
    gs_play_hear(play, &release);
    assert_true(play->answered);
    assert_int_equal(play->answer.code, GS_UNAVAILABLE);
    find_worker(play, first_life);  // it knows of no later one, and would be told what to end
    gs_status answer;
    assert_true(gs_play_is_answered(play, play->agent_stream, &answer));
    assert_int_equal(answer.code, GS_UNAVAILABLE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, gs_play_tear_down)

// As after a backup that was put back: the life is known, and has gone on behind it.
static void a_worker_that_runs_a_generation_of_later_ends_it(void **state) {
    gs_play *play = *state;
    play->seen_by_worker = second_life;
    play->ahead = 2 * GS_GENERATION_BLOCK - 1;  // the last that a life before may have given out
    gs_play_find_worker_of(play, "c");
    assert_false(is_old(play));
    gs_play_lose_worker(play);
    play->ahead++;
    gs_play_find_worker_of(play, "");  // of an earlier version: nobody knows whose
    assert_false(is_old(play));
    gs_play_lose_worker(play);
    for (int i = 0; i < GS_PLAY_RANKS; i++) play->ranks[i].ordered_to_stop = play->ranks[i].ordered_to_die = false;
    gs_play_find_worker_of(play, "c");
    assert_true(is_old(play));
    assert_int_equal(gs_engine_state(play->engine)->cluster.later_generation, 3 * GS_GENERATION_BLOCK);
    for (int i = 0; i < GS_PLAY_RANKS; i++) assert_false(play->ranks[i].ordered_to_stop || play->ranks[i].ordered_to_die);
}

static gs_code say_hello_as_stranger(gs_play *play, const char *cluster, uint32_t generation) {
    gs_engine_event hello = gs_play_message(play, 0, GS_ON_HELLO);
    hello.from.who.incarnation = hello.hello.incarnation = 1000;
    hello.hello.seen = first_life;
    hello.hello.cluster = cluster;
    hello.hello.backend_generation = generation;
    gs_play_hear(play, &hello);
    assert_true(play->answered);
    return play->answer.code;
}

// Before its worker, or behind it: until the process ends.
static void a_trainer_of_later_asks_again(void **state) {
    gs_play *play = *state;
    uint32_t next = gs_engine_state(play->engine)->generations.next;
    assert_int_equal(say_hello_as_stranger(play, "c", next), GS_UNAVAILABLE);
    assert_int_equal(say_hello_as_stranger(play, "c", next - 1), GS_ABORTED);
    assert_int_equal(say_hello_as_stranger(play, "another", next), GS_NOT_FOUND);
    assert_false(is_old(play));  // by its word alone
    find_worker(play, life_of_copy);
    assert_true(is_old(play));
    assert_int_equal(say_hello_as_stranger(play, "c", next - 1), GS_UNAVAILABLE);
}

// Its ranks have ended, and a fence of theirs is left: the numbers that a copy gives would stay below it.
static void who_comes_next_is_not_kept_out_by_a_fence_of_later(void **state) {
    gs_play *play = *state;
    uint32_t next = gs_engine_state(play->engine)->generations.next;
    for (int i = 0; i < GS_PLAY_RANKS; i++) play->ranks[i].is_gone = true;
    play->watched_reason = "OtherDatabase";
    play->left_by = next + GS_GENERATION_BLOCK - 1;  // the next life's are above
    gs_play_reopen_without_worker(play);
    assert_int_equal(play->num_watched, 0);
    play->left_by = next + 5 * GS_GENERATION_BLOCK;
    gs_play_reopen_without_worker(play);
    assert_int_equal(play->num_watched, 1);
    find_worker(play, second_life);
    for (int i = 0; i < 1000 && !(gs_play_run(play) && gs_play_run(play)->phase == GS_RUN_LAUNCHING); i++)
        gs_play_wait(play, 20 * GS_NS_PER_MS);
    gs_play_say_all(play, GS_ON_HELLO);
    if (gs_play_run(play)->members[0].list_asked) gs_play_say(play, 0, GS_ON_PARAMS);
    assert_true(gs_play_run(play)->generation > play->left_by);
    assert_int_equal(play->num_watched, 1);
    assert_false(is_old(play));
}

// Trainers can write such a file, with any number: those that are left after it would be used up in no time.
static void a_fence_of_far_above_is_not_believed(void **state) {
    gs_play *play = *state;
    static const uint32_t made_up[] = {UINT32_C(4293960000), UINT32_C(4293960000), UINT32_MAX, UINT32_C(900000000)};
    play->watched_reason = "ImplausibleFence";
    for (int i = 0; i < 4; i++) {
        play->left_by = made_up[i];
        gs_play_reopen_without_worker(play);
        assert_int_equal(play->num_watched, i + 1);
        assert_true(gs_engine_state(play->engine)->generations.next < 1000 * GS_GENERATION_BLOCK);
    }
}

// The disk answers before the worker has connected again: numbers have leapt above what it runs.
static void a_fence_of_later_does_not_hide_who_still_runs(void **state) {
    gs_play *play = *state;
    uint32_t generation = gs_play_run(play)->generation;
    play->seen_by_worker = second_life;
    play->watched_reason = "OtherDatabase";
    play->left_by = gs_engine_state(play->engine)->generations.next + 5 * GS_GENERATION_BLOCK;
    gs_play_reopen_without_worker(play);
    assert_int_equal(play->num_watched, 1);
    assert_true(gs_engine_state(play->engine)->generations.next > play->left_by);
    play->ahead = play->left_by - generation;
    gs_play_find_worker_of(play, "c");
    assert_true(is_old(play));
    assert_int_equal(gs_engine_state(play->engine)->cluster.later_generation, play->left_by);
    for (int i = 0; i < GS_PLAY_RANKS; i++) assert_false(play->ranks[i].ordered_to_stop || play->ranks[i].ordered_to_die);
}

// Any worker could make it up.
static void what_a_key_says_without_a_proof_ends_nobody(void **state) {
    gs_play *play = *state;
    play->shows_key_of = "w";
    play->watched_reason = "UnprovenLife";
    for (int i = 0; i < 3; i++) find_worker(play, (gs_seen_life){"c", 1000000, 7, .is_doubtful = true});
    gs_status answer;
    assert_true(gs_play_is_answered(play, play->agent_stream, &answer));
    assert_int_equal(answer.code, GS_UNAVAILABLE);
    assert_false(is_old(play));
    assert_int_equal(play->num_watched, 1);
    find_worker(play, second_life);
    assert_false(is_welcome(play, 0, (gs_seen_life){"c", 1000000, 7, .is_doubtful = true}));
    gs_play_wait(play, gs_timing_default.grace_ns + GS_NS_PER_SEC);
    assert_false(is_old(play));
    assert_non_null(gs_play_run(play));
    find_worker(play, life_of_copy);  // with a proof
    assert_true(is_old(play));
}

static void nor_do_numbers_that_no_other_life_is_shown_to_have_reserved(void **state) {
    gs_play *play = *state;
    play->shows_key_of = "w";
    play->seen_by_worker = second_life;
    play->ahead = 5 * GS_GENERATION_BLOCK;
    gs_play_find_worker_of(play, "c");
    assert_false(is_old(play));
    play->shows_numbers_below = gs_play_run(play)->generation + play->ahead;
    gs_play_find_worker_of(play, "c");
    assert_false(is_old(play));
    play->shows_numbers_below++;
    gs_play_find_worker_of(play, "c");
    assert_true(is_old(play));
}

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
        TEST(who_speaks_to_an_old_copy_is_refused),
        TEST(a_worker_that_runs_a_generation_of_later_ends_it),
        TEST(a_trainer_of_later_asks_again),
        TEST(what_a_key_says_without_a_proof_ends_nobody),
        TEST(nor_do_numbers_that_no_other_life_is_shown_to_have_reserved),
        TEST(a_fence_of_later_does_not_hide_who_still_runs),
        TEST(a_fence_of_far_above_is_not_believed),
        TEST(who_comes_next_is_not_kept_out_by_a_fence_of_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
