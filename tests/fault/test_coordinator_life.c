// A job's life through the real coordinator process, with fake workers: success, crash, silence, wrong worlds and inputs,
// and its end by an operator or by time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"

typedef gs_stage life;

static void start_workers(life *it, int count, int slots) {
    gs_fake_worker_options options = {.slots = slots, .step_ms = 5};
    for (int i = 0; i < count; i++) gs_stage_start_worker(it, i, &options);
}

static void submit(life *it, char *id, size_t id_bytes, int ranks, int target, const char *more) {
    char text[600];
    snprintf(text, sizeof text,
             "{\"name\":\"life\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":%d,\"max\":%d,"
             "\"join_window_seconds\":0},\"steps\":{\"target\":%d}%s}",
             ranks, ranks, target, more);
    gs_stage_submit(it, text);
    snprintf(id, id_bytes, "%s", it->job);
}

static void a_job_lives_from_submission_to_success(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_string_equal(gs_json_string_or(job, "reason", ""), "TargetReached");
    assert_string_equal(gs_json_string_or(job, "sample", ""), "once upon a time");
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    assert_int_equal(gs_json_int_or(job, "world_size", -1), 2);
    gs_json_release(job);

    gs_json *plan = gs_stage_get(it, GS_GET_JOB_PLAN, id);
    assert_int_equal(gs_json_int_or(plan, "total_bytes", 0), 1100 * 4);
    gs_json_release(plan);
    gs_json *series = gs_stage_get(it, GS_GET_JOB_SERIES, id);
    const gs_json *loss = gs_json_at(gs_json_get(series, "series"), 0);
    assert_int_equal(gs_json_count(gs_json_get(loss, "points")), 20);
    gs_json_release(series);
    gs_json *metrics = gs_stage_get(it, GS_GET_JOB_METRICS, id);
    assert_int_equal(gs_json_count(gs_json_get(metrics, "ranks")), 2);
    gs_json_release(metrics);
}

static void a_crash_costs_no_step_and_names_the_first_rank(void **state) {
    life *it = *state;
    char id[32];
    atomic_store(&it->faults.slot, 1);
    atomic_store(&it->faults.crash_at_step, 7);
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 600, "");  // the other one is still there then
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 1);
    const gs_json *failure = gs_json_get(job, "failure");
    const gs_json *first = gs_json_get(failure, "first");
    assert_int_equal(gs_json_int_or(first, "rank", -1), 1);
    assert_int_equal(gs_json_int_or(first, "signal", -1), 9);
    assert_string_equal(gs_json_string_or(first, "worker", ""), "w1");
    assert_string_equal(gs_json_string_or(failure, "class", ""), "infrastructure");
    assert_string_equal(gs_json_string(gs_json_at(gs_json_get(failure, "log_tail"), 0)), "the last line");
    gs_json_release(job);
    gs_json *checkpoints = gs_stage_get(it, GS_LIST_CHECKPOINTS, id);
    const gs_json *saved = gs_json_at(gs_json_get(checkpoints, "items"), 0);
    // Fake ranks do not wait for each other: the survivor saves whatever step it had.
    assert_true(gs_json_int_or(saved, "step", -1) >= 1);
    assert_true(gs_json_bool_or(saved, "verified", false));
    gs_json_release(checkpoints);
}

static void a_silent_rank_is_evicted_and_killed(void **state) {
    life *it = *state;
    char id[32];
    atomic_store(&it->faults.slot, 1);
    atomic_store(&it->faults.freeze_at_step, 5);
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 400, "");
    // The fake rank 0 goes on alone, and progress protects rank 1: nobody is evicted for silence while
    // steps advance. Only when rank 0 is at its target the silence counts.
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(gs_json_get(gs_json_get(job, "failure"), "first"), "rank", -1), 1);
    gs_json_release(job);
}

static void a_rank_with_another_model_ends_the_job_by_name(void **state) {
    life *it = *state;
    char id[32];
    atomic_store(&it->faults.slot, 1);
    atomic_store(&it->faults.other_shape, true);
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json *job = gs_stage_wait_for_state(it, id, "failed");
    assert_string_equal(gs_json_string_or(job, "reason", ""), "PlanMismatch");
    assert_non_null(strstr(gs_json_string_or(job, "message", ""), "fc2.weight"));
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    gs_json_release(job);
}

static void wrong_input_fails_with_what_the_trainer_said(void **state) {
    life *it = *state;
    char id[32];
    atomic_store(&it->faults.slot, 1);
    atomic_store(&it->faults.exit_code_at_start, 66);
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json *job = gs_stage_wait_for_state(it, id, "failed");
    const gs_json *failure = gs_json_get(job, "failure");
    assert_string_equal(gs_json_string_or(failure, "class", ""), "user");
    assert_string_equal(gs_json_string_or(failure, "hint", ""), "mount the data directory");
    assert_int_equal(gs_json_int_or(gs_json_get(failure, "first"), "exit_code", -1), 66);
    assert_non_null(strstr(gs_json_string_or(job, "message", ""), "could not open its data shard"));
    gs_json_release(job);
}

static void what_a_trainer_said_outlives_the_kill_that_followed(void **state) {
    life *it = *state;
    char id[32];
    atomic_store(&it->faults.slot, 1);
    atomic_store(&it->faults.exit_code_at_start, 66);
    atomic_store(&it->faults.lingers, true);
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json *job = gs_stage_wait_for_state(it, id, "failed");
    const gs_json *first = gs_json_get(gs_json_get(job, "failure"), "first");
    assert_int_equal(gs_json_int_or(first, "exit_code", -1), 66);
    assert_int_equal(gs_json_int_or(first, "signal", -1), -1);
    assert_int_equal(gs_json_int_or(first, "rank", -1), 1);
    assert_string_equal(gs_json_string_or(gs_json_get(job, "failure"), "message", ""),
                        "rank 1: could not open its data shard");
    gs_json_release(job);
}

static void a_waiting_job_says_why_and_stops_at_once(void **state) {
    life *it = *state;
    char id[32], text[100];
    submit(it, id, sizeof id, 3, 20, "");
    gs_json *job = gs_stage_wait_for_state(it, id, "queued");
    assert_string_equal(gs_json_string_or(job, "reason", ""), "WaitingForWorkers");
    gs_json_release(job);
    snprintf(text, sizeof text, "{\"job\":\"life\",\"mode\":\"graceful\",\"outcome\":\"cancelled\"}");
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_STOP_JOB, text));
    assert_string_equal(gs_json_string_or(reply, "state", ""), "cancelled");
    gs_json_release(reply);
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"purge\":true}", id);
    assert_ok(gs_stage_ask(it, &reply, GS_DELETE_JOB, text));
    gs_json_release(reply);
    snprintf(text, sizeof text, "{\"job\":\"%s\"}", id);
    gs_status status = gs_stage_ask(it, &reply, GS_GET_JOB, text);
    assert_int_equal(status.code, GS_NOT_FOUND);
    gs_json_release(reply);
}

static void a_running_job_drains_and_keeps_its_place(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 100000, "");
    gs_stage_wait_for_step(it, id, 10);
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_STOP_JOB,
                           "{\"job\":\"life\",\"mode\":\"graceful\",\"outcome\":\"succeeded\"}"));
    assert_string_equal(gs_json_string_or(reply, "state", ""), "stopping");
    gs_json_release(reply);
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_string_equal(gs_json_string_or(job, "reason", ""), "StoppedByUser");
    gs_json_release(job);
    gs_json *checkpoints = gs_stage_get(it, GS_LIST_CHECKPOINTS, id);
    assert_int_equal(gs_json_count(gs_json_get(checkpoints, "items")), 1);
    gs_json_release(checkpoints);
}

static void a_deadline_ends_a_job_that_waits(void **state) {
    life *it = *state;
    char id[32];
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_CREATE_JOB,
                           "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5,"
                           "\"deadline_seconds\":0.2}}}"));
    snprintf(id, sizeof id, "%s", gs_json_string_or(reply, "id", ""));
    gs_json_release(reply);
    gs_json *job = gs_stage_wait_for_state(it, id, "failed");
    assert_string_equal(gs_json_string_or(job, "reason", ""), "DeadlineExceeded");
    gs_json_release(job);
}

static void sigterm_ends_the_coordinator_cleanly(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 100000, "");
    gs_stage_wait_for_step(it, id, 5);
    assert_int_equal(gs_coordinator_process_stop(&it->process), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_stage_set_up, gs_stage_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_job_lives_from_submission_to_success),
        TEST(a_crash_costs_no_step_and_names_the_first_rank),
        TEST(a_silent_rank_is_evicted_and_killed),
        TEST(a_rank_with_another_model_ends_the_job_by_name),
        TEST(wrong_input_fails_with_what_the_trainer_said),
        TEST(what_a_trainer_said_outlives_the_kill_that_followed),
        TEST(a_waiting_job_says_why_and_stops_at_once),
        TEST(a_running_job_drains_and_keeps_its_place),
        TEST(a_deadline_ends_a_job_that_waits),
        TEST(sigterm_ends_the_coordinator_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
