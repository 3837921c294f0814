// How long a peer may be silent, by the pace that it surely knows of; and which loss was one of silence.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/server/rpc_peers.h"

#define SECOND GS_NS_PER_SEC

static int send_error;  // of every send

int __wrap_gs_zmq_send(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                       const void *body, size_t body_bytes);
int __wrap_gs_zmq_send(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                       const void *body, size_t body_bytes) {
    (void)socket, (void)route, (void)header, (void)body, (void)body_bytes;
    return send_error;
}

static gs_rpc_connection *hear(gs_rpc_peers *peers, uint8_t number, int64_t now_ns) {
    gs_zmq_route route = {.id = {number}, .id_bytes = 1, .fd = -1, .socket = GS_RPC_REMOTE};
    gs_frame frame = {.kind = GS_FRAME_PING, .incarnation = number, .seq = 1};
    gs_rpc_connection *connection = gs_rpc_peers_accept(peers, &route, &frame, now_ns);
    assert_non_null(connection);
    return connection;
}

static bool is_lost_at(gs_rpc_peers *peers, const gs_rpc_connection *connection, int64_t now_ns) {
    gs_rpc_peers_mark_silent(peers, now_ns);
    return connection->lost;
}

// As many as are to be heard together every four seconds.
static void open_four(gs_rpc_peers *peers) {
    send_error = 0;
    gs_rpc_peers_init(peers, 1);
    peers->pings_a_second = 1;
    for (uint8_t number = 1; number <= 4; number++) hear(peers, number, SECOND);
}

static void drop(gs_rpc_peers *peers, gs_rpc_connection *connection) {
    gs_rpc_session *session = connection->session;
    gs_rpc_peers_drop(peers, connection, SECOND);
    gs_rpc_peers_forget(peers, session);
}

static void close_all(gs_rpc_peers *peers) {
    while (!TAILQ_EMPTY(&peers->connections)) drop(peers, TAILQ_FIRST(&peers->connections));
    gs_rpc_peers_release(peers);
}

// It was told on its last connection, and says nothing before it is due.
static void a_new_connection_has_the_pace_of_all(void **state) {
    (void)state;
    gs_rpc_peers peers;
    open_four(&peers);
    const gs_rpc_connection *newest = hear(&peers, 4, SECOND);
    assert_false(is_lost_at(&peers, newest, 13 * SECOND));
    assert_true(is_lost_at(&peers, newest, 13 * SECOND + 1));
    close_all(&peers);
}

static gs_rpc_connection *told_four_and_then_one(gs_rpc_peers *peers) {
    open_four(peers);
    gs_rpc_connection *connection = hear(peers, 4, SECOND);
    gs_rpc_peers_answer_ping(peers, connection, 1);
    assert_int_equal(connection->told_ms, 4000);
    while (peers->by_route.count > 1) drop(peers, TAILQ_FIRST(&peers->connections));
    assert_ptr_equal(hear(peers, 4, 2 * SECOND), connection);
    return connection;
}

static void a_shorter_pace_begins_with_the_next_frame(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_connection *connection = told_four_and_then_one(&peers);
    gs_rpc_peers_answer_ping(&peers, connection, 2);
    assert_false(is_lost_at(&peers, connection, 14 * SECOND));
    hear(&peers, 4, 14 * SECOND);
    assert_false(is_lost_at(&peers, connection, 17 * SECOND));
    assert_true(is_lost_at(&peers, connection, 17 * SECOND + 1));
    close_all(&peers);
}

static void an_answer_that_was_not_sent_changes_nothing(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_connection *connection = told_four_and_then_one(&peers);
    send_error = EAGAIN;
    gs_rpc_peers_answer_ping(&peers, connection, 2);
    hear(&peers, 4, 3 * SECOND);
    assert_false(is_lost_at(&peers, connection, 15 * SECOND));
    assert_true(is_lost_at(&peers, connection, 15 * SECOND + 1));
    close_all(&peers);
}

// It may have read it at once.
static void a_longer_pace_begins_at_once(void **state) {
    (void)state;
    gs_rpc_peers peers;
    send_error = 0;
    gs_rpc_peers_init(&peers, 1);
    peers.pings_a_second = 1;
    gs_rpc_connection *first = hear(&peers, 1, SECOND);
    assert_int_equal(first->pace_ms, 1000);
    for (uint8_t number = 2; number <= 4; number++) hear(&peers, number, SECOND);
    gs_rpc_peers_answer_ping(&peers, first, 1);
    assert_false(is_lost_at(&peers, first, 13 * SECOND));
    close_all(&peers);
}

// A send may find it out before the monitor's word is read.
static void who_cannot_be_sent_to_has_closed(void **state) {
    (void)state;
    gs_rpc_peers peers;
    open_four(&peers);
    gs_rpc_connection *connection = hear(&peers, 4, SECOND), *silent = hear(&peers, 3, SECOND);
    send_error = EHOSTUNREACH;
    gs_rpc_peers_answer_ping(&peers, connection, 1);
    assert_true(connection->lost && connection->closed);
    // Who was given up for its silence, and is told so.
    assert_true(is_lost_at(&peers, silent, 60 * SECOND));
    gs_rpc_peers_answer_ping(&peers, silent, 1);
    assert_false(silent->closed);
    close_all(&peers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_connection_has_the_pace_of_all),
        cmocka_unit_test(a_shorter_pace_begins_with_the_next_frame),
        cmocka_unit_test(an_answer_that_was_not_sent_changes_nothing),
        cmocka_unit_test(a_longer_pace_begins_at_once),
        cmocka_unit_test(who_cannot_be_sent_to_has_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
