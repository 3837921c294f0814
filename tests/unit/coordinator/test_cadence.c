// How often ranks and agents are to be heard follows their number.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_are_heard_less_often),
        cmocka_unit_test(a_quarter_more_or_less_is_told),
        cmocka_unit_test(who_keeps_another_cadence_is_told),
        cmocka_unit_test(who_is_to_be_heard_less_often_has_more_time_at_once),
        cmocka_unit_test(who_would_not_understand_is_not_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
