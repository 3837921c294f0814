// The engine in single cases: what it asks of the disk, orders, and tells people.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/engine/base/moves.h"
#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/unit/coordinator/engine_play.h"

static const char gpu_spec[] =
    "{\"name\":\"gpu\",\"world\":{\"min\":1,\"max\":1,\"device\":\"cuda\",\"wait_seconds\":10},\"model\":{\"kind\":\"mlp\"},"
    "\"steps\":{\"target\":5}}";

static void both(gs_play *play, gs_engine_event_kind kind) {
    gs_play_say(play, 1, kind);
    gs_play_say(play, 0, kind);
}

static void train(gs_play *play) {
    both(play, GS_ON_HELLO);
    gs_play_say(play, 1, GS_ON_PARAMS);
    both(play, GS_ON_READY);
    both(play, GS_ON_COMM_UP);
    both(play, GS_ON_STEP);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

static int set_up(void **state) {
    gs_play *play = calloc(1, sizeof *play);
    gs_play_open(play);
    train(play);
    *state = play;
    return 0;
}

static int tear_down(void **state) {
    gs_play_close(*state);
    free(*state);
    return 0;
}

static void who_waits_for_a_device_is_told_so(void **state) {
    gs_play *play = *state;
    const gs_job *job = gs_play_submit(play, gpu_spec);
    gs_play_wait(play, 11 * GS_NS_PER_SEC);
    assert_int_equal(job->state, GS_JOB_FAILED);
    assert_string_equal(job->reason, "NoDevice");
}

// While the coordinator stands nobody can come, and who came meanwhile has not been heard.
static void who_waits_does_not_wait_while_the_coordinator_stands(void **state) {
    gs_play *play = *state;
    const gs_job *job = gs_play_submit(play, gpu_spec);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    play->now_ns += 30 * GS_NS_PER_SEC;
    gs_play_wait(play, 4 * GS_NS_PER_SEC);
    assert_int_equal(job->state, GS_JOB_QUEUED);
    gs_play_wait(play, 2 * GS_NS_PER_SEC);
    assert_int_equal(job->state, GS_JOB_FAILED);
}

// What it waited for at last is the reason, not what it waited for before.
static void who_waits_for_any_worker_does_not_lack_a_device(void **state) {
    gs_play *play = *state;
    const gs_job *job = gs_play_submit(play, gpu_spec);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    assert_string_equal(job->reason, "NoDevice");
    gs_play_lose_worker(play);
    gs_play_wait(play, 6 * GS_NS_PER_SEC);
    assert_int_equal(job->state, GS_JOB_FAILED);
    assert_string_equal(job->reason, "NotEnoughWorkers");
}

static const gs_checkpoint *newest(const gs_play *play) {
    return gs_checkpoints_newest(&gs_play_run(play)->job->checkpoints);
}

static void a_checkpoint_that_cannot_be_recorded_is_said_once(void **state) {
    gs_play *play = *state;
    play->watched_reason = "CheckpointFailed";
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    for (int i = 0; i < 20; i++) {  // a minute
        both(play, GS_ON_STEP);
        gs_play_wait(play, 3 * GS_NS_PER_SEC);
    }
    assert_int_equal(newest(play)->state, GS_CHECKPOINT_RECORDING);
    assert_int_equal(play->num_watched, 1);
    assert_in_range(play->num_checkpoint_rows, 3, 6);  // after 0, 2, 6, 14, 30 seconds
    play->disk_says = GS_OK;
    for (int i = 0; i < 21; i++) {
        both(play, GS_ON_STEP);
        gs_play_wait(play, 3 * GS_NS_PER_SEC);
    }
    assert_int_equal(newest(play)->state, GS_CHECKPOINT_GOOD);
}

// Each passes, and says nothing of the next one: a job may train for weeks.
static void errors_that_pass_are_not_counted_together(void **state) {
    gs_play *play = *state;
    play->watched_reason = "CheckpointDamaged";
    for (int i = 0; i < 20; i++) {
        char directory[30];
        snprintf(directory, sizeof directory, "step-%d", i);
        play->found = directory;
        play->verify_says = GS_UNAVAILABLE;
        gs_engine_event event = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
        event.checkpointed.directory = directory;
        gs_play_hear(play, &event);
        both(play, GS_ON_STEP);
        play->verify_says = GS_OK;
        gs_play_wait(play, 3 * GS_NS_PER_SEC);
        assert_non_null(gs_checkpoints_find(&gs_play_run(play)->job->checkpoints, directory));
    }
    assert_int_equal(play->num_watched, 0);
}

// Else a start would wait for it for ever: finds and looks that succeed in between say nothing of it.
static void what_can_never_be_read_is_given_up(void **state) {
    gs_play *play = *state;
    play->watched_reason = "CheckpointDamaged";
    play->found = "step-3";
    play->verify_says = GS_UNAVAILABLE;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    for (int i = 0; i < 20; i++) {
        both(play, GS_ON_STEP);
        gs_play_wait(play, 3 * GS_NS_PER_SEC);
    }
    assert_int_equal(play->num_watched, 1);
    assert_false(gs_checkpoints_pending(&gs_play_run(play)->job->checkpoints));
}

static void ask_deletion(gs_play *play) {
    gs_engine_event event = {.kind = GS_ON_DELETE_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    event.remove.job = play->job_text;
    gs_play_hear(play, &event);
}

// A job that is about to start again is stopped and deleted while what it would start from is being read.
static void delete_while_verifying(gs_play *play) {
    const gs_job *job = gs_play_run(play)->job;
    play->found = "step-3";
    play->verify_waits = true;
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, GS_ON_EXITED);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);  // its pause
    assert_int_equal(gs_checkpoints_find(&job->checkpoints, "step-3")->state, GS_CHECKPOINT_VERIFYING);
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    assert_true(gs_job_state_terminal(job->state));
    play->disk_waits = true;
    ask_deletion(play);
    gs_engine_event verified = {.kind = GS_ON_VERIFIED, .from = {.generation = -1}};
    verified.done = (gs_completion){.job = play->job, .directory = "step-3"};
    gs_play_hear(play, &verified);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    assert_int_equal(play->num_checkpoint_rows, 0);
}

// The row would be of nobody, or of a job that comes back under this id.
static void no_row_goes_behind_the_deletion_of_its_job(void **state) {
    gs_play *play = *state;
    delete_while_verifying(play);
    play->disk_waits = false;
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    assert_null(gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job));
    assert_int_equal(play->num_checkpoint_rows, 0);
}

static void a_row_waits_for_a_deletion_that_fails(void **state) {
    gs_play *play = *state;
    delete_while_verifying(play);
    play->disk_waits = false;
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_play_wait(play, gs_engine_state(play->engine)->timing.tick_ns);
    play->disk_says = GS_OK;
    assert_int_equal(play->num_checkpoint_rows, 0);
    gs_play_wait(play, 10 * GS_NS_PER_SEC);
    const gs_job *job = gs_job_table_get(&gs_engine_state(play->engine)->jobs, play->job);
    assert_int_equal(play->num_checkpoint_rows, 1);
    assert_int_equal(gs_checkpoints_newest(&job->checkpoints)->state, GS_CHECKPOINT_GOOD);
}

// Slots that went away before the answer came: whoever starts later asks the disk as it is then.
static void what_a_job_starts_from_is_looked_at_when_it_starts(void **state) {
    gs_play *play = *state;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    const gs_job *job = gs_play_run(play)->job;
    int before = play->num_finds;
    play->disk_waits = true;
    for (int i = 0; i < GS_PLAY_RANKS; i++) gs_play_say(play, i, GS_ON_EXITED);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);  // its pause
    assert_int_equal(play->num_finds, before + 1);
    gs_play_lose_worker(play);
    gs_play_wait(play, 5 * GS_NS_PER_SEC);
    play->disk_waits = false;
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(job->state, GS_JOB_QUEUED);
    gs_play_find_worker(play);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(job->run);
    assert_int_equal(play->num_finds, before + 2);
    assert_int_equal(play->num_checks, 1);
}

// Else the row of the stop outlives the refusal of the job.
static void hear_disk(gs_play *play, gs_engine_event_kind kind, const char *directory, gs_code code) {
    gs_engine_event event = {.kind = kind, .from = {.generation = -1}};
    event.done = (gs_completion){.stored = GS_STORED_CHECKPOINT, .job = play->job, .directory = directory};
    if (code) event.done.status = gs_error(code, "no");
    gs_play_hear(play, &event);
}

// Nothing of it is removed, so it is what a start goes back to when the newer one turns out to be damaged.
static void a_checkpoint_that_is_replaced_stays_good_until_that_is_written(void **state) {
    gs_play *play = *state;
    train(play);
    gs_job *job = gs_play_run(play)->job;
    job->spec.checkpoint.keep_last = 1;
    gs_play_say(play, 0, GS_ON_CHECKPOINTED);
    play->disk_waits = true;
    gs_engine_event event = gs_play_message(play, 0, GS_ON_CHECKPOINTED);
    event.checkpointed.directory = "step-9";
    event.checkpointed.found.step = 9;
    gs_play_hear(play, &event);
    hear_disk(play, GS_ON_VERIFIED, "step-9", GS_OK);
    hear_disk(play, GS_ON_STORED, "step-9", GS_OK);
    assert_int_equal(gs_checkpoints_find(&job->checkpoints, "step-3")->state, GS_CHECKPOINT_DELETING);
    hear_disk(play, GS_ON_STORED, "step-3", GS_UNAVAILABLE);
    assert_int_equal(gs_checkpoints_find(&job->checkpoints, "step-3")->state, GS_CHECKPOINT_GOOD);
    assert_int_equal(gs_checkpoints_newest_step(&job->checkpoints), 9);
}

static void a_job_that_is_not_recorded_yet_cannot_be_stopped(void **state) {
    gs_play *play = *state;
    gs_status answer;
    play->disk_waits = true;
    const gs_job *job = gs_play_submit(play, gpu_spec);
    uint64_t id = job->id;
    gs_call created = play->last_call;
    int num_rows = play->num_job_rows;
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = "gpu", .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    assert_true(gs_play_is_answered(play, play->last_call, &answer));
    assert_int_equal(answer.code, GS_FAILED_PRECONDITION);
    assert_int_equal(play->num_job_rows, num_rows);
    play->disk_waits = false;
    play->disk_says = GS_RESOURCE_EXHAUSTED;
    gs_play_wait(play, gs_engine_state(play->engine)->timing.tick_ns);
    assert_true(gs_play_is_answered(play, created, &answer));
    assert_int_equal(answer.code, GS_RESOURCE_EXHAUSTED);
    assert_null(gs_job_table_get(&gs_engine_state(play->engine)->jobs, id));
}

static uint64_t plan_of_observed_order(void) {
    gs_play play;
    gs_play_open(&play);
    train(&play);
    gs_play_say(&play, 0, GS_ON_READY_ORDER);
    uint64_t digest = gs_play_run(&play)->next.digest;
    gs_play_close(&play);
    assert_true(digest != 0);
    return digest;
}

// Ranks changed to a plan that an earlier life sent: it is sent to the others and taken over in one step.
static void a_plan_that_is_taken_over_at_once_is_sent_whole(void **state) {
    gs_play *play = *state;
    uint64_t digest = plan_of_observed_order();
    gs_play_reopen(play);
    both(play, GS_ON_HELLO);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
    gs_engine_event order = gs_play_message(play, 0, GS_ON_READY_ORDER);
    order.ready_order.settled = false;
    gs_play_hear(play, &order);
    assert_int_equal(gs_play_run(play)->next.digest, 0);
    gs_engine_event beat = gs_play_message(play, 0, GS_ON_HEARTBEAT);
    beat.heartbeat.plan = (gs_plan_report){.told = true, .plan = digest, .plan_step = 5};
    gs_play_hear(play, &beat);
    assert_int_equal(gs_play_run(play)->plan_step, 5);
    assert_true(play->num_plans > 0);
    assert_int_equal(play->num_empty_plans, 0);
}

static void hear_too_large(gs_play *play, bool is_launch, bool is_replan) {
    gs_engine_event event = {.kind = GS_ON_TOO_LARGE, .from = {.generation = -1}};
    event.too_large.incarnation = play->ranks[0].incarnation;
    event.too_large.is_launch = is_launch;
    event.too_large.is_replan = is_replan;
    event.too_large.text = "1200000 bytes, and a message holds 1048576";
    gs_play_hear(play, &event);
}

static void say_exited(gs_play *play, int rank) {
    gs_play_say(play, rank, GS_ON_BYE);
    gs_play_say(play, rank, GS_ON_EXITED);
}

static void check_refused(gs_play *play, const gs_job *job, const char *reason) {
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_int_equal(job->state, GS_JOB_FAILED);
    assert_string_equal(job->reason, reason);
    assert_non_null(strstr(job->message, "1200000 bytes"));
    for (int i = 0; i < GS_PLAY_RANKS; i++) assert_null(strstr(job->message, i ? "rank 1" : "rank 0"));
    const gs_agent *agent = gs_engine_state(play->engine)->agents.items[0];
    for (int i = 0; i < agent->num_slots; i++) assert_int_equal(agent->slots[i].incarnation, 0);
}

static void a_plan_that_no_message_holds_ends_its_job_and_blames_nobody(void **state) {
    (void)state;
    gs_play play;
    gs_play_open(&play);
    const gs_job *job = gs_play_run(&play)->job;
    both(&play, GS_ON_HELLO);
    gs_play_say(&play, 1, GS_ON_PARAMS);
    hear_too_large(&play, false, false);
    assert_int_equal(gs_play_run(&play)->cause.member, -1);
    for (int i = 0; i < GS_PLAY_RANKS; i++) say_exited(&play, i);
    check_refused(&play, job, "PlanRefused");
    gs_play_close(&play);
}

static void a_launch_that_no_message_holds_leaves_no_slot_taken(void **state) {
    (void)state;
    gs_play play;
    gs_play_open(&play);
    const gs_job *job = gs_play_run(&play)->job;
    hear_too_large(&play, true, false);
    gs_play_say(&play, 1, GS_ON_EXITED);
    check_refused(&play, job, "SpecificationTooLarge");
    gs_play_close(&play);
}

static void training_goes_on_without_a_plan_that_no_message_holds(void **state) {
    gs_play *play = *state;
    gs_play_say(play, 0, GS_ON_READY_ORDER);
    assert_true(gs_play_run(play)->next.digest != 0);
    hear_too_large(play, false, true);
    assert_int_equal(gs_play_run(play)->next.digest, 0);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_TRAINING);
}

// A debug build stops there; a release build says so, and nothing has happened.
static void a_move_that_no_table_has_ends_nothing(void **state) {
#ifndef NDEBUG
    (void)state;
    skip();
#else
    gs_play *play = *state;
    gs_job *job = gs_play_run(play)->job;
    job->state = GS_JOB_SUCCEEDED;
    size_t num_effects = play->engine->num_effects;
    gs_job_end(play->engine, job, GS_JOB_FAILED, "Again", "a job ends once");
    assert_int_equal(play->engine->num_effects, num_effects + 1);
    const gs_effect *effect = &play->engine->effects[num_effects];
    assert_int_equal(effect->kind, GS_DO_LOG);
    assert_non_null(strstr(effect->text, job->id_text));
    assert_non_null(strstr(effect->text, "Again"));
    assert_int_equal(job->ended_ms, 0);
    job->state = GS_JOB_RUNNING;
#endif
}

// It lives on where its worker is out of reach, and the order to end it with that.
static void who_asks_to_settle_is_answered_when_its_run_is_ended(void **state) {
    gs_play *play = *state;
    gs_play_lose_worker(play);
    gs_play_say(play, 1, GS_ON_SETTLE);
    gs_call asked = play->last_call;
    gs_status answer;
    assert_false(gs_play_is_answered(play, asked, &answer));
    gs_engine_event stop = {.kind = GS_ON_STOP_JOB, .from = {.call = ++play->last_call, .generation = -1}};
    stop.stop = (gs_stop_request){.job = play->job_text, .now = true, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    gs_play_hear(play, &stop);
    assert_int_equal(gs_play_run(play)->phase, GS_RUN_ENDING);
    assert_true(gs_play_is_answered(play, asked, &answer));
    assert_int_equal(answer.code, GS_ABORTED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

// Its rows could not be written since it was queued, and its ranks may be on a worker that is not back yet.
static void a_job_that_never_ran_as_far_as_rows_say_waits_for_its_ranks(void **unused) {
    (void)unused;
    gs_play play;
    gs_play_open(&play);
    const gs_state *state = gs_engine_state(play.engine);
    gs_job *job = gs_job_table_get(&state->jobs, play.job);
    const int64_t grace_ns = state->timing.grace_ns;
    job->state = GS_JOB_QUEUED;
    job->generation = 0;
    for (int i = 0; i < GS_PLAY_RANKS; i++) play.ranks[i].is_gone = true;
    gs_play_reopen(&play);
    gs_play_wait(&play, grace_ns / 2);
    assert_null(gs_play_run(&play));
    gs_play_wait(&play, grace_ns);
    assert_non_null(gs_play_run(&play));
    gs_play_close(&play);
}

// Each rank says it; rank 0 speaks for all. An older trainer gives no reason.
static void rank_0_says_what_ranks_reduce_over_and_why(void **unused) {
    (void)unused;
    static char endless[4000];
    memset(endless, 'x', sizeof endless - 1);
    const char *const reasons[] = {NULL, "", "two hosts", endless};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        gs_play play;
        gs_play_open(&play);
        gs_play_say_all(&play, GS_ON_HELLO);
        gs_play_say(&play, 0, GS_ON_PARAMS);
        gs_play_say_all(&play, GS_ON_READY);
        play.watched_reason = "CommunicatorUp";
        for (int rank = GS_PLAY_RANKS - 1; rank >= 0; rank--) {
            assert_int_equal(gs_play_run(&play)->backend[0], 0);
            gs_engine_event up = gs_play_message(&play, rank, GS_ON_COMM_UP);
            up.comm_up.backend = rank ? "other" : "hosts";
            up.comm_up.reason = rank ? "another" : reasons[i];
            gs_play_hear(&play, &up);
        }
        const gs_run *run = gs_play_run(&play);
        assert_int_equal(run->phase, GS_RUN_TRAINING);
        assert_int_equal(play.num_watched, 1);
        assert_string_equal(run->backend, "hosts");
        const char *said = reasons[i] ? reasons[i] : "";
        assert_int_equal(strncmp(run->backend_reason, said, sizeof run->backend_reason - 1), 0);
        assert_true(strlen(run->backend_reason) < sizeof run->backend_reason);
        gs_play_close(&play);
    }
}

static gs_code exchange(gs_play *play, const char *tag, size_t characters) {
    gs_engine_event event = gs_play_message(play, 0, GS_ON_EXCHANGE);
    free(event.exchange.request.bytes);
    char *bytes = malloc(characters + 1);
    assert_non_null(bytes);
    memset(bytes, 'A', characters);
    bytes[characters] = '\0';
    event.exchange.request = (gs_exchange_request){.tag = tag, .bytes = bytes};
    gs_play_hear(play, &event);
    return play->answered ? play->answer.code : GS_OK;
}

static void exchanges_above_their_bounds_are_counted(void **state) {
    gs_play *play = *state;
    char tag[16];
    play->watched_limit = "exchanges";
    for (int i = 0; i < GS_EXCHANGE_MOST_OPEN; i++) {
        snprintf(tag, sizeof tag, "t/%d", i);
        assert_int_equal(exchange(play, tag, 8), GS_OK);
    }
    assert_int_equal(play->num_limits, 0);
    assert_int_equal(exchange(play, "more", 8), GS_RESOURCE_EXHAUSTED);
    assert_int_equal(play->num_limits, 1);
    assert_int_equal(exchange(play, "t/7", (size_t)1 << 20), GS_RESOURCE_EXHAUSTED);
    assert_int_equal(play->num_limits, 2);
    // The round has ended, for whoever still comes to it.
    assert_int_equal(exchange(play, "t/7", 8), GS_RESOURCE_EXHAUSTED);
    assert_int_equal(play->num_limits, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(who_waits_for_a_device_is_told_so),
        TEST(who_waits_for_any_worker_does_not_lack_a_device),
        TEST(who_waits_does_not_wait_while_the_coordinator_stands),
        TEST(a_checkpoint_that_cannot_be_recorded_is_said_once),
        TEST(errors_that_pass_are_not_counted_together),
        TEST(what_can_never_be_read_is_given_up),
        TEST(no_row_goes_behind_the_deletion_of_its_job),
        TEST(a_row_waits_for_a_deletion_that_fails),
        TEST(what_a_job_starts_from_is_looked_at_when_it_starts),
        TEST(a_checkpoint_that_is_replaced_stays_good_until_that_is_written),
        TEST(a_job_that_is_not_recorded_yet_cannot_be_stopped),
        TEST(a_plan_that_is_taken_over_at_once_is_sent_whole),
        TEST(who_asks_to_settle_is_answered_when_its_run_is_ended),
        cmocka_unit_test(a_plan_that_no_message_holds_ends_its_job_and_blames_nobody),
        cmocka_unit_test_setup_teardown(exchanges_above_their_bounds_are_counted, gs_play_set_up_training, gs_play_tear_down),
        cmocka_unit_test(a_launch_that_no_message_holds_leaves_no_slot_taken),
        cmocka_unit_test(a_job_that_never_ran_as_far_as_rows_say_waits_for_its_ranks),
        cmocka_unit_test(rank_0_says_what_ranks_reduce_over_and_why),
        TEST(training_goes_on_without_a_plan_that_no_message_holds),
        TEST(a_move_that_no_table_has_ends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
