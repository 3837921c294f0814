#include "rpc/server/rpc_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "rpc/server/rpc_intake.h"
#include "rpc/wire/rpc_error.h"

#define END_RETRY_MS 20
// Turns further apart than this, or as long: we were asleep, not our peers.
#define ASLEEP_NS (1500 * GS_NS_PER_MS)
#define HOUSEKEEPING_NS (500 * GS_NS_PER_MS)

static gs_status bind_endpoint(gs_rpc_server *server, int index, const char *endpoint) {
    // "port 0" is how sockets say it, "*" how ZeroMQ does.
    char text[128];
    size_t len = strlen(endpoint), bound_bytes = sizeof server->endpoints[index];
    if (len + 1 > sizeof text)
        return gs_error(GS_INVALID_ARGUMENT, "rpc server: %s: too long", endpoint);
    memcpy(text, endpoint, len + 1);
    if (len > 2 && strcmp(text + len - 2, ":0") == 0) text[len - 1] = '*';
    GS_TRY(gs_zmq_choose_family(&server->socket, endpoint));
    if (zmq_bind(server->socket.socket, text) != 0) {
        gs_code code = errno == EADDRINUSE || errno == EADDRNOTAVAIL ? GS_FAILED_PRECONDITION
                       : errno == EACCES                             ? GS_PERMISSION_DENIED
                                                                     : GS_INVALID_ARGUMENT;
        return gs_error(code, "rpc server: %s: %s", endpoint, zmq_strerror(errno));
    }
    if (zmq_getsockopt(server->socket.socket, ZMQ_LAST_ENDPOINT, server->endpoints[index],
                       &bound_bytes) != 0) {
        return gs_error(GS_INTERNAL, "rpc server: %s: %s", endpoint, zmq_strerror(errno));
    }
    return gs_ok();
}

static gs_status open_server_socket(gs_rpc_server *server, gs_rpc_context *context) {
    gs_zmq_socket *socket = &server->socket;
    GS_TRY(gs_zmq_socket_open(socket, context, ZMQ_ROUTER,
                              ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_ROUTER_MANDATORY, 1));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_SNDHWM, 1024));  // the queue of each peer
    // What one peer may have waiting here: ten seconds of a trainer. With 10,000 of them it is
    // memory.
    GS_TRY(gs_zmq_set_int(socket, ZMQ_RCVHWM, 128));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_BACKLOG, 1024));
    // No ZeroMQ heartbeats: each of them searches all timers of all connections, which with 3,000
    // took half a core. Clients keep their connections audible instead (see rpc_peers.h); the
    // kernel clears away what a cut cable left.
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE, 1));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 10));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 5));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 3));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_MAXRT, 20000));
    for (int i = 0; i < GS_RPC_MAX_ENDPOINTS && server->options.endpoints[i]; i++) {
        GS_TRY(bind_endpoint(server, i, server->options.endpoints[i]));
    }
    return gs_ok();
}

gs_status gs_rpc_server_open(gs_rpc_server **out, gs_rpc_context *context,
                             const gs_rpc_server_options *options) {
    gs_rpc_server *server = calloc(1, sizeof *server);
    if (!server) return gs_error(GS_RESOURCE_EXHAUSTED, "rpc server: out of memory");
    server->options = *options;
    server->now_ns = server->turned_ns = gs_now_ns();
    gs_rpc_peers_init(&server->peers);
    gs_rpc_calls_init(&server->calls);
    gs_status status = open_server_socket(server, context);
    if (status.code)
        gs_rpc_server_close(server);
    else
        *out = server;
    return status;
}

const char *gs_rpc_server_endpoint(const gs_rpc_server *server, int index) {
    return index >= 0 && index < GS_RPC_MAX_ENDPOINTS ? server->endpoints[index] : "";
}

static void drop_calls(gs_rpc_server *server, gs_rpc_call_list *list) {
    gs_rpc_call_handle *call;
    while ((call = TAILQ_FIRST(list))) gs_rpc_calls_drop(&server->calls, call);
}

void gs_rpc_server_close(gs_rpc_server *server) {
    if (!server) return;
    gs_rpc_connection *connection;
    gs_rpc_session *session;
    while ((connection = TAILQ_FIRST(&server->peers.connections))) {
        drop_calls(server, &connection->session->calls);
        gs_rpc_peers_drop(&server->peers, connection, server->now_ns);
    }
    while ((session = TAILQ_FIRST(&server->peers.absent))) {
        drop_calls(server, &session->calls);
        drop_calls(server, &session->answered);
        gs_rpc_peers_forget(&server->peers, session);
    }
    gs_rpc_calls_release(&server->calls);
    gs_rpc_peers_release(&server->peers);
    // Closing happens behind our back; the names are free for a successor at once.
    for (int i = 0; server->socket.socket && i < GS_RPC_MAX_ENDPOINTS; i++) {
        if (server->endpoints[i][0]) zmq_unbind(server->socket.socket, server->endpoints[i]);
    }
    gs_zmq_socket_close(&server->socket);
    free(server);
}

int gs_rpc_server_send(gs_rpc_server *server, gs_rpc_connection *connection, gs_frame frame,
                       const char *body, size_t body_bytes) {
    frame.coord_epoch = server->options.coordinator_epoch;
    frame.generation = connection->peer.generation;
    frame.incarnation = connection->peer.incarnation;
    frame.job = connection->peer.job;
    frame.seq = ++connection->seq;
    frame.ack = connection->session->settled_seq;
    frame.send_ns = connection->echo_ns;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &frame, body, body_bytes);
    int error = gs_zmq_send(&server->socket, &connection->route, header, body, body_bytes);
    if (error == EHOSTUNREACH) gs_rpc_peers_mark_lost(&server->peers, connection);
    if (error)
        server->stats.dropped_slow += error == EAGAIN;
    else
        server->stats.sent++;
    return error;
}

static gs_status pass_reply(void) {
    GS_FAILPOINT("rpc.reply");
    return gs_ok();
}

void gs_rpc_server_send_answer(gs_rpc_server *server, const gs_rpc_call_handle *call) {
    gs_rpc_connection *connection = call->session->connection;
    if (!connection || connection->lost || pass_reply().code) return;
    gs_frame frame = {
        .kind = GS_FRAME_REPLY, .method = call->method, .status = call->code, .call = call->seq};
    int error = gs_rpc_server_send(server, connection, frame, call->answer, call->answer_bytes);
    (void)error;
}

static int send_end(gs_rpc_server *server, gs_rpc_call_handle *call, gs_code code,
                    const char *answer, size_t bytes) {
    if (!call->connection || call->connection->lost) return EHOSTUNREACH;
    gs_frame frame = {
        .kind = GS_FRAME_END, .method = call->method, .status = code, .call = call->seq};
    return gs_rpc_server_send(server, call->connection, frame, answer, bytes);
}

static void end_stream(gs_rpc_call_handle *call, gs_code code, char *answer, size_t bytes) {
    gs_rpc_server *server = call->server;
    if (send_end(server, call, code, answer, bytes) == EAGAIN) {
        gs_rpc_calls_postpone_end(&server->calls, call, code, answer, bytes);
        return;
    }
    free(answer);
    gs_rpc_calls_answer(&server->calls, call, code, NULL, 0);
}

void gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    gs_code code = status.code;
    size_t bytes;
    char *answer = gs_rpc_answer_encode(&bytes, &code, status.message, body);
    if (call->is_stream) {
        end_stream(call, code, answer, bytes);
        return;
    }
    // Sent before room is made for it: its own answer may be the one that is dropped.
    call->code = code;
    call->answer = answer;
    call->answer_bytes = bytes;
    gs_rpc_server_send_answer(call->server, call);
    call->answer = NULL;
    gs_rpc_calls_answer(&call->server->calls, call, code, answer, bytes);
}

void gs_rpc_end(gs_rpc_call_handle *call, gs_status status) {
    gs_rpc_reply(call, status, NULL);
}

bool gs_rpc_item(gs_rpc_call_handle *call, gs_json *item) {
    gs_rpc_server *server = call->server;
    char *text = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&text, &bytes, item, false);
    gs_json_release(item);
    int error = EMSGSIZE;
    if (!status.code && bytes <= GS_FRAME_MAX_BODY_BYTES && call->connection &&
        !call->connection->lost) {
        gs_frame frame = {.kind = GS_FRAME_ITEM, .method = call->method, .call = call->seq};
        error = gs_rpc_server_send(server, call->connection, frame, text, bytes);
    }
    free(text);
    return error == 0;
}

const gs_rpc_peer *gs_rpc_call_peer(const gs_rpc_call_handle *call) {
    return &call->peer;
}
void *gs_rpc_call_data(const gs_rpc_call_handle *call) {
    return call->data;
}
void gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data) {
    call->data = data;
}

void gs_rpc_server_lose_call(gs_rpc_server *server, gs_rpc_call_handle *call) {
    if (call->state == GS_RPC_CALL_OPEN && server->options.call_gone) {
        server->options.call_gone(server->options.ctx, call);
    }
    gs_rpc_calls_drop(&server->calls, call);
}

// A peer that was only stopped reads this first when it goes on, and opens its streams again. Whose
// socket is closed is not reached: the first send says so.
static void tell_lost_peer(gs_rpc_server *server, gs_rpc_connection *connection) {
    static const char body[] = "{\"message\":\"the connection was given up\"}";
    gs_rpc_call_handle *call;
    TAILQ_FOREACH(call, &connection->streams, next_of_connection) {
        gs_frame end = {.kind = GS_FRAME_END,
                        .method = call->method,
                        .status = GS_UNAVAILABLE,
                        .call = call->seq};
        if (gs_rpc_server_send(server, connection, end, body, sizeof body - 1) != 0) return;
    }
}

static void lose_connection(gs_rpc_server *server, gs_rpc_connection *connection) {
    gs_rpc_call_handle *call;
    tell_lost_peer(server, connection);
    while ((call = TAILQ_FIRST(&connection->streams))) gs_rpc_server_lose_call(server, call);
    if (server->options.peer_gone) {
        server->options.peer_gone(server->options.ctx, &connection->peer);
    }
    gs_rpc_peers_drop(&server->peers, connection, server->now_ns);
}

static void sweep_lost(gs_rpc_server *server) {
    if (!server->peers.any_lost) return;
    server->peers.any_lost = false;
    gs_rpc_connection *connection = TAILQ_FIRST(&server->peers.connections), *following;
    for (; connection; connection = following) {
        following = TAILQ_NEXT(connection, next);
        if (connection->lost) lose_connection(server, connection);
    }
}

static void forget_session(gs_rpc_server *server, gs_rpc_session *session) {
    gs_rpc_call_handle *call;
    while ((call = TAILQ_FIRST(&session->calls))) gs_rpc_server_lose_call(server, call);
    drop_calls(server, &session->answered);
    gs_rpc_peers_forget(&server->peers, session);
}

static void retry_ends(gs_rpc_server *server) {
    gs_rpc_call_handle *call = TAILQ_FIRST(&server->calls.ending), *following;
    for (; call; call = following) {
        following = TAILQ_NEXT(call, next_waiting);
        if (send_end(server, call, call->code, call->answer, call->answer_bytes) == EAGAIN)
            continue;
        gs_rpc_calls_drop(&server->calls, call);
    }
}

static void expire_calls(gs_rpc_server *server) {
    gs_rpc_calls *calls = &server->calls;
    if (server->now_ns < calls->next_deadline_ns) return;
    gs_rpc_calls_begin_expiry(calls);
    gs_rpc_call_handle *call;
    while ((call = gs_rpc_calls_next_expired(calls, server->now_ns)))
        gs_rpc_server_lose_call(server, call);
}

static void keep_house(gs_rpc_server *server, bool input_left) {
    if (server->now_ns - server->housekept_ns < HOUSEKEEPING_NS) return;
    server->housekept_ns = server->now_ns;
    // Who waits to be read is not silent.
    if (!input_left) gs_rpc_peers_mark_silent(&server->peers, server->now_ns);
    gs_rpc_session *session;
    while ((session = gs_rpc_peers_expired(&server->peers, server->now_ns))) {
        forget_session(server, session);
    }
}

static long choose_timeout_ms(const gs_rpc_server *server, gs_deadline deadline) {
    if (server->calls.num_queued || server->peers.any_lost) return 0;
    int64_t until_ns = deadline.at_ns;
    int64_t housekeeping_ns = server->housekept_ns + HOUSEKEEPING_NS;
    if (server->calls.next_deadline_ns < until_ns) until_ns = server->calls.next_deadline_ns;
    if (housekeeping_ns < until_ns) until_ns = housekeeping_ns;
    long timeout_ms = gs_deadline_left_ms((gs_deadline){until_ns});
    if (!TAILQ_EMPTY(&server->calls.ending) && timeout_ms > END_RETRY_MS) timeout_ms = END_RETRY_MS;
    return timeout_ms;
}

gs_status gs_rpc_server_turn(gs_rpc_server *server, int wake_fd, gs_deadline deadline) {
    zmq_pollitem_t items[3] = {{.socket = server->socket.socket, .events = ZMQ_POLLIN},
                               {.socket = server->socket.monitor, .events = ZMQ_POLLIN},
                               {.fd = wake_fd, .events = ZMQ_POLLIN}};
    if (zmq_poll(items, wake_fd >= 0 ? 3 : 2, choose_timeout_ms(server, deadline)) < 0 &&
        errno != EINTR) {
        return gs_error(GS_INTERNAL, "rpc server: poll: %s", zmq_strerror(errno));
    }
    server->now_ns = gs_now_ns();
    int64_t begun_ns = server->now_ns;
    if (begun_ns - server->turned_ns > ASLEEP_NS) server->peers.silence_floor_ns = begun_ns;
    gs_rpc_peers_read_events(&server->peers, &server->socket);
    bool input_left = gs_rpc_intake_receive(server);
    gs_rpc_intake_serve_api(server);
    server->now_ns = gs_now_ns();
    if (server->now_ns - begun_ns > ASLEEP_NS) server->peers.silence_floor_ns = server->now_ns;
    retry_ends(server);
    expire_calls(server);
    keep_house(server, input_left);
    sweep_lost(server);
    server->turned_ns = server->now_ns;
    return gs_ok();
}

void gs_rpc_server_get_stats(const gs_rpc_server *server, gs_rpc_server_stats *stats) {
    *stats = server->stats;
    stats->connections = server->peers.by_route.count;
    stats->calls_open = server->calls.num_open;
}
