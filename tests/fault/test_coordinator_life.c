// A job's life through the real coordinator process, with fake workers: success, crash, silence, a
// killed coordinator, wrong worlds, and what the API promises about creating and stopping.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/bucket_plan.h"
#include "core/thread.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/soon.h"
#include "worker/agent/agent_reports.h"

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
    submit(it, id, sizeof id, 2, 30, "");
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

// Until the worker's trainers have gone on for so many steps.
static void wait_for_steps(const gs_fake_worker *worker, int64_t more) {
    gs_deadline deadline = soon();
    int64_t wanted = gs_fake_worker_num_steps(worker) + more;
    while (gs_fake_worker_num_steps(worker) < wanted) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(GS_NS_PER_MS);
    }
}

static void a_killed_coordinator_disturbs_nobody(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 600, "");
    gs_stage_wait_for_step(it, id, 60);
    gs_json *before = gs_stage_get(it, GS_GET_JOB, id);
    gs_coordinator_process_kill(&it->process);
    wait_for_steps(it->workers[0], 200);
    assert_ok(gs_coordinator_process_start(&it->process));
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(job, "generation", -1), gs_json_int_or(before, "generation", -2));
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    assert_int_equal(gs_json_int_or(gs_json_get(job, "progress"), "step", -1), 600);
    gs_json_release(before);
    gs_json_release(job);
}

// A trainer that prints numbered lines as fast as it can; the agent's reports sends them.
typedef struct printer {
    gs_agent_reports *reports;
    const char *job;
    _Atomic int64_t num_lines;
} printer;

static void run_printer(void *ctx, const atomic_bool *stopping) {
    printer *it = ctx;
    while (!atomic_load(stopping)) {
        char text[32];
        int bytes = snprintf(text, sizeof text, "line %lld", (long long)it->num_lines);
        gs_log_record record = {.job = it->job, .stream = "stdout", .text = text, .at_ms = 1,
                                .bytes = (size_t)bytes, .position = ++it->num_lines};
        gs_agent_reports_add_line(it->reports, &record);
        gs_sleep_ns(GS_NS_PER_MS);
    }
}

static int64_t count_lines_in_order(life *it, const char *id) {
    char text[128], since[32] = "0", wanted[32];
    int64_t seen = 0;
    for (;;) {
        gs_json *reply = NULL;
        snprintf(text, sizeof text, "{\"job\":\"%s\",\"since\":\"%s\",\"grep\":\"line \"}", id, since);
        assert_ok(gs_stage_ask(it, &reply, GS_READ_LOGS, text));
        const gs_json *records = gs_json_get(reply, "records");
        size_t count = gs_json_count(records);
        for (size_t i = 0; i < count; i++) {
            snprintf(wanted, sizeof wanted, "line %lld", (long long)seen++);
            assert_string_equal(gs_json_string_or(gs_json_at(records, i), "text", ""), wanted);
        }
        snprintf(since, sizeof since, "%s", gs_json_string_or(reply, "cursor", "0"));
        gs_json_release(reply);
        if (count == 0) return seen;
    }
}

static void wait_for_lines(const printer *prints, int64_t more) {
    gs_deadline deadline = soon();
    int64_t wanted = atomic_load(&prints->num_lines) + more;
    while (atomic_load(&prints->num_lines) < wanted) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(GS_NS_PER_MS);
    }
}

static void a_killed_coordinator_loses_and_doubles_no_line(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 1, 1);
    submit(it, id, sizeof id, 1, 100000, "");
    gs_stage_wait_for_step(it, id, 1);
    printer prints = {.job = id};
    gs_thread *thread = NULL;
    assert_ok(gs_agent_reports_create(&prints.reports, gs_fake_worker_client(it->workers[0]), 0));
    assert_ok(gs_thread_start(&thread, "printer", run_printer, &prints));
    for (int i = 0; i < 3; i++) {
        wait_for_lines(&prints, 200 + 35 * i);  // anywhere in a batch
        gs_coordinator_process_kill(&it->process);
        wait_for_lines(&prints, 150);  // a call is on its way when the next one comes
        assert_ok(gs_coordinator_process_start(&it->process));
    }
    gs_thread_stop(thread);
    gs_agent_reports_flush(prints.reports, gs_deadline_in_seconds(20));
    gs_agent_reports_destroy(prints.reports);
    assert_int_equal(count_lines_in_order(it, id), prints.num_lines);
}

static void expect_refusal(life *it, gs_method method, const char *id, const char *name,
                           const char *value) {
    char text[400];
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"%s\":%s}", id, name, value);
    gs_status status = gs_stage_ask(it, &reply, method, text);
    gs_json_release(reply);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, name));
}

static void wrong_cursors_and_long_texts_are_refused_by_name(void **state) {
    life *it = *state;
    char id[32], grep[300];
    submit(it, id, sizeof id, 1, 20, "");
    snprintf(grep, sizeof grep, "\"%0256d\"", 0);
    expect_refusal(it, GS_READ_LOGS, id, "grep", grep);
    expect_refusal(it, GS_READ_LOGS, id, "since", "\"12x\"");
    expect_refusal(it, GS_READ_LOGS, id, "since", "-3");
    expect_refusal(it, GS_LIST_EVENTS, id, "cursor", "\"yesterday\"");
    expect_refusal(it, GS_LIST_EVENTS, id, "cursor", "\"99999999999999999999\"");
}

static void no_search_of_a_log_ends_the_coordinator(void **state) {
    life *it = *state;
    char id[32], text[200];
    submit(it, id, sizeof id, 1, 20, "");
    static const char *const attacks[] = {".*{10,}{10,}{10,}{10,}{10,}", "(a{1,255}){1,255}"};
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        gs_json *reply = NULL;
        snprintf(text, sizeof text, "{\"job\":\"%s\",\"grep\":\"%s\"}", id, attacks[i]);
        assert_ok(gs_stage_ask(it, &reply, GS_READ_LOGS, text));
        assert_int_equal(gs_json_count(gs_json_get(reply, "records")), 0);
        gs_json_release(reply);
    }
}

static void a_rank_that_dies_while_nobody_looks_is_noticed(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 400, "");
    gs_stage_wait_for_step(it, id, 60);
    gs_coordinator_process_kill(&it->process);
    atomic_store(&it->faults.slot, 1);
    atomic_store(&it->faults.crash_at_step, 1);
    gs_deadline deadline = soon();
    while (atomic_load(&it->faults.crash_at_step)) {  // until it has struck
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(GS_NS_PER_MS);
    }
    assert_ok(gs_coordinator_process_start(&it->process));
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 1);
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

static void a_coordinator_that_stood_still_evicts_nobody(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 1500, "");
    gs_stage_wait_for_step(it, id, 20);
    gs_coordinator_process_pause(&it->process, 4 * GS_NS_PER_SEC);
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    assert_null(gs_json_get(job, "failure"));
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

static void expect_foreseen(life *it, const char *reducer, const gs_bucket_plan *plan) {
    char text[300], hash[GS_DIGEST_TEXT_LEN];
    snprintf(text, sizeof text,
             "{\"spec\":{\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[784,100,10]}},\"reducer\":{%s},"
             "\"steps\":{\"target\":5}},\"dry_run\":true}", reducer);
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_CREATE_JOB, text));
    assert_non_null(gs_json_get(reply, "spec"));
    const gs_json *foreseen = gs_json_get(reply, "plan");
    assert_string_equal(gs_json_string_or(foreseen, "hash", ""), hash);
    assert_int_equal(gs_json_int_or(foreseen, "num_buckets", 0), plan->num_buckets);
    assert_int_equal(gs_json_int_or(foreseen, "total_bytes", 0), (78400 + 100 + 100 + 1000 + 10) * 4);
    const gs_json *rank = gs_json_at(gs_json_get(gs_json_get(reply, "memory"), "ranks"), 0);
    assert_int_equal(gs_json_int_or(rank, "last_rank", -1), 0);
    assert_true(gs_json_int_or(rank, "total_bytes", 0) > (78400 + 100 + 100 + 1000 + 10) * 4 * 4);
    gs_json_release(reply);
}

static void a_dry_run_foresees_the_plan(void **state) {
    life *it = *state;
    const gs_param_spec params[] = {gs_param_spec_make(GS_FP32, 100, 784, "fc1.weight"),
                                    gs_param_spec_make(GS_FP32, 100, 0, "bn1.weight"),
                                    gs_param_spec_make(GS_FP32, 100, 0, "bn1.bias"),
                                    gs_param_spec_make(GS_FP32, 10, 100, "fc2.weight"),
                                    gs_param_spec_make(GS_FP32, 10, 0, "fc2.bias")};
    const size_t num_params = sizeof params / sizeof *params;
    gs_bucket_plan plan = {0};
    assert_ok(gs_bucket_plan_parity(&plan, params, num_params, 1000, 200000, NULL));
    expect_foreseen(it, "\"plan\":\"parity\",\"first_bucket_bytes\":1000,\"bucket_cap_bytes\":200000", &plan);
    gs_bucket_plan_release(&plan);
    assert_ok(gs_bucket_plan_one_host(&plan, params, num_params, NULL));
    expect_foreseen(it, "\"plan\":\"auto\"", &plan);
    gs_bucket_plan_release(&plan);
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

static void a_watcher_sees_a_snapshot_then_steps_then_the_end(void **state) {
    life *it = *state;
    char id[32], text[100];
    start_workers(it, 1, 1);
    submit(it, id, sizeof id, 1, 60, "");
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"interval_ms\":100}", id);
    gs_json *request = NULL, *item = NULL;
    assert_ok(gs_json_parse(&request, text, strlen(text)));
    gs_rpc_stream *stream = NULL;
    assert_ok(gs_rpc_stream_open(&stream, it->client, GS_WATCH, request));
    gs_json_release(request);
    int64_t last = -1;
    int steps = 0, items = 0;
    char event[32] = "";
    for (;;) {
        assert_ok(gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(20)));
        if (!item) break;  // the clean end
        snprintf(event, sizeof event, "%s", gs_json_string_or(item, "event", ""));
        if (items++ == 0) assert_string_equal(event, "snapshot");
        assert_true(gs_json_int_or(item, "sequence", -1) >= last);
        last = gs_json_int_or(item, "sequence", -1);
        steps += !strcmp(event, "step");
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    assert_string_equal(event, "end");
    assert_true(steps >= 1);
}

static void one_key_makes_one_job_also_after_a_crash(void **state) {
    life *it = *state;
    const char *request = "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}},"
                          "\"dry_run\":false,\"idempotency_key\":\"k1\"}";
    const char *other = "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":6}},"
                        "\"dry_run\":false,\"idempotency_key\":\"k1\"}";
    gs_json *first = NULL, *second = NULL, *third = NULL;
    assert_ok(gs_stage_ask(it, &first, GS_CREATE_JOB, request));
    gs_coordinator_process_kill(&it->process);
    assert_ok(gs_coordinator_process_start(&it->process));
    assert_ok(gs_stage_ask(it, &second, GS_CREATE_JOB, request));
    assert_true(gs_json_bool_or(second, "idempotency_replayed", false));
    assert_string_equal(gs_json_string_or(first, "id", "a"), gs_json_string_or(second, "id", "b"));
    gs_status status = gs_stage_ask(it, &third, GS_CREATE_JOB, other);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_string_equal(gs_json_string_or(third, "code", ""), "idempotency_mismatch");
    gs_json_release(first);
    gs_json_release(second);
    gs_json_release(third);
}

static void a_death_before_the_commit_neither_loses_nor_doubles_a_job(void **state) {
    life *it = *state;
#ifndef GRADSYNC_FAILPOINTS
    (void)it;
    skip();
#else
    gs_coordinator_process_kill(&it->process);
    setenv("GRADSYNC_FAILPOINTS", "store.commit=kill@4", 1);
    assert_ok(gs_coordinator_process_start(&it->process));
    unsetenv("GRADSYNC_FAILPOINTS");
    // Each request is committed before its answer; one of them meets the death, and is asked again.
    int status = 0;
    for (int i = 0; i < 6; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "{\"spec\":{\"name\":\"job-%d\",\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}}}", i);
        if (it->process.pid && waitpid(it->process.pid, &status, WNOHANG) == it->process.pid) {
            it->process.pid = 0;
            assert_ok(gs_coordinator_process_start(&it->process));
        }
        gs_json *request = NULL, *reply = NULL;
        assert_ok(gs_json_parse(&request, text, strlen(text)));
        gs_status asked = gs_rpc_call(it->client, GS_CREATE_JOB, request, &reply, gs_deadline_in_seconds(2));
        gs_json_release(reply);
        reply = NULL;
        if (asked.code) {  // the coordinator is dead: the same again to the next one
            waitpid(it->process.pid, &status, 0);
            it->process.pid = 0;
            assert_ok(gs_coordinator_process_start(&it->process));
            asked = gs_rpc_call(it->client, GS_CREATE_JOB, request, &reply, gs_deadline_in_seconds(20));
            gs_json_release(reply);
            assert_true(asked.code == GS_OK || asked.code == GS_ALREADY_EXISTS);
        }
        gs_json_release(request);
    }
    assert_true(WIFSIGNALED(status));
    gs_json *list = NULL;
    assert_ok(gs_stage_ask(it, &list, GS_LIST_JOBS, "{}"));
    assert_int_equal(gs_json_count(gs_json_get(list, "items")), 6);
    gs_json_release(list);
#endif
}

static void a_preview_names_every_wrong_field(void **state) {
    life *it = *state;
    gs_json *reply = NULL;
    gs_status status = gs_stage_ask(it, &reply, GS_PREVIEW_PLAN,
                           "{\"tensors\":[{\"name\":\"a\",\"elements\":-1,\"dtype\":\"fp32\",\"device\":\"cpu\"},"
                           "{\"name\":\"b\",\"elements\":1.5,\"dtype\":\"fp33\",\"device\":\"cpu\"}],"
                           "\"limits_bytes\":[]}");
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    static const char *const pointers[] = {"/limits_bytes", "/tensors/0/elements", "/tensors/1/elements",
                                           "/tensors/1/dtype"};
    const gs_json *errors = gs_json_get(reply, "errors");
    assert_int_equal(gs_json_count(errors), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(gs_json_string_or(gs_json_at(errors, i), "pointer", ""), pointers[i]);
    }
    gs_json_release(reply);
    reply = NULL;
    assert_ok(gs_stage_ask(
        it, &reply, GS_PREVIEW_PLAN,
        "{\"tensors\":[{\"name\":\"a\",\"elements\":9007199254740992,\"dtype\":\"fp32\","
        "\"device\":\"cpu\"}],\"limits_bytes\":[1048576]}"));
    assert_int_equal(gs_json_count(gs_json_get(reply, "buckets")), 1);
    gs_json_release(reply);
}

static void equal_device_names_are_one_device(void **state) {
    life *it = *state;
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(
        it, &reply, GS_PREVIEW_PLAN,
        "{\"tensors\":[{\"name\":\"a\",\"elements\":1,\"dtype\":\"fp32\",\"device\":\"x\"},"
        "{\"name\":\"b\",\"elements\":1,\"dtype\":\"fp32\",\"device\":\"y\"},"
        "{\"name\":\"c\",\"elements\":1,\"dtype\":\"fp32\",\"device\":\"x\"}],\"limits_bytes\":["
        "1000]}"));
    const gs_json *buckets = gs_json_get(reply, "buckets");
    assert_int_equal(gs_json_count(buckets), 2);
    assert_string_equal(gs_json_string_or(gs_json_at(buckets, 0), "device", ""), "x");
    assert_int_equal(gs_json_count(gs_json_get(gs_json_at(buckets, 0), "tensors")), 2);
    gs_json_release(reply);
}

static void a_second_coordinator_is_refused_with_73(void **state) {
    life *it = *state;
    char data[700];
    snprintf(data, sizeof data, "%s/data", it->process.directory);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        execl(GRADSYNC_BIN_DIR "/gradsync-coordinator", "gradsync-coordinator", "--http", "127.0.0.1:0",
              "--control", "tcp://127.0.0.1:0", "--data-dir", data, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 73);
}

// The value of a sample line that begins with `line`, −1 when it is not on the page.
static double scrape(life *it, const char *family, const char *line) {
    gs_rpc_stream *stream = NULL;
    gs_json *item = NULL;
    double value = -1;
    assert_ok(gs_rpc_stream_open(&stream, it->client, GS_GET_METRICS, NULL));
    for (;;) {
        assert_ok(gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(20)));
        if (!item) break;
        const gs_json *families = gs_json_get(item, "families");
        for (size_t i = 0; i < gs_json_count(families); i++) {
            const gs_json *entry = gs_json_at(families, i);
            if (strcmp(gs_json_string_or(entry, "name", ""), family) != 0) continue;
            const char *found = strstr(gs_json_string_or(entry, "text", ""), line);
            if (found) value = strtod(found + strlen(line), NULL);
        }
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    return value;
}

static void the_metrics_page_shows_each_rank_and_forgets_deleted_jobs(void **state) {
    life *it = *state;
    char id[32], line[100], text[100];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, 20, "");
    gs_json_release(gs_stage_wait_for_state(it, id, "succeeded"));
    assert_true(scrape(it, "gradsync_jobs", "gradsync_jobs{state=\"succeeded\"} ") == 1);
    snprintf(line, sizeof line, "gradsync_job_step{job_id=\"%s\"} ", id);
    assert_true(scrape(it, "gradsync_job_step", line) == 20);
    snprintf(line, sizeof line, "gradsync_rank_wait_seconds_total{job_id=\"%s\",rank=\"1\"} ", id);
    assert_true(scrape(it, "gradsync_rank_wait_seconds_total", line) >= 0);
    gs_json *reply = NULL;
    snprintf(text, sizeof text, "{\"job\":\"%s\",\"purge\":true}", id);
    assert_ok(gs_stage_ask(it, &reply, GS_DELETE_JOB, text));
    gs_json_release(reply);
    assert_true(scrape(it, "gradsync_rank_wait_seconds_total", line) == -1);
}

static void a_data_directory_may_be_a_symbolic_link(void **state) {
    life *it = *state;
    char data[600], real[600];
    assert_int_equal(gs_coordinator_process_stop(&it->process), 0);
    snprintf(data, sizeof data, "%s/data", it->process.directory);
    snprintf(real, sizeof real, "%s/real", it->process.directory);
    assert_int_equal(rename(data, real), 0);
    assert_int_equal(symlink(real, data), 0);
    assert_ok(gs_coordinator_process_start(&it->process));
}

static void sigterm_ends_the_coordinator_cleanly(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, 100000, "");
    gs_stage_wait_for_step(it, id, 5);
    assert_int_equal(gs_coordinator_process_stop(&it->process), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_lives_from_submission_to_success, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_crash_costs_no_step_and_names_the_first_rank, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_silent_rank_is_evicted_and_killed, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_killed_coordinator_disturbs_nobody, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_killed_coordinator_loses_and_doubles_no_line, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(wrong_cursors_and_long_texts_are_refused_by_name, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(no_search_of_a_log_ends_the_coordinator, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_rank_that_dies_while_nobody_looks_is_noticed, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_rank_with_another_model_ends_the_job_by_name, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(wrong_input_fails_with_what_the_trainer_said, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(what_a_trainer_said_outlives_the_kill_that_followed, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_coordinator_that_stood_still_evicts_nobody, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_waiting_job_says_why_and_stops_at_once, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_running_job_drains_and_keeps_its_place, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_dry_run_foresees_the_plan, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_deadline_ends_a_job_that_waits, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_watcher_sees_a_snapshot_then_steps_then_the_end, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(one_key_makes_one_job_also_after_a_crash, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_death_before_the_commit_neither_loses_nor_doubles_a_job, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_preview_names_every_wrong_field, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(equal_device_names_are_one_device, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_second_coordinator_is_refused_with_73, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(the_metrics_page_shows_each_rank_and_forgets_deleted_jobs, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_data_directory_may_be_a_symbolic_link, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(sigterm_ends_the_coordinator_cleanly, gs_stage_set_up, gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
