// The coordinator killed, stopped for a while, started twice or elsewhere: what trains, what was acknowledged and what was
// printed does not notice.
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

#include "coordinator/rules/timing.h"
#include "core/thread.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/soon.h"
#include "worker/agent/agent_reports.h"

#define LASTING_STEPS 1500  // whoever looks away for seconds still finds the job

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
    submit(it, id, sizeof id, 2, LASTING_STEPS, "");
    gs_stage_wait_for_step(it, id, 60);
    gs_json *before = gs_stage_get(it, GS_GET_JOB, id);
    gs_coordinator_process_kill(&it->process);
    wait_for_steps(it->workers[0], 200);
    assert_ok(gs_coordinator_process_start(&it->process));
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(job, "generation", -1), gs_json_int_or(before, "generation", -2));
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    assert_int_equal(gs_json_int_or(gs_json_get(job, "progress"), "step", -1), LASTING_STEPS);
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
    gs_agent_reports_flush(prints.reports, gs_deadline_in_seconds(60));
    gs_agent_reports_destroy(prints.reports);
    assert_int_equal(count_lines_in_order(it, id), prints.num_lines);
}

static void a_rank_that_dies_while_nobody_looks_is_noticed(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 1, 2);
    submit(it, id, sizeof id, 2, LASTING_STEPS, "");
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

static void a_coordinator_that_stood_still_evicts_nobody(void **state) {
    life *it = *state;
    char id[32];
    start_workers(it, 2, 1);
    submit(it, id, sizeof id, 2, LASTING_STEPS, "");
    gs_stage_wait_for_step(it, id, 20);
    gs_coordinator_process_pause(&it->process, gs_timing_default.agent_dead_ns * 4 / 3);
    gs_json *job = gs_stage_wait_for_state(it, id, "succeeded");
    assert_int_equal(gs_json_int_or(job, "restarts", -1), 0);
    assert_null(gs_json_get(job, "failure"));
    gs_json_release(job);
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
        gs_json *request = NULL;
        assert_ok(gs_json_parse(&request, text, strlen(text)));
        gs_status asked = {.code = GS_UNAVAILABLE};
        gs_deadline deadline = soon();
        for (bool again = false; asked.code && !(again && asked.code == GS_ALREADY_EXISTS); again = true) {
            gs_json *reply = NULL;
            asked = gs_rpc_call(it->client, GS_CREATE_JOB, request, &reply, gs_deadline_in_seconds(2));
            gs_json_release(reply);
            assert_true(!asked.code || !gs_deadline_passed(deadline));
            // The coordinator is dead, or late: the same again, to the next one where it is dead.
            if (!asked.code || waitpid(it->process.pid, &status, WNOHANG) != it->process.pid) continue;
            it->process.pid = 0;
            assert_ok(gs_coordinator_process_start(&it->process));
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

// Of jobs that ended in an earlier life specifications are on the disk alone: who lists them with theirs gets them all.
#define NUM_ENDED 20
static void a_list_has_the_specifications_of_ended_jobs(void **state) {
    life *it = *state;
    char id[32], text[64];
    for (int i = 0; i < NUM_ENDED; i++) {
        gs_json *reply = NULL;
        submit(it, id, sizeof id, 1, 10 + i, "");
        snprintf(text, sizeof text, "{\"job\":\"%s\",\"mode\":\"now\"}", id);
        assert_ok(gs_stage_ask(it, &reply, GS_STOP_JOB, text));
        gs_json_release(reply);
        gs_json_release(gs_stage_wait_for_state(it, id, "cancelled"));
    }
    gs_coordinator_process_kill(&it->process);
    assert_ok(gs_coordinator_process_start(&it->process));
    gs_json *list = NULL;
    assert_ok(gs_stage_ask(it, &list, GS_LIST_JOBS, "{\"order\":\"asc\",\"limit\":100,\"fields\":\"id,spec\"}"));
    const gs_json *items = gs_json_get(list, "items");
    assert_int_equal(gs_json_count(items), NUM_ENDED);
    for (int i = 0; i < NUM_ENDED; i++) {
        const gs_json *spec = gs_json_get(gs_json_at(items, (size_t)i), "spec");
        assert_int_equal(gs_json_int_or(gs_json_get(spec, "steps"), "target", -1), 10 + i);
    }
    gs_json_release(list);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_stage_set_up, gs_stage_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_killed_coordinator_disturbs_nobody),
        TEST(a_killed_coordinator_loses_and_doubles_no_line),
        TEST(a_rank_that_dies_while_nobody_looks_is_noticed),
        TEST(a_coordinator_that_stood_still_evicts_nobody),
        TEST(one_key_makes_one_job_also_after_a_crash),
        TEST(a_death_before_the_commit_neither_loses_nor_doubles_a_job),
        TEST(a_second_coordinator_is_refused_with_73),
        TEST(a_data_directory_may_be_a_symbolic_link),
        TEST(a_list_has_the_specifications_of_ended_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
