// A rank that is not heard while its generation steps: it is left alone, and shown; told of once when that begins and once when it
// is over.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define BEAT_NS gs_timing_default.heartbeat_ns
#define SHOWN_NS (25 * gs_timing_default.tick_ns)  // behind its silence it is shown within that
#define RANK 1  // of which there is no word

typedef struct manners {
    bool silent, steps;
} manners;

static const manners healthy = {.steps = true}, cut = {.silent = true, .steps = true};

static const gs_member *mute(const gs_play *play) { return &gs_play_run(play)->members[RANK]; }
static bool is_shown(const gs_play *play) { return mute(play)->control.since_ms != 0; }

static void live(gs_play *play, const manners *how, int64_t ns) {
    for (int64_t begin_ns = play->now_ns; play->now_ns - begin_ns < ns;) {
        gs_engine_event agent = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = GS_PLAY_AGENT, .generation = -1}};
        gs_play_hear(play, &agent);
        for (int i = 0; i < GS_PLAY_RANKS; i++)
            if (i != RANK || !how->silent) gs_play_say(play, i, GS_ON_HEARTBEAT);
        if (how->steps) gs_play_say(play, 0, GS_ON_STEP);
        gs_play_wait(play, BEAT_NS);
        play->wall_ms += BEAT_NS / GS_NS_PER_MS;
    }
}

static void open_training(gs_play *play, const char *reason) {
    gs_play_open(play);
    gs_play_train(play);
    play->watched_reason = reason;
    live(play, &healthy, 3 * GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

static void assert_trains(const gs_play *play) {
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(gs_play_run(play)->job->restarts, 0);
}

static void who_is_not_heard_while_its_generation_steps_is_shown(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathDegraded");
    int64_t cut_ms = play.wall_ms;
    live(&play, &cut, gs_timing_default.dead_ns - 2 * BEAT_NS);
    assert_false(is_shown(&play));
    live(&play, &cut, 2 * BEAT_NS + SHOWN_NS);
    assert_true(is_shown(&play));
    // Since its last word, whenever it was noticed.
    assert_in_range(mute(&play)->control.since_ms, cut_ms - 2 * BEAT_NS / GS_NS_PER_MS, cut_ms + BEAT_NS / GS_NS_PER_MS);
    assert_int_equal(gs_play_run(&play)->control.num_degraded, 1);
    live(&play, &cut, 60 * GS_NS_PER_SEC);
    assert_true(is_shown(&play));
    assert_int_equal(play.num_watched, 1);
    assert_trains(&play);
    live(&play, &healthy, SHOWN_NS);
    assert_false(is_shown(&play));
    assert_int_equal(gs_play_run(&play)->control.num_degraded, 0);
    gs_play_close(&play);
}

static void who_is_heard_again_is_told_of_once(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathRestored");
    live(&play, &cut, 10 * GS_NS_PER_SEC);
    assert_int_equal(play.num_watched, 0);
    live(&play, &healthy, gs_timing_default.agent_dead_ns - BEAT_NS);
    assert_int_equal(play.num_watched, 0);
    live(&play, &healthy, BEAT_NS + SHOWN_NS);
    assert_int_equal(play.num_watched, 1);
    live(&play, &healthy, 60 * GS_NS_PER_SEC);
    assert_int_equal(play.num_watched, 1);
    assert_int_equal(gs_play_run(&play)->control.since_ns, 0);
    gs_play_close(&play);
}

// Of a way that comes and goes nobody is told each time.
static void a_way_that_comes_and_goes_is_one_event(void **unused) {
    (void)unused;
    static const char *const reasons[] = {"ControlPathDegraded", "ControlPathRestored"};
    for (int i = 0; i < 2; i++) {
        gs_play play;
        open_training(&play, reasons[i]);
        for (int times = 0; times < 20; times++) {
            live(&play, &cut, gs_timing_default.dead_ns + SHOWN_NS);
            assert_true(is_shown(&play));
            live(&play, &healthy, gs_timing_default.agent_dead_ns / 2);
            assert_false(is_shown(&play));
        }
        live(&play, &healthy, 2 * gs_timing_default.agent_dead_ns);
        assert_int_equal(play.num_watched, 1);
        live(&play, &cut, gs_timing_default.dead_ns + SHOWN_NS);
        assert_int_equal(play.num_watched, 2 - i);
        gs_play_close(&play);
    }
}

static void who_is_heard_is_not_shown(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathDegraded");
    for (int i = 0; i < 60; i++) {
        live(&play, &healthy, GS_NS_PER_SEC);
        assert_false(is_shown(&play));
    }
    assert_int_equal(play.num_watched, 0);
    gs_play_close(&play);
}

// Nothing shows that it lives: that is another matter, and has its own events.
static void who_is_missed_is_not_shown(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathDegraded");
    const manners stands = {.silent = true};
    live(&play, &stands, gs_timing_default.dead_ns + SHOWN_NS);
    assert_int_equal(play.num_watched, 0);
    assert_true(gs_play_run(&play)->cause.set);
    assert_string_equal(gs_play_run(&play)->cause.reason, "WorkerSilent");
    gs_play_close(&play);
}

// Nobody is judged then, and of no rank it is known whether it lives.
static void where_nobody_tells_of_steps_nobody_is_shown(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathDegraded");
    gs_play_silence_lines(&play);
    for (int i = 0; i < 20; i++) {
        gs_play_wait(&play, GS_NS_PER_SEC);
        for (int rank = 0; rank < GS_PLAY_RANKS; rank++) assert_int_equal(gs_play_run(&play)->members[rank].control.since_ms, 0);
    }
    assert_int_equal(play.num_watched, 0);
    assert_trains(&play);
    gs_play_close(&play);
}

// What of its steps was shown ends with its generation: nobody says that it is heard again.
static void what_is_shown_ends_with_the_generation(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathRestored");
    live(&play, &cut, 10 * GS_NS_PER_SEC);
    assert_true(is_shown(&play));
    const manners stands = {.silent = true};
    for (int i = 0; i < 100 && gs_play_run(&play)->phase == GS_RUN_TRAINING; i++) live(&play, &stands, BEAT_NS);
    assert_string_equal(gs_play_run(&play)->cause.reason, "WorkerSilent");
    gs_play_wait(&play, SHOWN_NS);
    assert_false(is_shown(&play));
    assert_int_equal(gs_play_run(&play)->control.num_degraded, 0);
    gs_play_wait(&play, 2 * gs_timing_default.agent_dead_ns);
    assert_int_equal(play.num_watched, 0);
    gs_play_close(&play);
}

// Behind a standstill of this process its age begins anew; it has not been heard for that.
static void a_standstill_is_no_word_of_it(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathRestored");
    live(&play, &cut, 10 * GS_NS_PER_SEC);
    play.now_ns += 30 * GS_NS_PER_SEC;
    for (int i = 0; i < 20; i++) {
        live(&play, &cut, GS_NS_PER_SEC);
        assert_true(is_shown(&play));
    }
    assert_int_equal(play.num_watched, 0);
    assert_trains(&play);
    gs_play_close(&play);
}

// Fifteen of its heartbeats count, where these are stretched.
static void who_is_seldom_heard_is_not_shown_for_it(void **unused) {
    (void)unused;
    gs_play play;
    open_training(&play, "ControlPathDegraded");
    gs_play_run(&play)->members[RANK].heartbeat_ns = GS_NS_PER_SEC;
    live(&play, &cut, 14 * GS_NS_PER_SEC);
    assert_false(is_shown(&play));
    live(&play, &cut, GS_NS_PER_SEC + SHOWN_NS);
    assert_true(is_shown(&play));
    gs_play_close(&play);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_not_heard_while_its_generation_steps_is_shown),
        cmocka_unit_test(who_is_heard_again_is_told_of_once),
        cmocka_unit_test(a_way_that_comes_and_goes_is_one_event),
        cmocka_unit_test(who_is_heard_is_not_shown),
        cmocka_unit_test(who_is_missed_is_not_shown),
        cmocka_unit_test(where_nobody_tells_of_steps_nobody_is_shown),
        cmocka_unit_test(what_is_shown_ends_with_the_generation),
        cmocka_unit_test(a_standstill_is_no_word_of_it),
        cmocka_unit_test(who_is_seldom_heard_is_not_shown_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
