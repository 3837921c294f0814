#include "rpc/server/rpc_intake.h"

#include <stdlib.h>

#include "core/log.h"
#include "rpc/wire/rpc_error.h"

// What one turn may do before the caller's timers get theirs.
#define MAX_MESSAGES_A_TURN 2048
#define MAX_RECEIVE_NS (20 * GS_NS_PER_MS)
#define MAX_API_CALLS_A_TURN 64
#define MAX_API_NS (5 * GS_NS_PER_MS)
// Control messages of one connection in a second; more is a fault or an attack, and is dropped.
#define MAX_MESSAGES_A_SECOND 4000
#define MAX_DEADLINE_MS (24 * 3600 * 1000)

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
    else
        warn_dropped(server, &server->warned_ns, 0, reason);
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
    int error = gs_rpc_server_send(server, connection, reply, answer, bytes);
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
    if (call->state == GS_RPC_CALL_ANSWERED && !call->is_stream)
        gs_rpc_server_send_answer(server, call);
}

static gs_deadline deadline_of(const gs_rpc_server *server, const gs_frame *frame) {
    int64_t left_ms = frame->time_left_ms < MAX_DEADLINE_MS ? frame->time_left_ms : MAX_DEADLINE_MS;
    return (gs_deadline){server->now_ns + left_ms * GS_NS_PER_MS};
}

static void accept_request(gs_rpc_server *server, gs_rpc_connection *connection,
                           const gs_frame *frame, const void *body, size_t bytes) {
    if (frame->seq >= GS_RPC_MAX_SEQ) {
        count_malformed(server, connection, "seq");
        return;
    }
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
    if (info->control)
        run_handler(server, call, body, bytes);
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
        if (call && call->state != GS_RPC_CALL_ANSWERED) gs_rpc_server_lose_call(server, call);
        return;
    }
    // A goodbye: nobody will come back for what is kept.
    gs_rpc_call_handle *call;
    while ((call = TAILQ_FIRST(&session->calls))) gs_rpc_server_lose_call(server, call);
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
    case GS_FRAME_REQUEST:
        accept_request(server, connection, frame, body, bytes);
        break;
    case GS_FRAME_ONE_WAY:
        accept_one_way(server, connection, frame, body, bytes);
        break;
    case GS_FRAME_CANCEL:
        accept_cancel(server, connection, frame);
        break;
    case GS_FRAME_PING: {
        int error = gs_rpc_server_send(
            server, connection, (gs_frame){.kind = GS_FRAME_PING, .call = frame->seq}, NULL, 0);
        (void)error;  // asked again
        break;
    }
    default:
        count_malformed(server, connection, "not for a server");
        break;
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
    if (connection)
        accept_frame(server, connection, &frame, body, bytes);
    else
        count_malformed(server, gs_rpc_peers_find(&server->peers, &message->route),
                        "connection refused, or another incarnation on it");
}

bool gs_rpc_intake_receive(gs_rpc_server *server) {
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

void gs_rpc_intake_serve_api(gs_rpc_server *server) {
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
