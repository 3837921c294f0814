// Workers whose checkpoint directory is another one than the coordinator's, as the engine hears of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/engine/base/places.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/engine_play.h"

#define OTHER_AGENT 8  // its incarnation; by name it is before the first

static const char other_spec[] =
    "{\"name\":\"other\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":1,\"max\":1},\"steps\":{\"target\":5}}";

static gs_job *job_of(const gs_play *play) { return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job); }

static void say_place(gs_play *play, uint64_t incarnation, gs_agent_place place) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = incarnation, .generation = -1}};
    event.agent_heartbeat.place = place;
    gs_play_hear(play, &event);
}

// Another set, of a job that has a checkpoint of step 3.
static void start_again(gs_play *play) {
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    assert_int_equal(gs_checkpoints_newest_step(&job_of(play)->checkpoints), 3);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_LAUNCHING);
}

// No free worker sees that checkpoint: the job waits for one, and goes on without it in the end.
static void start_again_without_a_place(gs_play *play) {
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_null(gs_play_run(play));
    assert_string_equal(job_of(play)->reason, "CheckpointElsewhere");
    assert_false(gs_job_state_terminal(job_of(play)->state));
}

static void await_the_end_of_waiting(gs_play *play) {
    gs_play_wait(play, gs_engine_state(play->engine)->timing.orphan_ns);
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_LAUNCHING);
}

static void make_ready(gs_play *play, const int64_t steps[GS_PLAY_RANKS]) {
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_PARAMS);
    for (int i = 0; i < GS_PLAY_RANKS; i++) {
        gs_engine_event ready = gs_play_message(play, i, GS_ON_READY);
        ready.ready.applied_step = steps[i];
        gs_play_hear(play, &ready);
    }
}

static void expect_elsewhere(gs_play *play) {
    make_ready(play, (int64_t[]){0, 0});
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(job_of(play)->state, GS_JOB_FAILED);
    assert_string_equal(job_of(play)->reason, "CheckpointElsewhere");
}

static void no_set_begins_at_0_whose_worker_has_said_nothing_of_its_place(void **state) {
    gs_play *play = *state;
    start_again(play);
    expect_elsewhere(play);
}

static void a_heartbeat_without_a_word_leaves_what_is_known(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    start_again_without_a_place(play);
    say_place(play, GS_PLAY_AGENT, GS_PLACE_UNKNOWN);
    await_the_end_of_waiting(play);
    assert_true(gs_engine_state(play->engine)->agents.items[0]->place == GS_PLACE_APART);
    expect_elsewhere(play);
}

// It was told at its launch that it may begin without a checkpoint, whatever its worker sees by now.
static void a_rank_stays_apart_that_was_launched_so(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    start_again_without_a_place(play);
    await_the_end_of_waiting(play);
    say_place(play, GS_PLAY_AGENT, GS_PLACE_SAME);
    assert_true(gs_play_run(play)->members[0].was_elsewhere);
    make_ready(play, (int64_t[]){3, 0});
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_CONNECTING);
    assert_int_equal(gs_play_run(play)->base_step, 3);
}

static void a_set_that_has_the_checkpoint_goes_on_from_it(void **state) {
    gs_play *play = *state;
    start_again(play);
    make_ready(play, (int64_t[]){3, 3});
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_CONNECTING);
    assert_int_equal(gs_play_run(play)->base_step, 3);
}

static void people_are_told_once_also_when_it_is_known_late(void **state) {
    gs_play *play = *state;
    play->watched_reason = "CheckpointsNotShared";
    say_place(play, GS_PLAY_AGENT, GS_PLACE_SAME);
    assert_int_equal(play->num_watched, 0);
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    assert_int_equal(play->num_watched, 1);
    say_place(play, GS_PLAY_AGENT, GS_PLACE_SAME);
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    assert_int_equal(play->num_watched, 1);
}

static void a_job_waits_for_a_worker_that_sees_its_checkpoint(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    start_again_without_a_place(play);
    say_place(play, GS_PLAY_AGENT, GS_PLACE_SAME);
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_LAUNCHING);
    make_ready(play, (int64_t[]){3, 3});
    assert_int_equal(gs_play_run(play)->base_step, 3);
}

static void join_other_with(gs_play *play, bool tells_place, int num_slots) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = OTHER_AGENT, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "a", .host = "a", .boot_id = "a", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 1, .cores = 1, .num_slots = num_slots, .tells_place = tells_place};
    gs_play_hear(play, &event);
}

static void join_other_that(gs_play *play, bool tells_place) { join_other_with(play, tells_place, 1); }

static void join_other(gs_play *play) { join_other_that(play, false); }

static void expect_rank_0_on(gs_play *play, const char *worker) {
    gs_play_say_all(play, GS_ON_EXITED);
    gs_play_wait(play, 30 * GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_string_equal(gs_play_run(play)->members[0].worker, worker);
}

static void rank_0_is_where_checkpoints_are_known_to_be_seen(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_SAME);
    join_other(play);
    expect_rank_0_on(play, "w");
}

static void who_has_said_nothing_is_before_who_is_apart(void **state) {
    gs_play *play = *state;
    join_other(play);
    say_place(play, OTHER_AGENT, GS_PLACE_APART);
    expect_rank_0_on(play, "w");
}

// As it ever was.
static void workers_that_say_nothing_are_in_order_of_their_names(void **state) {
    gs_play *play = *state;
    join_other(play);
    expect_rank_0_on(play, "a");
}

static int free_slots_of(const gs_play *play, const char *worker) {
    return gs_agent_free_slots(gs_agent_table_find(&gs_engine_state(play->engine)->agents, worker)).plain;
}

static void nothing_is_started_where_the_place_is_still_to_be_told(void **state) {
    gs_play *play = *state;
    join_other_that(play, true);
    assert_int_equal(free_slots_of(play, "a"), 0);
    say_place(play, OTHER_AGENT, GS_PLACE_UNKNOWN);
    assert_int_equal(free_slots_of(play, "a"), 0);
    say_place(play, OTHER_AGENT, GS_PLACE_APART);
    assert_int_equal(free_slots_of(play, "a"), 1);
}

static void a_disk_that_does_not_answer_keeps_no_slots(void **state) {
    gs_play *play = *state;
    join_other_that(play, true);
    assert_int_equal(free_slots_of(play, "a"), 0);
    for (int i = 0; i < 6; i++) {
        gs_play_wait(play, GS_NS_PER_SEC);
        say_place(play, OTHER_AGENT, GS_PLACE_UNKNOWN);
    }
    assert_int_equal(free_slots_of(play, "a"), 1);
}

// Most of its slots are elsewhere, and would take all ranks: one is where the checkpoint is seen all the same.
static void a_rank_is_where_the_checkpoint_is_seen_whoever_has_more_slots(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_SAME);
    join_other_with(play, false, 6);
    say_place(play, OTHER_AGENT, GS_PLACE_APART);
    start_again(play);
    assert_string_equal(gs_play_run(play)->members[0].worker, "w");
    assert_string_equal(gs_play_run(play)->members[1].worker, "a");
}

static void who_waits_for_a_place_keeps_no_slots(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    start_again_without_a_place(play);
    const gs_job *other = gs_play_submit(play, other_spec);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(other->run);
    assert_null(gs_play_run(play));
}

// It takes up to three ranks and needs two: the third has a GPU, and sees the checkpoint.
static void a_gpu_for_more_ranks_is_a_place_too(void **state) {
    gs_play *play = *state;
    job_of(play)->spec.world.max = GS_PLAY_RANKS + 1;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    start_again_without_a_place(play);
    join_other_that(play, true);
    gs_agent *other = gs_agent_table_find(&gs_engine_state(play->engine)->agents, "a");
    other->devices = (gs_agent_devices){.items = calloc(1, sizeof *other->devices.items), .count = 1, .per_slot = 1};
    say_place(play, OTHER_AGENT, GS_PLACE_SAME);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_int_equal(gs_play_run(play)->num_members, GS_PLAY_RANKS + 1);
}

// Whoever was to come could not be heard meanwhile.
static void a_standstill_is_no_waiting_for_a_place(void **state) {
    gs_play *play = *state;
    say_place(play, GS_PLAY_AGENT, GS_PLACE_APART);
    start_again_without_a_place(play);
    join_other_that(play, true);
    play->now_ns += 2 * gs_engine_state(play->engine)->timing.orphan_ns;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_null(gs_play_run(play));
    assert_string_equal(job_of(play)->reason, "CheckpointElsewhere");
    assert_int_equal(free_slots_of(play, "a"), 0);
    say_place(play, OTHER_AGENT, GS_PLACE_APART);
    assert_int_equal(free_slots_of(play, "a"), 1);
    assert_null(gs_play_run(play));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_play_set_up_training, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(no_set_begins_at_0_whose_worker_has_said_nothing_of_its_place),
        TEST(a_heartbeat_without_a_word_leaves_what_is_known),
        TEST(a_rank_stays_apart_that_was_launched_so),
        TEST(a_set_that_has_the_checkpoint_goes_on_from_it),
        TEST(people_are_told_once_also_when_it_is_known_late),
        TEST(rank_0_is_where_checkpoints_are_known_to_be_seen),
        TEST(who_has_said_nothing_is_before_who_is_apart),
        TEST(workers_that_say_nothing_are_in_order_of_their_names),
        TEST(a_job_waits_for_a_worker_that_sees_its_checkpoint),
        TEST(nothing_is_started_where_the_place_is_still_to_be_told),
        TEST(a_disk_that_does_not_answer_keeps_no_slots),
        TEST(a_rank_is_where_the_checkpoint_is_seen_whoever_has_more_slots),
        TEST(who_waits_for_a_place_keeps_no_slots),
        TEST(a_gpu_for_more_ranks_is_a_place_too),
        TEST(a_standstill_is_no_waiting_for_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
