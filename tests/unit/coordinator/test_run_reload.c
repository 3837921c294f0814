// A generation that had failed, or was being ended, when the coordinator died: its ranks may train on where nobody reaches them, and
// what it failed by, what was said and who has ended stays known.
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

static gs_fault_facts facts;

static void report(gs_play *play, int rank, gs_fault_kind kind) {
    gs_engine_event fault = gs_play_message(play, rank, GS_ON_FAULT);
    facts = gs_fault_facts_of(kind, -1);
    fault.fault.facts = &facts;
    gs_play_hear(play, &fault);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_SETTLING);
}

static void settle(gs_play *play, int rank) {
    gs_engine_event question = gs_play_message(play, rank, GS_ON_SETTLE);
    question.settle.complete = true;
    gs_play_hear(play, &question);
}

static const gs_job *job_of(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

static void nobody_takes_the_place_of_ranks_out_of_reach(void **state) {
    gs_play *play = *state;
    const gs_timing *timing = &gs_timing_default;
    gs_play_lose_worker(play);
    gs_play_wait(play, timing->orphan_ns - GS_NS_PER_SEC);
    gs_run *run = gs_play_run(play);
    run->phase = GS_RUN_SETTLING;  // by whatever it was
    run->step = run->base_step;    // all of them may train, and nobody has said that it has made a step
    gs_play_reopen_without_worker(play);
    uint32_t generation = job_of(play)->generation;
    gs_play_wait(play, timing->orphan_ns / 2);  // counted from when this life could have heard them
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_ENDING);
    // They are here again, and hear that it is over.
    gs_play_find_worker(play);
    assert_int_equal(gs_play_run(play)->generation, generation);
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, GS_ON_EXITED);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(!gs_play_run(play) || gs_play_run(play)->generation != generation);
    assert_int_equal(job_of(play)->restarts, 1);
}

static void what_it_failed_by_is_known(void **state) {
    gs_play *play = *state;
    play->num_job_rows = 0;
    report(play, 1, GS_FAULT_NUMERICS);
    assert_int_equal(play->num_job_rows, 1);  // before anybody acts on it
    const gs_run_cause before = gs_play_run(play)->cause;
    gs_play_reopen(play);
    const gs_run *run = gs_play_run(play);
    assert_int_equal(run->phase, GS_RUN_SETTLING);
    assert_true(run->suspicious);
    assert_string_equal(run->cause.reason, before.reason);
    assert_string_equal(run->cause.message, before.message);
    assert_int_equal(run->cause.kind, before.kind);
    assert_int_equal(run->cause.member, before.member);
    assert_int_equal(run->cause.fault.kind, GS_FAULT_NUMERICS);
    assert_int_equal(run->cause.fault.reporter, 1);
    // Nobody saves a state that is not to be trusted.
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, GS_ON_HELLO);
    play->settlement_saves = true;
    for (int i = 0; i < GS_PLAY_RANKS; i++) settle(play, i);
    assert_true(play->answered);
    assert_ok(play->answer);
    assert_false(play->settlement_saves);
}

// Whom the life before may have told to save is not killed for having nothing to ask.
static void who_may_be_saving_is_left_to_it(void **state) {
    gs_play *play = *state;
    report(play, 1, GS_FAULT_TIMEOUT);
    settle(play, 0);
    gs_play_reopen(play);
    assert_int_equal(gs_play_run(play)->members[0].stage, GS_MEMBER_SETTLING);
    assert_true(gs_run_is_broken(gs_play_run(play)));
    gs_play_say(play, 0, GS_ON_HELLO);
    gs_play_wait(play, gs_timing_default.save_ns / 2);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_ENDING);
    assert_false(play->ranks[0].ordered_to_stop || play->ranks[0].ordered_to_die);
    gs_play_wait(play, gs_timing_default.save_ns);
    assert_true(play->ranks[0].ordered_to_die);
}

static void who_was_evicted_is_ended_by_the_next_life_too(void **state) {
    gs_play *play = *state;
    gs_play_say(play, 0, GS_ON_FAULT);
    assert_true(play->ranks[1].ordered_to_die);
    play->ranks[1].ordered_to_die = false;
    gs_play_reopen(play);
    assert_true(play->ranks[1].ordered_to_die);
    assert_false(play->ranks[0].ordered_to_stop || play->ranks[0].ordered_to_die);
}

static void who_has_ended_is_not_waited_for(void **state) {
    gs_play *play = *state;
    gs_engine_event exited = gs_play_message(play, 1, GS_ON_EXITED);
    exited.exited.signal = 9;
    gs_play_hear(play, &exited);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_SETTLING);
    gs_play_reopen_without_worker(play);
    assert_int_equal(gs_play_run(play)->members[1].stage, GS_MEMBER_EXITED);
    assert_int_equal(gs_play_run(play)->members[1].signal, 9);
    assert_true(gs_run_is_broken(gs_play_run(play)));
    // The other can take no step without it, wherever it is.
    const gs_timing *timing = &gs_timing_default;
    gs_play_wait(play, timing->grace_ns + timing->settle_ns + 2 * timing->agent_dead_ns);
    assert_int_equal(job_of(play)->restarts, 1);
}

// Also a run that nobody but its record shows to be over.
static void whose_ranks_have_all_ended_is_over_at_once(void **state) {
    gs_play *play = *state;
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_member *member = &gs_play_run(play)->members[i];
        member->stage = GS_MEMBER_EXITED;
        member->signal = 9;
    }
    gs_play_run(play)->phase = GS_RUN_ENDING;
    gs_play_reopen_without_worker(play);
    gs_play_wait(play, gs_timing_default.tick_ns);
    assert_int_equal(job_of(play)->restarts, 1);
}

// Out of reach they train on for as long as they were told, whatever the setting is now.
static void who_was_told_a_longer_limit_is_waited_for_that_long(void **state) {
    gs_play *play = *state;
    int64_t told_ns = gs_timing_default.orphan_ns;
    assert_int_equal(play->ranks[0].orphan_ns, told_ns);
    play->orphan_ns = 10 * GS_NS_PER_SEC;
    gs_play_reopen_without_worker(play);
    uint32_t generation = job_of(play)->generation;
    gs_play_wait(play, told_ns - GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_RELOADING);
    // Who comes back to it is told the same: all ranks of a set have one limit.
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(play)->generation, generation);
    assert_int_equal(play->ranks[1].orphan_ns, told_ns);
    gs_play_silence_lines(play);
    gs_play_wait(play, told_ns);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    // As long as that, and what they need to notice it: another set may be started then.
    gs_play_wait(play, gs_timing_default.settle_ns + 3 * gs_timing_default.agent_dead_ns);
    assert_int_equal(job_of(play)->restarts, 1);
}

// A third life, whose setting is the first one's again, has to know of it.
static void a_longer_limit_is_told_once_it_is_written_down(void **state) {
    gs_play *play = *state;
    int64_t first_ns = gs_timing_default.orphan_ns, longer_ns = 2 * first_ns;
    play->orphan_ns = longer_ns;
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    for (int i = 0; i < GS_PLAY_RANKS; i++) assert_int_equal(play->ranks[i].orphan_ns, first_ns);
    play->disk_says = GS_OK;
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    for (int i = 0; i < GS_PLAY_RANKS; i++) assert_int_equal(play->ranks[i].orphan_ns, longer_ns);
    play->orphan_ns = 0;
    gs_play_reopen_without_worker(play);
    gs_play_wait(play, longer_ns - GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_RELOADING);
}

static void tell_step(gs_play *play, int64_t step) {
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_engine_event told = gs_play_message(play, i, GS_ON_STEP);
        told.step.applied_step = step;
        gs_play_hear(play, &told);
    }
}

// The job has been further than its ranks are now: they go on from an older checkpoint, and step all the while.
static void ranks_that_go_on_from_an_older_step_do_not_hang(void **state) {
    gs_play *play = *state;
    tell_step(play, 500);
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);  // of step 3
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, GS_ON_EXITED);
    gs_play_wait(play, GS_NS_PER_SEC);
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_engine_event ready = gs_play_message(play, i, GS_ON_READY);
        ready.ready.applied_step = 3;
        gs_play_hear(play, &ready);
    }
    gs_play_say_all(play, GS_ON_COMM_UP);
    tell_step(play, 4);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(play)->base_step, 3);
    assert_int_equal(job_of(play)->step, 500);

    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    play->watched_reason = "WorkerHung";
    const int64_t every_ns = GS_NS_PER_SEC / 2, end_ns = play->now_ns + 3 * gs_timing_default.hang_first_ns;
    for (int64_t step = 5; play->now_ns < end_ns; step++) {
        gs_play_wait(play, every_ns);
        assert_true(step < 500);
        tell_step(play, step);
        assert_int_equal(play->num_watched, 0);
    }
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(job_of(play)->restarts, 1);
    // And who steps no more does, wherever the job has been.
    for (int64_t waited_ns = 0; waited_ns < 3 * gs_timing_default.hang_first_ns && !play->num_watched; waited_ns += every_ns) {
        gs_play_wait(play, every_ns);
        gs_play_say_all(play, GS_ON_HEARTBEAT);
    }
    assert_int_equal(play->num_watched, 1);
}

static int64_t time_to_launch(gs_play *play) {
    int64_t begin_ns = play->now_ns;
    gs_play_reopen(play);
    for (int i = 0; i < 1000 && !(gs_play_run(play) && gs_play_run(play)->phase == GS_RUN_LAUNCHING); i++)
        gs_play_wait(play, gs_timing_default.tick_ns);
    return play->now_ns - begin_ns;
}

// A full disk took no row of it, and where checkpoints lie it has left its fence: its workers may say hello behind the one whose ranks
// have ended.
static void a_set_that_the_row_does_not_know_has_time_to_say_that_it_is_there(void **state) {
    gs_play *play = *state;
    uint32_t generation = gs_play_run(play)->generation;
    for (int i = 0; i < GS_PLAY_RANKS; i++) play->ranks[i].is_gone = true;
    play->left_by = generation;
    assert_true(time_to_launch(play) < gs_timing_default.grace_ns / 2);
    gs_play_say_all(play, GS_ON_HELLO);
    if (gs_play_run(play)->members[0].list_asked) gs_play_say(play, 0, GS_ON_PARAMS);
    gs_play_say_all(play, GS_ON_READY);
    gs_play_say_all(play, GS_ON_COMM_UP);
    gs_play_say_all(play, GS_ON_STEP);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    for (int i = 0; i < GS_PLAY_RANKS; i++) play->ranks[i].is_gone = true;
    play->left_by = gs_play_run(play)->generation + 1;
    assert_true(time_to_launch(play) >= gs_timing_default.grace_ns);
}

static void a_run_that_never_trained_is_not_kept(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    gs_engine_event exited = gs_play_message(&play, 1, GS_ON_EXITED);
    exited.exited.signal = 9;
    gs_play_hear(&play, &exited);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_SETTLING);
    gs_play_reopen_without_worker(&play);
    assert_null(gs_play_run(&play));
    gs_play_close(&play);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_play_set_up_training, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(nobody_takes_the_place_of_ranks_out_of_reach),
        TEST(what_it_failed_by_is_known),
        TEST(who_may_be_saving_is_left_to_it),
        TEST(who_was_evicted_is_ended_by_the_next_life_too),
        TEST(who_has_ended_is_not_waited_for),
        TEST(whose_ranks_have_all_ended_is_over_at_once),
        TEST(who_was_told_a_longer_limit_is_waited_for_that_long),
        TEST(a_longer_limit_is_told_once_it_is_written_down),
        TEST(ranks_that_go_on_from_an_older_step_do_not_hang),
        TEST(a_set_that_the_row_does_not_know_has_time_to_say_that_it_is_there),
        cmocka_unit_test(a_run_that_never_trained_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
