// Numbers of generations while the store refuses to reserve more of them: none is given before it is durable that no later life
// of the coordinator gives it again.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/engine/base/generations.h"
#include "core/clock.h"
#include "tests/unit/coordinator/engine_play.h"

#define FIRST GS_GENERATION_BLOCK  // of the engine in play
#define MOST_GENERATIONS (3 * GS_GENERATION_BLOCK)
#define UNASKED (GS_GENERATION_BLOCK / 2 - 10)  // so many go without a question to the store

static void both(gs_play *play, gs_engine_event_kind kind) {
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, kind);
}

// 0: its ranks are there, and it gets no number.
static uint32_t form_generation(gs_play *play) {
    for (int i = 0; i < 1000 && !gs_play_run(play); i++) gs_play_wait(play, 20 * GS_NS_PER_MS);
    assert_non_null(gs_play_run(play));
    both(play, GS_ON_HELLO);
    if (gs_play_run(play)->members[0].list_asked) gs_play_say(play, 0, GS_ON_PARAMS);
    return gs_play_run(play)->generation;
}

static void train_and_end(gs_play *play) {
    both(play, GS_ON_READY);
    both(play, GS_ON_COMM_UP);
    gs_play_say(play, 0, GS_ON_STEP);
    both(play, GS_ON_EXITED);
}

static void no_number_is_given_before_it_is_durable(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    gs_job_spec *spec = &gs_play_run(&play)->job->spec;
    spec->restart.max_restarts = INT32_MAX;
    spec->restart.backoff_initial_seconds = spec->restart.backoff_max_seconds = 0;
    uint32_t last = form_generation(&play), count = 1;
    assert_true(last >= FIRST);
    train_and_end(&play);
    play.disk_says = GS_RESOURCE_EXHAUSTED;
    for (int i = 0; i < UNASKED; i++) last = gs_generations_take(play.engine);
    for (;;) {
        uint32_t generation = form_generation(&play);
        if (!generation) break;
        assert_true(generation > last);
        last = generation;
        assert_true(++count < MOST_GENERATIONS);
        train_and_end(&play);
    }
    assert_int_equal(last, FIRST + GS_GENERATION_BLOCK - 1);
    gs_play_wait(&play, 10 * GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(&play)->phase, GS_RUN_LAUNCHING);
    play.disk_says = GS_OK;
    gs_play_wait(&play, 10 * GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(&play)->generation, last + 1);
    gs_play_close(&play);
}

// Nor do those that others have used leave too few.
static void numbers_end_and_do_not_begin_anew(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    uint32_t least = 0, last = 0;
    assert_false(gs_generations_leap(play.engine, UINT32_C(4293960000), &least));
    assert_true(gs_generations_leap(play.engine, UINT32_MAX / 2 - 1, &least));
    assert_int_equal(least, UINT32_MAX / 2 - 1 + GS_GENERATION_LEAP);
    gs_generations_raise(play.engine, UINT32_MAX - 6 * GS_GENERATION_BLOCK);
    const gs_generation_numbers *numbers = &gs_engine_state(play.engine)->generations;
    for (int empty = 0; empty < 3;) {
        assert_true(numbers->asked_end >= numbers->durable_end);  // the next life begins there
        gs_generations_stored(play.engine, numbers->asked_end, gs_ok());  // what the store reserves
        uint32_t generation = gs_generations_take(play.engine);
        if (generation) assert_true(generation > last);
        if (generation) last = generation;
        empty = generation ? 0 : empty + 1;
    }
    assert_true(last >= UINT32_MAX - 5 * GS_GENERATION_BLOCK);
    assert_true(numbers->durable_end > last);
    gs_play_close(&play);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_number_is_given_before_it_is_durable),
                                       cmocka_unit_test(numbers_end_and_do_not_begin_anew)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
