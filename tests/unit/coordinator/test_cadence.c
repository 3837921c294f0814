// How often ranks and agents are to be heard follows their number.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define BEAT_NS (100 * GS_NS_PER_MS)

static void many_are_heard_less_often(void **state) {
    (void)state;
    const gs_timing *timing = &gs_timing_default;
    assert_int_equal(gs_timing_cadence(timing, 1, 2).heartbeat_ns, BEAT_NS);
    assert_int_equal(gs_timing_cadence(timing, 1, 2).report_ns, BEAT_NS);
    gs_cadence many = gs_timing_cadence(timing, 1250, 10000);
    assert_int_equal(many.heartbeat_ns, 2250 * GS_NS_PER_MS);
    assert_int_equal(many.report_ns, 2000 * GS_NS_PER_MS);
}

// What is told once in two seconds need not be written each second.
static void progress_of_many_is_written_less_often(void **state) {
    (void)state;
    const gs_timing *timing = &gs_timing_default;
    assert_int_equal(gs_cadence_progress_ns(gs_timing_cadence(timing, 1, 2)), GS_NS_PER_SEC);
    assert_int_equal(gs_cadence_progress_ns(gs_timing_cadence(timing, 312, 2500)), GS_NS_PER_SEC);
    assert_int_equal(gs_cadence_progress_ns(gs_timing_cadence(timing, 1250, 10000)), 4 * GS_NS_PER_SEC);
}

// Rows of a job whose ranks tell of a step each 100 ms, in 8 s; they may be heard that often.
static int count_rows(int64_t report_ns) {
    void *state = NULL;
    gs_play_set_up_training(&state);
    gs_play *play = state;
    gs_timing *timing = (gs_timing *)(uintptr_t)&gs_engine_state(play->engine)->timing;
    timing->report_ns = report_ns;
    int before = play->num_job_rows;
    for (int i = 0; i < 80; i++) {
        for (int rank = 0; rank < GS_PLAY_RANKS; rank++) gs_play_say(play, rank, GS_ON_STEP);
        gs_play_wait(play, BEAT_NS);
    }
    int count = play->num_job_rows - before;
    gs_play_tear_down(&state);
    return count;
}

static void rows_follow_the_cadence_of_reports(void **state) {
    (void)state;
    assert_in_range(count_rows(BEAT_NS), 6, 8);
    assert_in_range(count_rows(2 * GS_NS_PER_SEC), 1, 2);
}

static void so_many_ranks_are_looked_at_in_a_tick(void **state) {
    (void)state;
    const gs_timing *timing = &gs_timing_default;
    assert_int_equal(gs_timing_turns(timing, 0), 1);
    assert_int_equal(gs_timing_turns(timing, 2047), 1);
    assert_int_equal(gs_timing_turns(timing, 10000), 5);
    assert_int_equal(gs_timing_turns(&(gs_timing){0}, 10000), 1);
}

// And each job once in so many ticks, whatever its number.
static void each_job_has_its_turn(void **state) {
    (void)state;
    gs_state all = {.timing = {.ranks_a_tick = 1}, .members = {.count = 6}};
    for (uint64_t id = 1; id < 20; id++) {
        const gs_job job = {.id = id * UINT64_C(0x9e3779b97f4a7c15)};
        int turns = 0;
        for (all.num_ticks = 100; all.num_ticks < 107; all.num_ticks++) turns += gs_state_has_turn(&all, &job);
        assert_int_equal(turns, 1);
    }
}

static void a_quarter_more_or_less_is_told(void **state) {
    (void)state;
    const gs_cadence told = {1000, 1000};
    assert_false(gs_cadence_differs(told, (gs_cadence){1250, 800}));
    assert_true(gs_cadence_differs(told, (gs_cadence){1251, 1000}));
    assert_true(gs_cadence_differs(told, (gs_cadence){1000, 799}));
}

// As if it had been told when there were more, or fewer.
static gs_member *open_told(gs_play *play, gs_cadence told) {
    gs_play_open(play);
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, GS_ON_HELLO);
    gs_member *member = &gs_play_run(play)->members[0];
    member->takes_cadence = true;
    member->told = told;
    member->heartbeat_ns = told.heartbeat_ns;
    return member;
}

static void who_keeps_another_cadence_is_told(void **state) {
    (void)state;
    gs_play play;
    gs_member *member = open_told(&play, (gs_cadence){10 * BEAT_NS, BEAT_NS});
    gs_play_wait(&play, gs_timing_default.tick_ns);
    assert_int_equal(member->told.heartbeat_ns, BEAT_NS);
    // It may not have heard yet: until its next word it is expected as seldom as before.
    assert_int_equal(member->heartbeat_ns, 10 * BEAT_NS);
    gs_play_say(&play, 0, GS_ON_HEARTBEAT);
    assert_int_equal(member->heartbeat_ns, BEAT_NS);
    gs_play_close(&play);
}

static void who_is_to_be_heard_less_often_has_more_time_at_once(void **state) {
    (void)state;
    gs_play play;
    gs_member *member = open_told(&play, (gs_cadence){BEAT_NS / 10, BEAT_NS});
    gs_play_wait(&play, gs_timing_default.tick_ns);
    assert_int_equal(member->told.heartbeat_ns, BEAT_NS);
    assert_int_equal(member->heartbeat_ns, BEAT_NS);
    gs_play_close(&play);
}

static void who_would_not_understand_is_not_told(void **state) {
    (void)state;
    gs_play play;
    gs_member *member = open_told(&play, (gs_cadence){10 * BEAT_NS, BEAT_NS});
    member->takes_cadence = false;
    gs_play_wait(&play, 10 * gs_timing_default.tick_ns);
    assert_int_equal(member->told.heartbeat_ns, 10 * BEAT_NS);
    gs_play_close(&play);
}

// How often it is noted that rank 0 is silent, which beats so seldom; the others and their worker are heard.
static int count_verdicts(int64_t beat_ns, int64_t silent_ns) {
    void *state = NULL;
    gs_play_set_up_training(&state);
    gs_play *play = state;
    gs_member *member = &gs_play_run(play)->members[0];
    member->takes_cadence = false;
    member->told.heartbeat_ns = member->heartbeat_ns = beat_ns;
    play->watched_reason = "WorkerSilent";
    for (int64_t ns = 0; ns < silent_ns; ns += BEAT_NS) {
        gs_engine_event beat = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = GS_PLAY_AGENT, .generation = -1}};
        gs_play_hear(play, &beat);
        gs_play_say(play, 1, GS_ON_HEARTBEAT);
        gs_play_wait(play, BEAT_NS);
    }
    int count = play->num_watched;
    gs_play_tear_down(&state);
    return count;
}

// Not by what others are told since.
static void who_was_told_to_be_heard_seldom_is_judged_by_that(void **state) {
    (void)state;
    int64_t dead_ns = gs_timing_default.dead_ns;
    assert_int_equal(count_verdicts(BEAT_NS, 2 * dead_ns), 1);
    assert_int_equal(count_verdicts(dead_ns / 5, 2 * dead_ns), 0);
    assert_int_equal(count_verdicts(dead_ns / 5, 4 * dead_ns), 1);
}

static gs_agent *open_agent(gs_play *play, bool takes_cadence) {
    gs_play_open(play);
    gs_agent *agent = gs_engine_state(play->engine)->agents.items[0];
    agent->takes_cadence = takes_cadence;
    agent->told_heartbeat_ns = agent->heartbeat_ns = 10 * BEAT_NS;
    gs_play_wait(play, 10 * gs_timing_default.tick_ns);
    return agent;
}

static void an_agent_is_told_and_expected_as_ranks_are(void **state) {
    (void)state;
    gs_play play;
    const gs_agent *agent = open_agent(&play, true);
    assert_int_equal(agent->told_heartbeat_ns, BEAT_NS);
    assert_int_equal(agent->heartbeat_ns, 10 * BEAT_NS);
    gs_engine_event beat = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = GS_PLAY_AGENT, .generation = -1}};
    gs_play_hear(&play, &beat);
    assert_int_equal(agent->heartbeat_ns, BEAT_NS);
    gs_play_close(&play);
}

static void an_agent_of_before_is_heard_as_it_was_told_first(void **state) {
    (void)state;
    gs_play play;
    const gs_agent *agent = open_agent(&play, false);
    assert_int_equal(agent->told_heartbeat_ns, 10 * BEAT_NS);
    assert_int_equal(agent->heartbeat_ns, 10 * BEAT_NS);
    gs_play_close(&play);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_are_heard_less_often),
        cmocka_unit_test(progress_of_many_is_written_less_often),
        cmocka_unit_test(rows_follow_the_cadence_of_reports),
        cmocka_unit_test(so_many_ranks_are_looked_at_in_a_tick),
        cmocka_unit_test(each_job_has_its_turn),
        cmocka_unit_test(a_quarter_more_or_less_is_told),
        cmocka_unit_test(who_keeps_another_cadence_is_told),
        cmocka_unit_test(who_is_to_be_heard_less_often_has_more_time_at_once),
        cmocka_unit_test(who_would_not_understand_is_not_told),
        cmocka_unit_test(who_was_told_to_be_heard_seldom_is_judged_by_that),
        cmocka_unit_test(an_agent_is_told_and_expected_as_ranks_are),
        cmocka_unit_test(an_agent_of_before_is_heard_as_it_was_told_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
