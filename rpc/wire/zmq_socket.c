#include "rpc/wire/zmq_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/random.h"

// A body that is not copied comes to a reader of the same process through pipes of the library, in which ThreadSanitizer sees no
// order: it is told.
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
static void hand_over(const void *body) { __tsan_release((void *)(uintptr_t)body); }
static void take_over(void *body) { __tsan_acquire(body); }
#else
static void hand_over(const void *body) { (void)body; }
static void take_over(void *body) { (void)body; }
#endif

gs_status gs_zmq_set_int(gs_zmq_socket *socket, int option, int value) {
    if (zmq_setsockopt(socket->socket, option, &value, sizeof value) == 0) return gs_ok();
    return gs_error(GS_INTERNAL, "rpc: socket option %d: %s", option, zmq_strerror(errno));
}

gs_status gs_zmq_choose_family(gs_zmq_socket *socket, const char *endpoint) {
    return gs_zmq_set_int(socket, ZMQ_IPV6, strchr(endpoint, '[') != NULL);
}

static gs_status set_common_options(gs_zmq_socket *socket) {
    GS_TRY(gs_zmq_set_int(socket, ZMQ_LINGER, 0));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_HANDSHAKE_IVL, 2000));
    int64_t most = (int64_t)GS_FRAME_MAX_BODY_BYTES + GS_FRAME_HEADER_BYTES;
    if (zmq_setsockopt(socket->socket, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0) return gs_ok();
    return gs_error(GS_INTERNAL, "rpc: largest message: %s", zmq_strerror(errno));
}

// In the draft part of the header, and in every build.
#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93
#endif
#define ZAP_DOMAIN "gradsync"

static gs_status set_bytes(gs_zmq_socket *socket, int option, const void *bytes, size_t count) {
    if (zmq_setsockopt(socket->socket, option, bytes, count) == 0) return gs_ok();
    return gs_error(GS_INTERNAL, "rpc: key option %d: %s", option, zmq_strerror(errno));
}

gs_status gs_zmq_ask_for_keys(gs_zmq_socket *socket, const gs_curve_pair *server) {
    GS_TRY(gs_zmq_set_int(socket, ZMQ_CURVE_SERVER, 1));
    GS_TRY(set_bytes(socket, ZMQ_CURVE_SECRETKEY, server->secret.bytes, sizeof server->secret.bytes));
    GS_TRY(set_bytes(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)));
    socket->asks = true;
    return gs_zmq_set_int(socket, ZMQ_ZAP_ENFORCE_DOMAIN, 1);
}

gs_status gs_zmq_show_key(gs_zmq_socket *socket, const gs_curve_pair *own, const gs_curve_key *server) {
    GS_TRY(set_bytes(socket, ZMQ_CURVE_SERVERKEY, server->bytes, sizeof server->bytes));
    GS_TRY(set_bytes(socket, ZMQ_CURVE_PUBLICKEY, own->shown.bytes, sizeof own->shown.bytes));
    return set_bytes(socket, ZMQ_CURVE_SECRETKEY, own->secret.bytes, sizeof own->secret.bytes);
}

static gs_status open_monitor(gs_zmq_socket *socket, gs_rpc_context *context, int events) {
    char name[64];
    snprintf(name, sizeof name, "inproc://gradsync-monitor-%016llx",
             (unsigned long long)gs_random_from_system());
    int unlimited = 0;
    // The i/o thread must never wait for a reader of events.
    if (zmq_socket_monitor(socket->socket, name, events) != 0 ||
        !(socket->monitor = zmq_socket(gs_rpc_context_zmq(context), ZMQ_PAIR)) ||
        zmq_setsockopt(socket->monitor, ZMQ_RCVHWM, &unlimited, sizeof unlimited) != 0 ||
        zmq_setsockopt(socket->monitor, ZMQ_LINGER, &unlimited, sizeof unlimited) != 0 ||
        zmq_connect(socket->monitor, name) != 0) {
        return gs_error(GS_INTERNAL, "rpc: socket monitor: %s", zmq_strerror(errno));
    }
    return gs_ok();
}

gs_status gs_zmq_socket_open(gs_zmq_socket *out, gs_rpc_context *context, int type,
                             int monitored_events) {
    *out = (gs_zmq_socket){0};
    out->socket = zmq_socket(gs_rpc_context_zmq(context), type);
    if (!out->socket)
        return gs_error(GS_RESOURCE_EXHAUSTED, "rpc: socket: %s", zmq_strerror(errno));
    gs_status status = set_common_options(out);
    if (!status.code) status = open_monitor(out, context, monitored_events);
    if (status.code) gs_zmq_socket_close(out);
    return status;
}

void gs_zmq_socket_close(gs_zmq_socket *socket) {
    if (socket->socket) {
        zmq_socket_monitor(socket->socket, NULL, 0);
        zmq_close(socket->socket);
    }
    if (socket->monitor) zmq_close(socket->monitor);
    *socket = (gs_zmq_socket){0};
}

static int receive_part(zmq_msg_t *part, void *socket) {
    int result;
    do {
        result = zmq_msg_recv(part, socket, ZMQ_DONTWAIT);
    } while (result < 0 && errno == EINTR);
    return result;
}

bool gs_zmq_next_event(gs_zmq_socket *socket, int *event, int *value) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    bool found = receive_part(&part, socket->monitor) == 6;
    if (found) {
        uint16_t number;
        int32_t number_value;
        memcpy(&number, zmq_msg_data(&part), sizeof number);
        memcpy(&number_value, (char *)zmq_msg_data(&part) + 2, sizeof number_value);
        *event = number;
        *value = number_value;
        while (zmq_msg_more(&part) && receive_part(&part, socket->monitor) >= 0) continue;
    }
    zmq_msg_close(&part);
    return found;
}

static void drop_rest(void *socket, bool more) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    while (more && receive_part(&part, socket) >= 0) more = zmq_msg_more(&part);
    zmq_msg_close(&part);
}

// False at the end of the input, or when the route is one that we never gave out.
static bool receive_route(gs_zmq_socket *socket, gs_zmq_route *route, bool *nothing) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    *nothing = receive_part(&part, socket->socket) < 0;
    size_t bytes = *nothing ? 0 : zmq_msg_size(&part);
    bool ok = bytes > 0 && bytes <= GS_ZMQ_MAX_ROUTE_BYTES && zmq_msg_more(&part);
    if (ok) {
        memcpy(route->id, zmq_msg_data(&part), bytes);
        route->id_bytes = bytes;
    } else if (!*nothing) {
        drop_rest(socket->socket, zmq_msg_more(&part));
    }
    zmq_msg_close(&part);
    return ok;
}

gs_zmq_outcome gs_zmq_receive(gs_zmq_socket *socket, gs_zmq_message *message, bool routed) {
    message->route = (gs_zmq_route){.fd = -1};
    bool nothing = false;
    if (routed && !receive_route(socket, &message->route, &nothing)) {
        return nothing ? GS_ZMQ_NOTHING : GS_ZMQ_MALFORMED;
    }
    zmq_msg_init(&message->header);
    zmq_msg_init(&message->body);
    if (receive_part(&message->header, socket->socket) < 0) {
        gs_zmq_message_release(message);
        return GS_ZMQ_NOTHING;
    }
    bool ok = zmq_msg_more(&message->header) && receive_part(&message->body, socket->socket) >= 0 &&
              !zmq_msg_more(&message->body);
    if (!ok) {
        // Whichever frame was read last says whether there are more.
        bool more = zmq_msg_more(&message->header) && zmq_msg_more(&message->body);
        drop_rest(socket->socket, more);
        gs_zmq_message_release(message);
        return GS_ZMQ_MALFORMED;
    }
    take_over(zmq_msg_data(&message->body));
    message->route.fd = zmq_msg_get(&message->header, ZMQ_SRCFD);
    message->route.user = socket->asks ? zmq_msg_gets(&message->header, "User-Id") : NULL;
    return GS_ZMQ_MESSAGE;
}

void gs_zmq_message_release(gs_zmq_message *message) {
    zmq_msg_close(&message->header);
    zmq_msg_close(&message->body);
}

static int send_part(void *socket, const void *data, size_t bytes, bool more) {
    int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
    while (zmq_send(socket, data, bytes, flags) < 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

// Only the first part can be refused: the queue counts whole messages.
static int send_head(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES]) {
    int error = route ? send_part(socket->socket, route->id, route->id_bytes, true) : 0;
    return error ? error : send_part(socket->socket, header, GS_FRAME_HEADER_BYTES, true);
}

int gs_zmq_send(gs_zmq_socket *socket, const gs_zmq_route *route,
                const uint8_t header[GS_FRAME_HEADER_BYTES], const void *body, size_t body_bytes) {
    int error = send_head(socket, route, header);
    if (!error) error = send_part(socket->socket, body_bytes ? body : "", body_bytes, false);
    return error;
}

int gs_zmq_send_body(gs_zmq_socket *socket, const gs_zmq_route *route, const uint8_t header[GS_FRAME_HEADER_BYTES],
                     gs_send_body *body, gs_send_gauge *of) {
    size_t bytes;
    const void *data = gs_send_body_data(body, &bytes);
    int error = send_head(socket, route, header);
    if (error) return error;
    hand_over(data);
    gs_send_ticket *ticket = gs_send_ticket_create(body, of);
    zmq_msg_t part;
    if (!ticket || zmq_msg_init_data(&part, (void *)(uintptr_t)data, bytes, gs_send_ticket_drop, ticket) != 0) {
        if (ticket) gs_send_ticket_drop(NULL, ticket);
        return send_part(socket->socket, data, bytes, false);  // what has begun ends
    }
    while (zmq_msg_send(&part, socket->socket, ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR) continue;
        error = errno;
        zmq_msg_close(&part);
        return error;
    }
    return 0;
}
