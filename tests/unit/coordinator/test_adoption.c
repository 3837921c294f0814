// Trainers of another cluster are adopted, and the disk is slow, or says no: nobody is told before the job is durable.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/engine_play.h"

#define LOST "j-0000000000ab"
#define AGENT 70  // the incarnation of the worker in whose slots they run
#define TRAINER 80  // that of rank 0; that of rank 1 is the next
#define NUM_RANKS 2
#define FAR GS_NS_PER_SEC

static const char elsewhere[] = "c-elsewhere", here[] = "c";

static const gs_state *state_of(const gs_play *play) { return gs_engine_state(play->engine); }

static uint64_t lost_id(void) {
    uint64_t id = 0;
    assert_true(gs_job_id_parse(&id, LOST));
    return id;
}

static gs_job *lost_job(const gs_play *play) { return gs_job_table_get(&state_of(play)->jobs, lost_id()); }

static gs_running_trainer running(int rank, const char *cluster) {
    return (gs_running_trainer){.slot = rank, .pid = 1, .incarnation = TRAINER + (uint64_t)rank, .job = lost_id(),
                                .cluster = cluster, .rank = rank, .world_size = NUM_RANKS, .generation = 5, .step = 40};
}

static void find_their_worker(gs_play *play, const char *of_rank_0, const char *of_rank_1) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = AGENT, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "v", .host = "h", .boot_id = "b", .build = "t", .data_root = "/",
                                         .pid = 2, .cores = 1, .num_slots = NUM_RANKS};
    event.agent_hello.running = calloc(NUM_RANKS, sizeof *event.agent_hello.running);
    assert_non_null(event.agent_hello.running);
    event.agent_hello.num_running = NUM_RANKS;
    event.agent_hello.running[0] = running(0, of_rank_0);
    event.agent_hello.running[1] = running(1, of_rank_1);
    gs_play_hear(play, &event);
}

static gs_call ask(gs_play *play) {
    gs_engine_event event = {.kind = GS_ON_ADOPT_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    event.from.asked_by = "ci (t-1)";
    event.adopt.job = LOST;
    gs_play_hear(play, &event);
    return event.from.call;
}

static void describe_of(gs_play *play, const gs_running_trainer *there, uint32_t last_generation, const char *writes_as) {
    gs_engine_event event = {.kind = GS_ON_DESCRIBED, .from = {.who.incarnation = AGENT, .generation = -1}};
    gs_job_spec *spec = malloc(sizeof *spec);
    assert_non_null(spec);
    *spec = gs_job_table_get(&state_of(play)->jobs, play->job)->spec;
    snprintf(spec->name, sizeof spec->name, "lost");
    event.described = (gs_described_trainer){.running = *there, .launch_token = 7, .last_generation = last_generation,
                                             .checkpoints_dir = "", .writes_as = writes_as,
                                             .spec = spec, .spec_digest = "s"};
    gs_play_hear(play, &event);
}

static void describe_fully(gs_play *play, const gs_running_trainer *there, uint32_t last_generation) {
    describe_of(play, there, last_generation, "");
}

static void describe_as(gs_play *play, int rank, const char *cluster, gs_membership membership) {
    gs_running_trainer there = running(rank, cluster);
    there.membership = membership;
    describe_fully(play, &there, 0);
}

// By an agent of an older release, which doesn't say how far its trainers are.
static void describe(gs_play *play, int rank, const char *cluster) {
    describe_as(play, rank, cluster, GS_MEMBERSHIP_UNTOLD);
}

// What a trainer's hello is answered with; ok: it is welcome.
static gs_code say_hello(gs_play *play, int rank, const char *cluster) {
    gs_engine_event event = {.kind = GS_ON_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = TRAINER + (uint64_t)rank, .who.job = lost_id(),
                             .generation = 5};
    event.hello = (gs_trainer_hello){.job = LOST, .cluster = cluster, .incarnation = TRAINER + (uint64_t)rank,
                                     .launch_token = 7, .pid = 1, .host = "h", .boot_id = "b", .params_digest = "",
                                     .data_digest = "", .applied_step = 40};
    gs_call call = event.from.call;
    gs_play_hear(play, &event);
    gs_status answer;
    return gs_play_is_answered(play, call, &answer) ? answer.code : GS_OK;
}

static void expect_answer(const gs_play *play, gs_call call, gs_code code) {
    gs_status answer;
    assert_true(gs_play_is_answered(play, call, &answer));
    assert_int_equal(answer.code, code);
}

static void expect_no_answer(const gs_play *play, gs_call call) {
    gs_status answer;
    assert_false(gs_play_is_answered(play, call, &answer));
}

static void expect_untouched(const gs_play *play) {
    assert_int_equal(play->num_adopt_orders, 0);
    assert_int_equal(play->num_stop_orders, 0);
}

// All that waits for the disk is done.
static void let_disk_go(gs_play *play) {
    play->disk_waits = false;
    gs_play_wait(play, 1);
}

static int set_up(void **state) {
    gs_play *play = calloc(1, sizeof *play);
    assert_non_null(play);
    gs_play_open(play);
    *state = play;
    return 0;
}

static int tear_down(void **state) {
    gs_play_close(*state);
    free(*state);
    return 0;
}

// Up to the row, which is on its way.
static gs_call adopt(gs_play *play, const char *of_rank_0, const char *of_rank_1) {
    find_their_worker(play, of_rank_0, of_rank_1);
    play->disk_waits = true;
    gs_call call = ask(play);
    describe(play, 0, of_rank_0);
    describe(play, 1, of_rank_1);
    return call;
}

static void nobody_is_told_before_the_row_is_durable(void **state) {
    gs_play *play = *state;
    play->watched_reason = "Requested";
    gs_call call = adopt(play, elsewhere, elsewhere);
    assert_int_equal(play->num_watched, 1);  // by whom
    gs_play_wait(play, FAR);
    find_their_worker(play, elsewhere, elsewhere);  // it comes back meanwhile
    assert_int_equal(say_hello(play, 0, elsewhere), GS_NOT_FOUND);
    assert_int_equal(say_hello(play, 0, here), GS_NOT_FOUND);
    expect_untouched(play);
    expect_no_answer(play, call);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    assert_int_equal(play->num_adopt_orders, NUM_RANKS);
    assert_int_equal(play->num_stop_orders, 0);
    assert_string_equal(lost_job(play)->adopted_from, elsewhere);
    for (int rank = 0; rank < NUM_RANKS; rank++) assert_int_equal(say_hello(play, rank, elsewhere), GS_OK);
    assert_int_equal(lost_job(play)->run->phase, GS_RUN_TRAINING);
    // Where their checkpoints lie they go by the name of before; who comes after them does not.
    const gs_job *job = lost_job(play);
    assert_string_equal(gs_job_cluster_of(job, &state_of(play)->cluster, job->run->generation), elsewhere);
    assert_string_equal(gs_job_cluster_of(job, &state_of(play)->cluster, job->least_generation), state_of(play)->cluster.id);
}

static void what_cannot_be_stored_leaves_them_whose_they_were(void **state) {
    gs_play *play = *state;
    gs_call call = adopt(play, elsewhere, elsewhere);
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    let_disk_go(play);
    expect_answer(play, call, GS_RESOURCE_EXHAUSTED);
    expect_untouched(play);
    assert_null(lost_job(play));
    assert_int_equal(say_hello(play, 0, elsewhere), GS_NOT_FOUND);
    // As soon as there is room.
    play->disk_says = GS_OK;
    call = adopt(play, elsewhere, elsewhere);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    assert_int_equal(play->num_adopt_orders, NUM_RANKS);
}

static void who_asks_again_is_answered_when_it_is_durable(void **state) {
    gs_play *play = *state;
    gs_call call = adopt(play, elsewhere, elsewhere);
    expect_answer(play, ask(play), GS_FAILED_PRECONDITION);  // in flight
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    play->disk_waits = true;
    call = ask(play);
    expect_no_answer(play, call);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    expect_answer(play, ask(play), GS_RESOURCE_EXHAUSTED);
    assert_non_null(lost_job(play));
}

// Some have heard of an adoption that was lost since.
// Its record cannot be read, its key can: that it was accepted is told again when it is on the disk again.
static void its_key_is_answered_when_it_is_durable(void **state) {
    gs_play *play = *state;
    gs_engine_adopt_key(play->engine, "k", "", lost_id(), INT64_MAX);
    adopt(play, elsewhere, elsewhere);
    for (int again = 0; again < 2; again++) {
        gs_engine_event event = {.kind = GS_ON_CREATE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
        event.create = (gs_create_request){.spec = calloc(1, sizeof(gs_job_spec)), .key = "k", .fingerprint = ""};
        assert_non_null(event.create.spec);
        gs_play_hear(play, &event);
        expect_answer(play, play->last_call, again ? GS_OK : GS_FAILED_PRECONDITION);
        if (!again) let_disk_go(play);
    }
}

static void those_who_name_this_cluster_are_of_the_others(void **state) {
    gs_play *play = *state;
    gs_call call = adopt(play, here, elsewhere);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    assert_string_equal(lost_job(play)->adopted_from, elsewhere);
    for (int rank = 0; rank < NUM_RANKS; rank++) assert_int_equal(say_hello(play, rank, elsewhere), GS_OK);
}

static void of_those_who_end_meanwhile_the_run_hears_when_it_begins(void **state) {
    gs_play *play = *state;
    gs_call call = adopt(play, elsewhere, elsewhere);
    gs_engine_event event = {.kind = GS_ON_EXITED, .from = {.call = ++play->last_call, .who.incarnation = AGENT, .generation = -1}};
    event.exited = (gs_exit_report){.incarnation = TRAINER, .exit_code = 1};
    gs_play_hear(play, &event);
    assert_int_equal(lost_job(play)->run->members[0].stage, GS_MEMBER_UP);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    assert_int_equal(lost_job(play)->run->members[0].stage, GS_MEMBER_EXITED);
    assert_string_equal(lost_job(play)->run->cause.reason, "WorkerLost");
}

// They save and end; the life that adopted them ends before they have. Its next one starts no other set before their worker
// has had time to say that they are there.
static void half_a_generation_is_waited_for_also_by_the_next_life(void **state) {
    gs_play *play = *state;
    find_their_worker(play, elsewhere, elsewhere);
    ask(play);
    describe(play, 0, elsewhere);  // and the other does not
    gs_play_wait(play, 3 * gs_timing_default.grace_ns);
    assert_non_null(lost_job(play));
    assert_null(lost_job(play)->run);
    assert_int_equal(lost_job(play)->state, GS_JOB_QUEUED);
    play->job = lost_id();
    gs_play_reopen(play);  // the other worker is there at once
    gs_play_wait(play, gs_timing_default.grace_ns / 2);
    assert_null(lost_job(play)->run);
    find_their_worker(play, here, here);
    gs_play_wait(play, 5 * gs_timing_default.grace_ns);
    assert_null(lost_job(play)->run);
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        gs_engine_event exited = {.kind = GS_ON_EXITED, .from = {.call = ++play->last_call, .who.incarnation = AGENT, .generation = -1}};
        exited.exited = (gs_exit_report){.incarnation = TRAINER + (uint64_t)rank, .exit_code = 75};
        gs_play_hear(play, &exited);
    }
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(lost_job(play)->run);
}

// Told to go they would stand there for ever: their generation is over, and that is no restart of their job.
static void ranks_whose_communicator_is_not_up_are_asked_to_end(void **state) {
    gs_play *play = *state;
    const gs_membership not_up[] = {GS_MEMBERSHIP_FORMS, GS_MEMBERSHIP_LEAVES};
    for (size_t i = 0; i < sizeof not_up / sizeof not_up[0]; i++) {
        if (i) {
            gs_play_close(play);
            gs_play_open(play);
        }
        find_their_worker(play, elsewhere, elsewhere);
        gs_call call = ask(play);
        describe_as(play, 0, elsewhere, GS_MEMBERSHIP_WAITS);
        describe_as(play, 1, elsewhere, not_up[i]);
        gs_play_wait(play, gs_timing_default.grace_ns);
        expect_no_answer(play, call);  // it may come up
        gs_play_wait(play, 2 * gs_timing_default.grace_ns);
        expect_answer(play, call, GS_OK);
        assert_int_equal(play->num_stop_orders, NUM_RANKS);
        assert_int_equal(play->num_kill_orders, 0);
        const gs_job *job = lost_job(play);
        assert_null(job->run);
        assert_int_equal(job->state, GS_JOB_QUEUED);
        assert_int_equal(job->restarts + job->num_restart_ages, 0);
        assert_int_equal(job->step, 40);
    }
}

static void a_communicator_that_comes_up_meanwhile_is_adopted(void **state) {
    gs_play *play = *state;
    find_their_worker(play, elsewhere, elsewhere);
    gs_call call = ask(play);
    describe_as(play, 0, elsewhere, GS_MEMBERSHIP_TRAINS);
    describe_as(play, 1, elsewhere, GS_MEMBERSHIP_FORMS);
    gs_play_wait(play, gs_timing_default.grace_ns);
    describe_as(play, 1, elsewhere, GS_MEMBERSHIP_WAITS);
    expect_answer(play, call, GS_OK);
    assert_int_equal(play->num_stop_orders, 0);
    for (int rank = 0; rank < NUM_RANKS; rank++) assert_int_equal(say_hello(play, rank, elsewhere), GS_OK);
    assert_int_equal(lost_job(play)->run->phase, GS_RUN_TRAINING);
}

// Its number is that of a set which has trained there and left its fence.
static void of_ranks_without_a_generation_the_numbers_before_count(void **state) {
    gs_play *play = *state;
    find_their_worker(play, elsewhere, elsewhere);
    gs_call call = ask(play);
    gs_running_trainer there = running(0, elsewhere);
    there.generation = 0;
    there.membership = GS_MEMBERSHIP_FORMS;
    describe_fully(play, &there, 1000002);
    gs_play_wait(play, 3 * gs_timing_default.grace_ns);
    expect_answer(play, call, GS_OK);
    assert_null(lost_job(play)->run);
    assert_int_equal(lost_job(play)->generation, 0);  // all that lies in its directory is its own
    assert_int_equal(lost_job(play)->least_generation, 2000002);
    assert_true(state_of(play)->generations.next >= 2000002);
}

static void say_where(gs_play *play, int rank, gs_membership membership) {
    gs_engine_event event = {.kind = GS_ON_HEARTBEAT};
    event.from = (gs_origin){.who.incarnation = TRAINER + (uint64_t)rank, .who.job = lost_id(), .generation = 5};
    event.heartbeat = (gs_heartbeat_report){.applied_step = 40, .rss_bytes = -1, .membership = membership};
    gs_play_hear(play, &event);
}

// Of ranks that an older worker told of only their own heartbeats say it.
static void who_is_told_to_go_and_never_begins_is_judged(void **state) {
    gs_play *play = *state;
    gs_call call = adopt(play, elsewhere, elsewhere);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    for (int rank = 0; rank < NUM_RANKS; rank++) assert_int_equal(say_hello(play, rank, elsewhere), GS_OK);
    lost_job(play)->spec.steps.target = 40;  // at its end nothing else judges it soon
    const gs_run *run = lost_job(play)->run;
    int64_t begin_ns = play->now_ns;
    while (run->phase == GS_RUN_TRAINING && play->now_ns - begin_ns < 2 * gs_timing_default.connect_ns) {
        for (int rank = 0; rank < NUM_RANKS; rank++) say_where(play, rank, rank ? GS_MEMBERSHIP_FORMS : GS_MEMBERSHIP_TRAINS);
        gs_play_wait(play, 100 * GS_NS_PER_MS);
    }
    assert_int_equal(run->phase, GS_RUN_SETTLING);
    assert_string_equal(run->cause.reason, "WorkerLate");
    assert_int_equal(run->cause.member, 1);
    assert_in_range(play->now_ns - begin_ns, gs_timing_default.connect_ns, gs_timing_default.connect_ns + GS_NS_PER_SEC);
}

// Whoever has adopted them since, their fence has the name of who had started them: so are they looked for where their checkpoints lie.
static void who_is_adopted_again_is_looked_for_by_the_first_name(void **state) {
    gs_play *play = *state;
    static const struct {
        const char *from, *started_by, *looked_for_as;
    } cases[] = {{elsewhere, "", elsewhere}, {elsewhere, elsewhere, elsewhere}, {elsewhere, "c-first", "c-first"}, {elsewhere, here, here}, {here, "", here}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (i) {
            gs_play_close(play);
            gs_play_open(play);
        }
        find_their_worker(play, cases[i].from, cases[i].from);
        gs_call call = ask(play);
        for (int rank = 0; rank < NUM_RANKS; rank++) {
            gs_running_trainer there = running(rank, cases[i].from);
            describe_of(play, &there, 0, cases[i].started_by);
        }
        expect_answer(play, call, GS_OK);
        const gs_job *job = lost_job(play);
        assert_string_equal(gs_job_cluster_of(job, &state_of(play)->cluster, 5), cases[i].looked_for_as);
        assert_string_equal(gs_job_cluster_of(job, &state_of(play)->cluster, job->least_generation), here);
    }
}

// One of an earlier generation is there still, and has come further than those that go on.
static void a_generation_stands_where_its_own_ranks_do(void **state) {
    gs_play *play = *state;
    gs_running_trainer older = running(NUM_RANKS, elsewhere);
    older.generation = 4;
    older.step = 90;
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = AGENT, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "v", .host = "h", .boot_id = "b", .build = "t", .data_root = "/",
                                         .pid = 2, .cores = 1, .num_slots = NUM_RANKS + 1};
    event.agent_hello.running = calloc(NUM_RANKS + 1, sizeof *event.agent_hello.running);
    assert_non_null(event.agent_hello.running);
    for (int rank = 0; rank < NUM_RANKS; rank++) event.agent_hello.running[rank] = running(rank, elsewhere);
    event.agent_hello.running[NUM_RANKS] = older;
    event.agent_hello.num_running = NUM_RANKS + 1;
    gs_play_hear(play, &event);
    gs_call call = ask(play);
    describe_fully(play, &older, 0);
    for (int rank = 0; rank < NUM_RANKS; rank++) describe(play, rank, elsewhere);
    expect_answer(play, call, GS_OK);
    const gs_job *job = lost_job(play);
    assert_int_equal(job->step, 90);
    assert_non_null(job->run);
    assert_int_equal(job->run->step, 40);
    assert_int_equal(job->run->base_step, 40);
    assert_int_equal(job->run->step_before, 90);
    // It is asked to save and end: none of its own generation is left that it could take a step with.
    assert_int_equal(play->num_stop_orders, 1);
    assert_int_equal(play->num_kill_orders, 0);
}

static void say_it_is_up(gs_play *play, int rank) {
    gs_engine_event event = {.kind = GS_ON_COMM_UP};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = TRAINER + (uint64_t)rank, .who.job = lost_id(), .generation = 5};
    event.comm_up.backend = "play";
    gs_play_hear(play, &event);
}

// Its worker, of an older release, did not say that it was not in its communicator: it was told to go before it could.
static void who_comes_into_its_communicator_later_is_told_to_go_again(void **state) {
    gs_play *play = *state;
    gs_call call = adopt(play, elsewhere, elsewhere);
    let_disk_go(play);
    expect_answer(play, call, GS_OK);
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        assert_int_equal(say_hello(play, rank, elsewhere), GS_OK);
        assert_int_equal(play->num_goes, rank + 1);
    }
    assert_int_equal(lost_job(play)->run->phase, GS_RUN_TRAINING);
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        say_it_is_up(play, rank);
        assert_int_equal(play->num_goes, NUM_RANKS + rank + 1);
    }
}

static void a_coordinator_that_goes_down_adopts_nobody(void **state) {
    gs_play *play = *state;
    find_their_worker(play, elsewhere, elsewhere);
    gs_call call = ask(play);
    describe(play, 0, elsewhere);
    gs_play_hear(play, &(gs_engine_event){.kind = GS_ON_DRAIN, .from = {.generation = -1}});
    describe(play, 1, elsewhere);
    expect_answer(play, call, GS_UNAVAILABLE);
    expect_untouched(play);
    assert_null(lost_job(play));
}

static gs_call delete(gs_play *play) {
    gs_engine_event event = {.kind = GS_ON_DELETE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    event.remove.job = LOST;
    gs_play_hear(play, &event);
    return event.from.call;
}

// Two ask, or one asks again: the first deletion is done, and people want the job again before the disk answers the second.
static void a_deletion_of_before_takes_no_job_that_was_adopted_since(void **state) {
    gs_play *play = *state;
    adopt(play, elsewhere, elsewhere);
    let_disk_go(play);
    find_their_worker(play, "c-third", "c-third");
    gs_play_wait(play, FAR);
    assert_string_equal(lost_job(play)->reason, "AdoptedElsewhere");
    play->disk_waits = true;
    gs_call first = delete(play), second = delete(play);
    play->disk_does = 1;
    gs_play_wait(play, 1);
    expect_answer(play, first, GS_OK);
    expect_no_answer(play, second);
    assert_null(lost_job(play));
    expect_answer(play, ask(play), GS_FAILED_PRECONDITION);  // in flight
    let_disk_go(play);
    expect_answer(play, second, GS_OK);
    gs_call call = ask(play);
    for (int rank = 0; rank < NUM_RANKS; rank++) describe(play, rank, "c-third");
    expect_answer(play, call, GS_OK);
    assert_non_null(lost_job(play));
    assert_non_null(lost_job(play)->run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nobody_is_told_before_the_row_is_durable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_stored_leaves_them_whose_they_were, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_asks_again_is_answered_when_it_is_durable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(its_key_is_answered_when_it_is_durable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(those_who_name_this_cluster_are_of_the_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(of_those_who_end_meanwhile_the_run_hears_when_it_begins, set_up, tear_down),
        cmocka_unit_test_setup_teardown(half_a_generation_is_waited_for_also_by_the_next_life, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ranks_whose_communicator_is_not_up_are_asked_to_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_communicator_that_comes_up_meanwhile_is_adopted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(of_ranks_without_a_generation_the_numbers_before_count, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_is_told_to_go_and_never_begins_is_judged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_is_adopted_again_is_looked_for_by_the_first_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_generation_stands_where_its_own_ranks_do, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_comes_into_its_communicator_later_is_told_to_go_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_coordinator_that_goes_down_adopts_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_deletion_of_before_takes_no_job_that_was_adopted_since, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
