#include "rpc/server/rpc_intake.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "rpc/server/call_audit.h"
#include "rpc/wire/rpc_error.h"

// What one turn may do before the caller's timers get theirs: nobody waits longer for the others than that.
#define MAX_MESSAGES_A_TURN 1024
#define MAX_RECEIVE_NS (3 * GS_NS_PER_MS)
#define MAX_LOCAL_MESSAGES_A_TURN 128
#define MAX_API_CALLS_A_TURN 64
#define MAX_API_NS (3 * GS_NS_PER_MS)
// Control messages of one connection in a second; more is a fault or an attack, and is dropped.
#define MAX_MESSAGES_A_SECOND 4000
// Peers of another version ask again and again; one of them is named this often.
#define NAMED_NS (10 * GS_NS_PER_SEC)
#define MAX_DEADLINE_MS (24 * 3600 * 1000)

static void warn_dropped(gs_rpc_intake *intake, int64_t *warned_ns, uint64_t connection,
                         const char *reason) {
    if (*warned_ns && intake->now_ns - *warned_ns < 60 * GS_NS_PER_SEC) return;
    *warned_ns = intake->now_ns;
    char quoted[2 * sizeof((gs_status *)0)->message];  // it may hold what the peer says that it is called
    gs_log_warn("rpc message dropped", "connection=%llu reason=%s malformed=%llu stale=%llu",
                (unsigned long long)connection, gs_log_quote(quoted, sizeof quoted, reason), (unsigned long long)intake->num_malformed,
                (unsigned long long)intake->num_stale);
}

static void count_malformed(gs_rpc_intake *intake, gs_rpc_connection *connection,
                            const char *reason) {
    intake->num_malformed++;
    // Who has never said anything right has no line of its own.
    if (connection)
        warn_dropped(intake, &connection->warned_ns, connection->peer.connection, reason);
    else
        warn_dropped(intake, &intake->warned_ns, 0, reason);
}

static void count_stale(gs_rpc_intake *intake, gs_rpc_connection *connection, const char *reason) {
    intake->num_stale++;
    warn_dropped(intake, &connection->warned_ns, connection->peer.connection, reason);
}

// Without a call object: nothing of it is kept.
static void refuse_request(gs_rpc_intake *intake, gs_rpc_connection *connection,
                           const gs_frame *frame, gs_status why) {
    size_t bytes;
    gs_code code = why.code;
    char *answer = gs_rpc_answer_encode(&bytes, &code, why.message, NULL);
    bool is_stream = gs_method_info_of(frame->method)->shape == GS_STREAM;
    gs_frame reply = {.kind = is_stream ? GS_FRAME_END : GS_FRAME_REPLY,
                      .method = frame->method,
                      .status = code,
                      .call = frame->seq};
    int error = gs_rpc_peers_send(intake->peers, connection, reply, answer, bytes);
    (void)error;  // asked again
    free(answer);
}

static gs_status parse_body(gs_json **out, const void *body, size_t bytes) {
    *out = NULL;
    if (!bytes) return gs_ok();
    GS_TRY(gs_json_parse_foreign(out, body, bytes));
    if (gs_json_type_of(*out) == GS_JSON_OBJECT) return gs_ok();
    gs_json_release(*out);
    *out = NULL;
    return gs_error(GS_INVALID_ARGUMENT, "the body is not an object");
}

static void tell_tap(const gs_rpc_intake *intake, uint64_t call, gs_method method,
                     const gs_rpc_peer *peer, const void *body, size_t bytes) {
    const gs_rpc_tap *tap = intake->calls->tap;
    if (tap) tap->request(tap->ctx, call, method, peer, body, bytes);
}

static void run_handler(gs_rpc_intake *intake, gs_rpc_call_entry *call, const void *body,
                        size_t bytes) {
    gs_json *request;
    gs_status status = parse_body(&request, body, bytes);
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    gs_rpc_peer peer = call->peer;
    call->number = ++intake->calls->num_handled;
    tell_tap(intake, call->number, call->method, &peer, body, bytes);
    gs_call_audit_begin(intake->calls->audit, call, request);
    intake->handlers[call->method](intake->ctx, call, &peer, request);
    gs_json_release(request);
}

static void repeat_request(gs_rpc_intake *intake, gs_rpc_call_entry *call) {
    intake->num_repeated++;
    if (call->state == GS_RPC_CALL_ANSWERED && !call->is_stream)
        gs_rpc_calls_send_answer(intake->calls, call);
}

static gs_deadline deadline_of(const gs_rpc_intake *intake, const gs_frame *frame) {
    int64_t left_ms = frame->time_left_ms < MAX_DEADLINE_MS ? frame->time_left_ms : MAX_DEADLINE_MS;
    return (gs_deadline){intake->now_ns + left_ms * GS_NS_PER_MS};
}

static void accept_request(gs_rpc_intake *intake, gs_rpc_connection *connection,
                           const gs_frame *frame, const void *body, size_t bytes) {
    if (frame->seq >= GS_RPC_MAX_SEQ) {
        count_malformed(intake, connection, "seq");
        return;
    }
    const gs_method_info *info = gs_method_info_of(frame->method);
    gs_rpc_call_entry *call = gs_rpc_calls_find(intake->calls, connection->session, frame->seq);
    if (call) {
        repeat_request(intake, call);
        return;
    }
    if (frame->seq <= connection->session->settled_seq) {
        count_stale(intake, connection, "request that is over");
        return;
    }
    if (!intake->handlers[frame->method]) {
        refuse_request(intake, connection, frame,
                       gs_error(GS_UNIMPLEMENTED, "the server does not serve this method"));
        return;
    }
    if (info->control && info->shape == GS_STREAM && frame->coord_epoch != intake->peers->coordinator_epoch) {
        // Who says hello says where he stands: what was said to another life, or recorded there, is not true here.
        if (frame->coord_epoch) count_stale(intake, connection, "hello to another coordinator epoch");
        refuse_request(intake, connection, frame, gs_error(GS_UNAVAILABLE, "said to another life of the coordinator"));
        return;
    }
    call = gs_rpc_calls_open(intake->calls, connection, frame, info->shape == GS_STREAM,
                             deadline_of(intake, frame));
    if (!call) {
        refuse_request(intake, connection, frame,
                       gs_error(GS_RESOURCE_EXHAUSTED, "too many calls are open"));
        return;
    }
    if (info->control)
        run_handler(intake, call, body, bytes);
    else if (!gs_rpc_calls_enqueue(intake->calls, call, body, bytes)) {
        intake->num_full++;
        gs_rpc_calls_drop(intake->calls, call);
        refuse_request(intake, connection, frame,
                       gs_error(GS_RESOURCE_EXHAUSTED, "too many requests wait"));
    }
}

static void accept_one_way(gs_rpc_intake *intake, gs_rpc_connection *connection,
                           const gs_frame *frame, const void *body, size_t bytes) {
    uint64_t *last_seq = &connection->session->last_one_way_seq;
    if (frame->seq <= *last_seq) {
        count_stale(intake, connection, "one-way message again");
        return;
    }
    *last_seq = frame->seq;
    if (frame->coord_epoch && frame->coord_epoch != intake->peers->coordinator_epoch) {
        count_stale(intake, connection, "one-way message of another coordinator epoch");
        return;
    }
    gs_rpc_peer peer = connection->peer;
    gs_rpc_record_handler record_handler = intake->record_handlers[frame->method];
    if (record_handler) {
        tell_tap(intake, 0, frame->method, &peer, body, bytes);
        gs_status status = record_handler(intake->ctx, &peer, body, bytes);
        if (status.code) count_malformed(intake, connection, status.message);
        return;
    }
    gs_json *request;
    gs_status status = parse_body(&request, body, bytes);
    if (status.code) {
        count_malformed(intake, connection, status.message);
        return;
    }
    gs_rpc_handler handler = intake->handlers[frame->method];
    if (handler) {
        tell_tap(intake, 0, frame->method, &peer, body, bytes);
        handler(intake->ctx, NULL, &peer, request);
    }
    gs_json_release(request);
}

static void accept_cancel(gs_rpc_intake *intake, gs_rpc_connection *connection,
                          const gs_frame *frame) {
    gs_rpc_session *session = connection->session;
    if (frame->call) {
        gs_rpc_call_entry *call = gs_rpc_calls_find(intake->calls, session, frame->call);
        if (!call || call->state == GS_RPC_CALL_ANSWERED) return;
        call->cancelled = true;
        gs_rpc_calls_lose(intake->calls, call);
        return;
    }
    // A goodbye: nobody will come back for what is kept.
    connection->closed = true;
    gs_rpc_call_entry *call;
    while ((call = TAILQ_FIRST(&session->calls))) gs_rpc_calls_lose(intake->calls, call);
    gs_rpc_peers_mark_lost(intake->peers, connection);
}

static bool take_budget(gs_rpc_intake *intake, gs_rpc_connection *connection,
                        const gs_frame *frame) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    if (!info || !info->control || connection->route.fd < 0) return true;
    int64_t second = intake->now_ns / GS_NS_PER_SEC;
    if (connection->budget_second != second) {
        connection->budget_second = second;
        connection->budget = MAX_MESSAGES_A_SECOND;
    }
    return connection->budget-- > 0;
}

static const char *name_role(gs_role role) {
    const char *name = gs_key_role_name(role);
    return name ? name : "rank";
}

static void note_refusal(gs_rpc_intake *intake, const gs_rpc_caller *caller, const gs_method_info *info, int fd) {
    gs_refusal facts = {.role = name_role(caller->role), .what = info->name, .result = gs_code_name(GS_PERMISSION_DENIED)};
    if (!intake->refusals.audit) return;
    snprintf(facts.who, sizeof facts.who, "%s", caller->id);
    snprintf(facts.name, sizeof facts.name, "%s", caller->name);
    gs_call_audit_address(facts.from, fd);
    gs_refusals_note(&intake->refusals, &facts, intake->now_ns);
}

// Before a body is parsed, of calls that are new and of those that come again.
static bool is_allowed(gs_rpc_intake *intake, gs_rpc_connection *connection, const gs_frame *frame) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    const gs_rpc_caller *caller = &connection->peer.caller;
    if (!info || gs_rpc_caller_may(caller, info->role)) return true;
    intake->num_refused++;
    note_refusal(intake, caller, info, connection->route.fd);
    if (!connection->warned_ns || intake->now_ns - connection->warned_ns >= 60 * GS_NS_PER_SEC) {
        connection->warned_ns = intake->now_ns;
        gs_log_warn("call refused", "method=%s id=%s name=%s role=%s refused=%llu", info->name, caller->id, caller->name,
                    name_role(caller->role), (unsigned long long)intake->num_refused);
    }
    if (frame->kind == GS_FRAME_REQUEST)
        refuse_request(intake, connection, frame,
                       gs_error(GS_PERMISSION_DENIED, "key %s (%s) has the role %s, which may not call %s", caller->id,
                                caller->name, name_role(caller->role), info->name));
    return false;
}

static void accept_frame(gs_rpc_intake *intake, gs_rpc_connection *connection,
                         const gs_frame *frame, const void *body, size_t bytes) {
    if (!take_budget(intake, connection, frame)) {
        connection->budget = 0;
        intake->num_flood++;
        return;
    }
    if (!is_allowed(intake, connection, frame)) return;
    intake->received[frame->method]++;
    switch (frame->kind) {
    case GS_FRAME_REQUEST:
        accept_request(intake, connection, frame, body, bytes);
        break;
    case GS_FRAME_ONE_WAY:
        accept_one_way(intake, connection, frame, body, bytes);
        break;
    case GS_FRAME_CANCEL:
        accept_cancel(intake, connection, frame);
        break;
    case GS_FRAME_PING:
        connection->deaf = frame->time_left_ms > 0;
        gs_rpc_peers_answer_ping(intake->peers, connection, frame->seq);
        break;
    default:
        count_malformed(intake, connection, "not for a server");
        break;
    }
    gs_rpc_calls_settle(intake->calls, connection->session, frame->ack);
}

// Whoever speaks another version learns which one this is, if that is what the frame is about.
static void refuse_version(gs_rpc_intake *intake, const gs_zmq_route *route, const gs_frame *frame,
                           gs_status why) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    if (frame->kind != GS_FRAME_REQUEST || !info || !frame->incarnation || !frame->seq) return;
    gs_frame reply = {.proto = frame->proto,
                      .kind = info->shape == GS_STREAM ? GS_FRAME_END : GS_FRAME_REPLY,
                      .method = frame->method,
                      .status = why.code,
                      .call = frame->seq,
                      .coord_epoch = intake->peers->coordinator_epoch,
                      .incarnation = frame->incarnation,
                      .seq = 1};
    size_t bytes;
    char *answer = gs_rpc_answer_encode(&bytes, &reply.status, why.message, NULL);
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &reply, answer, bytes);
    int error = gs_zmq_send(&intake->peers->sockets[route->socket], route, header, answer, bytes);
    if (!error) intake->peers->num_sent++;
    free(answer);
}

// Who says Hello in another version has a name; its message may be anything otherwise. A peer that has
// something to lose, trainers that run or what they said, would end for a refusal: to it this
// coordinator is one that is away, until the right one is back or its trainers have ended.
static gs_status explain_refusal(gs_rpc_intake *intake, gs_status status, const gs_frame *frame,
                                 const void *body, size_t bytes) {
    const gs_method_info *info = gs_method_info_of(frame->method);
    bool says_hello = frame->method == GS_AGENT_HELLO || frame->method == GS_HELLO;
    if (info && info->control) status.code = GS_UNAVAILABLE;
    if (!says_hello) return status;
    gs_json *hello = NULL;
    gs_status parsed = gs_json_parse_foreign(&hello, body, bytes);
    bool works = gs_json_count(gs_json_get(hello, "running")) > 0 ||
                 gs_json_int_or(hello, "applied_step", 0) > 0;
    if (!works) status.code = GS_FAILED_PRECONDITION;
    if (!parsed.code)
        status = gs_status_prefix(status, "worker %.63s on %.63s, build %.31s",
                                  gs_json_string_or(hello, "worker", "?"),
                                  gs_json_string_or(hello, "host", "?"),
                                  gs_json_string_or(hello, "build", "?"));
    gs_json_release(hello);
    if (parsed.code || (intake->named_ns && intake->now_ns - intake->named_ns < NAMED_NS))
        return status;
    intake->named_ns = intake->now_ns;
    char quoted[2 * sizeof status.message];
    gs_log_warn("refused a peer of another version", "reason=%s", gs_log_quote(quoted, sizeof quoted, status.message));
    return status;
}

// Where keys are shown, nothing is read of a call that its sender's key may not make, whatever version it has.
static gs_status check_stranger(gs_rpc_intake *intake, const gs_zmq_route *route, const gs_frame *frame) {
    gs_rpc_caller caller;
    const gs_method_info *info = gs_method_info_of(frame->method);
    if (route->socket != GS_RPC_GUARDED) return gs_ok();
    bool is_known = intake->peers->gate && route->user && gs_key_gate_find(intake->peers->gate, route->user, &caller);
    if (is_known && info && gs_rpc_caller_may(&caller, info->role)) return gs_ok();
    intake->num_refused++;
    return gs_error(GS_PERMISSION_DENIED, "this key may not call %s", info ? info->name : "what this version does not know");
}

static void refuse_other_version(gs_rpc_intake *intake, const gs_zmq_message *message, const gs_frame *frame, gs_status why,
                                 const void *body, size_t bytes) {
    gs_status status = check_stranger(intake, &message->route, frame);
    if (!status.code) status = explain_refusal(intake, why, frame, body, bytes);
    refuse_version(intake, &message->route, frame, status);
    count_malformed(intake, gs_rpc_peers_find(intake->peers, &message->route), status.message);
}

static void take_message(gs_rpc_intake *intake, gs_zmq_message *message) {
    gs_frame frame;
    const void *body = zmq_msg_data(&message->body);
    size_t bytes = zmq_msg_size(&message->body);
    gs_status status = gs_frame_unpack(&frame, zmq_msg_data(&message->header),
                                       zmq_msg_size(&message->header), body, bytes);
    if (status.code == GS_FAILED_PRECONDITION) {
        refuse_other_version(intake, message, &frame, status, body, bytes);
        return;
    }
    if (status.code) {
        count_malformed(intake, gs_rpc_peers_find(intake->peers, &message->route), status.message);
        return;
    }
    uint64_t num_full = intake->peers->num_full;
    gs_rpc_connection *connection =
        gs_rpc_peers_accept(intake->peers, &message->route, &frame, intake->now_ns);
    if (connection)
        accept_frame(intake, connection, &frame, body, bytes);
    else if (intake->peers->num_full != num_full)
        warn_dropped(intake, &intake->warned_ns, 0, "too many connections");
    else
        count_malformed(intake, gs_rpc_peers_find(intake->peers, &message->route),
                        "connection refused, or another incarnation or token on it");
}

static bool receive_from(gs_rpc_intake *intake, gs_rpc_side side, int most) {
    int64_t begun_ns = intake->now_ns = gs_now_ns();
    for (int i = 0; i < most; i++) {
        gs_zmq_message message;
        gs_zmq_outcome outcome = gs_zmq_receive(&intake->peers->sockets[side], &message, true);
        if (outcome == GS_ZMQ_NOTHING) return false;
        message.route.socket = side;
        intake->num_remote += side != GS_RPC_LOCAL;
        if (outcome == GS_ZMQ_MALFORMED) {
            count_malformed(intake, NULL, "not two frames");
            continue;
        }
        take_message(intake, &message);
        gs_zmq_message_release(&message);
        if (i % 16 == 15) {
            intake->now_ns = gs_now_ns();
            if (intake->now_ns - begun_ns > MAX_RECEIVE_NS) break;
        }
    }
    return true;
}

bool gs_rpc_intake_receive(gs_rpc_intake *intake) {
    bool left = receive_from(intake, GS_RPC_LOCAL, MAX_LOCAL_MESSAGES_A_TURN);
    if (intake->peers->gate) left |= receive_from(intake, GS_RPC_GUARDED, MAX_MESSAGES_A_TURN);
    return receive_from(intake, GS_RPC_REMOTE, MAX_MESSAGES_A_TURN) || left;
}

void gs_rpc_intake_serve_api(gs_rpc_intake *intake) {
    int64_t begun_ns = gs_now_ns();
    for (int i = 0; i < MAX_API_CALLS_A_TURN; i++) {
        gs_rpc_call_entry *call = gs_rpc_calls_dequeue(intake->calls);
        if (!call) return;
        char *request = call->request;
        call->request = NULL;
        run_handler(intake, call, request, call->request_bytes);
        free(request);
        intake->now_ns = gs_now_ns();
        if (intake->now_ns - begun_ns > MAX_API_NS) return;
    }
}
