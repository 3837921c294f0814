// Peers of another version: each is refused in words that it can read, and named for people.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <zmq.h>

#include "core/digest.h"
#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/unit/rpc/raw_peer.h"
#include "tests/unit/rpc/rpc_fixture.h"

static void other_version_is_told_so(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &raw_call, NULL, 0);
    header[4] = 9;
    memset(header + 76, 0, 4);
    uint32_t crc = gs_crc32c(0, header, sizeof header);
    for (size_t i = 0; i < 4; i++) header[76 + i] = (uint8_t)(crc >> 8 * i);
    zmq_send(raw.socket, header, sizeof header, ZMQ_SNDMORE);
    zmq_send(raw.socket, "", 0, 0);
    char body[256];
    gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(reply.status, GS_FAILED_PRECONDITION);
    assert_int_equal(reply.call, raw_call.seq);
    assert_string_equal(body,
                        "{\"message\":\"frame: protocol version 9, this side speaks 2 to 2\"}");
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// As an agent or a trainer of version 0.1 says it; the answer is one that it can read.
static void expect_older_refused(gs_method method, const char *request, gs_code code,
                                 const char *text) {
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    gs_frame asked = {
        .proto = 1, .method = method, .kind = GS_FRAME_REQUEST, .incarnation = 5, .seq = 1};
    raw_peer_send(&raw, &asked, request);
    uint8_t header[GS_FRAME_HEADER_BYTES];
    char body[256] = "", wanted[256];
    assert_int_equal(zmq_recv(raw.socket, header, sizeof header, 0), sizeof header);
    assert_true(zmq_recv(raw.socket, body, sizeof body - 1, 0) > 0);
    assert_int_equal(header[4] | header[5] << 8, 1);
    assert_int_equal(header[9], code);
    snprintf(wanted, sizeof wanted,
             "{\"message\":\"%sframe: protocol version 1, this side speaks 2 to 2\"}", text);
    assert_string_equal(body, wanted);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

#define OLD_WORKER                                                                                 \
    "{\"worker\":\"w1\",\"host\":\"old\",\"build\":\"0.1.0\",\"proto_least\":1,\"proto_most\":1"
#define ITS_NAME "worker w1 on old, build 0.1.0: "

static void an_older_worker_is_refused_by_name_in_its_own_version(void **state) {
    (void)state;
    expect_older_refused(GS_AGENT_HELLO, OLD_WORKER ",\"running\":[]}", GS_FAILED_PRECONDITION,
                         ITS_NAME);
    expect_older_refused(GS_HELLO, OLD_WORKER ",\"applied_step\":0}", GS_FAILED_PRECONDITION,
                         ITS_NAME);
    expect_older_refused(GS_GET_JOB, "{}", GS_FAILED_PRECONDITION, "");
}

static char refused_line[2048];

static void keep_refusal(void *ctx, gs_log_level level, const char *line) {
    (void)ctx;
    (void)level;
    if (strstr(line, "refused a peer of another version")) snprintf(refused_line, sizeof refused_line, "%s", line);
}

// Before anybody knows who it is: its words are one value, and forge no other.
static void what_a_stranger_is_called_forges_no_field_of_the_log(void **state) {
    (void)state;
    gs_log_set_sink(keep_refusal, NULL);
    expect_older_refused(GS_AGENT_HELLO,
                         "{\"worker\":\"w\\\" role=admin x=\\\"\",\"host\":\"\\u001b[2J\",\"build\":\"0.1.0\",\"running\":[]}",
                         GS_FAILED_PRECONDITION, "worker w\\\" role=admin x=\\\" on \\u001b[2J, build 0.1.0: ");
    gs_log_set_sink(NULL, NULL);
    assert_non_null(strstr(refused_line, " reason=\"worker w\\\" role=admin x=\\\" on  [2J, build 0.1.0: frame:"));
    assert_null(strchr(refused_line, 033));
}

// Version 0.1 ends its trainers, unsaved, when it is refused; it waits for a coordinator that is
// away.
static void an_older_worker_that_trains_is_told_to_wait(void **state) {
    (void)state;
    expect_older_refused(GS_AGENT_HELLO, OLD_WORKER ",\"running\":[{\"slot\":0}]}", GS_UNAVAILABLE,
                         ITS_NAME);
    expect_older_refused(GS_HELLO, OLD_WORKER ",\"applied_step\":7}", GS_UNAVAILABLE, ITS_NAME);
    expect_older_refused(GS_EXITED, "{}", GS_UNAVAILABLE, "");
}

// As a coordinator of version 0.1 answers: in its own version, which is all that can be read of it.
static void an_older_coordinator_is_named_with_both_versions(void **state) {
    (void)state;
    gs_rpc_context *context = NULL;
    gs_rpc_client *client = NULL;
    gs_rpc_stream *stream = NULL;
    char endpoint[128], route[64];
    size_t endpoint_bytes = sizeof endpoint;
    raw_peer raw = {.context = zmq_ctx_new()};
    raw.socket = zmq_socket(raw.context, ZMQ_ROUTER);
    int none = 0;
    zmq_setsockopt(raw.socket, ZMQ_LINGER, &none, sizeof none);
    assert_int_equal(zmq_bind(raw.socket, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(raw.socket, ZMQ_LAST_ENDPOINT, endpoint, &endpoint_bytes);
    assert_ok(gs_rpc_context_create(&context));
    gs_rpc_client_options options = {.endpoint = endpoint, .incarnation = 5};
    assert_ok(gs_rpc_client_open(&client, context, &options));
    assert_ok(gs_rpc_stream_open(&stream, client, GS_AGENT_HELLO, NULL));

    gs_frame asked = {0};
    int route_bytes = 0;
    while (asked.kind != GS_FRAME_REQUEST) {  // a ping may come first
        uint8_t header[GS_FRAME_HEADER_BYTES];
        char body[256];
        route_bytes = zmq_recv(raw.socket, route, sizeof route, 0);
        assert_int_equal(zmq_recv(raw.socket, header, sizeof header, 0), sizeof header);
        int bytes = zmq_recv(raw.socket, body, sizeof body, 0);
        assert_true(route_bytes > 0 && bytes >= 0);
        assert_ok(gs_frame_unpack(&asked, header, sizeof header, body, (size_t)bytes));
    }
    gs_frame refusal = {.proto = 1,
                        .method = GS_AGENT_HELLO,
                        .kind = GS_FRAME_END,
                        .status = GS_FAILED_PRECONDITION,
                        .call = asked.seq,
                        .incarnation = 5,
                        .seq = 1};
    zmq_send(raw.socket, route, (size_t)route_bytes, ZMQ_SNDMORE);
    raw_peer_send(&raw, &refusal, "{\"message\":\"?\"}");
    gs_json *item = NULL;
    gs_status status = gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    char wanted[300];
    snprintf(wanted, sizeof wanted,
             "%s speaks protocol version 1, this side (build " GRADSYNC_VERSION ") speaks 2 to 2",
             endpoint);
    assert_string_equal(status.message, wanted);
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
    gs_rpc_context_destroy(context);
    raw_peer_close(&raw);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_version_is_told_so),
        cmocka_unit_test(an_older_worker_is_refused_by_name_in_its_own_version),
        cmocka_unit_test(what_a_stranger_is_called_forges_no_field_of_the_log),
        cmocka_unit_test(an_older_worker_that_trains_is_told_to_wait),
        cmocka_unit_test(an_older_coordinator_is_named_with_both_versions),
    };
    return cmocka_run_group_tests_name("versions", tests, NULL, NULL);
}
