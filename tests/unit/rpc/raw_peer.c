#include "tests/unit/rpc/raw_peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <zmq.h>

raw_peer raw_peer_open_that_holds(const char *endpoint, int messages) {
    raw_peer raw = {.context = zmq_ctx_new()};
    raw.socket = zmq_socket(raw.context, ZMQ_DEALER);
    int none = 0, timeout_ms = 20000;
    zmq_setsockopt(raw.socket, ZMQ_RCVHWM, &messages, sizeof messages);
    zmq_setsockopt(raw.socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(raw.socket, ZMQ_SNDTIMEO, &timeout_ms, sizeof timeout_ms);
    zmq_setsockopt(raw.socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    assert_int_equal(zmq_connect(raw.socket, endpoint), 0);
    return raw;
}

raw_peer raw_peer_open(const char *endpoint) { return raw_peer_open_that_holds(endpoint, 1000); }

void raw_peer_close(raw_peer *raw) {
    zmq_close(raw->socket);
    zmq_ctx_term(raw->context);
}

void raw_peer_send(raw_peer *raw, const gs_frame *frame, const char *body) {
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, frame, body, strlen(body));
    assert_true(zmq_send(raw->socket, header, sizeof header, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(raw->socket, body, strlen(body), 0) >= 0);
}

gs_frame raw_peer_receive(raw_peer *raw, char *body, size_t body_bytes) {
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame frame;
    assert_int_equal(zmq_recv(raw->socket, header, sizeof header, 0), sizeof header);
    int received = zmq_recv(raw->socket, body, body_bytes, 0);
    assert_in_range(received, 0, body_bytes - 1);
    body[received] = '\0';
    gs_status status = gs_frame_unpack(&frame, header, sizeof header, body, (size_t)received);
    assert_string_equal(status.message, "");
    return frame;
}

const gs_frame raw_call = {.method = GS_GET_JOB,
                                  .kind = GS_FRAME_REQUEST,
                                  .time_left_ms = 20000,
                                  .incarnation = 5,
                                  .seq = 1};
