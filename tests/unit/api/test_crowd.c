// Who gives way where more come than there is room for, and readers that do not read.
#include <setjmp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/http/crowd.h"
#include "api/http/http_server.h"
#include "core/clock.h"
#include "tests/support/http.h"

enum { ROOM = 8, CROWD = 60, ROUNDS = 30, REQUEST_MS = 500, PATIENT_MS = 4000, LARGE_BYTES = 6 << 20, LATE_MS = 200, BODY_BYTES = 64 << 10, LONGER_THAN_STUCK_MS = 3200 };

typedef struct server {
    gs_http_server *http;
    atomic_int num_crowded, num_slow, num_closed;
    atomic_bool holds, is_held;  // whoever takes connections, the next time that somebody gives way
} server;

static ssize_t read_for_ever(void *ctx, char *buffer, size_t max_bytes) {
    (void)ctx;
    gs_sleep_ns(GS_NS_PER_MS);
    memset(buffer, 'x', max_bytes);
    return (ssize_t)max_bytes;
}

static void close_it(void *ctx) {
    atomic_fetch_add(&((server *)ctx)->num_closed, 1);
}

static void handle(void *ctx, const gs_http_request *request, gs_http_response *response) {
    response->status = 200;
    if (request->fault == GS_HTTP_TOO_MANY) {
        response->status = 503;
        gs_strbuf_puts(&response->body, "no room");
        return;
    }
    const char *whose = gs_http_header(request, "X-Known");
    if (whose) gs_http_note_known(request, strtoull(whose, NULL, 10));
    if (strcmp(request->path, "/stream") == 0)
        response->stream = (gs_http_stream){.read = read_for_ever, .close = close_it, .ctx = ctx};
    else if (strcmp(request->path, "/large") == 0)
        for (int i = 0; i < LARGE_BYTES / 64; i++) gs_strbuf_puts(&response->body, "0123456789012345678901234567890123456789012345678901234567890123");
    else
        gs_strbuf_puts(&response->body, "answered");
}

static void note(void *ctx, const char *reason) {
    server *it = ctx;
    bool is_crowd = strcmp(reason, "crowd") == 0;
    atomic_fetch_add(is_crowd ? &it->num_crowded : &it->num_slow, 1);
    for (gs_deadline deadline = gs_deadline_in_seconds(60); is_crowd && atomic_load(&it->holds) && !gs_deadline_passed(deadline);) {
        atomic_store(&it->is_held, true);
        gs_sleep_ns(GS_NS_PER_MS / 10);
    }
}

static uint64_t knows(void *ctx, const gs_early_head *head) {
    char value[16];
    (void)ctx;
    return gs_early_head_find(head, value, sizeof value, "x-known") ? strtoull(value, NULL, 10) : 0;
}

static int start_with(void **state, unsigned max_connections, int64_t request_ms) {
    server *it = calloc(1, sizeof *it);
    gs_http_server_options options = {.max_connections = max_connections, .address = "127.0.0.1:0", .request_ms = request_ms, .idle_ms = 60000, .max_per_address = ROOM, .max_bodies_bytes = BODY_BYTES,
                                      .knows = knows, .handle = handle, .refused = note, .ctx = it};
    assert_int_equal(gs_http_server_start(&it->http, &options).code, GS_OK);
    *state = it;
    return 0;
}

static int start(void **state) {
    return start_with(state, ROOM, REQUEST_MS);
}

static int start_with_room(void **state) {
    return start_with(state, 10 * CROWD, REQUEST_MS);
}

// Who waits does so for longer than a test that looks for whom else is cut.
static int start_patient(void **state) {
    return start_with(state, ROOM, PATIENT_MS);
}

static int stop(void **state) {
    server *it = *state;
    gs_http_server_stop(it->http);
    free(it);
    return 0;
}

static void ask(gs_wire *wire, const char *path, const char *headers) {
    char request[256];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    gs_strbuf_clear(&wire->received);
    gs_wire_send(wire, request);
}

static const char *show(char header[32], int whose) {
    snprintf(header, 32, "X-Known: %d\r\n", whose);
    return header;
}

static bool is_answered(gs_wire *wire, const char *headers) {
    ask(wire, "/", headers);
    return gs_wire_wait(wire, "answered");
}

static void a_crowd_of_strangers_shuts_nobody_out(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire known, strangers[CROWD], late;
    gs_wire_open(&known, address);
    assert_true(is_answered(&known, "X-Known: 1\r\n"));
    for (int i = 0; i < CROWD; i++) gs_wire_open(&strangers[i], address);
    gs_wire_open(&late, address);
    assert_true(is_answered(&late, "X-Known: 1\r\n"));
    assert_true(is_answered(&known, "X-Known: 1\r\n"));
    assert_true(gs_wire_wait_close(&strangers[0]));
    assert_true(atomic_load(&it->num_crowded) >= CROWD + 2 - ROOM);
    for (int i = 0; i < CROWD; i++) gs_wire_close(&strangers[i]);
    gs_wire_close(&known);
    gs_wire_close(&late);
}

// He has said who he is before anybody took his connection, and so many come behind him that he is the oldest before a thread has
// read it.
static void who_has_said_who_he_is_does_not_give_way_unread(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    for (int round = 0; round < ROUNDS; round++) {
        gs_wire known, before[ROOM + 1], behind[CROWD];
        gs_deadline deadline = gs_deadline_in_seconds(60);
        atomic_store(&it->holds, true);
        atomic_store(&it->is_held, false);
        for (int i = 0; i < ROOM + 1; i++) gs_wire_open(&before[i], address);
        while (!atomic_load(&it->is_held) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS / 10);
        gs_wire_open(&known, address);
        ask(&known, "/", "X-Known: 1\r\n");
        for (int i = 0; i < CROWD; i++) gs_wire_open(&behind[i], address);
        atomic_store(&it->holds, false);
        assert_true(gs_wire_wait(&known, "answered"));
        for (int i = 0; i < ROOM + 1; i++) gs_wire_close(&before[i]);
        for (int i = 0; i < CROWD; i++) gs_wire_close(&behind[i]);
        gs_wire_close(&known);
    }
}

// His answer has begun, so it is on its way. It is larger than what the kernels of both ends take of it unread.
static void ask_and_do_not_read(gs_wire *wire, const char *address, const char *headers) {
    int few_bytes = 16 << 10;
    gs_wire_open(wire, address);
    setsockopt(wire->fd, SOL_SOCKET, SO_RCVBUF, &few_bytes, sizeof few_bytes);
    ask(wire, "/large", headers);
    struct pollfd begun = {.fd = wire->fd, .events = POLLIN};
    assert_int_equal(poll(&begun, 1, 60000), 1);
}

// Of what waits for him nothing is lost by looking.
static bool is_cut(const gs_wire *wire) {
    struct pollfd ended = {.fd = wire->fd, .events = POLLRDHUP};
    return poll(&ended, 1, 0) > 0;
}

static bool is_cut_soon(const gs_wire *wire) {
    gs_deadline deadline = gs_deadline_in_seconds(20);
    while (!is_cut(wire) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    return is_cut(wire);
}

static void pass_ms(int64_t ms) {
    gs_deadline deadline = gs_deadline_in_ms(ms);
    while (!gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
}

static int count_cut(const gs_wire *wires, int num_wires) {
    int count = 0;
    for (int i = 0; i < num_wires; i++) count += is_cut(&wires[i]);
    return count;
}

// Nothing shows whose the late one is when it comes, as behind TLS: it is let in by the place of a stranger.
static void strangers_who_do_not_read_shut_nobody_out(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire strangers[ROOM], late;
    for (int i = 0; i < ROOM; i++) ask_and_do_not_read(&strangers[i], address, "");
    pass_ms(LATE_MS + 200);  // more than the moment that a stranger has
    for (int i = 0; i < 3; i++) {
        gs_wire_open(&late, address);
        pass_ms(LATE_MS);
        assert_true(is_answered(&late, "X-Known: 1\r\n"));
        assert_true(is_cut_soon(&strangers[i]));
        gs_wire_close(&late);
        ask_and_do_not_read(&late, address, "");
        gs_wire_close(&strangers[i]);
        strangers[i] = late;
        pass_ms(LATE_MS + 200);
    }
    for (int i = 0; i < ROOM; i++) gs_wire_close(&strangers[i]);
}

static void who_does_not_read_gives_way_before_who_waits_and_who_reads(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire wires[ROOM], known, late;
    enum { READS = 0, WAITS, STUCK_FIRST, STUCK_NEXT, OTHERS };
    ask_and_do_not_read(&known, address, "X-Known: 1\r\n");
    ask_and_do_not_read(&wires[READS], address, "");
    ask_and_do_not_read(&wires[STUCK_FIRST], address, "");
    pass_ms(100);
    ask_and_do_not_read(&wires[STUCK_NEXT], address, "");
    char block[16 << 10];
    gs_deadline deadline = gs_deadline_in_ms(LONGER_THAN_STUCK_MS);
    while (!gs_deadline_passed(deadline)) {
        assert_true(recv(wires[READS].fd, block, sizeof block, 0) > 0);
        gs_sleep_ns(20 * GS_NS_PER_MS);
    }
    gs_wire_open(&wires[WAITS], address);
    for (int i = OTHERS; i < ROOM - 1; i++) gs_wire_open(&wires[i], address);
    pass_ms(LATE_MS + 200);
    gs_wire_open(&late, address);
    assert_true(is_cut_soon(&wires[STUCK_FIRST]));
    assert_int_equal(count_cut(wires, ROOM - 1), 1);
    gs_wire_open(&wires[ROOM - 1], address);
    assert_true(is_cut_soon(&wires[STUCK_NEXT]));
    assert_int_equal(count_cut(wires, ROOM), 2);
    assert_false(is_cut(&known));
    assert_true(is_answered(&late, "X-Known: 1\r\n"));
    for (int i = 0; i < ROOM; i++) gs_wire_close(&wires[i]);
    gs_wire_close(&known);
    gs_wire_close(&late);
}

static void who_is_known_keeps_his_place_without_reading(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire known[ROOM], late;
    char whose[32];
    for (int i = 0; i < ROOM; i++) ask_and_do_not_read(&known[i], address, show(whose, i + 1));
    for (int i = 0; i < 2; i++) {
        pass_ms(LONGER_THAN_STUCK_MS);
        gs_wire_open(&late, address);
        assert_true(gs_wire_wait_close(&late));
        assert_int_equal(count_cut(known, ROOM), 0);
        gs_wire_close(&late);
    }
    for (int i = 0; i < ROOM; i++) gs_wire_close(&known[i]);
}

// He shows who he is with each connection, and begins a request on it that he does not end.
static void begin_and_stop(gs_wire *wire, const char *address) {
    gs_wire_open(wire, address);
    assert_true(is_answered(wire, "X-Known: 1\r\n"));
    gs_wire_send(wire, "GET / HTTP/1.1\r\nHost: local");
}

static void who_has_most_places_shuts_nobody_out_by_requests_that_he_does_not_end(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire his[ROOM], late;
    for (int i = 0; i < ROOM; i++) begin_and_stop(&his[i], address);
    for (int i = 0; i < 3; i++) {
        gs_wire_open(&late, address);
        pass_ms(LATE_MS);  // nothing shows whose it is when it comes, as behind TLS
        assert_true(is_answered(&late, "X-Known: 2\r\n"));
        assert_true(is_cut_soon(&his[i]));
        gs_wire_close(&late);
        pass_ms(LATE_MS);
        gs_wire_close(&his[i]);
        begin_and_stop(&his[i], address);  // he comes again for what he lost
    }
    for (int i = 0; i < ROOM; i++) gs_wire_close(&his[i]);
}

static void who_has_most_places_shuts_nobody_out_by_answers_that_he_does_not_read(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire his[ROOM], late;
    for (int i = 0; i < ROOM; i++) ask_and_do_not_read(&his[i], address, "X-Known: 1\r\n");
    pass_ms(LONGER_THAN_STUCK_MS);
    gs_wire_open(&late, address);
    pass_ms(LATE_MS);
    assert_true(is_answered(&late, "X-Known: 2\r\n"));
    assert_int_equal(count_cut(his, ROOM), 1);
    for (int i = 0; i < ROOM; i++) gs_wire_close(&his[i]);
    gs_wire_close(&late);
}

// A row is a connection, the oldest first; the last is whoever comes.
typedef struct place {
    uint64_t whose;
    gs_http_phase phase;
    int64_t ms;  // since when it is so
    bool idles;  // else it has begun a request
} place;

// -1: he who comes.
static int choose(const place *places, int num_places) {
    gs_http_connection connections[ROOM + 1] = {0};
    int64_t now_ns = gs_now_ns();
    for (int i = 0; i <= num_places; i++) {
        int64_t since_ns = now_ns - places[i].ms * GS_NS_PER_MS;
        connections[i] = (gs_http_connection){.next = i > 0 ? &connections[i - 1] : NULL, .fd = -1, .phase = places[i].phase, .whose = places[i].whose,
                                              .phase_ns = since_ns, .moved_ns = since_ns, .idle_ns = places[i].idles ? since_ns : 0};
    }
    const gs_http_connection *chosen = gs_crowd_choose(&connections[num_places], false, (unsigned)num_places);
    return chosen == &connections[num_places] ? -1 : (int)(chosen - connections);
}

static void of_the_known_he_gives_way_who_loses_least(void **state) {
    (void)state;
    const gs_http_phase W = GS_HTTP_WAITING, A = GS_HTTP_ANSWERING, S = GS_HTTP_STREAMING;
    const struct {
        place places[5];
        int chosen;
    } cases[] = {
        {{{1, W, 5000, true}, {2, W, 9000, false}, {3, W, 6000, true}, {4, A, 9000, false}, {0}}, 2},   // idles longest
        {{{1, W, 900, true}, {2, W, 1900, false}, {3, A, 99000, false}, {4, S, 99000, false}, {0}}, -1},  // nobody for long enough
        {{{1, W, 900, true}, {2, W, 2100, false}, {3, W, 2200, false}, {4, A, 9000, false}, {0}}, 2},   // drips longest
        {{{0, S, 900, false}, {1, W, 5000, true}, {2, W, 100, false}, {3, A, 100, false}, {0}}, -1},    // amid strangers none who idles
        {{{0, S, 900, false}, {1, W, 5000, true}, {2, W, 2100, false}, {3, A, 100, false}, {0}}, 2},    // but one who drips
        {{{0, W, 10, false}, {1, W, 9000, false}, {1, W, 9000, false}, {1, W, 9000, false}, {0}}, 0},   // a stranger first
        // Three of four places are one's: his go first.
        {{{2, W, 9000, true}, {1, W, 100, false}, {1, W, 200, true}, {1, A, 100, false}, {0}}, 2},
        {{{2, W, 9000, true}, {1, A, 5100, false}, {1, A, 100, false}, {1, S, 99000, false}, {0}}, 1},
        {{{2, W, 9000, true}, {1, A, 4900, false}, {1, A, 100, false}, {1, S, 99000, false}, {0}}, 0},  // he needs all of them
        {{{2, W, 900, true}, {1, W, 100, false}, {1, W, 100, true}, {1, A, 100, false}, {3, W, 0, false}}, 1},
        // And when he comes himself he takes none of others, and none that he uses.
        {{{2, W, 9000, true}, {1, W, 100, false}, {1, W, 200, true}, {1, A, 9000, false}, {1, W, 0, false}}, -1},
        {{{2, W, 9000, true}, {1, W, 100, false}, {1, W, 1200, true}, {1, A, 9000, false}, {1, W, 0, false}}, 2},
        // Two have half of them each: both give way, also to one of their own to none but that one's.
        {{{2, W, 900, true}, {2, W, 100, false}, {1, W, 100, false}, {1, W, 200, true}, {0}}, 0},
        {{{2, A, 900, false}, {2, S, 100, false}, {1, W, 100, false}, {1, A, 200, false}, {0}}, 2},
        {{{2, W, 900, true}, {2, W, 100, false}, {1, W, 100, false}, {1, W, 200, true}, {3, W, 0, false}}, 0},
        {{{2, W, 9000, true}, {2, W, 9000, false}, {1, W, 1200, true}, {1, W, 200, true}, {1, W, 0, false}}, 2},
        {{{2, W, 9000, true}, {2, W, 9000, false}, {1, W, 100, false}, {1, W, 200, true}, {1, W, 0, false}}, -1},
        // And they need all of them: answers are interrupted for somebody else who is known, streams never.
        {{{2, A, 900, false}, {2, S, 100, false}, {1, A, 100, false}, {1, S, 200, false}, {0}}, -1},
        {{{2, S, 900, false}, {2, S, 100, false}, {1, A, 100, false}, {1, A, 200, false}, {3, W, 0, false}}, 3},
        {{{2, A, 900, false}, {2, S, 100, false}, {1, A, 100, false}, {1, S, 200, false}, {1, W, 0, false}}, -1},
        {{{2, A, 900, false}, {1, W, 1200, true}, {1, W, 200, true}, {1, W, 100, true}, {3, W, 0, false}}, 1},
        {{{2, W, 1200, true}, {1, A, 200, false}, {1, A, 200, false}, {1, A, 100, false}, {3, W, 0, false}}, 0},
        {{{2, A, 900, false}, {4, S, 100, false}, {5, A, 100, false}, {1, A, 200, false}, {3, W, 0, false}}, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int chosen = choose(cases[i].places, 4);
        if (chosen != cases[i].chosen) fail_msg("case %zu: %d in place of %d", i, chosen, cases[i].chosen);
    }
}

static void begin_body(gs_wire *wire, const char *address, int bytes) {
    char head[128], body[BODY_BYTES] = "";
    snprintf(head, sizeof head, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", bytes);
    memset(body, ' ', (size_t)bytes - 1);
    gs_wire_open(wire, address);
    gs_wire_send(wire, head);
    gs_wire_send(wire, body);  // all of it but a byte
}

static bool is_taken(gs_wire *wire, const char *part) {
    gs_wire_send(wire, " ");
    bool is_there = gs_wire_wait(wire, part);
    gs_wire_close(wire);
    return is_there;
}

// Of 60,000 bytes 43,616 are counted: one of two has room, and small ones always have.
static void bodies_together_have_an_end_and_small_ones_have_room(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire first, second, small;
    for (int i = 0; i < 3; i++) {
        begin_body(&first, address, 60000);
        pass_ms(LATE_MS);
        begin_body(&second, address, 60000);
        pass_ms(LATE_MS);
        begin_body(&small, address, 16000);
        assert_true(is_taken(&small, "answered"));
        assert_true(is_taken(&second, "no room"));
        assert_true(is_taken(&first, "answered"));
    }
    begin_body(&second, address, 60000);  // what was taken was given back
    assert_true(is_taken(&second, "answered"));
}

static void a_header_is_found_where_its_line_has_come_whole(void **state) {
    (void)state;
    static const char whole[] = "GET /a: HTTP/1.1\r\nHost: x\r\nAUTHORIZATION:\t Bearer gst_1 \r\nAuthorization: Bearer other\r\n\r\nCookie: a=b\r\n";
    gs_early_head head = {.bytes = sizeof whole - 1};
    char value[32], small[8];
    memcpy(head.text, whole, sizeof whole - 1);
    assert_true(gs_early_head_find(&head, value, sizeof value, "Authorization"));
    assert_string_equal(value, "Bearer gst_1 ");
    assert_false(gs_early_head_find(&head, small, sizeof small, "Authorization"));
    assert_false(gs_early_head_find(&head, value, sizeof value, "Cookie"));  // of the body
    assert_false(gs_early_head_find(&head, value, sizeof value, "GET /a"));  // no header
    assert_false(gs_early_head_find(&head, value, sizeof value, "Author"));
    size_t line = (size_t)(strstr(whole, "AUTH") - whole);
    size_t past = (size_t)(strstr(whole, "Authorization") - whole);
    for (head.bytes = 0; head.bytes < sizeof whole; head.bytes++)
        assert_int_equal(gs_early_head_find(&head, value, sizeof value, "Authorization"), head.bytes >= past && past > line);
}

static void a_stranger_has_a_moment_where_there_is_room(void **state) {
    server *it = *state;
    gs_wire strangers[2 * ROOM];
    int64_t begin_ns = gs_now_ns();
    for (int i = 0; i < 2 * ROOM; i++) gs_wire_open(&strangers[i], gs_http_server_address(it->http));
    assert_true(is_answered(&strangers[2 * ROOM - 1], ""));  // so all of them have come
    int num_crowded = atomic_load(&it->num_crowded);
    if (gs_now_ns() - begin_ns < 250 * GS_NS_PER_MS) assert_int_equal(num_crowded, 0);
    gs_deadline deadline = gs_deadline_in_ms(350);
    while (!gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    gs_wire late;
    gs_wire_open(&late, gs_http_server_address(it->http));
    assert_true(gs_wire_wait_close(&strangers[0]));
    assert_true(is_answered(&late, ""));
    for (int i = 0; i < 2 * ROOM; i++) gs_wire_close(&strangers[i]);
    gs_wire_close(&late);
}

static void of_the_known_who_idles_longest_gives_way(void **state) {
    server *it = *state;
    const char *address = gs_http_server_address(it->http);
    gs_wire known[ROOM], late;
    char whose[32];
    int64_t begin_ns = gs_now_ns();
    for (int i = 0; i < ROOM; i++) {
        gs_wire_open(&known[i], address);
        assert_true(is_answered(&known[i], show(whose, i + 1)));
    }
    // At once nobody has idled for long enough: who comes is cut himself.
    gs_wire_open(&late, address);
    if (gs_now_ns() - begin_ns > 900 * GS_NS_PER_MS) {
        for (int i = 0; i < ROOM; i++) gs_wire_close(&known[i]);
        gs_wire_close(&late);
        print_message("skipped: this machine takes a second for eight requests\n");
        skip();
    }
    assert_true(gs_wire_wait_close(&late));
    gs_wire_close(&late);
    for (int i = 0; i < ROOM; i++)
        if (i != 1) assert_true(is_answered(&known[i], ""));
    gs_deadline deadline = gs_deadline_in_ms(1500);
    while (!gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    gs_wire_open(&late, address);
    assert_true(is_answered(&late, ""));
    assert_true(gs_wire_wait_close(&known[1]));
    for (int i = 0; i < ROOM; i++)
        if (i != 1) assert_true(is_answered(&known[i], ""));
    for (int i = 0; i < ROOM; i++) gs_wire_close(&known[i]);
    gs_wire_close(&late);
}

// 127.0.0.2 is no other neighbour.
static void addresses_of_this_machine_are_one(void **state) {
    server *it = *state;
    int fds[2];
    gs_http_neighbourhood from[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_false(gs_http_neighbourhood_of(&from[0], fds[0]));
    close(fds[0]);
    close(fds[1]);
    gs_wire wires[2];
    for (int i = 0; i < 2; i++) {
        gs_wire_open(&wires[i], gs_http_server_address(it->http));
        assert_true(gs_http_neighbourhood_of(&from[i], wires[i].fd));
    }
    assert_memory_equal(&from[0], &from[1], sizeof from[0]);
    for (int i = 0; i < 2; i++) gs_wire_close(&wires[i]);
}

static void who_does_not_read_his_stream_is_cut_and_who_reads_is_not(void **state) {
    server *it = *state;
    gs_wire idle, busy;
    gs_wire_open(&idle, gs_http_server_address(it->http));
    gs_wire_open(&busy, gs_http_server_address(it->http));
    ask(&idle, "/stream", "X-Known: 1\r\n");
    ask(&busy, "/stream", "X-Known: 1\r\n");
    char block[8192];
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!atomic_load(&it->num_closed) && !gs_deadline_passed(deadline)) assert_true(recv(busy.fd, block, sizeof block, 0) > 0);
    assert_int_equal(atomic_load(&it->num_closed), 1);
    // Who cuts it off counts it behind that, in a thread of his own.
    while (!atomic_load(&it->num_slow) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_true(atomic_load(&it->num_slow) >= 1);
    for (int i = 0; i < 1000; i++) assert_true(recv(busy.fd, block, sizeof block, 0) > 0);
    gs_wire_close(&idle);
    gs_wire_close(&busy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_crowd_of_strangers_shuts_nobody_out, start, stop),
        cmocka_unit_test_setup_teardown(who_has_said_who_he_is_does_not_give_way_unread, start, stop),
        cmocka_unit_test_setup_teardown(strangers_who_do_not_read_shut_nobody_out, start_patient, stop),
        cmocka_unit_test_setup_teardown(who_does_not_read_gives_way_before_who_waits_and_who_reads, start_patient, stop),
        cmocka_unit_test_setup_teardown(who_is_known_keeps_his_place_without_reading, start_patient, stop),
        cmocka_unit_test_setup_teardown(who_has_most_places_shuts_nobody_out_by_requests_that_he_does_not_end, start_patient, stop),
        cmocka_unit_test_setup_teardown(who_has_most_places_shuts_nobody_out_by_answers_that_he_does_not_read, start_patient, stop),
        cmocka_unit_test_setup_teardown(bodies_together_have_an_end_and_small_ones_have_room, start_patient, stop),
        cmocka_unit_test(of_the_known_he_gives_way_who_loses_least),
        cmocka_unit_test(a_header_is_found_where_its_line_has_come_whole),
        cmocka_unit_test_setup_teardown(a_stranger_has_a_moment_where_there_is_room, start_with_room, stop),
        cmocka_unit_test_setup_teardown(of_the_known_who_idles_longest_gives_way, start, stop),
        cmocka_unit_test_setup_teardown(addresses_of_this_machine_are_one, start, stop),
        cmocka_unit_test_setup_teardown(who_does_not_read_his_stream_is_cut_and_who_reads_is_not, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
