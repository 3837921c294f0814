// ZeroMQ sockets as the client and the server use them: settings, monitor, messages of two frames.
// Every function is for the thread that owns the socket.
#ifndef RPC_WIRE_ZMQ_SOCKET_H
#define RPC_WIRE_ZMQ_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zmq.h>

#include "core/status.h"
#include "rpc/keys/curve_key.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/rpc_context.h"
#include "rpc/wire/send_body.h"

// A socket and its monitor, with what both sides have in common set; `type` is ZMQ_DEALER or
// ZMQ_ROUTER.
typedef struct gs_zmq_socket {
    void *socket, *monitor;
    bool asks;  // who comes is known by a key
} gs_zmq_socket;

GS_NODISCARD gs_status gs_zmq_socket_open(gs_zmq_socket *out, gs_rpc_context *context,
                                          int type, int monitored_events);
void gs_zmq_socket_close(gs_zmq_socket *socket);
GS_NODISCARD gs_status gs_zmq_set_int(gs_zmq_socket *socket, int option, int value);
// Before bind or connect: IPv6 for "tcp://[::1]:8471", else not, so that addresses read as they
// were written.
GS_NODISCARD gs_status gs_zmq_choose_family(gs_zmq_socket *socket, const char *endpoint);

// A handshake that comes to nothing: refused, cut off, of another mechanism.
#define GS_ZMQ_HANDSHAKE_FAILED \
    (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

// Before bind: encrypts (CURVE), and asks the context's handler of ZAP who comes; without one nobody gets in.
GS_NODISCARD gs_status gs_zmq_ask_for_keys(gs_zmq_socket *socket, const gs_curve_pair *server);
// Before connect: who we are, to the server with this key and to no other.
GS_NODISCARD gs_status gs_zmq_show_key(gs_zmq_socket *socket, const gs_curve_pair *own, const gs_curve_key *server);

// The next event of the monitor; false: none is waiting.
bool gs_zmq_next_event(gs_zmq_socket *socket, int *event, int *value);

#define GS_ZMQ_MAX_ROUTE_BYTES 32
typedef struct gs_zmq_route {
    uint8_t id[GS_ZMQ_MAX_ROUTE_BYTES];
    size_t id_bytes;  // 0 at a DEALER
    int fd;           // that the message came from; -1: not by TCP
    int socket;       // of its owner's, where that has several
    const char *user; // that the handler of keys gave its connection; NULL: none. Of the message.
} gs_zmq_route;

// A message: release when it was received.
typedef struct gs_zmq_message {
    zmq_msg_t header, body;
    gs_zmq_route route;
} gs_zmq_message;

typedef enum gs_zmq_outcome {
    GS_ZMQ_NOTHING = 0,
    GS_ZMQ_MESSAGE,
    GS_ZMQ_MALFORMED  // not two frames: dropped whole
} gs_zmq_outcome;
gs_zmq_outcome gs_zmq_receive(gs_zmq_socket *socket, gs_zmq_message *message, bool routed);
void gs_zmq_message_release(gs_zmq_message *message);

// Copies; never waits. 0, or EAGAIN (queue full, or nobody connected), or EHOSTUNREACH (no such
// peer).
int gs_zmq_send(gs_zmq_socket *socket, const gs_zmq_route *route,
                const uint8_t header[GS_FRAME_HEADER_BYTES], const void *body, size_t body_bytes);
// The same without a copy; the body is counted by `of` until ZeroMQ has let it go.
int gs_zmq_send_body(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                     gs_send_body *body, gs_send_gauge *of);

#endif
