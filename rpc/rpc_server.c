#include "rpc/rpc_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/log.h"
#include "rpc/rpc_calls.h"
#include "rpc/rpc_error.h"
#include "rpc/rpc_peers.h"

#define MAX_ENDPOINTS 4
// What one turn may do before the caller's timers get theirs.
#define MAX_MESSAGES_A_TURN 2048
#define MAX_RECEIVE_NS (20 * GS_NS_PER_MS)
#define MAX_API_CALLS_A_TURN 64
#define MAX_API_NS (5 * GS_NS_PER_MS)
// Control messages of one connection in a second; more is a fault or an attack, and is dropped.
#define MAX_MESSAGES_A_SECOND 4000
#define END_RETRY_MS 20
// Turns further apart than this: we were asleep, not our peers.
#define ASLEEP_NS (1500 * GS_NS_PER_MS)
#define HOUSEKEEPING_NS (500 * GS_NS_PER_MS)
#define MAX_DEADLINE_MS (24 * 3600 * 1000)

struct gs_rpc_server {
    gs_rpc_server_options options;
    char endpoints[MAX_ENDPOINTS][128];  // bound
    gs_zmq_socket socket;
    gs_rpc_peers peers;
    gs_rpc_calls calls;
    gs_rpc_server_stats stats;
    int64_t now_ns, turned_ns, housekept_ns, warned_ns;
};

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
    GS_TRY(gs_zmq_set_int(socket, ZMQ_RCVHWM, 1024));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_BACKLOG, 1024));
    // No ZeroMQ heartbeats: each of them searches all timers of all connections, which with 3,000 took
    // half a core. Clients keep their connections audible instead (see rpc_peers.h); the kernel clears away
    // what a cut cable left.
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE, 1));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 10));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 5));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 3));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_TCP_MAXRT, 20000));
    for (int i = 0; i < MAX_ENDPOINTS && server->options.endpoints[i]; i++) {
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
    if (status.code) gs_rpc_server_close(server);
    else *out = server;
    return status;
}

const char *gs_rpc_server_endpoint(const gs_rpc_server *server, int index) {
    return index >= 0 && index < MAX_ENDPOINTS ? server->endpoints[index] : "";
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
    for (int i = 0; server->socket.socket && i < MAX_ENDPOINTS; i++) {
        if (server->endpoints[i][0]) zmq_unbind(server->socket.socket, server->endpoints[i]);
    }
    gs_zmq_socket_close(&server->socket);
    free(server);
}

static int send_frame(gs_rpc_server *server, gs_rpc_connection *connection, gs_frame frame,
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
    if (error) server->stats.dropped_slow += error == EAGAIN;
    else server->stats.sent++;
    return error;
}

static gs_status pass_reply(void) {
    GS_FAILPOINT("rpc.reply");
    return gs_ok();
}

// A reply that does not get through is asked for again by the client.
static void send_answer(gs_rpc_server *server, const gs_rpc_call_handle *call) {
    gs_rpc_connection *connection = call->session->connection;
    if (!connection || connection->lost || pass_reply().code) return;
    gs_frame frame = {
        .kind = GS_FRAME_REPLY, .method = call->method, .status = call->code, .call = call->seq};
    int error = send_frame(server, connection, frame, call->answer, call->answer_bytes);
    (void)error;
}

static int send_end(gs_rpc_server *server, gs_rpc_call_handle *call, gs_code code,
                    const char *answer, size_t bytes) {
    if (!call->connection || call->connection->lost) return EHOSTUNREACH;
    gs_frame frame = {
        .kind = GS_FRAME_END, .method = call->method, .status = code, .call = call->seq};
    return send_frame(server, call->connection, frame, answer, bytes);
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
    send_answer(call->server, call);
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
        error = send_frame(server, call->connection, frame, text, bytes);
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

// The handler, if it knows of the call, is told to forget it.
static void lose_call(gs_rpc_server *server, gs_rpc_call_handle *call) {
    if (call->state == GS_RPC_CALL_OPEN && server->options.call_gone) {
        server->options.call_gone(server->options.ctx, call);
    }
    gs_rpc_calls_drop(&server->calls, call);
}

// For a peer that may only be stopped: it reads this first when it goes on, and opens its streams again.
static void tell_silent_peer(gs_rpc_server *server, gs_rpc_connection *connection) {
    static const char body[] = "{\"message\":\"nothing was heard from this side for too long\"}";
    gs_rpc_call_handle *call;
    TAILQ_FOREACH(call, &connection->streams, next_of_connection) {
        gs_frame end = {.kind = GS_FRAME_END,
                        .method = call->method,
                        .status = GS_UNAVAILABLE,
                        .call = call->seq};
        if (send_frame(server, connection, end, body, sizeof body - 1) != 0) return;
    }
}

static void lose_connection(gs_rpc_server *server, gs_rpc_connection *connection) {
    gs_rpc_call_handle *call;
    if (connection->silent) tell_silent_peer(server, connection);
    while ((call = TAILQ_FIRST(&connection->streams))) lose_call(server, call);
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
    while ((call = TAILQ_FIRST(&session->calls))) lose_call(server, call);
    drop_calls(server, &session->answered);
    gs_rpc_peers_forget(&server->peers, session);
}

static void warn_dropped(gs_rpc_server *server, int64_t *warned_ns, uint64_t connection,
                         const char *reason) {
    if (*warned_ns && server->now_ns - *warned_ns < 60 * GS_NS_PER_SEC) return;
    *warned_ns = server->now_ns;
    gs_log_warn("rpc message dropped", "connection=%llu reason=\"%s\" malformed=%llu stale=%llu",
                (unsigned long long)connection, reason,
                (unsigned long long)server->stats.dropped_malformed,
                (unsigned long long)server->stats.dropped_stale);
}

static void count_malformed(gs_rpc_server *server, gs_rpc_connection *connection,
                            const char *reason) {
    server->stats.dropped_malformed++;
    // Who has never said anything right has no line of its own.
    if (connection)
        warn_dropped(server, &connection->warned_ns, connection->peer.connection, reason);
    else warn_dropped(server, &server->warned_ns, 0, reason);
}

static void count_stale(gs_rpc_server *server, gs_rpc_connection *connection, const char *reason) {
    server->stats.dropped_stale++;
    warn_dropped(server, &connection->warned_ns, connection->peer.connection, reason);
}

// Without a call object: nothing of it is kept.
static void refuse_request(gs_rpc_server *server, gs_rpc_connection *connection,
                           const gs_frame *frame, gs_status why) {
    size_t bytes;
    gs_code code = why.code;
    char *answer = gs_rpc_answer_encode(&bytes, &code, why.message, NULL);
    bool is_stream = gs_method_info_of(frame->method)->shape == GS_STREAM;
    gs_frame reply = {.kind = is_stream ? GS_FRAME_END : GS_FRAME_REPLY,
                      .method = frame->method,
                      .status = code,
                      .call = frame->seq};
    int error = send_frame(server, connection, reply, answer, bytes);
    (void)error;  // asked again
    free(answer);
}

static gs_status parse_body(gs_json **out, const void *body, size_t bytes) {
    *out = NULL;
    if (!bytes) return gs_ok();
    GS_TRY(gs_json_parse(out, body, bytes));
    if (gs_json_type_of(*out) == GS_JSON_OBJECT) return gs_ok();
    gs_json_release(*out);
    *out = NULL;
    return gs_error(GS_INVALID_ARGUMENT, "the body is not an object");
}

static void run_handler(gs_rpc_server *server, gs_rpc_call_handle *call, const void *body,
                        size_t bytes) {
    gs_json *request;
    gs_status status = parse_body(&request, body, bytes);
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    gs_rpc_peer peer = call->peer;
    server->options.handlers[call->method](server->options.ctx, call, &peer, request);
    gs_json_release(request);
}

static void repeat_request(gs_rpc_server *server, gs_rpc_call_handle *call) {
    server->stats.repeated++;
    if (call->state == GS_RPC_CALL_ANSWERED && !call->is_stream) send_answer(server, call);
}

static gs_deadline deadline_of(const gs_rpc_server *server, const gs_frame *frame) {
    int64_t left_ms = frame->time_left_ms < MAX_DEADLINE_MS ? frame->time_left_ms : MAX_DEADLINE_MS;
    return (gs_deadline){server->now_ns + left_ms * GS_NS_PER_MS};
}

static void accept_request(gs_rpc_server *server, gs_rpc_connection *connection,
                           const gs_frame *frame, const void *body, size_t bytes) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    gs_rpc_call_handle *call = gs_rpc_calls_find(&server->calls, connection->session, frame->seq);
    if (call) {
        repeat_request(server, call);
        return;
    }
    if (frame->seq <= connection->session->settled_seq) {
        count_stale(server, connection, "request that is over");
        return;
    }
    if (!server->options.handlers[frame->method]) {
        refuse_request(server, connection, frame,
                       gs_error(GS_UNIMPLEMENTED, "the server does not serve this method"));
        return;
    }
    call = gs_rpc_calls_open(&server->calls, connection, frame, info->shape == GS_STREAM,
                             deadline_of(server, frame));
    if (!call) {
        refuse_request(server, connection, frame,
                       gs_error(GS_RESOURCE_EXHAUSTED, "too many calls are open"));
        return;
    }
    call->server = server;
    if (info->control) run_handler(server, call, body, bytes);
    else if (!gs_rpc_calls_enqueue(&server->calls, call, body, bytes)) {
        gs_rpc_calls_drop(&server->calls, call);
        refuse_request(server, connection, frame,
                       gs_error(GS_RESOURCE_EXHAUSTED, "too many requests wait"));
    }
}

static void accept_one_way(gs_rpc_server *server, gs_rpc_connection *connection,
                           const gs_frame *frame, const void *body, size_t bytes) {
    uint64_t *last_seq = &connection->session->last_one_way_seq;
    if (frame->seq <= *last_seq) {
        count_stale(server, connection, "one-way message again");
        return;
    }
    *last_seq = frame->seq;
    if (frame->coord_epoch && frame->coord_epoch != server->options.coordinator_epoch) {
        count_stale(server, connection, "one-way message of another coordinator epoch");
        return;
    }
    gs_json *request;
    gs_status status = parse_body(&request, body, bytes);
    if (status.code) {
        count_malformed(server, connection, status.message);
        return;
    }
    gs_rpc_handler handler = server->options.handlers[frame->method];
    gs_rpc_peer peer = connection->peer;
    if (handler) handler(server->options.ctx, NULL, &peer, request);
    gs_json_release(request);
}

static void accept_cancel(gs_rpc_server *server, gs_rpc_connection *connection,
                          const gs_frame *frame) {
    gs_rpc_session *session = connection->session;
    if (frame->call) {
        gs_rpc_call_handle *call = gs_rpc_calls_find(&server->calls, session, frame->call);
        if (call && call->state != GS_RPC_CALL_ANSWERED) lose_call(server, call);
        return;
    }
    // A goodbye: nobody will come back for what is kept.
    gs_rpc_call_handle *call;
    while ((call = TAILQ_FIRST(&session->calls))) lose_call(server, call);
    gs_rpc_peers_mark_lost(&server->peers, connection);
}

static bool take_budget(gs_rpc_server *server, gs_rpc_connection *connection,
                        const gs_frame *frame) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    if (!info || !info->control || connection->route.fd < 0) return true;
    int64_t second = server->now_ns / GS_NS_PER_SEC;
    if (connection->budget_second != second) {
        connection->budget_second = second;
        connection->budget = MAX_MESSAGES_A_SECOND;
    }
    return connection->budget-- > 0;
}

static void accept_frame(gs_rpc_server *server, gs_rpc_connection *connection,
                         const gs_frame *frame, const void *body, size_t bytes) {
    if (!take_budget(server, connection, frame)) {
        connection->budget = 0;
        server->stats.dropped_flood++;
        return;
    }
    server->stats.received[frame->method]++;
    switch (frame->kind) {
    case GS_FRAME_REQUEST: accept_request(server, connection, frame, body, bytes); break;
    case GS_FRAME_ONE_WAY: accept_one_way(server, connection, frame, body, bytes); break;
    case GS_FRAME_CANCEL: accept_cancel(server, connection, frame); break;
    case GS_FRAME_PING: {
        int error = send_frame(server, connection,
                               (gs_frame){.kind = GS_FRAME_PING, .call = frame->seq}, NULL, 0);
        (void)error;  // asked again
        break;
    }
    default: count_malformed(server, connection, "not for a server"); break;
    }
    gs_rpc_calls_settle(&server->calls, connection->session, frame->ack);
}

// Whoever speaks another version learns which one this is, if that is what the frame is about.
static void refuse_version(gs_rpc_server *server, const gs_zmq_route *route, const gs_frame *frame,
                           const char *message) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    if (frame->kind != GS_FRAME_REQUEST || !info || !frame->incarnation || !frame->seq) return;
    gs_frame reply = {.kind = info->shape == GS_STREAM ? GS_FRAME_END : GS_FRAME_REPLY,
                      .method = frame->method,
                      .status = GS_FAILED_PRECONDITION,
                      .call = frame->seq,
                      .coord_epoch = server->options.coordinator_epoch,
                      .incarnation = frame->incarnation,
                      .seq = 1,
                      .send_ns = frame->send_ns};
    size_t bytes;
    char *answer = gs_rpc_answer_encode(&bytes, &reply.status, message, NULL);
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &reply, answer, bytes);
    int error = gs_zmq_send(&server->socket, route, header, answer, bytes);
    if (!error) server->stats.sent++;
    free(answer);
}

static void take_message(gs_rpc_server *server, gs_zmq_message *message) {
    gs_frame frame;
    const void *body = zmq_msg_data(&message->body);
    size_t bytes = zmq_msg_size(&message->body);
    gs_status status = gs_frame_unpack(&frame, zmq_msg_data(&message->header),
                                       zmq_msg_size(&message->header), body, bytes);
    if (status.code) {
        if (status.code == GS_FAILED_PRECONDITION) {
            refuse_version(server, &message->route, &frame, status.message);
        }
        count_malformed(server, gs_rpc_peers_find(&server->peers, &message->route), status.message);
        return;
    }
    gs_rpc_connection *connection = gs_rpc_peers_accept(&server->peers, &server->socket,
                                                        &message->route, &frame, server->now_ns);
    if (connection) accept_frame(server, connection, &frame, body, bytes);
    else
        count_malformed(server, gs_rpc_peers_find(&server->peers, &message->route),
                        "connection refused, or another incarnation on it");
}

// True when input was left for the next turn.
static bool receive_messages(gs_rpc_server *server) {
    int64_t begun_ns = server->now_ns;
    for (int i = 0; i < MAX_MESSAGES_A_TURN; i++) {
        gs_zmq_message message;
        gs_zmq_outcome outcome = gs_zmq_receive(&server->socket, &message, true);
        if (outcome == GS_ZMQ_NOTHING) return false;
        if (outcome == GS_ZMQ_MALFORMED) {
            count_malformed(server, NULL, "not two frames");
            continue;
        }
        take_message(server, &message);
        gs_zmq_message_release(&message);
        if (i % 16 == 15) {
            server->now_ns = gs_now_ns();
            if (server->now_ns - begun_ns > MAX_RECEIVE_NS) break;
        }
    }
    return true;
}

static void serve_api_calls(gs_rpc_server *server) {
    int64_t begun_ns = gs_now_ns();
    for (int i = 0; i < MAX_API_CALLS_A_TURN; i++) {
        gs_rpc_call_handle *call = gs_rpc_calls_dequeue(&server->calls);
        if (!call) return;
        char *request = call->request;
        call->request = NULL;
        run_handler(server, call, request, call->request_bytes);
        free(request);
        server->now_ns = gs_now_ns();
        if (server->now_ns - begun_ns > MAX_API_NS) return;
    }
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
    calls->next_deadline_ns = INT64_MAX;
    gs_rpc_call_handle *call = TAILQ_FIRST(&calls->timed), *following;
    for (; call; call = following) {
        following = TAILQ_NEXT(call, next_waiting);
        if (call->deadline.at_ns <= server->now_ns) lose_call(server, call);
        else if (call->deadline.at_ns < calls->next_deadline_ns) {
            calls->next_deadline_ns = call->deadline.at_ns;
        }
    }
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
    if (server->now_ns - server->turned_ns > ASLEEP_NS)
        server->peers.silence_floor_ns = server->now_ns;
    gs_rpc_peers_read_events(&server->peers, &server->socket);
    bool input_left = receive_messages(server);
    serve_api_calls(server);
    server->now_ns = gs_now_ns();
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
