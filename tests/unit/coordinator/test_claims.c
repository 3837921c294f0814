// A rank that lies about its step: nobody applies a step that the others do not come to.
// Row M9 of docs/faults.md.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define HONEST 0
#define OTHER 1
#define TARGET 1000  // of the play's job

static void to_training(gs_play *play) {
    gs_play_open(play);
    const gs_engine_event_kind road[] = {GS_ON_HELLO, GS_ON_READY, GS_ON_COMM_UP, GS_ON_STEP};
    for (size_t i = 0; i < sizeof road / sizeof road[0]; i++) {
        gs_play_say(play, OTHER, road[i]);
        gs_play_say(play, HONEST, road[i]);
        if (road[i] == GS_ON_HELLO) gs_play_say(play, HONEST, GS_ON_PARAMS);
    }
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

static void tell_step(gs_play *play, int rank, int64_t step) {
    gs_engine_event event = gs_play_message(play, rank, GS_ON_STEP);
    event.step.applied_step = step;
    gs_play_hear(play, &event);
}

static void beat(gs_play *play, int rank, int64_t step) {
    gs_engine_event event = gs_play_message(play, rank, GS_ON_HEARTBEAT);
    event.heartbeat.applied_step = step;
    gs_play_hear(play, &event);
}

static void assert_blamed(const gs_play *play, int rank, int64_t step) {
    const gs_run *run = gs_play_run(play);
    assert_true(run->phase >= GS_RUN_SETTLING);
    assert_int_equal(run->cause.member, rank);
    assert_string_equal(run->cause.reason, "StateMismatch");
    assert_int_equal(run->step, step);
    assert_int_equal(run->job->step, step);
    assert_true(play->ranks[rank].ordered_to_die);
    assert_false(play->ranks[1 - rank].ordered_to_die);
}

static void a_step_beyond_the_target_is_nobodys(void **state) {
    (void)state;
    for (int how = 0; how < 2; how++) {
        gs_play play;
        to_training(&play);
        int64_t step = gs_play_run(&play)->step;
        if (how == 0) tell_step(&play, OTHER, TARGET + 1);
        else beat(&play, OTHER, INT64_MAX);
        assert_blamed(&play, OTHER, step);
        gs_play_close(&play);
    }
}

// What people read of it decides nothing.
static void who_is_disbelieved_stays_so_whatever_it_is_called(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    int64_t step = gs_play_run(&play)->step;
    tell_step(&play, OTHER, TARGET + 1);
    snprintf(gs_play_run(&play)->cause.reason, sizeof gs_play_run(&play)->cause.reason, "AnotherWord");
    beat(&play, OTHER, TARGET);
    assert_true(gs_play_run(&play)->members[OTHER].applied_step <= step);
    gs_play_close(&play);
}

// The honest rank steps on and tells it; after `seconds` of that, where it stands.
static int64_t step_on(gs_play *play, int64_t step, double seconds) {
    for (int64_t i = 0; i < (int64_t)(10 * seconds); i++) {
        gs_play_wait(play, 100 * GS_NS_PER_MS);
        beat(play, OTHER, 0);
        if (gs_play_run(play)->phase == GS_RUN_TRAINING) tell_step(play, HONEST, ++step);
    }
    return step;
}

static void a_step_that_the_others_do_not_come_to_is_not_believed(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    double dead_seconds = (double)gs_timing_default.dead_ns / GS_NS_PER_SEC;
    int64_t step = gs_play_run(&play)->step;
    tell_step(&play, OTHER, 500);
    step = step_on(&play, step, dead_seconds * 0.8);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    step_on(&play, step, dead_seconds * 0.6);
    const gs_run *run = gs_play_run(&play);
    assert_true(run->step < 100);
    assert_blamed(&play, OTHER, run->step);
    // Nor does it lie its way into the settlement.
    gs_engine_event settle = gs_play_message(&play, OTHER, GS_ON_SETTLE);
    settle.settle = (gs_settle_question){.applied_step = 500, .complete = true};
    gs_play_hear(&play, &settle);
    assert_true(gs_play_run(&play)->members[OTHER].applied_step < 100);
    gs_play_close(&play);
}

static void settle_at(gs_play *play, int rank, int64_t step, bool complete) {
    gs_engine_event event = gs_play_message(play, rank, GS_ON_SETTLE);
    event.settle = (gs_settle_question){.applied_step = step, .complete = complete};
    gs_play_hear(play, &event);
}

// The others hold the step in flight, and who is not believed does not say so: they keep it.
static void who_is_evicted_keeps_no_step_from_the_others(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    int64_t step = gs_play_run(&play)->step;
    tell_step(&play, OTHER, TARGET + 1);
    settle_at(&play, OTHER, step, true);
    settle_at(&play, HONEST, step, true);
    assert_true(play.answered && !play.answer.code);
    assert_true(play.settlement_applies && play.settlement_saves);
    gs_play_close(&play);
}

// Nobody can have come there: who holds what there is saves it.
static void a_step_beyond_the_target_is_nobodys_in_a_settlement_either(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    int64_t step = gs_play_run(&play)->step;
    settle_at(&play, OTHER, INT64_MAX, true);
    settle_at(&play, HONEST, step, true);
    assert_true(play.answered && !play.answer.code);
    assert_true(play.settlement_saves && !play.settlement_applies);
    assert_true(gs_play_run(&play)->members[OTHER].applied_step <= step);
    gs_play_close(&play);
}

// In a job whose ranks reduce every step nobody has parameters of his own, by which he might be anywhere.
static void who_says_that_it_trains_apart_has_to_be_of_a_job_that_does(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    gs_engine_event settle = gs_play_message(&play, OTHER, GS_ON_SETTLE);
    settle.settle = (gs_settle_question){.applied_step = TARGET, .complete = true, .apart = true};
    gs_play_hear(&play, &settle);
    assert_false(gs_play_run(&play)->members[OTHER].apart);
    gs_play_close(&play);
}

// There are no others that it could keep anything from.
static void who_is_evicted_and_left_alone_saves_what_it_has(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    int64_t step = gs_play_run(&play)->step;
    tell_step(&play, OTHER, TARGET + 1);
    gs_play_say(&play, HONEST, GS_ON_EXITED);
    settle_at(&play, OTHER, step, true);
    assert_true(play.answered && !play.answer.code);
    assert_true(play.settlement_saves && !play.settlement_applies);
    gs_play_close(&play);
}

static void train_alone(gs_play *play) {
    const gs_engine_event_kind road[] = {GS_ON_HELLO, GS_ON_PARAMS, GS_ON_READY, GS_ON_COMM_UP, GS_ON_STEP};
    gs_play_open_alone(play);
    for (size_t i = 0; i < sizeof road / sizeof road[0]; i++) gs_play_say(play, 0, road[i]);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// Nobody else is there to tell of its steps: it does, and they are behind what it told.
static void who_trains_alone_is_judged_by_what_it_says_itself(void **state) {
    (void)state;
    gs_play play;
    train_alone(&play);
    int64_t step = gs_play_run(&play)->step, told_ns = play.now_ns;
    tell_step(&play, 0, 500);
    while (gs_play_run(&play)->phase == GS_RUN_TRAINING && play.now_ns - told_ns < 4 * gs_timing_default.dead_ns) {
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        if (gs_play_run(&play)->phase == GS_RUN_TRAINING) tell_step(&play, 0, ++step);
    }
    assert_in_range(play.now_ns - told_ns, gs_timing_default.dead_ns, 2 * gs_timing_default.dead_ns);
    const gs_run *run = gs_play_run(&play);
    assert_string_equal(run->cause.reason, "StateMismatch");
    assert_int_equal(run->step, step);
    assert_int_equal(run->job->step, step);
    assert_true(play.ranks[0].ordered_to_die);
    gs_play_close(&play);
}

// What was put together before comes behind it; and what it does not tell is no word against it.
static void who_trains_alone_may_say_what_is_a_step_old(void **state) {
    (void)state;
    gs_play play;
    train_alone(&play);
    int64_t step = gs_play_run(&play)->step;
    for (int i = 0; i < 100; i++) {
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        tell_step(&play, 0, ++step);
        beat(&play, 0, step - 1);
    }
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(&play)->step, step);
    gs_play_close(&play);
}

// Both say how far they are, ten times a second; `others_step`: what OTHER tells, 0: as HONEST.
static int64_t step_together(gs_play *play, int64_t step, int64_t others_step, double seconds) {
    for (int64_t i = 0; i < (int64_t)(10 * seconds); i++) {
        gs_play_wait(play, 100 * GS_NS_PER_MS);
        if (gs_play_run(play)->phase != GS_RUN_TRAINING) return step;
        step++;
        tell_step(play, HONEST, step);
        beat(play, OTHER, others_step ? others_step : step);
    }
    return step;
}

static int64_t restart_behind_a_lie(gs_play *play) {
    to_training(play);
    int64_t step = gs_play_run(play)->step;
    tell_step(play, OTHER, 500);
    gs_play_reopen(play);
    gs_play_say(play, OTHER, GS_ON_HELLO);
    gs_play_say(play, HONEST, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(play)->step, 500);
    return step;
}

// The row has the false step, and not who told it: it is forgotten as soon as all have told of lower ones for long enough, nobody is
// blamed, and no step of theirs is taken for a standstill.
static void a_false_step_of_an_earlier_life_is_forgotten(void **state) {
    (void)state;
    gs_play play;
    int64_t step = restart_behind_a_lie(&play);
    double dead_seconds = (double)gs_timing_default.dead_ns / GS_NS_PER_SEC;
    step = step_together(&play, step, 0, dead_seconds * 0.8);
    assert_int_equal(gs_play_run(&play)->step, 500);
    step = step_together(&play, step, 0, dead_seconds * 0.6);
    assert_int_equal(gs_play_run(&play)->step, step);
    assert_int_equal(gs_play_run(&play)->job->step, step);
    step = step_together(&play, step, 0, 2 * (double)gs_timing_default.hang_first_ns / GS_NS_PER_SEC / 3);
    step = step_together(&play, step, 0, 2 * (double)gs_timing_default.hang_first_ns / GS_NS_PER_SEC / 3);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(&play)->step, step);
    for (int i = 0; i < GS_PLAY_RANKS; i++) assert_false(play.ranks[i].ordered_to_die);
    gs_play_close(&play);
}

static void who_tells_a_false_step_to_two_lives_is_not_believed(void **state) {
    (void)state;
    gs_play play;
    int64_t step = restart_behind_a_lie(&play);
    step_together(&play, step, 500, 1.4 * (double)gs_timing_default.dead_ns / GS_NS_PER_SEC);
    assert_true(gs_play_run(&play)->step < 100);
    assert_blamed(&play, OTHER, gs_play_run(&play)->step);
    gs_play_close(&play);
}

// Who is away may be there.
static void a_step_of_an_earlier_life_stays_until_all_have_told(void **state) {
    (void)state;
    gs_play play;
    int64_t step = restart_behind_a_lie(&play);
    for (int64_t ns = 0; ns < 2 * gs_timing_default.dead_ns; ns += 100 * GS_NS_PER_MS) {
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        beat(&play, HONEST, ++step);
        gs_engine_event silent = gs_play_message(&play, OTHER, GS_ON_HEARTBEAT);
        silent.from.generation = -1;  // it lives, and says nothing of its step
        gs_play_hear(&play, &silent);
    }
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(&play)->step, 500);
    gs_play_close(&play);
}

static void who_trains_alone_is_judged_by_it_across_lives(void **state) {
    (void)state;
    gs_play play;
    train_alone(&play);
    int64_t step = gs_play_run(&play)->step;
    tell_step(&play, 0, 500);
    gs_play_reopen(&play);
    gs_play_say(&play, 0, GS_ON_HELLO);
    for (int64_t ns = 0; gs_play_run(&play)->phase == GS_RUN_TRAINING && ns < 2 * gs_timing_default.dead_ns; ns += 100 * GS_NS_PER_MS) {
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        if (gs_play_run(&play)->phase == GS_RUN_TRAINING) tell_step(&play, 0, ++step);
    }
    assert_string_equal(gs_play_run(&play)->cause.reason, "StateMismatch");
    assert_int_equal(gs_play_run(&play)->step, step);
    gs_play_close(&play);
}

// It stands still, and says so: its heartbeats are words of its step as well.
static void a_step_is_not_believed_against_one_that_stands(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    int64_t step = gs_play_run(&play)->step;
    tell_step(&play, OTHER, 500);
    for (int64_t ns = 0; ns < gs_timing_default.dead_ns * 3 / 2; ns += 100 * GS_NS_PER_MS) {
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        beat(&play, OTHER, 500);
        beat(&play, HONEST, step);
    }
    assert_blamed(&play, OTHER, step);
    gs_play_close(&play);
}

static void who_is_ahead_of_ranks_that_are_not_heard_does_not_lie(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    int64_t step = 1;
    for (int i = 0; i < 200; i++) {  // 20 s, in which the link of one rank is cut
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        tell_step(&play, OTHER, ++step);
    }
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    beat(&play, HONEST, 2);  // what was on its way comes first
    gs_play_wait(&play, 100 * GS_NS_PER_MS);
    for (int i = 0; i < 50; i++) {
        gs_play_wait(&play, 100 * GS_NS_PER_MS);
        tell_step(&play, OTHER, ++step);
        beat(&play, HONEST, step - 10);  // and stays a second behind
    }
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
    gs_play_close(&play);
}

// Where there are ten thousand ranks each is heard about every two seconds, and not when the other is.
static void ranks_in_step_that_are_seldom_heard_do_not_lie(void **state) {
    (void)state;
    gs_play play;
    to_training(&play);
    const gs_cadence seldom = gs_timing_cadence(&gs_timing_default, 1250, 10000);
    const int tick_ms = 20, beat_ms = (int)(seldom.heartbeat_ns / GS_NS_PER_MS), report_ms = (int)(seldom.report_ns / GS_NS_PER_MS);
    assert_true(seldom.heartbeat_ns > gs_timing_default.dead_ns);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_member *member = &gs_play_run(&play)->members[i];
        member->told = seldom;
        member->heartbeat_ns = seldom.heartbeat_ns;
    }
    for (int at_ms = tick_ms; at_ms <= 60000; at_ms += tick_ms) {
        gs_play_wait(&play, tick_ms * GS_NS_PER_MS);
        assert_non_null(gs_play_run(&play));
        assert_int_equal(gs_play_run(&play)->phase, GS_RUN_TRAINING);
        int64_t step = 2 + at_ms / 100;
        for (int i = 0; at_ms % report_ms == 0 && i < GS_PLAY_RANKS; i++) tell_step(&play, i, step);
        if (at_ms % beat_ms / tick_ms == 10) beat(&play, OTHER, step);
        if (at_ms % beat_ms / tick_ms == 25) beat(&play, HONEST, step);
    }
    gs_play_close(&play);
}

// Which of two is wrong nobody can know, rank 0 or the other: none takes a step, and people are told of both.
static void a_digest_that_is_made_up_starts_nobody(void **state) {
    (void)state;
    for (int liar = 0; liar < GS_PLAY_RANKS; liar++) {
        gs_play play;
        gs_play_open(&play);
        gs_play_say(&play, OTHER, GS_ON_HELLO);
        gs_play_say(&play, HONEST, GS_ON_HELLO);
        gs_play_say(&play, HONEST, GS_ON_PARAMS);
        for (int rank = GS_PLAY_RANKS - 1; rank >= 0; rank--) {
            gs_engine_event event = gs_play_message(&play, rank, GS_ON_READY);
            if (rank == liar) event.ready.state_digest = "made up";
            gs_play_hear(&play, &event);
        }
        const gs_run_cause *cause = &gs_play_run(&play)->cause;
        assert_true(gs_play_run(&play)->phase >= GS_RUN_SETTLING);
        assert_string_equal(cause->reason, "StateMismatch");
        assert_int_equal(cause->member, OTHER);  // in the words of rank 0
        assert_non_null(strstr(cause->message, "(made up)"));
        assert_non_null(strstr(cause->message, "(s)"));
        assert_int_equal(gs_play_run(&play)->job->step, 0);
        gs_play_close(&play);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_beyond_the_target_is_nobodys),
        cmocka_unit_test(who_is_disbelieved_stays_so_whatever_it_is_called),
        cmocka_unit_test(a_step_that_the_others_do_not_come_to_is_not_believed),
        cmocka_unit_test(who_is_evicted_keeps_no_step_from_the_others),
        cmocka_unit_test(a_step_beyond_the_target_is_nobodys_in_a_settlement_either),
        cmocka_unit_test(who_says_that_it_trains_apart_has_to_be_of_a_job_that_does),
        cmocka_unit_test(who_is_evicted_and_left_alone_saves_what_it_has),
        cmocka_unit_test(who_trains_alone_is_judged_by_what_it_says_itself),
        cmocka_unit_test(who_trains_alone_may_say_what_is_a_step_old),
        cmocka_unit_test(a_false_step_of_an_earlier_life_is_forgotten),
        cmocka_unit_test(who_tells_a_false_step_to_two_lives_is_not_believed),
        cmocka_unit_test(a_step_of_an_earlier_life_stays_until_all_have_told),
        cmocka_unit_test(who_trains_alone_is_judged_by_it_across_lives),
        cmocka_unit_test(a_step_is_not_believed_against_one_that_stands),
        cmocka_unit_test(who_is_ahead_of_ranks_that_are_not_heard_does_not_lie),
        cmocka_unit_test(ranks_in_step_that_are_seldom_heard_do_not_lie),
        cmocka_unit_test(a_digest_that_is_made_up_starts_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
