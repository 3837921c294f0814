// How long a peer may be silent, by the pace that it surely knows of; and which loss was one of silence.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/server/rpc_calls.h"

#define SECOND GS_NS_PER_SEC

static int send_error;  // of every send

int __wrap_gs_zmq_send(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                       const void *body, size_t body_bytes);
int __wrap_gs_zmq_send(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                       const void *body, size_t body_bytes) {
    (void)socket, (void)route, (void)header, (void)body, (void)body_bytes;
    return send_error;
}

// What ZeroMQ would hold: nobody reads.
static gs_send_ticket *held[300];
static int num_held;

int __wrap_gs_zmq_send_body(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                            gs_send_body *body, gs_send_gauge *of);
int __wrap_gs_zmq_send_body(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                            gs_send_body *body, gs_send_gauge *of) {
    (void)socket, (void)route, (void)header;
    assert_true(num_held < 300);
    held[num_held++] = gs_send_ticket_create(body, of);
    return 0;
}

static void read_all(void) {
    while (num_held) gs_send_ticket_drop(NULL, held[--num_held]);
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

static int send_megabyte(gs_rpc_peers *peers, gs_rpc_connection *connection, char *body, char content) {
    memset(body, content, 1 << 20);
    return gs_rpc_peers_send(peers, connection, (gs_frame){.kind = GS_FRAME_ITEM, .method = GS_WATCH, .call = 1}, body, 1 << 20);
}

// Who reads too slowly has no more waiting than a bound, whatever its queue would hold; small messages still go. When it has read
// all, one goes, whatever it is.
static void who_does_not_read_has_a_bound_in_bytes(void **state) {
    (void)state;
    gs_rpc_peers peers;
    open_four(&peers);
    char *body = malloc(1 << 20);
    gs_rpc_connection *connection = hear(&peers, 4, SECOND), *other = hear(&peers, 3, SECOND);
    for (int i = 0; i < 64; i++) assert_int_equal(send_megabyte(&peers, connection, body, (char)i), 0);
    assert_int_equal(gs_send_gauge_bytes(connection->unread), GS_MOST_UNREAD_BYTES);
    assert_int_equal(send_megabyte(&peers, connection, body, 'x'), EAGAIN);
    assert_int_equal(peers.num_slow, 1);
    assert_false(connection->lost);
    assert_int_equal(gs_rpc_peers_send(&peers, connection, (gs_frame){.kind = GS_FRAME_PING}, NULL, 0), 0);
    assert_int_equal(send_megabyte(&peers, other, body, 'x'), 0);
    read_all();
    assert_int_equal(gs_send_gauge_bytes(connection->unread), 0);
    assert_int_equal(send_megabyte(&peers, connection, body, 'y'), 0);
    read_all();
    free(body);
    close_all(&peers);
}

// One body for all that are told it; and where much waits for others, each has its share.
static void what_many_are_told_is_kept_once(void **state) {
    (void)state;
    gs_rpc_peers peers;
    open_four(&peers);
    char *body = malloc(1 << 20);
    gs_rpc_connection *connections[4];
    for (uint8_t i = 0; i < 4; i++) connections[i] = hear(&peers, (uint8_t)(i + 1), SECOND);
    for (int round = 0; round < 30; round++)
        for (int i = 0; i < 4; i++) assert_int_equal(send_megabyte(&peers, connections[i], body, 'p'), 0);
    assert_int_equal(gs_send_gauge_bytes(peers.unread), 1 << 20);
    assert_int_equal(gs_send_gauge_bytes(connections[0]->unread), 30 << 20);
    gs_send_body *much = gs_send_body_create(body, 1 << 20, peers.unread);
    gs_send_ticket *others[512];
    for (int i = 0; i < 512; i++) others[i] = gs_send_ticket_create(much, peers.unread);
    assert_int_equal(send_megabyte(&peers, connections[0], body, 'q'), EAGAIN);
    for (int i = 0; i < 512; i++) gs_send_ticket_drop(NULL, others[i]);
    assert_int_equal(send_megabyte(&peers, connections[0], body, 'q'), 0);
    gs_send_body_release(much);
    // What is held of a connection that is gone is let go later.
    drop(&peers, connections[0]);
    read_all();
    assert_int_equal(gs_send_gauge_bytes(peers.unread), 1 << 20);  // the last one
    free(body);
    close_all(&peers);
}

// As many requests as may wait, in bytes: one more waits when others have been served.
static void requests_that_wait_have_a_bound_in_bytes(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_calls calls;
    open_four(&peers);
    gs_rpc_calls_init(&calls, &peers, NULL, NULL);
    gs_rpc_connection *connection = hear(&peers, 4, SECOND);
    char *body = calloc(1, 1 << 20);
    uint64_t seq = 0;
    gs_rpc_call_entry *call = NULL;
    for (int i = 0; i <= 64; i++) {
        gs_frame frame = {.kind = GS_FRAME_REQUEST, .method = GS_GET_JOB, .seq = ++seq};
        call = gs_rpc_calls_open(&calls, connection, &frame, false, gs_deadline_in_seconds(60));
        assert_int_equal(gs_rpc_calls_enqueue(&calls, call, body, 1 << 20), i < 64);
    }
    gs_rpc_call_entry *served = gs_rpc_calls_dequeue(&calls);
    assert_true(gs_rpc_calls_enqueue(&calls, call, body, 1 << 20));
    assert_int_equal(calls.queued_bytes, GS_RPC_MAX_QUEUED_BYTES);
    gs_rpc_calls_drop(&calls, served);
    while ((call = TAILQ_FIRST(&connection->session->calls))) gs_rpc_calls_drop(&calls, call);
    assert_int_equal(calls.queued_bytes, 0);
    free(body);
    gs_rpc_calls_release(&calls);
    close_all(&peers);
}

static gs_rpc_call_entry *open_stream(gs_rpc_calls *calls, gs_rpc_connection *connection, uint64_t seq) {
    gs_frame frame = {.kind = GS_FRAME_REQUEST, .method = GS_WATCH, .seq = seq};
    return gs_rpc_calls_open(calls, connection, &frame, true, gs_deadline_in_seconds(60));
}

// What is above the bound of a reader ends without its body; where it goes at last nothing is left of it.
static void ends_that_wait_have_a_bound_in_bytes(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_calls calls;
    open_four(&peers);
    gs_rpc_calls_init(&calls, &peers, NULL, NULL);
    uint64_t seq = 0;
    for (uint8_t i = 1; i <= 4; i++) {
        gs_rpc_connection *connection = hear(&peers, i, SECOND);
        gs_rpc_call_entry *call = NULL;
        for (int k = 0; k <= 8; k++) {
            call = open_stream(&calls, connection, ++seq);
            gs_rpc_calls_postpone_end(&calls, call, GS_OK, calloc(1, 1 << 20), 1 << 20);
            assert_int_equal(call->code, k < 8 ? GS_OK : GS_RESOURCE_EXHAUSTED);
        }
        assert_true(call->answer_bytes < GS_COUNTED_BODY_BYTES);
        call = open_stream(&calls, connection, ++seq);
        gs_rpc_calls_postpone_end(&calls, call, GS_UNAVAILABLE, calloc(1, 40), 40);  // small ones are bounded by their number
        assert_int_equal(call->code, GS_UNAVAILABLE);
        assert_in_range(connection->session->ending_bytes, 8 << 20, (8 << 20) + 2 * GS_COUNTED_BODY_BYTES);
    }
    assert_int_equal(calls.num_cut, 4);
    // Each try that fails is no new message that was not sent.
    send_error = EAGAIN;
    gs_rpc_call_entry *first, *last = TAILQ_LAST(&calls.ending, gs_rpc_call_list);
    assert_int_equal(gs_rpc_calls_send_end(&calls, last, last->code, last->answer, last->answer_bytes), EAGAIN);
    assert_int_equal(peers.num_slow, 0);
    send_error = 0;
    while ((first = TAILQ_FIRST(&calls.ending))) gs_rpc_calls_drop(&calls, first);
    assert_int_equal(calls.ending_bytes, 0);
    gs_rpc_connection *connection = hear(&peers, 1, SECOND);
    assert_int_equal(connection->session->ending_bytes, 0);
    gs_rpc_calls_release(&calls);
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

// The same from any of very many; NULL: it is not let in.
static gs_rpc_connection *hear_of_many(gs_rpc_peers *peers, uint32_t number) {
    gs_zmq_route route = {.id_bytes = sizeof number, .fd = -1, .socket = GS_RPC_REMOTE};
    memcpy(route.id, &number, sizeof number);
    gs_frame frame = {.kind = GS_FRAME_PING, .incarnation = number, .seq = 1};
    return gs_rpc_peers_accept(peers, &route, &frame, SECOND);
}

static void connections_above_their_bound_are_refused_and_counted(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_peers_init(&peers, 1);
    for (uint32_t number = 1; number <= 65536; number++) assert_non_null(hear_of_many(&peers, number));
    assert_int_equal(peers.num_full, 0);
    assert_null(hear_of_many(&peers, 65537));
    assert_int_equal(peers.num_full, 1);
    assert_non_null(hear_of_many(&peers, 7));  // it is there
    drop(&peers, TAILQ_FIRST(&peers.connections));
    assert_non_null(hear_of_many(&peers, 65537));
    assert_int_equal(peers.num_full, 1);
    close_all(&peers);
}

static void sessions_that_are_forgotten_before_their_time_are_counted(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_peers_init(&peers, 1);
    for (uint32_t number = 1; number <= 16386; number++)
        gs_rpc_peers_drop(&peers, hear_of_many(&peers, number), SECOND);
    gs_rpc_session *session;
    int num_early = 0;
    for (; (session = gs_rpc_peers_expired(&peers, 2 * SECOND)); num_early++) gs_rpc_peers_forget(&peers, session);
    assert_int_equal(num_early, 2);
    assert_int_equal(peers.num_early, 2);
    while ((session = gs_rpc_peers_expired(&peers, 32 * SECOND))) gs_rpc_peers_forget(&peers, session);
    assert_int_equal(peers.num_absent, 0);
    assert_int_equal(peers.num_early, 2);
    close_all(&peers);
}

static void open_calls_and_kept_answers_above_their_bounds_are_counted(void **state) {
    (void)state;
    gs_rpc_peers peers;
    gs_rpc_calls calls;
    open_four(&peers);
    gs_rpc_calls_init(&calls, &peers, NULL, NULL);
    gs_rpc_connection *connection = hear(&peers, 4, SECOND);
    gs_frame frame = {.kind = GS_FRAME_REQUEST, .method = GS_EXCHANGE};
    for (frame.seq = 1; frame.seq <= 4096; frame.seq++)
        assert_non_null(gs_rpc_calls_open(&calls, connection, &frame, false, gs_deadline_in_seconds(60)));
    assert_int_equal(calls.num_over, 0);
    assert_null(gs_rpc_calls_open(&calls, connection, &frame, false, gs_deadline_in_seconds(60)));
    assert_int_equal(calls.num_over, 1);
    gs_rpc_call_entry *call;
    for (int i = 0; i < 9; i++)
        gs_rpc_calls_answer(&calls, TAILQ_FIRST(&connection->session->calls), GS_OK, calloc(1, 1 << 20), 1 << 20);
    assert_int_equal(connection->session->num_answered, 8);
    assert_int_equal(calls.num_unkept, 1);
    while ((call = TAILQ_FIRST(&connection->session->calls))) gs_rpc_calls_drop(&calls, call);
    while ((call = TAILQ_FIRST(&connection->session->answered))) gs_rpc_calls_drop(&calls, call);
    gs_rpc_calls_release(&calls);
    close_all(&peers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_connection_has_the_pace_of_all),
        cmocka_unit_test(a_shorter_pace_begins_with_the_next_frame),
        cmocka_unit_test(an_answer_that_was_not_sent_changes_nothing),
        cmocka_unit_test(a_longer_pace_begins_at_once),
        cmocka_unit_test(who_cannot_be_sent_to_has_closed),
        cmocka_unit_test(who_does_not_read_has_a_bound_in_bytes),
        cmocka_unit_test(what_many_are_told_is_kept_once),
        cmocka_unit_test(requests_that_wait_have_a_bound_in_bytes),
        cmocka_unit_test(ends_that_wait_have_a_bound_in_bytes),
        cmocka_unit_test(connections_above_their_bound_are_refused_and_counted),
        cmocka_unit_test(sessions_that_are_forgotten_before_their_time_are_counted),
        cmocka_unit_test(open_calls_and_kept_answers_above_their_bounds_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
