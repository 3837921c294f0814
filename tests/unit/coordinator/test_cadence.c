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
        gs_engine_event beat = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.incarnation = GS_PLAY_AGENT, .generation = -1}};
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
    gs_engine_event beat = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.incarnation = GS_PLAY_AGENT, .generation = -1}};
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
