#include "worker/agent/agent_reports.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/thread.h"
#include "rpc/server/rpc_server.h"
#include "tests/support/asserts.h"

#define ENDPOINT "inproc://test-agent-reports"
#define MAX_LINES 4096

// A coordinator that only listens. Its fields belong to its thread until it has stopped.
typedef struct listener {
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_thread *thread;
    char *lines[MAX_LINES];
    int64_t positions[MAX_LINES];
    int num_lines, num_exits, num_batches;
} listener;

static void take_log(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    listener *to = ctx;
    const gs_json *records = gs_json_get(request, "records");
    (void)peer;
    for (size_t i = 0; i < gs_json_count(records) && to->num_lines < MAX_LINES; i++) {
        const gs_json *record = gs_json_at(records, i);
        to->positions[to->num_lines] = gs_json_int_or(record, "position", -1);
        to->lines[to->num_lines++] = strdup(gs_json_string_or(record, "text", ""));
    }
    to->num_batches++;
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void take_exit(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                      const gs_json *request) {
    listener *to = ctx;
    (void)peer;
    (void)request;
    to->num_exits++;
    gs_rpc_reply(call, gs_ok(), NULL);
}

static void run_server(void *ctx, const atomic_bool *stopping) {
    listener *to = ctx;
    while (!atomic_load(stopping)) {
        gs_status status = gs_rpc_server_turn(to->server, -1, gs_deadline_in_ms(5));
        if (status.code) return;
    }
}

static void start_listening(listener *to) {
    gs_rpc_server_options options = {.endpoints = {ENDPOINT}, .coordinator_epoch = 1, .ctx = to};
    options.handlers[GS_LOG] = take_log;
    options.handlers[GS_EXITED] = take_exit;
    assert_ok(gs_rpc_server_open(&to->server, to->context, &options));
    assert_ok(gs_thread_start(&to->thread, "listener", run_server, to));
}

typedef struct fixture {
    listener listener;
    gs_rpc_client *client;
    gs_agent_reports *reports;
} fixture;

static fixture *make_fixture(size_t max_log_bytes) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_ok(gs_rpc_context_create(&f->listener.context));
    gs_rpc_client_options options = {.endpoint = ENDPOINT};
    assert_ok(gs_rpc_client_open(&f->client, f->listener.context, &options));
    assert_ok(gs_agent_reports_create(&f->reports, f->client, max_log_bytes));
    return f;
}

static void add_line_of(fixture *f, const char *job, int number) {
    char text[64];
    int bytes = snprintf(text, sizeof text, "line %d", number);
    gs_log_record record = {.job = job,
                            .rank = 1,
                            .stream = "stderr",
                            .text = text,
                            .bytes = (size_t)bytes,
                            .position = 2 * number + 2};
    gs_agent_reports_add_line(f->reports, &record);
}

static void add_line(fixture *f, int number) { add_line_of(f, "j-000000000001", number); }

static void stop_all(fixture *f) {
    gs_agent_reports_flush(f->reports, gs_deadline_in_seconds(60));
    gs_agent_reports_destroy(f->reports);
    gs_thread_stop(f->listener.thread);
    gs_rpc_client_close(f->client);
    gs_rpc_server_close(f->listener.server);
    gs_rpc_context_destroy(f->listener.context);
}

static void release(fixture *f) {
    for (int i = 0; i < f->listener.num_lines; i++) free(f->listener.lines[i]);
    free(f);
}

static void lines_from_before_the_coordinator_arrive_once_and_in_order(void **state) {
    (void)state;
    fixture *f = make_fixture(0);
    for (int i = 0; i < 1500; i++) add_line(f, i);
    start_listening(&f->listener);
    for (int i = 1500; i < 1600; i++) add_line(f, i);
    stop_all(f);
    assert_int_equal(f->listener.num_lines, 1600);
    for (int i = 0; i < 1600; i++) assert_int_equal(f->listener.positions[i], 2 * i + 2);
    assert_string_equal(f->listener.lines[1599], "line 1599");
    assert_true(f->listener.num_batches < 100);
    release(f);
}

// One after the other, as trainers of one host write them: what of a job has waited goes together.
static void lines_of_jobs_in_turn_are_no_batch_each(void **state) {
    static const char *const jobs[] = {"j-000000000001", "j-000000000002", "j-000000000003"};
    (void)state;
    fixture *f = make_fixture(0);
    for (int i = 0; i < 900; i++) add_line_of(f, jobs[i % 3], i);
    start_listening(&f->listener);
    stop_all(f);
    assert_int_equal(f->listener.num_lines, 900);
    assert_true(f->listener.num_batches < 30);  // 3, and what was repeated before somebody listened
    int64_t last[3] = {0};
    for (int i = 0; i < 900; i++) {
        int64_t position = f->listener.positions[i], *before = &last[(position / 2 - 1) % 3];
        assert_true(position > *before);
        *before = position;
    }
    release(f);
}

static void what_does_not_fit_is_said_in_its_place(void **state) {
    (void)state;
    fixture *f = make_fixture(1500);  // about ten lines
    for (int i = 0; i < 50; i++) add_line(f, i);
    start_listening(&f->listener);
    gs_agent_reports_flush(f->reports, gs_deadline_in_seconds(60));
    add_line(f, 50);
    stop_all(f);
    int last = f->listener.num_lines - 1;
    assert_true(last >= 2 && last < 30);
    assert_string_equal(f->listener.lines[last], "line 50");
    assert_non_null(strstr(f->listener.lines[last - 1], "lines dropped"));
    for (int i = 1; i <= last; i++) {
        assert_true(f->listener.positions[i] > f->listener.positions[i - 1]);
    }
    release(f);
}

static void empty_lines_are_bounded_too(void **state) {
    (void)state;
    fixture *f = make_fixture(10000);
    gs_log_record record = {.job = "j-000000000001", .stream = "stderr", .text = ""};
    for (int i = 0; i < 3000; i++) {
        record.position += 2;
        gs_agent_reports_add_line(f->reports, &record);
    }
    start_listening(&f->listener);
    stop_all(f);
    assert_in_range(f->listener.num_lines, 10, 1000);
    release(f);
}

static void exits_arrive_too(void **state) {
    (void)state;
    fixture *f = make_fixture(0);
    gs_json *exited = gs_json_new_object();
    gs_json_set_int(exited, "slot", 0);
    gs_agent_reports_add_exit(f->reports, exited);
    start_listening(&f->listener);
    stop_all(f);
    assert_int_equal(f->listener.num_exits, 1);
    release(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_from_before_the_coordinator_arrive_once_and_in_order),
        cmocka_unit_test(lines_of_jobs_in_turn_are_no_batch_each),
        cmocka_unit_test(what_does_not_fit_is_said_in_its_place),
        cmocka_unit_test(empty_lines_are_bounded_too),
        cmocka_unit_test(exits_arrive_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
