// The channel seen from a client: calls, streams, repeats, reconnects.
#include "rpc/client/rpc_client.h"

#include <dirent.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/unit/rpc/rpc_fixture.h"

static gs_json *numbered_request(int64_t number) {
    gs_json *request = gs_json_new_object();
    gs_json_set_int(request, "number", number);
    return request;
}

static void expect_echo(gs_rpc_client *client, int64_t number) {
    gs_json *request = numbered_request(number), *reply = NULL;
    gs_status status = gs_rpc_call(client, GS_GET_JOB, request, &reply, WAIT);
    assert_string_equal(status.message, "");
    assert_int_equal(gs_json_int_or(reply, "number", -1), number);
    gs_json_release(request);
    gs_json_release(reply);
}

static void call_returns_the_reply(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    for (int i = 0; i < 100; i++) expect_echo(client, i);
    assert_int_equal(atomic_load(&fixture.num_calls), 100);
    assert_true(gs_rpc_client_connected(client));
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void inproc_client_may_open_before_the_server(void **state) {
    (void)state;
    rpc_fixture fixture = {.endpoint = "inproc://test-control"};
    gs_status status = gs_rpc_context_create(&fixture.context);
    assert_int_equal(status.code, GS_OK);
    gs_rpc_client *client = open_client(&fixture);
    start_fixture(&fixture, "inproc://test-control", 1);
    expect_echo(client, 7);
    gs_rpc_client_close(client);
    wait_for_count(&fixture.num_gone_peers, 1);
    stop_fixture(&fixture);
}

static void error_carries_code_message_and_details(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_json *details = NULL;
    gs_status status = gs_rpc_call(client, GS_STOP_JOB, NULL, &details, WAIT);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_string_equal(status.message, "StopJob: the job has ended");
    assert_string_equal(gs_json_string_or(details, "code", ""), "wrong_state");
    gs_json_release(details);
    status = gs_rpc_call(client, GS_GET_HEALTH, NULL, &details, WAIT);
    assert_int_equal(status.code, GS_UNIMPLEMENTED);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

typedef struct caller {
    gs_rpc_client *client;
    int first, errors;
} caller;

static void call_often(void *ctx, const atomic_bool *stopping) {
    caller *self = ctx;
    (void)stopping;
    for (int i = 0; i < 200; i++) {
        gs_json *request = numbered_request(self->first + i), *reply = NULL;
        gs_status status = gs_rpc_call(self->client, GS_GET_JOB, request, &reply, WAIT);
        if (status.code || gs_json_int_or(reply, "number", -1) != self->first + i) self->errors++;
        gs_json_release(request);
        gs_json_release(reply);
    }
}

static void eight_threads_share(const char *endpoint) {
    rpc_fixture fixture = {0};
    start_fixture(&fixture, endpoint, 1);
    gs_rpc_client *client = open_client(&fixture);
    caller callers[8];
    gs_thread *threads[8];
    for (int i = 0; i < 8; i++) {
        callers[i] = (caller){.client = client, .first = i * 1000};
        gs_status status = gs_thread_start(&threads[i], "caller", call_often, &callers[i]);
        assert_int_equal(status.code, GS_OK);
    }
    for (int i = 0; i < 8; i++) {
        gs_thread_stop(threads[i]);
        assert_int_equal(callers[i].errors, 0);
    }
    assert_int_equal(atomic_load(&fixture.num_calls), 1600);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void eight_threads_share_a_tcp_client(void **state) {
    (void)state;
    eight_threads_share("tcp://127.0.0.1:0");
}

static void eight_threads_share_an_inproc_client(void **state) {
    (void)state;
    eight_threads_share("inproc://test-threads");
}

static void call_ends_at_its_deadline_and_is_cancelled_there(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    expect_echo(client, 1);
    gs_status status = gs_rpc_call(client, GS_EXCHANGE, NULL, NULL, gs_deadline_in_ms(100));
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    wait_for_count(&fixture.num_gone_calls, 1);
    wait_for_total(&fixture.calls_open, 0);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void call_without_a_server_is_unavailable(void **state) {
    (void)state;
    rpc_fixture fixture = {.endpoint = "tcp://127.0.0.1:1"};
    gs_status status = gs_rpc_context_create(&fixture.context);
    assert_int_equal(status.code, GS_OK);
    gs_rpc_client *client = open_client(&fixture);
    status = gs_rpc_call(client, GS_GET_JOB, NULL, NULL, gs_deadline_in_ms(50));
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_string_equal(status.message, "GetJob: not connected to tcp://127.0.0.1:1");
    gs_rpc_client_close(client);
    gs_rpc_context_destroy(fixture.context);
}

static void held_call_is_answered_later(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    atomic_store(&fixture.release_held, true);
    gs_json *reply = NULL;
    gs_status status = gs_rpc_call(client, GS_EXCHANGE, NULL, &reply, WAIT);
    assert_int_equal(status.code, GS_OK);
    assert_true(gs_json_bool_or(reply, "released", false));
    gs_json_release(reply);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void stream_gives_items_and_a_clean_end(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_json *request = gs_json_new_object(), *item = NULL;
    gs_json_set_int(request, "count", 500);
    gs_json_set_bool(request, "end", true);
    gs_rpc_stream *stream = NULL;
    gs_status status = gs_rpc_stream_open(&stream, client, GS_WATCH, request);
    assert_int_equal(status.code, GS_OK);
    for (int i = 0; i < 500; i++) {
        status = gs_rpc_stream_next(stream, &item, WAIT);
        assert_int_equal(status.code, GS_OK);
        assert_int_equal(gs_json_int_or(item, "index", -1), i);
        gs_json_release(item);
    }
    status = gs_rpc_stream_next(stream, &item, WAIT);
    assert_int_equal(status.code, GS_OK);
    assert_null(item);
    gs_rpc_stream_close(stream);
    gs_json_release(request);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

// It is not sent, and who sent it knows that it was no fault of the reader's.
static void item_that_no_message_holds_is_refused(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_json *request = gs_json_new_object(), *item = NULL;
    gs_json_set_int(request, "count", 1);
    gs_json_set_int(request, "padding", 1 << 20);
    gs_json_set_bool(request, "end", true);
    gs_rpc_stream *stream = NULL;
    gs_status status = gs_rpc_stream_open(&stream, client, GS_WATCH, request);
    assert_int_equal(status.code, GS_OK);
    status = gs_rpc_stream_next(stream, &item, WAIT);
    assert_int_equal(status.code, GS_OK);
    assert_null(item);
    gs_rpc_stream_close(stream);
    gs_json_release(request);
    gs_rpc_client_close(client);
    stop_server(&fixture);
    assert_int_equal(fixture.refused_item.code, GS_OUT_OF_RANGE);
    assert_non_null(strstr(fixture.refused_item.message, "1048576"));
    stop_fixture(&fixture);
}

static gs_rpc_stream *open_watch(gs_rpc_client *client, rpc_fixture *fixture) {
    gs_rpc_stream *stream = NULL;
    gs_json *request = gs_json_new_object(), *item = NULL;
    int before = atomic_load(&fixture->num_streams);
    gs_json_set_int(request, "count", 1);
    gs_status status = gs_rpc_stream_open(&stream, client, GS_WATCH, request);
    assert_int_equal(status.code, GS_OK);
    status = gs_rpc_stream_next(stream, &item, WAIT);
    assert_string_equal(status.message, "");
    wait_for_count(&fixture->num_streams, before + 1);
    gs_json_release(item);
    gs_json_release(request);
    return stream;
}

static void closed_stream_is_forgotten_by_the_server(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_rpc_stream *stream = open_watch(client, &fixture);
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(stream, &item, gs_deadline_in_ms(20));
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    gs_rpc_stream_close(stream);
    wait_for_count(&fixture.num_gone_calls, 1);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void one_way_messages_arrive_once_connected(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    expect_echo(client, 1);
    for (int i = 0; i < 100; i++) gs_rpc_send(client, GS_HEARTBEAT, NULL);
    wait_for_count(&fixture.num_one_way, 100);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

// The failpoint takes away the reply of the third call.
static void repeated_request_runs_once(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    for (int i = 0; i < 5; i++) expect_echo(client, i);
#ifdef GRADSYNC_FAILPOINTS
    assert_int_equal(atomic_load(&fixture.repeated), 1);
#endif
    assert_int_equal(atomic_load(&fixture.num_calls), 5);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void call_survives_a_server_restart(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_rpc_stream *stream = open_watch(client, &fixture);
    caller self = {.client = client};
    gs_thread *thread = NULL;
    gs_status status = gs_thread_start(&thread, "caller", call_often, &self);
    assert_int_equal(status.code, GS_OK);

    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "%s", fixture.endpoint);
    stop_server(&fixture);
    gs_json *item = NULL;
    status = gs_rpc_stream_next(stream, &item, WAIT);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    start_fixture(&fixture, endpoint, 2);
    gs_thread_stop(thread);
    assert_int_equal(self.errors, 0);
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void inproc_call_survives_a_server_restart(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "inproc://test-restart", 1);
    gs_rpc_client *client = open_client(&fixture);
    expect_echo(client, 1);
    stop_server(&fixture);
    start_fixture(&fixture, "inproc://test-restart", 2);
    expect_echo(client, 2);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

// Its thread stands still, its sockets live: only the client's own pings notice.
static void silent_server_ends_streams(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_rpc_stream *stream = open_watch(client, &fixture);
    atomic_store(&fixture.paused, true);
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(stream, &item, WAIT);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    gs_rpc_stream_close(stream);
    atomic_store(&fixture.paused, false);
    expect_echo(client, 3);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

// The same server, of so many clients that each is to be heard every four seconds.
static void a_server_of_many_may_be_silent_for_longer(void **state) {
    (void)state;
    rpc_fixture fixture = {.pings_a_second = 1};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *clients[4];
    for (int i = 0; i < 4; i++) {
        clients[i] = open_client(&fixture);
        expect_echo(clients[i], i);  // behind the ping that told
    }
    gs_rpc_stream *stream = open_watch(clients[3], &fixture);
    atomic_store(&fixture.paused, true);
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(stream, &item, gs_deadline_in_ms(4500));
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    atomic_store(&fixture.paused, false);
    gs_rpc_stream_close(stream);
    for (int i = 0; i < 4; i++) gs_rpc_client_close(clients[i]);
    stop_fixture(&fixture);
}

static void close_ends_waiting_calls(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_rpc_stream *stream = open_watch(client, &fixture);
    gs_rpc_client_close(client);
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(stream, &item, WAIT);
    assert_int_equal(status.code, GS_CANCELLED);
    gs_rpc_stream_close(stream);
    wait_for_count(&fixture.num_gone_peers, 1);
    assert_int_equal(atomic_load(&fixture.num_gone_calls), 1);
    stop_fixture(&fixture);
}

static int count_descriptors(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

static void ten_thousand_streams_leave_nothing(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_json *request = gs_json_new_object(), *item;
    gs_json_set_int(request, "count", 1);
    int before = 0;
    for (int i = 0; i < 10000; i++) {
        gs_rpc_stream *stream = NULL;
        gs_status status = gs_rpc_stream_open(&stream, client, GS_WATCH, request);
        assert_int_equal(status.code, GS_OK);
        status = gs_rpc_stream_next(stream, &item, WAIT);
        assert_string_equal(status.message, "");
        gs_json_release(item);
        gs_rpc_stream_close(stream);
        if (i == 0) before = count_descriptors();
    }
    wait_for_count(&fixture.num_gone_calls, 10000);
    wait_for_total(&fixture.calls_open, 0);
    assert_int_equal(count_descriptors(), before);
    gs_json_release(request);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void slow_reader_of_a_stream_is_cut_off(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    gs_rpc_stream *stream = open_watch(client, &fixture);
    atomic_store(&fixture.flood_streams, true);
    wait_for_count(&fixture.num_gone_calls, 1);  // the client cancelled it
    gs_json *item = NULL;
    gs_status status;
    int received = -1;
    do {
        gs_json_release(item);
        status = gs_rpc_stream_next(stream, &item, WAIT);
        received++;
    } while (!status.code);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_int_equal(received, 4096);
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void request_above_its_limit_is_refused_here(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    char *text = malloc(8192);
    memset(text, 'x', 8191);
    text[8191] = '\0';
    gs_json *request = gs_json_new_object();
    gs_json_set_string(request, "job", text);
    gs_status status = gs_rpc_call(client, GS_GET_JOB, request, NULL, WAIT);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    gs_json_release(request);
    free(text);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static int count_threads(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

// Its owner may be about to use up the memory that their stacks need, and the library aborts the process then.
static void threads_of_a_context_are_there_when_it_is(void **state) {
    (void)state;
    gs_rpc_context *context;
    int before = count_threads();
    assert_ok(gs_rpc_context_create(&context));
    assert_int_equal(count_threads(), before + 2);
    gs_rpc_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest repeats[] = {cmocka_unit_test(repeated_request_runs_once)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_a_context_are_there_when_it_is),
        cmocka_unit_test(call_returns_the_reply),
        cmocka_unit_test(inproc_client_may_open_before_the_server),
        cmocka_unit_test(error_carries_code_message_and_details),
        cmocka_unit_test(eight_threads_share_a_tcp_client),
        cmocka_unit_test(eight_threads_share_an_inproc_client),
        cmocka_unit_test(call_ends_at_its_deadline_and_is_cancelled_there),
        cmocka_unit_test(call_without_a_server_is_unavailable),
        cmocka_unit_test(held_call_is_answered_later),
        cmocka_unit_test(stream_gives_items_and_a_clean_end),
        cmocka_unit_test(item_that_no_message_holds_is_refused),
        cmocka_unit_test(closed_stream_is_forgotten_by_the_server),
        cmocka_unit_test(one_way_messages_arrive_once_connected),
        cmocka_unit_test(call_survives_a_server_restart),
        cmocka_unit_test(inproc_call_survives_a_server_restart),
        cmocka_unit_test(silent_server_ends_streams),
        cmocka_unit_test(a_server_of_many_may_be_silent_for_longer),
        cmocka_unit_test(close_ends_waiting_calls),
        cmocka_unit_test(ten_thousand_streams_leave_nothing),
        cmocka_unit_test(slow_reader_of_a_stream_is_cut_off),
        cmocka_unit_test(request_above_its_limit_is_refused_here),
    };
    // Read once, at the first pass: the first group must be the one that it is for.
    setenv("GRADSYNC_FAILPOINTS", "rpc.reply=error@3", 1);
    int failed = cmocka_run_group_tests_name("rpc repeats", repeats, NULL, NULL);
    failed += cmocka_run_group_tests_name("rpc client", tests, NULL, NULL);
    return failed;
}
