// A worker's connection and all of its ranks' are closed: they may have died, or a network has closed them and is cut now.
// No other set of a job starts before it is known which, or before it makes no difference.
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

#define OTHER 8  // the incarnation of another worker
#define BEAT_NS (500 * GS_NS_PER_MS)

static const gs_job *job_of(const gs_play *play) {
    return gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
}

static void find_other_in(gs_play *play, const char *host, const char *boot_id, const char *network) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = OTHER, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "other", .host = host, .boot_id = boot_id, .network = network, .build = "t",
                                         .data_root = "/", .pid = 2, .cores = 1, .num_slots = GS_PLAY_RANKS};
    gs_play_hear(play, &event);
}

static void find_other(gs_play *play, const char *host, const char *boot_id) { find_other_in(play, host, boot_id, "n"); }

// The other worker is there all the while.
static void pass(gs_play *play, int64_t ns) {
    for (int64_t i = 0; i < ns; i += BEAT_NS) {
        gs_engine_event event = {.kind = GS_ON_AGENT_HEARTBEAT, .from = {.who.incarnation = OTHER, .generation = -1}};
        gs_play_hear(play, &event);
        gs_play_wait(play, BEAT_NS);
    }
}

// A set that was started: its ranks are others.
static bool has_another_set(const gs_play *play, uint64_t former) {
    return gs_play_run(play) && gs_play_run(play)->members[0].incarnation != former;
}

static uint64_t first_of(const gs_play *play) { return gs_play_run(play)->members[0].incarnation; }

static void no_other_set_starts_beside_ranks_that_may_live(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    uint32_t generation = gs_play_run(play)->generation;
    find_other(play, "far", "b2");
    pass(play, 2 * gs_timing_default.agent_dead_ns);
    gs_play_close_lines(play);
    pass(play, 120 * GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_int_equal(first_of(play), former);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    assert_int_equal(job_of(play)->state, GS_JOB_RECOVERING);
    assert_string_equal(job_of(play)->reason, "WorkerGone");
    // They lived.
    gs_play_find_worker(play);
    gs_play_say_all(play, GS_ON_HELLO);
    gs_play_say(play, 0, GS_ON_STEP);
    assert_int_equal(gs_play_run(play)->generation, generation);
    assert_int_equal(job_of(play)->state, GS_JOB_RUNNING);
    for (int i = 0; i < GS_PLAY_RANKS; i++)
        assert_false(play->ranks[i].ordered_to_stop || play->ranks[i].ordered_to_die);
}

static bool is_explained(const gs_play *play) {
    return job_of(play)->state == GS_JOB_RECOVERING && !strcmp(job_of(play)->reason, "WorkerGone");
}

// A network closes them one by one, and who is still heard tells of steps meanwhile.
static void a_step_between_two_of_them_hides_nothing(void **state) {
    gs_play *play = *state;
    find_other(play, "far", "b2");
    gs_play_close_line(play, play->agent_stream);
    gs_play_wait(play, 40 * GS_NS_PER_MS);
    gs_play_say_all(play, GS_ON_STEP);
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_close_line(play, play->rank_streams[i]);
    pass(play, gs_timing_default.agent_dead_ns + GS_NS_PER_SEC);
    assert_true(is_explained(play));
}

// Not only at the moment in which its worker is missed.
static void the_last_of_them_may_take_its_time(void **state) {
    gs_play *play = *state;
    find_other(play, "far", "b2");
    gs_play_close_line(play, play->agent_stream);
    gs_play_close_line(play, play->rank_streams[1]);
    for (int i = 0; i < 10; i++) {
        pass(play, BEAT_NS);
        gs_play_say_all(play, GS_ON_STEP);
        assert_int_equal(job_of(play)->state, GS_JOB_RUNNING);
    }
    gs_play_close_line(play, play->rank_streams[0]);
    pass(play, BEAT_NS);
    assert_true(is_explained(play));
}

static void they_are_waited_for_no_longer_than_they_stay_alone(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    find_other(play, "far", "b2");
    gs_play_close_lines(play);
    pass(play, gs_timing_default.orphan_ns - GS_NS_PER_SEC);
    assert_false(has_another_set(play, former));
    pass(play, 2 * gs_timing_default.leave_ns + 2 * gs_timing_default.settle_ns);
    assert_true(has_another_set(play, former));
}

// Who lives on a host whose other worker is heard would be back.
static void a_worker_of_their_host_is_a_witness(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    gs_play_wait(play, 60 * GS_NS_PER_SEC);
    find_other(play, "h", "b");
    pass(play, gs_timing_default.agent_dead_ns - GS_NS_PER_SEC);  // the whole host may just be back
    assert_int_equal(first_of(play), former);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    pass(play, 2 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void a_witness_that_is_there_already_costs_no_time(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    find_other(play, "h", "b");
    pass(play, 2 * gs_timing_default.agent_dead_ns);
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

// Two containers have their host's name, and each its own network.
static void a_worker_with_another_network_is_no_witness(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    find_other_in(play, "h", "b", "m");
    gs_play_close_lines(play);
    pass(play, 60 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
}

static void set_up_looks(gs_play *play) {
    play->looks_out = true;
    gs_play_find_worker(play);
    find_other(play, "h", "b");
    pass(play, 2 * gs_timing_default.agent_dead_ns);
}

// The two may be treated differently all the same, and there is something to ask.
static void a_witness_does_not_decide_where_the_disk_tells(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    int64_t dead_ns = gs_timing_default.agent_dead_ns;
    set_up_looks(play);
    gs_play_close_lines(play);
    pass(play, dead_ns + GS_NS_PER_SEC);
    assert_int_equal(play->fenced, 0);
    pass(play, 3 * GS_NS_PER_SEC);
    assert_true(play->fenced > 0);
    pass(play, 3 * dead_ns - 3 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    pass(play, 4 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void a_witness_is_wrong_about_ranks_that_leave_signs(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    set_up_looks(play);
    play->ranks_live = true;
    gs_play_close_lines(play);
    pass(play, 60 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
    assert_string_equal(job_of(play)->reason, "RanksCutOff");
}

static void a_witness_decides_where_the_disk_tells_nothing(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    set_up_looks(play);
    play->fence_is_others = true;
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + 4 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

// Rank 1 is the other worker's, and a third has room for both of them. Returns the stream of the other one.
static gs_call part(gs_play *play) {
    gs_member *member = &gs_play_run(play)->members[1];
    snprintf(member->worker, sizeof member->worker, "other");
    member->slot = 0;
    play->looks_out = play->ranks[1].is_gone = true;
    gs_play_find_worker(play);
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO, .from = {.call = ++play->last_call, .who.incarnation = OTHER, .generation = -1}};
    event.agent_hello = (gs_agent_hello){.worker = "other", .host = "h", .boot_id = "b", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 2, .cores = 1, .num_slots = 1, .num_running = 1, .looks_out = true};
    event.agent_hello.running = calloc(1, sizeof *event.agent_hello.running);
    event.agent_hello.running[0] = (gs_running_trainer){.pid = 1, .incarnation = member->incarnation, .job = play->job, .rank = 1,
                                                        .cluster = "", .generation = gs_play_run(play)->generation};
    gs_call stream = event.from.call;
    gs_play_hear(play, &event);
    event = (gs_engine_event){.kind = GS_ON_AGENT_HELLO, .from = {.call = ++play->last_call, .who.incarnation = OTHER + 1, .generation = -1}};
    event.agent_hello = (gs_agent_hello){.worker = "third", .host = "far", .boot_id = "b2", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 3, .cores = 1, .num_slots = GS_PLAY_RANKS};
    gs_play_hear(play, &event);
    return stream;
}

// Until the other worker can say that its ranks would be back.
static void lose_first_worker(gs_play *play) {
    int64_t dead_ns = gs_timing_default.agent_dead_ns;
    for (int64_t ns = 0; ns < 2 * dead_ns; ns += BEAT_NS) {
        pass(play, BEAT_NS);
        gs_play_say_all(play, GS_ON_STEP);
    }
    gs_play_close_line(play, play->agent_stream);
    gs_play_close_line(play, play->rank_streams[0]);
    for (int64_t ns = 0; ns < dead_ns; ns += BEAT_NS) {
        gs_play_say(play, 1, GS_ON_HEARTBEAT);
        pass(play, BEAT_NS);
    }
    gs_play_wait(play, 4 * gs_timing_default.tick_ns);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_SETTLING);
}

// The network is cut for the other rank as well, before it has heard that its generation is over.
static void who_has_not_heard_a_witness_s_word_trains_on(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_call other = part(play);
    play->ranks_live = true;
    lose_first_worker(play);
    gs_play_close_line(play, play->rank_streams[1]);
    gs_play_close_line(play, other);
    gs_play_wait(play, 120 * GS_NS_PER_SEC);
    assert_non_null(gs_play_run(play));
    assert_int_equal(first_of(play), former);
    assert_int_equal(play->fenced, 0);
}

static void who_hears_a_witness_s_word_ends_the_set(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    part(play);
    lose_first_worker(play);
    gs_play_say(play, 1, GS_ON_SETTLE);
    gs_play_wait(play, 2 * gs_timing_default.tick_ns);
    gs_status answer;
    assert_true(gs_play_is_answered(play, play->last_call, &answer));
    assert_int_equal(answer.code, GS_OK);
    gs_engine_event event = gs_play_message(play, 1, GS_ON_EXITED);
    event.from.who.incarnation = OTHER;
    gs_play_hear(play, &event);
    gs_play_wait(play, 2 * gs_timing_default.tick_ns);
    assert_true(has_another_set(play, former));
}

static void a_host_that_was_started_anew_is_no_witness(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    find_other(play, "h", "b2");  // a host of the same name
    gs_play_close_lines(play);
    pass(play, 60 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
}

static void a_worker_that_is_back_without_them_is_proof(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    gs_play_close_lines(play);
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    for (int i = 0; i < GS_PLAY_RANKS; i++) play->ranks[i].is_gone = true;
    gs_play_find_worker(play);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void an_operator_gives_them_up(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    find_other(play, "far", "b2");
    gs_play_close_lines(play);
    pass(play, 5 * GS_NS_PER_SEC);
    assert_int_equal(first_of(play), former);
    gs_engine_event release = {.kind = GS_ON_RELEASE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    release.release.job = play->job_text;
    gs_play_hear(play, &release);
    pass(play, 3 * GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

// Another rank has left: this one takes no step, dead or alive.
static void who_can_do_no_harm_is_not_waited_for(void **state) {
    gs_play *play = *state;
    uint64_t former = first_of(play);
    find_other(play, "far", "b2");
    pass(play, 2 * gs_timing_default.agent_dead_ns);
    gs_play_say(play, 1, GS_ON_EXITED);
    gs_play_close_lines(play);
    pass(play, gs_timing_default.agent_dead_ns + GS_NS_PER_SEC);
    assert_true(has_another_set(play, former));
}

static void a_start_that_has_not_trained_begins_anew_at_once(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    gs_play_say_all(&play, GS_ON_HELLO);
    uint64_t former = first_of(&play);
    find_other(&play, "far", "b2");
    gs_play_close_lines(&play);
    pass(&play, gs_timing_default.agent_dead_ns + 2 * GS_NS_PER_SEC);
    assert_true(has_another_set(&play, former));
    gs_play_close(&play);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_play_set_up_training, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(no_other_set_starts_beside_ranks_that_may_live),
        TEST(a_step_between_two_of_them_hides_nothing),
        TEST(the_last_of_them_may_take_its_time),
        TEST(they_are_waited_for_no_longer_than_they_stay_alone),
        TEST(a_worker_of_their_host_is_a_witness),
        TEST(a_witness_that_is_there_already_costs_no_time),
        TEST(a_worker_with_another_network_is_no_witness),
        TEST(a_witness_does_not_decide_where_the_disk_tells),
        TEST(a_witness_is_wrong_about_ranks_that_leave_signs),
        TEST(a_witness_decides_where_the_disk_tells_nothing),
        TEST(who_has_not_heard_a_witness_s_word_trains_on),
        TEST(who_hears_a_witness_s_word_ends_the_set),
        TEST(a_host_that_was_started_anew_is_no_witness),
        TEST(a_worker_that_is_back_without_them_is_proof),
        TEST(an_operator_gives_them_up),
        TEST(who_can_do_no_harm_is_not_waited_for),
        cmocka_unit_test(a_start_that_has_not_trained_begins_anew_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
