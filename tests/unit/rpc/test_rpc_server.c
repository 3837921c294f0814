// The server against peers that die, stop, lie or talk nonsense.
#include "rpc/server/rpc_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/random.h"
#include "rpc/server/rpc_peers.h"
#include "rpc/wire/frame.h"
#include "tests/support/asserts.h"
#include "tests/unit/rpc/raw_peer.h"
#include "tests/unit/rpc/rpc_fixture.h"

// What the other process does: a stream, a call that is kept, and then nothing.
static int run_peer(const char *endpoint) {
    gs_rpc_context *context = NULL;
    gs_rpc_client *client = NULL;
    gs_rpc_stream *stream = NULL;
    gs_rpc_client_options options = {.endpoint = endpoint};
    if (gs_rpc_context_create(&context).code) return 1;
    if (gs_rpc_client_open(&client, context, &options).code) return 1;
    if (gs_rpc_stream_open(&stream, client, GS_WATCH, NULL).code) return 1;
    gs_status status = gs_rpc_call(client, GS_EXCHANGE, NULL, NULL, gs_deadline_in_seconds(60));
    // While this process was stopped the server gave its stream up, and says so.
    gs_json *item = NULL;
    gs_status end = gs_rpc_stream_next(stream, &item, gs_deadline_in_seconds(60));
    gs_rpc_stream_close(stream);
    gs_rpc_client_close(client);
    gs_rpc_context_destroy(context);
    return status.code ? (int)status.code : end.code == GS_UNAVAILABLE ? 0 : 99;
}

static pid_t start_peer(rpc_fixture *fixture) {
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "test_rpc_server", "peer", fixture->endpoint, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    wait_for_count(&fixture->num_streams, 1);
    wait_for_count(&fixture->num_held, 1);
    return pid;
}

static void killed_client_loses_its_streams(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    pid_t pid = start_peer(&fixture);
    int64_t killed_ns = gs_now_ns();
    kill(pid, SIGKILL);
    wait_for_count(&fixture.num_gone_peers, 1);
    print_message("kill -9 noticed after %.2f ms\n", (double)(gs_now_ns() - killed_ns) / 1e6);
    // The stream only: the kept call waits for its client to come back.
    assert_int_equal(atomic_load(&fixture.num_gone_calls), 1);
    waitpid(pid, NULL, 0);
    stop_fixture(&fixture);
}

static void stopped_client_loses_its_streams(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    pid_t pid = start_peer(&fixture);
    int64_t stopped_ns = gs_now_ns();
    kill(pid, SIGSTOP);
    wait_for_count(&fixture.num_gone_peers, 1);
    print_message("SIGSTOP noticed after %.2f ms\n", (double)(gs_now_ns() - stopped_ns) / 1e6);
    assert_int_equal(atomic_load(&fixture.num_gone_calls), 1);
    kill(pid, SIGCONT);
    // It comes back with the same request, which is answered without a second run.
    wait_for_total(&fixture.connections, 1);
    atomic_store(&fixture.release_held, true);
    int exit_status;
    waitpid(pid, &exit_status, 0);
    assert_int_equal(exit_status, 0);
    assert_int_equal(atomic_load(&fixture.num_held), 1);
    stop_fixture(&fixture);
}

static void garbage_is_dropped_and_counted(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    gs_random_key key = {.seed = 20240607};
    uint8_t bytes[512];
    int expected = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t draw = gs_random_u64(key, 3 * i);
        int frames = 1 + (int)(draw % 3);
        for (int j = 0; j < frames; j++) {
            size_t length = gs_random_u64(key, 3 * i + 1) >> (8 * j) & (j ? 255 : 127);
            for (size_t k = 0; k < length; k += 16) {
                gs_random_block((uint32_t *)(void *)(bytes + k), key, 1000000 + i * 64 + k);
            }
            if (i % 2 && length >= 4) memcpy(bytes, "GSY1", 4);
            assert_true(zmq_send(raw.socket, bytes, length, j + 1 < frames ? ZMQ_SNDMORE : 0) >= 0);
        }
        expected++;
    }
    raw_peer_send(&raw, &raw_call, "{}");
    char body[256];
    gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(reply.status, GS_OK);
    wait_for_total(&fixture.malformed, (unsigned long long)expected);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

static void recorded_messages_do_nothing(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 3);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    char body[256], again[256];
    gs_frame call = raw_call,
             beat = {.method = GS_HEARTBEAT, .kind = GS_FRAME_ONE_WAY, .incarnation = 5, .seq = 2};
    raw_peer_send(&raw, &call, "{}");
    raw_peer_receive(&raw, body, sizeof body);
    raw_peer_send(&raw, &call, "{}");  // a repeat: the same answer
    raw_peer_receive(&raw, again, sizeof again);
    assert_string_equal(again, body);
    raw_peer_send(&raw, &beat, "");
    raw_peer_send(&raw, &beat, "");  // one-way again
    beat.seq = 3;
    beat.coord_epoch = 2;  // for the life before this one
    raw_peer_send(&raw, &beat, "");
    gs_frame next = call;
    next.seq = 4;
    next.ack = 3;  // everything before is over
    raw_peer_send(&raw, &next, "{}");
    raw_peer_receive(&raw, body, sizeof body);
    raw_peer_send(&raw, &call, "{}");  // so this is a recording
    wait_for_total(&fixture.stale, 3);
    assert_int_equal(atomic_load(&fixture.num_calls), 2);
    assert_int_equal(atomic_load(&fixture.num_one_way), 1);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

static void body_that_is_no_object_is_refused(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    static const char *const bodies[] = {"[]", "{", "nonsense", "{\"a\":1,\"a\":2}", "null"};
    gs_frame call = raw_call;
    char body[256];
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++, call.seq++) {
        raw_peer_send(&raw, &call, bodies[i]);
        gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
        assert_int_equal(reply.status, GS_INVALID_ARGUMENT);
    }
    assert_int_equal(atomic_load(&fixture.num_calls), 0);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

static void second_incarnation_on_a_connection_is_refused(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    char body[256];
    raw_peer_send(&raw, &raw_call, "{}");
    raw_peer_receive(&raw, body, sizeof body);
    gs_frame other = raw_call;
    other.incarnation = 6;
    raw_peer_send(&raw, &other, "{}");
    wait_for_total(&fixture.malformed, 1);
    assert_int_equal(atomic_load(&fixture.num_calls), 1);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// Nor does he keep it from coming, or hear what it is told.
static void who_shows_another_token_takes_no_place_of_a_peer(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer before = raw_peer_open(fixture.endpoint), its = raw_peer_open(fixture.endpoint), behind = raw_peer_open(fixture.endpoint);
    char body[256];
    gs_frame own = raw_call, none = raw_call, other = raw_call;
    own.token = (uint64_t)1 << 63 | 7;
    other.token = (uint64_t)1 << 63 | 8;
    raw_peer_send(&before, &none, "{\"a\":1}");
    raw_peer_receive(&before, body, sizeof body);
    raw_peer_send(&its, &own, "{\"a\":2}");
    raw_peer_receive(&its, body, sizeof body);
    assert_non_null(strstr(body, "2"));
    raw_peer_send(&behind, &other, "{\"a\":3}");
    raw_peer_receive(&behind, body, sizeof body);
    assert_non_null(strstr(body, "3"));  // not the answer that the other has got
    assert_int_equal(atomic_load(&fixture.num_calls), 3);
    own.seq++;
    raw_peer_send(&its, &own, "{\"a\":4}");
    raw_peer_receive(&its, body, sizeof body);
    assert_non_null(strstr(body, "4"));
    own.seq++;
    own.token ^= 1;  // amid a connection
    raw_peer_send(&its, &own, "{\"a\":5}");
    wait_for_total(&fixture.malformed, 1);
    assert_int_equal(atomic_load(&fixture.num_calls), 4);
    assert_int_equal(atomic_load(&fixture.num_gone_peers), 0);
    for (int i = 0; i < 3; i++) {  // of before: a clock is there, another one each time
        none.seq++;
        none.token = (uint64_t)gs_now_ns();
        raw_peer_send(&before, &none, "{\"a\":6}");
        raw_peer_receive(&before, body, sizeof body);
        assert_non_null(strstr(body, "6"));
    }
    raw_peer_close(&before);
    raw_peer_close(&its);
    raw_peer_close(&behind);
    stop_fixture(&fixture);
}

static void flood_of_one_peer_leaves_the_others_alone(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    gs_rpc_client *client = open_client(&fixture);
    gs_status status = gs_rpc_call(client, GS_GET_JOB, NULL, NULL, WAIT);
    assert_int_equal(status.code, GS_OK);
    gs_frame beat = {.method = GS_HEARTBEAT, .kind = GS_FRAME_ONE_WAY, .incarnation = 5};
    for (int i = 0; i < 20000; i++) {
        beat.seq++;
        raw_peer_send(&raw, &beat, "");
        if (i % 1000) continue;
        status = gs_rpc_call(client, GS_BYE, NULL, NULL, WAIT);
        assert_int_equal(status.code, GS_OK);
    }
    gs_deadline deadline = WAIT;
    while (atomic_load(&fixture.flood) == 0 && !gs_deadline_passed(deadline))
        gs_sleep_ns(GS_NS_PER_MS);
    assert_true(atomic_load(&fixture.flood) > 0);
    gs_rpc_client_close(client);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// To be woken for each of them costs more than to read it.
static void a_crowd_is_read_many_at_a_time(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    gs_frame beat = {.method = GS_HEARTBEAT, .kind = GS_FRAME_ONE_WAY, .incarnation = 5};
    int64_t begin_ns = gs_now_ns(), next_ns = begin_ns;
    int turns = 0, sent = 0;
    while (gs_now_ns() - begin_ns < GS_NS_PER_SEC) {
        if (gs_now_ns() < next_ns) continue;
        next_ns += GS_NS_PER_SEC / 10000;
        beat.seq++;
        raw_peer_send(&raw, &beat, "");
        if (beat.seq == 3000) turns = atomic_load(&fixture.num_turns);
        sent += beat.seq > 3000;
    }
    turns = atomic_load(&fixture.num_turns) - turns;
    print_message("%d messages, %d turns\n", sent, turns);
    assert_true(turns < 1000);  // of which there is one in each millisecond at most
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

static void endpoint_in_use_is_a_failed_precondition(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_server_options options = {.endpoints = {fixture.endpoint}};
    gs_rpc_server *second = NULL;
    gs_status status = gs_rpc_server_open(&second, fixture.context, &options);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, fixture.endpoint));
    options.endpoints[0] = "tcp//nonsense";
    status = gs_rpc_server_open(&second, fixture.context, &options);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    stop_fixture(&fixture);
}

// The first was told to be heard each second, and says no more: it is given up. The third was told three, and is not.
static void among_many_silence_begins_later(void **state) {
    (void)state;
    rpc_fixture fixture = {.pings_a_second = 1};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw[3];
    char body[256];
    for (int i = 0; i < 3; i++) {
        raw[i] = raw_peer_open(fixture.endpoint);
        raw_peer_send(&raw[i], &(gs_frame){.kind = GS_FRAME_PING, .incarnation = 5 + (uint64_t)i, .seq = 1}, "");
        gs_frame answer = raw_peer_receive(&raw[i], body, sizeof body);
        assert_int_equal(answer.kind, GS_FRAME_PING);
        assert_int_equal(answer.time_left_ms, 1000 * (i + 1));
    }
    wait_for_total(&fixture.connections, 2);
    gs_frame call = raw_call;
    call.incarnation = 7;
    call.seq = 2;
    raw_peer_send(&raw[2], &call, "{}");
    assert_int_equal(raw_peer_receive(&raw[2], body, sizeof body).kind, GS_FRAME_REPLY);
    for (int i = 0; i < 3; i++) raw_peer_close(&raw[i]);
    stop_fixture(&fixture);
}

// Calls that hold the loop for long (a slow disk, a page of metrics) are no silence of the peers.
static void standing_loop_loses_nobody(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    char body[256];
    gs_frame call = raw_call;
    call.method = GS_GET_SYSTEM;
    raw_peer_send(&raw, &call, "");
    raw_peer_receive(&raw, body, sizeof body);
    call = raw_call;
    call.seq = 2;
    raw_peer_send(&raw, &call, "{}");
    raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(atomic_load(&fixture.num_gone_peers), 0);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// One call that waits keeps its client from settling all that were answered after it.
static void answers_behind_a_held_call_do_not_use_up_room(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    char body[256];
    gs_frame call = raw_call;
    call.method = GS_EXCHANGE;
    raw_peer_send(&raw, &call, "");
    call.method = GS_GET_JOB;
    for (int i = 0; i < 6000; i++) {
        call.seq++;
        raw_peer_send(&raw, &call, "{}");
        gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
        assert_int_equal(reply.status, GS_OK);
    }
    atomic_store(&fixture.release_held, true);
    gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(reply.call, 1);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

static void calls_that_end_while_another_expires_keep_their_answer(void **state) {
    (void)state;
    rpc_fixture fixture = {.all_end_with_one = true};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    atomic_store(&fixture.paused, true);  // both arrive in one turn, so they expire in one
    raw_peer raw = raw_peer_open(fixture.endpoint);
    char body[256];
    gs_frame call = raw_call;
    call.method = GS_EXCHANGE;
    call.time_left_ms = 50;
    raw_peer_send(&raw, &call, "");
    call.seq = 2;
    raw_peer_send(&raw, &call, "");
    atomic_store(&fixture.paused, false);
    gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(reply.call, 2);
    raw_peer_send(&raw, &call, "");
    reply = raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(reply.call, 2);
    assert_int_equal(atomic_load(&fixture.num_held), 2);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// `by_handler`: whoever keeps the stream ends it before the server gives up the connection.
static void give_up(bool by_handler) {
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    atomic_store(&fixture.echo_ends_streams, by_handler);
    raw_peer first = raw_peer_open(fixture.endpoint), second = raw_peer_open(fixture.endpoint);
    char body[256];
    gs_frame call = raw_call;
    call.method = GS_WATCH;
    raw_peer_send(&first, &call, "{}");
    wait_for_count(&fixture.num_streams, 1);
    call.method = GS_GET_JOB;
    call.seq = 2;
    raw_peer_send(&second, &call, "{}");  // the same incarnation
    raw_peer_receive(&second, body, sizeof body);
    gs_frame end = raw_peer_receive(&first, body, sizeof body);
    assert_int_equal(end.kind, GS_FRAME_END);
    assert_int_equal(end.status, GS_UNAVAILABLE);
    assert_int_equal(end.call, 1);
    raw_peer_close(&first);
    raw_peer_close(&second);
    stop_fixture(&fixture);
}

static void connection_that_is_given_up_is_told(void **state) {
    (void)state;
    give_up(false);
}

// A peer that does not hear of it waits on a line that lives, for ever.
static void stream_that_ends_on_a_connection_given_up_is_told(void **state) {
    (void)state;
    give_up(true);
}

static void message_of_very_many_frames_is_dropped_whole(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open(fixture.endpoint);
    for (int i = 0; i < 100000; i++) zmq_send(raw.socket, "x", 1, ZMQ_SNDMORE);
    zmq_send(raw.socket, "x", 1, 0);
    gs_frame call = raw_call;
    call.seq = UINT64_C(1) << 40;  // no counter has come this far
    raw_peer_send(&raw, &call, "{}");
    call.seq = 1;
    raw_peer_send(&raw, &call, "{}");
    char body[256];
    gs_frame reply = raw_peer_receive(&raw, body, sizeof body);
    assert_int_equal(reply.call, 1);
    wait_for_total(&fixture.malformed, 2);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// More than may wait for it, in less messages than its queue holds: what comes on top is refused, and what it reads later is whole.
static void who_does_not_read_is_sent_no_more_than_a_bound(void **state) {
    (void)state;
    enum { NUM_ITEMS = 400, ITEM_BYTES = 256 << 10 };
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    raw_peer raw = raw_peer_open_that_holds(fixture.endpoint, 1);
    char request[100], *body = malloc(ITEM_BYTES + 1000);
    gs_frame call = raw_call;
    call.method = GS_WATCH;
    snprintf(request, sizeof request, "{\"count\":%d,\"padding\":%d}", NUM_ITEMS, ITEM_BYTES);
    raw_peer_send(&raw, &call, request);
    wait_for_count(&fixture.num_streams, 1);
    assert_int_equal(fixture.refused_item.code, GS_UNAVAILABLE);
    int least = (int)(GS_MOST_UNREAD_BYTES / (ITEM_BYTES + 100));
    for (int i = 0; i < least; i++) {
        gs_frame item = raw_peer_receive(&raw, body, ITEM_BYTES + 1000);
        assert_int_equal(item.kind, GS_FRAME_ITEM);
    }
    call.method = GS_GET_JOB;
    call.seq = 2;
    raw_peer_send(&raw, &call, "{}");
    gs_frame_kind kind = GS_FRAME_ITEM;
    for (int i = least; kind == GS_FRAME_ITEM; i++) {
        assert_true(i < NUM_ITEMS);
        kind = raw_peer_receive(&raw, body, ITEM_BYTES + 1000).kind;
    }
    assert_int_equal(kind, GS_FRAME_REPLY);
    free(body);
    raw_peer_close(&raw);
    stop_fixture(&fixture);
}

// They say nothing: ZeroMQ lets them in, and ends them when their handshake takes too long, or they do.
static void connections_that_say_nothing_are_counted(void **state) {
    (void)state;
    enum { NUM_SILENT = 20 };
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    gs_rpc_client *client = open_client(&fixture);
    wait_for_total(&fixture.heard, 1);
    unsigned long long accepted = atomic_load(&fixture.accepted), failed = atomic_load(&fixture.failed_handshakes);
    int silent[NUM_SILENT];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(fixture.endpoint, ':') + 1));
    for (int i = 0; i < NUM_SILENT; i++) {
        silent[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(silent[i], (struct sockaddr *)&to, sizeof to), 0);
    }
    wait_for_total(&fixture.silent, NUM_SILENT);
    assert_int_equal(atomic_load(&fixture.heard), 1);
    assert_int_equal(atomic_load(&fixture.accepted), accepted + NUM_SILENT);
    for (int i = 0; i < NUM_SILENT / 2; i++) close(silent[i]);
    wait_for_total(&fixture.failed_handshakes, failed + NUM_SILENT);  // half of them by their time
    wait_for_total(&fixture.silent, 0);
    assert_int_equal(atomic_load(&fixture.heard), 1);
    for (int i = NUM_SILENT / 2; i < NUM_SILENT; i++) close(silent[i]);
    gs_rpc_client_close(client);
    stop_fixture(&fixture);
}

static void reconnecting_often_leaks_nothing(void **state) {
    (void)state;
    rpc_fixture fixture = {0};
    start_fixture(&fixture, "tcp://127.0.0.1:0", 1);
    for (int i = 0; i < 50; i++) {
        gs_rpc_client *client = open_client(&fixture);
        gs_status status = gs_rpc_call(client, GS_GET_JOB, NULL, NULL, WAIT);
        assert_int_equal(status.code, GS_OK);
        gs_rpc_client_close(client);
    }
    wait_for_total(&fixture.connections, 0);
    wait_for_count(&fixture.num_gone_peers, 50);
    stop_fixture(&fixture);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "peer") == 0) return run_peer(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_client_loses_its_streams),
        cmocka_unit_test(stopped_client_loses_its_streams),
        cmocka_unit_test(garbage_is_dropped_and_counted),
        cmocka_unit_test(recorded_messages_do_nothing),
        cmocka_unit_test(body_that_is_no_object_is_refused),
        cmocka_unit_test(second_incarnation_on_a_connection_is_refused),
        cmocka_unit_test(who_shows_another_token_takes_no_place_of_a_peer),
        cmocka_unit_test(flood_of_one_peer_leaves_the_others_alone),
        cmocka_unit_test(a_crowd_is_read_many_at_a_time),
        cmocka_unit_test(endpoint_in_use_is_a_failed_precondition),
        cmocka_unit_test(among_many_silence_begins_later),
        cmocka_unit_test(standing_loop_loses_nobody),
        cmocka_unit_test(answers_behind_a_held_call_do_not_use_up_room),
        cmocka_unit_test(calls_that_end_while_another_expires_keep_their_answer),
        cmocka_unit_test(connection_that_is_given_up_is_told),
        cmocka_unit_test(stream_that_ends_on_a_connection_given_up_is_told),
        cmocka_unit_test(message_of_very_many_frames_is_dropped_whole),
        cmocka_unit_test(who_does_not_read_is_sent_no_more_than_a_bound),
        cmocka_unit_test(connections_that_say_nothing_are_counted),
        cmocka_unit_test(reconnecting_often_leaks_nothing),
    };
    return cmocka_run_group_tests_name("rpc server", tests, NULL, NULL);
}
