// All ranks of a job are gone with their worker, and the disk that they share with the coordinator tells
// whether they live. Nobody takes the place of ranks that may take a step; and for dead ones nobody waits long.
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

#define OTHER 8  // the incarnation of a worker on another host
#define BEAT_NS (500 * GS_NS_PER_MS)

static const gs_job *job_of(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

static void pass(gs_play *play, int64_t ns) {
    for (int64_t i = 0; i < ns; i += BEAT_NS) {
        gs_engine_event event = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = OTHER, .generation = -1}};
        gs_play_hear(play, &event);
        gs_play_wait(play, BEAT_NS);
    }
}

static void find_other(gs_play *play) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = OTHER, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "other", .host = "far", .boot_id = "b2", .build = "t", .data_root = "/",
                                         .pid = 2, .cores = 1, .num_slots = GS_PLAY_RANKS};
    gs_play_hear(play, &event);
}

static int set_up(void **state) {
    gs_play_set_up_training(state);
    gs_play *play = *state;
    play->looks_out = true;
    gs_play_find_worker(play);
    find_other(play);
    return 0;
}

static uint64_t first_of(const gs_play *play) { return gs_play_run(play)->members[0].incarnation; }

static bool has_another_set(const gs_play *play, uint64_t former) {
    return gs_play_run(play) && gs_play_run(play)->members[0].incarnation != former;
}

static const int64_t looked_ns = 6 * GS_NS_PER_SEC;  // from the first look to the last quiet one

static void nobody_waits_for_the_dead_longer_than_they_could_live(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    int64_t dead_ns = gs_timing_default.agent_dead_ns;
    gs_play_close_lines(play);
    pass(play, dead_ns + looked_ns - 2 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
    pass(play, 3 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, gs_play_run(play)->generation);
    // From when nobody can save there until nobody can take a step.
    pass(play, 3 * dead_ns - 2 * GS_NS_PER_SEC);
    assert_false(has_another_set(play, former));
    pass(play, 3 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
    assert_true(gs_play_run(play)->members[0].stage < GS_MEMBER_EXITED);
}

static void who_leaves_signs_is_not_replaced(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    play->ranks_live = true;
    gs_play_close_lines(play);
    pass(play, 120 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
    assert_string_equal(job_of(play)->reason, "RanksCutOff");
    assert_false(play->life.raises);
    // They die there, later.
    play->ranks_live = false;
    pass(play, looked_ns + 3 * gs_timing_default.agent_dead_ns + 3 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void a_sign_at_the_last_moment_keeps_them(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + looked_ns - 2 * GS_NS_PER_SEC);
    play->ranks_live = true;
    pass(play, 30 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
}

static void a_disk_that_does_not_answer_tells_nothing(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    play->life_says = GS_UNAVAILABLE;
    gs_play_close_lines(play);
    pass(play, 120 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_string_equal(job_of(play)->reason, "WorkerGone");
    assert_non_null(strstr(job_of(play)->message, "it is away"));
    play->life_says = GS_OK;
    pass(play, looked_ns - 2 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
    pass(play, 3 * gs_timing_default.agent_dead_ns + 5 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

// It is of another disk, or of others: their signs would not be seen.
static void a_directory_that_they_have_not_entered_tells_nothing(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    play->fence_is_others = true;
    gs_play_close_lines(play);
    pass(play, 120 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
    assert_true(play->num_looks > 60);
    assert_false(play->life.raises);
}

static void agents_that_leave_no_signs_are_waited_for(void **state) {
    gs_play *play = *state;
    play->looks_out = false;
    gs_play_find_worker(play);
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    pass(play, 120 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->num_looks, 0);
}

// Its ranks are connected: it is not they who are missed.
static void a_silent_worker_says_nothing_of_its_ranks(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_lose_worker(play);
    pass(play, 600 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->num_looks, 0);
}


// Nothing was closed: a cut, or a loss of power.
static void who_is_silent_is_looked_for_later(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_silence_lines(play);
    pass(play, gs_timing_default.absent_ns - GS_NS_PER_SEC);
    assert_int_equal(play->num_looks, 0);
    pass(play, looked_ns + 2 * GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
    pass(play, 3 * gs_timing_default.agent_dead_ns - 3 * GS_NS_PER_SEC);
    assert_false(has_another_set(play, former));
    pass(play, 4 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void who_is_silent_and_leaves_signs_trains_on(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    play->ranks_live = true;
    gs_play_silence_lines(play);
    pass(play, 300 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
    assert_int_equal(job_of(play)->state, GS_JOB_RUNNING);
}

// Then it is this coordinator's host that is cut off, and nobody is there to take their place.
static void where_nobody_is_heard_nobody_is_looked_for(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_silence_lines(play);
    gs_play_wait(play, 300 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->num_looks, 0);
    pass(play, looked_ns - 2 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
    pass(play, 3 * GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
}

// Another life of the coordinator had their connections, and nobody knows how seldom they were to be heard.
static void whom_another_life_has_lost_is_looked_for_last(void **state) {
    gs_play *play = *state;
    int64_t more_ns = 9 * gs_timing_default.longest_pace_ns / 2;
    uint64_t former = first_of(play);
    gs_play_reopen_without_worker(play);
    find_other(play);
    pass(play, gs_timing_default.absent_ns + more_ns + looked_ns - 3 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
    pass(play, 5 * GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
    pass(play, 3 * gs_timing_default.agent_dead_ns + more_ns - 5 * GS_NS_PER_SEC);
    assert_false(has_another_set(play, former));
    pass(play, 6 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void whom_another_life_has_lost_may_leave_signs(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    play->ranks_live = true;
    gs_play_reopen_without_worker(play);
    find_other(play);
    pass(play, gs_timing_default.orphan_ns - 10 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// A loop that stands still has not looked: what it has not seen is no quiet.
static void a_coordinator_that_stood_still_looks_first(void **state) {
    gs_play *play = *state;
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + GS_NS_PER_SEC);
    play->now_ns += 60 * GS_NS_PER_SEC;
    gs_play_wait(play, 3 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
}

// Half a second each two seconds: nobody is absent for a shorter time by that.
static void a_coordinator_under_a_load_gets_there(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    for (int i = 0; i < 12 && !has_another_set(play, former); i++) {
        pass(play, 2 * GS_NS_PER_SEC);
        play->now_ns += GS_NS_PER_SEC / 2;
    }
    assert_true(has_another_set(play, former));
}

// Nobody is back because of it.
static void a_standstill_changes_nothing_of_what_is_known(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + looked_ns + GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
    play->now_ns += 2 * GS_NS_PER_SEC;
    pass(play, GS_NS_PER_SEC);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    pass(play, 3 * gs_timing_default.agent_dead_ns);
    assert_true(has_another_set(play, former));
}

// Back when their directory is closed to them: they end, and save nothing.
static void who_is_back_too_late_ends(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + looked_ns + GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(gs_play_run(play)->phase >= GS_RUN_SETTLING);
    gs_play_say_all(play, GS_ON_SETTLE);
    assert_false(play->settlement_saves);
    gs_play_say_all(play, GS_ON_EXITED);
    pass(play, 3 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

// What an agent says of the ranks that another generation has replaced since.
static void come_back_with(gs_play *play, const gs_play_rank *ranks, uint32_t generation) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = GS_PLAY_AGENT, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "w", .host = "h", .boot_id = "b", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 1, .cores = 1, .num_slots = GS_PLAY_RANKS, .looks_out = true};
    event.agent_hello.running = calloc(GS_PLAY_RANKS, sizeof *event.agent_hello.running);
    event.agent_hello.num_running = GS_PLAY_RANKS;
    for (int i = 0; i < GS_PLAY_RANKS; i++)
        event.agent_hello.running[i] = (gs_running_trainer){.slot = i, .pid = 1, .incarnation = ranks[i].incarnation, .job = play->job,
                                                            .rank = i, .cluster = "", .generation = generation};
    gs_play_hear(play, &event);
}

// They stood still, and would take a step on the way to a save that their directory refuses.
static void who_is_back_behind_another_generation_takes_no_step(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    uint32_t generation = gs_play_run(play)->generation;
    gs_play_rank before[GS_PLAY_RANKS];
    memcpy(before, play->ranks, sizeof before);
    gs_play_close_lines(play);
    pass(play, 4 * gs_timing_default.agent_dead_ns + looked_ns + 2 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
    gs_play_train(play);
    assert_true(gs_play_run(play)->generation > generation);
    memcpy(play->ranks, before, sizeof before);
    play->worker_is_welcome = false;
    come_back_with(play, before, generation);
    assert_true(play->worker_is_welcome);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        assert_true(play->ranks[i].ordered_to_die);
        assert_false(play->ranks[i].ordered_to_stop);
        assert_false(play->ranks[i].ordered_after_welcome);  // with which its worker lets them go on
    }
}

static void who_is_back_in_time_trains_on(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + 3 * GS_NS_PER_SEC);
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_STEP);
    assert_int_equal(first_of(play), former);
    assert_int_equal(job_of(play)->state, GS_JOB_RUNNING);
    // What was looked for then does not count the next time.
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + looked_ns - 2 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
}

static void ends(gs_play *play) {
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_true(gs_play_run(play)->phase >= GS_RUN_SETTLING);
    assert_string_equal(gs_play_run(play)->cause.reason, "RanksGivenUp");
    gs_play_say_all(play, GS_ON_SETTLE);
    assert_false(play->settlement_saves);
}

// They would train on where nothing can be saved.
static void a_fence_that_nobody_heard_of_is_found_when_they_are_back(void **state) {
    gs_play *play = *state;
    play->raise_is_lost = true;
    gs_play_close_lines(play);
    while (!play->fenced) pass(play, BEAT_NS);
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    ends(play);
}

static void a_fence_is_not_forgotten_by_another_life(void **state) {
    gs_play *play = *state;
    gs_play_close_lines(play);
    while (!play->fenced) pass(play, BEAT_NS);
    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    ends(play);
}

static void who_checks_in_is_looked_for_once(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_reopen(play);
    gs_play_say_all(play, GS_ON_HELLO);
    play->num_looks = 0;
    for (int i = 0; i < 20; i++) {
        gs_play_wait(play, BEAT_NS);
        gs_play_say(play, 0, GS_ON_HEARTBEAT);
        gs_play_say(play, 1, GS_ON_HEARTBEAT);
    }
    assert_int_equal(play->num_looks, 1);
    assert_false(play->life.raises);
    assert_int_equal(first_of(play), former);
}

// Each hears less often, and notices later that nobody is heard.
static void of_very_many_workers_more_patience_is_had(void **state) {
    gs_play *play = *state;
    enum { MANY = 5000 };
    int64_t more_ns = 9 * gs_timing_pace(MANY) / 2, looks_ns = gs_timing_default.agent_dead_ns + looked_ns;
    for (int i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof name, "many-%d", i);
        gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
        event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = 1000 + (uint64_t)i, .generation = -1};
        event.agent_hello = (gs_agent_hello){.worker = name, .host = name, .boot_id = "b3", .build = "t", .data_root = "/",
                                             .pid = 3, .cores = 1};
        gs_play_hear(play, &event);
    }
    uint64_t former = first_of(play);
    gs_play_wait(play, BEAT_NS);
    gs_play_close_lines(play);
    pass(play, looks_ns + more_ns - 2 * GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
    pass(play, 4 * GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
    pass(play, 3 * gs_timing_default.agent_dead_ns + more_ns - 4 * GS_NS_PER_SEC);
    assert_false(has_another_set(play, former));
    pass(play, 4 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_fence_that_nobody_heard_of_is_found_when_they_are_back, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_fence_is_not_forgotten_by_another_life, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_checks_in_is_looked_for_once, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(of_very_many_workers_more_patience_is_had, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(nobody_waits_for_the_dead_longer_than_they_could_live, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_leaves_signs_is_not_replaced, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_sign_at_the_last_moment_keeps_them, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_does_not_answer_tells_nothing, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_directory_that_they_have_not_entered_tells_nothing, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(agents_that_leave_no_signs_are_waited_for, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_silent_worker_says_nothing_of_its_ranks, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_is_silent_is_looked_for_later, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_is_silent_and_leaves_signs_trains_on, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(where_nobody_is_heard_nobody_is_looked_for, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(whom_another_life_has_lost_is_looked_for_last, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(whom_another_life_has_lost_may_leave_signs, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_coordinator_that_stood_still_looks_first, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_coordinator_under_a_load_gets_there, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(a_standstill_changes_nothing_of_what_is_known, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_is_back_too_late_ends, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_is_back_behind_another_generation_takes_no_step, set_up, gs_play_tear_down),
        cmocka_unit_test_setup_teardown(who_is_back_in_time_trains_on, set_up, gs_play_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
