#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/live/sse.h"
#include "tests/support/http.h"
#include "tests/unit/api/fake_coordinator.h"

static int start(void **state) {
    fake_coordinator *fake = fake_start(0);
    fake_answer(fake, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\",\"state\":\"running\"}");
    fake_answer(fake, GS_LIST_EVENTS, GS_OK, "", "{\"items\":[]}");
    *state = fake;
    return 0;
}

static int stop(void **state) {
    fake_stop(*state);
    return 0;
}

static void open_stream(gs_wire *wire, fake_coordinator *fake, const char *path,
                        const char *headers) {
    char request[512];
    gs_wire_open(wire, fake_address(fake));
    snprintf(request, sizeof request,
             "GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n%s\r\n", path,
             headers);
    gs_wire_send(wire, request);
}

static void event(fake_coordinator *fake, int sequence, const char *name, const char *data) {
    char item[512];
    snprintf(item, sizeof item, "{\"event\":\"%s\",\"sequence\":%d,\"data\":%s}", name, sequence,
             data);
    fake_watch_item(fake, item);
}

static void lines_of_data_are_framed_each(void **state) {
    (void)state;
    gs_strbuf out = {0};
    gs_sse_write_event(&out, "7-1", "state", "a\nb\r\nc");
    assert_string_equal(gs_strbuf_text(&out),
                        "id: 7-1\nevent: state\ndata: a\ndata: b\ndata: c\n\n");
    gs_strbuf_clear(&out);
    gs_sse_write_event(&out, NULL, "gap", "");
    assert_string_equal(gs_strbuf_text(&out), "event: gap\ndata: \n\n");
    gs_strbuf_release(&out);
}

static void stream_begins_with_a_snapshot_and_goes_on_with_events(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/hello/stream", "");
    assert_true(gs_wire_wait(
        &wire, "id: 7-10\nevent: snapshot\ndata: {\"id\":\"j-1\",\"state\":\"running\"}\n\n"));
    assert_non_null(strstr(wire.received.text, "retry: 2000\n\n"));
    assert_non_null(strstr(wire.received.text, "Content-Type: text/event-stream"));
    assert_non_null(strstr(wire.received.text, "Cache-Control: no-store"));
    assert_non_null(strstr(wire.received.text, "X-Accel-Buffering: no"));
    event(*state, 11, "state", "{\"state\":\"stopping\"}");
    assert_true(gs_wire_wait(&wire, "id: 7-11\nevent: state\ndata: {\"state\":\"stopping\"}\n\n"));
    // The name was resolved: the subscription is to the id.
    assert_non_null(strstr(fake_last_request(*state, GS_WATCH), "\"job\":\"j-1\""));
    gs_wire_close(&wire);
}

static void end_of_the_job_ends_the_stream(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot"));
    event(*state, 12, "end", "{\"state\":\"succeeded\"}");
    assert_true(gs_wire_wait(&wire, "id: 7-12\nevent: end\ndata: {\"state\":\"succeeded\"}\n\n"));
    assert_true(gs_wire_wait(&wire, "0\r\n\r\n"));
    gs_wire_close(&wire);

    // Whoever has seen the end gets 204, which stops browsers; others get it again.
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "Last-Event-ID: 7-12\r\n");
    assert_true(gs_wire_wait(&wire, "HTTP/1.1 204"));
    gs_wire_close(&wire);
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "");
    assert_true(gs_wire_wait(&wire, "event: end"));
    gs_wire_close(&wire);
}

static void known_id_resumes_without_a_snapshot(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot"));
    event(*state, 11, "event", "{\"n\":1}");
    event(*state, 12, "event", "{\"n\":2}");
    event(*state, 13, "event", "{\"n\":3}");
    assert_true(gs_wire_wait(&wire, "id: 7-13"));
    gs_wire_close(&wire);
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "Last-Event-ID: 7-11\r\n");
    assert_true(gs_wire_wait(&wire, "id: 7-13\nevent: event\ndata: {\"n\":3}\n\n"));
    assert_non_null(strstr(wire.received.text, "id: 7-12"));
    assert_null(strstr(wire.received.text, "id: 7-11"));
    assert_null(strstr(wire.received.text, "snapshot"));
    gs_wire_close(&wire);
}

static void unknown_id_resets(void **state) {
    static const char *const ids[] = {"6-11", "7-9", "7-999", "nonsense"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        gs_wire wire;
        char header[64];
        snprintf(header, sizeof header, "Last-Event-ID: %s\r\n", ids[i]);
        open_stream(&wire, *state, "/v1/jobs/j-1/stream", header);
        assert_true(gs_wire_wait(&wire, "event: snapshot"));
        assert_non_null(strstr(wire.received.text, "event: reset"));
        gs_wire_close(&wire);
    }
}

static void steps_are_summed_up_between_intervals(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/j-1/stream?interval_ms=60000", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot"));
    event(*state, 11, "step", "{\"step\":1}");
    assert_true(gs_wire_wait(&wire, "data: {\"step\":1,\"steps_summarised\":1}"));
    event(*state, 12, "step", "{\"step\":2}");
    event(*state, 13, "step", "{\"step\":90,\"steps_summarised\":1}");
    event(*state, 14, "end", "{}");  // what was held back comes before the end
    assert_true(gs_wire_wait(&wire, "event: end"));
    assert_non_null(strstr(wire.received.text,
                           "id: 7-13\nevent: step\ndata: {\"step\":90,\"steps_summarised\":89}"));
    assert_null(strstr(wire.received.text, "\"step\":2}"));
    gs_wire_close(&wire);
}

static void one_subscription_serves_many_clients(void **state) {
    gs_wire wires[5];
    for (int i = 0; i < 5; i++) open_stream(&wires[i], *state, "/v1/jobs/j-1/stream", "");
    for (int i = 0; i < 5; i++) assert_true(gs_wire_wait(&wires[i], "event: snapshot"));
    event(*state, 11, "worker", "{\"rank\":1}");
    for (int i = 0; i < 5; i++)
        assert_true(gs_wire_wait(&wires[i], "event: worker\ndata: {\"rank\":1}"));
    assert_int_equal(fake_num_calls(*state, GS_WATCH), 1);
    for (int i = 0; i < 5; i++) gs_wire_close(&wires[i]);
}

static void event_streams_carry_events_alone(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/j-1/events", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot\ndata: {\"items\":[]}"));
    event(*state, 11, "step", "{\"step\":1}");
    event(*state, 12, "event", "{\"reason\":\"Started\"}");
    assert_true(gs_wire_wait(&wire, "event: event\ndata: {\"reason\":\"Started\"}"));
    assert_null(strstr(wire.received.text, "event: step"));
    gs_wire_close(&wire);
}

static void cluster_events_need_no_job(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/events", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot"));
    event(*state, 12, "event", "{\"job\":\"j-2\"}");
    assert_true(gs_wire_wait(&wire, "data: {\"job\":\"j-2\"}"));
    assert_null(strstr(fake_last_request(*state, GS_WATCH), "\"job\""));
    gs_wire_close(&wire);
}

static void unknown_job_is_not_found_before_a_stream_begins(void **state) {
    gs_wire wire;
    fake_answer(*state, GS_GET_JOB, GS_NOT_FOUND, "no such job", NULL);
    open_stream(&wire, *state, "/v1/jobs/nope/stream", "");
    assert_true(gs_wire_wait(&wire, "HTTP/1.1 404"));
    assert_true(gs_wire_wait(&wire, "not_found"));
    gs_wire_close(&wire);
}

static void streams_are_capped_and_life_goes_on(void **state) {
    enum { MOST = 64 };
    gs_wire wires[MOST], more;
    for (int i = 0; i < MOST; i++) {
        open_stream(&wires[i], *state, "/v1/jobs/j-1/stream", "");
        assert_true(gs_wire_wait(&wires[i], "event: snapshot"));
    }
    open_stream(&more, *state, "/v1/jobs/j-1/stream", "");
    assert_true(gs_wire_wait(&more, "too_many_streams"));
    gs_wire_close(&more);
    gs_wire_response alive =
        gs_wire_exchange(fake_address(*state), "GET /livez HTTP/1.1\r\n\r\n", NULL, false);
    assert_int_equal(alive.status, 200);
    gs_wire_response_release(&alive);
    // The place of a client that has gone is found, without anybody writing to it.
    gs_wire_close(&wires[0]);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    bool admitted = false;
    while (!admitted && !gs_deadline_passed(deadline)) {
        open_stream(&more, *state, "/v1/jobs/j-1/stream", "");
        assert_true(gs_wire_wait(&more, "}"));
        admitted = strstr(more.received.text, "HTTP/1.1 200") != NULL;
        gs_wire_close(&more);
    }
    assert_true(admitted);
    for (int i = 1; i < MOST; i++) gs_wire_close(&wires[i]);
}

static void server_that_goes_away_says_goodbye(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot"));
    gs_api_stop(fake_take_api(*state));
    assert_true(gs_wire_wait(&wire, "event: end\ndata: {\"reason\":\"server_shutdown\"}"));
    gs_wire_close(&wire);
}

static void slow_client_is_told_what_it_missed(void **state) {
    gs_wire wire;
    open_stream(&wire, *state, "/v1/jobs/j-1/stream", "");
    assert_true(gs_wire_wait(&wire, "event: snapshot"));
    // More than the ring holds at once, in bytes: the reader cannot have seen each of them.
    char *blob = malloc(60000), *item = malloc(60200);
    memset(blob, 'x', 59999);
    blob[59999] = '\0';
    for (int i = 0; i < 600; i++) {
        snprintf(item, 60200, "{\"event\":\"event\",\"sequence\":%d,\"data\":{\"blob\":\"%s\"}}",
                 11 + i, blob);
        fake_watch_item(*state, item);
    }
    event(*state, 1000, "end", "{}");
    free(blob);
    free(item);
    // Not reading: the socket's buffers fill, the ring turns over.
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!gs_deadline_passed(deadline)) {
        gs_wire_response page =
            gs_wire_exchange(fake_address(*state), "GET /metrics HTTP/1.1\r\n\r\n", NULL, false);
        bool full = strstr(page.body, "sse_clients 1") != NULL;
        gs_wire_response_release(&page);
        gs_wire late;
        open_stream(&late, *state, "/v1/jobs/j-1/stream", "");
        bool ended = gs_wire_wait(&late, "event: end");
        gs_wire_close(&late);
        if (full && ended) break;
    }
    assert_true(gs_wire_wait(&wire, "event: gap\ndata: {\"dropped\":"));
    gs_wire_close(&wire);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_data_are_framed_each),
        TEST(stream_begins_with_a_snapshot_and_goes_on_with_events),
        TEST(end_of_the_job_ends_the_stream),
        TEST(known_id_resumes_without_a_snapshot),
        TEST(unknown_id_resets),
        TEST(steps_are_summed_up_between_intervals),
        TEST(one_subscription_serves_many_clients),
        TEST(event_streams_carry_events_alone),
        TEST(cluster_events_need_no_job),
        TEST(unknown_job_is_not_found_before_a_stream_begins),
        TEST(streams_are_capped_and_life_goes_on),
        TEST(server_that_goes_away_says_goodbye),
        TEST(slow_client_is_told_what_it_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
