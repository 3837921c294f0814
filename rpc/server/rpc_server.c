#include "rpc/server/rpc_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/server/call_audit.h"
#include "rpc/server/rpc_intake.h"

#define END_RETRY_MS 20
// Turns further apart than this, or as long: we were asleep, not our peers.
#define ASLEEP_NS (1500 * GS_NS_PER_MS)
#define HOUSEKEEPING_NS (500 * GS_NS_PER_MS)
// Of peers in other processes: where more than so many come in a second, they are left to gather for a moment, so that one look
// finds many of them. To be woken for each would cost more than to read it. Who asks from within this process waits for nothing.
#define CROWD_PER_SEC 4000
#define CROWD_LOOK_NS (100 * GS_NS_PER_MS)
#define GATHER_MS 1

struct gs_rpc_server {
    char endpoints[GS_RPC_MAX_ENDPOINTS][128];  // bound
    gs_zmq_socket *bound[GS_RPC_MAX_ENDPOINTS];  // by whom
    gs_rpc_peers peers;
    gs_rpc_calls calls;
    gs_rpc_intake intake;
    int64_t now_ns, turned_ns, housekept_ns;
    int64_t counted_ns;     // when it was last looked whether they are a crowd
    uint64_t num_counted;   // messages by then
    bool is_crowded;
    bool input_left;  // by the last turn
    uint64_t num_lost;
};

static gs_rpc_side side_of(const char *endpoint, bool guarded) {
    if (strncmp(endpoint, "inproc://", 9) == 0) return GS_RPC_LOCAL;
    return guarded ? GS_RPC_GUARDED : GS_RPC_REMOTE;
}

static gs_status bind_endpoint(gs_rpc_server *server, int index, const char *endpoint, bool guarded) {
    // "port 0" is how sockets say it, "*" how ZeroMQ does.
    char text[128];
    size_t len = strlen(endpoint), bound_bytes = sizeof server->endpoints[index];
    if (len + 1 > sizeof text)
        return gs_error(GS_INVALID_ARGUMENT, "rpc server: %s: too long", endpoint);
    memcpy(text, endpoint, len + 1);
    if (len > 2 && strcmp(text + len - 2, ":0") == 0) text[len - 1] = '*';
    gs_zmq_socket *socket = &server->peers.sockets[side_of(endpoint, guarded)];
    if (!socket->socket) return gs_error(GS_INVALID_ARGUMENT, "rpc server: %s: nobody asks for keys", endpoint);
    GS_TRY(gs_zmq_choose_family(socket, endpoint));
    if (zmq_bind(socket->socket, text) != 0) {
        gs_code code = errno == EADDRINUSE || errno == EADDRNOTAVAIL ? GS_FAILED_PRECONDITION
                       : errno == EACCES                             ? GS_PERMISSION_DENIED
                                                                     : GS_INVALID_ARGUMENT;
        return gs_error(code, "rpc server: %s: %s", endpoint, zmq_strerror(errno));
    }
    if (zmq_getsockopt(socket->socket, ZMQ_LAST_ENDPOINT, server->endpoints[index],
                       &bound_bytes) != 0) {
        return gs_error(GS_INTERNAL, "rpc server: %s: %s", endpoint, zmq_strerror(errno));
    }
    server->bound[index] = socket;
    return gs_ok();
}

static gs_status open_socket(gs_zmq_socket *socket, gs_rpc_context *context) {
    // Not ZMQ_EVENT_ACCEPT_FAILED: without a free descriptor libzmq tries again at once, for ever, and each try would wait here to be
    // read. None of these comes more than three times of a connection.
    GS_TRY(gs_zmq_socket_open(socket, context, ZMQ_ROUTER, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | GS_ZMQ_HANDSHAKE_FAILED));
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
    return gs_zmq_set_int(socket, ZMQ_TCP_MAXRT, 20000);
}

static gs_status open_sockets(gs_rpc_server *server, gs_rpc_context *context, const gs_rpc_server_options *options) {
    gs_zmq_socket *sockets = server->peers.sockets;
    for (int i = 0; i < GS_NUM_RPC_SIDES; i++)
        if (i != GS_RPC_GUARDED || options->gate) GS_TRY(open_socket(&sockets[i], context));
    if (options->gate) GS_TRY(gs_key_gate_guard(options->gate, &sockets[GS_RPC_GUARDED]));
    for (int i = 0; i < GS_RPC_MAX_ENDPOINTS && options->endpoints[i]; i++) {
        GS_TRY(bind_endpoint(server, i, options->endpoints[i], options->guarded[i]));
    }
    return gs_ok();
}

gs_status gs_rpc_server_open(gs_rpc_server **out, gs_rpc_context *context,
                             const gs_rpc_server_options *options) {
    gs_rpc_server *server = calloc(1, sizeof *server);
    if (!server) return gs_error(GS_RESOURCE_EXHAUSTED, "rpc server: out of memory");
    server->now_ns = server->turned_ns = gs_now_ns();
    gs_rpc_peers_init(&server->peers, options->coordinator_epoch);
    server->peers.gate = options->gate;
    if (options->gate) server->peers.gate_changes = gs_key_gate_changes(options->gate);
    if (options->pings_a_second) server->peers.pings_a_second = options->pings_a_second;
    gs_rpc_calls_init(&server->calls, &server->peers, options->call_gone, options->ctx);
    server->calls.tap = options->tap;
    server->calls.audit = options->audit;
    server->calls.audit_end = options->audit ? gs_call_audit_end : NULL;
    server->intake =
        (gs_rpc_intake){.peers = &server->peers, .calls = &server->calls, .ctx = options->ctx};
    server->intake.refusals.audit = options->audit;
    memcpy(server->intake.handlers, options->handlers, sizeof options->handlers);
    memcpy(server->intake.record_handlers, options->record_handlers, sizeof options->record_handlers);
    gs_status status = open_sockets(server, context, options);
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
    gs_rpc_call_entry *call;
    while ((call = TAILQ_FIRST(list))) gs_rpc_calls_drop(&server->calls, call);
}

void gs_rpc_server_close(gs_rpc_server *server) {
    if (!server) return;
    gs_refusals_tell(&server->intake.refusals, INT64_MAX);
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
    // Closing happens behind our back; the names are free for a successor at once.
    for (int i = 0; i < GS_RPC_MAX_ENDPOINTS; i++) {
        if (server->bound[i]) zmq_unbind(server->bound[i]->socket, server->endpoints[i]);
    }
    gs_rpc_calls_release(&server->calls);
    gs_rpc_peers_release(&server->peers);
    free(server);
}

// A peer that was only stopped reads this first when it goes on, and opens its streams again. Whose
// socket is closed is not reached: the first send says so.
static void tell_lost_peer(gs_rpc_server *server, gs_rpc_connection *connection) {
    static const char body[] = "{\"message\":\"the connection was given up\"}";
    gs_rpc_call_entry *call;
    TAILQ_FOREACH(call, &connection->streams, next_of_connection) {
        gs_frame end = {.kind = GS_FRAME_END,
                        .method = call->method,
                        .status = GS_UNAVAILABLE,
                        .call = call->seq};
        if (gs_rpc_peers_send(&server->peers, connection, end, body, sizeof body - 1) != 0) return;
    }
}

static void lose_connection(gs_rpc_server *server, gs_rpc_connection *connection) {
    gs_rpc_call_entry *call;
    tell_lost_peer(server, connection);
    while ((call = TAILQ_FIRST(&connection->streams))) gs_rpc_calls_lose(&server->calls, call);
    server->num_lost++;
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
    gs_rpc_call_entry *call;
    while ((call = TAILQ_FIRST(&session->calls))) gs_rpc_calls_lose(&server->calls, call);
    drop_calls(server, &session->answered);
    gs_rpc_peers_forget(&server->peers, session);
}

static void retry_ends(gs_rpc_server *server) {
    gs_rpc_call_entry *call = TAILQ_FIRST(&server->calls.ending), *following;
    for (; call; call = following) {
        following = TAILQ_NEXT(call, next_waiting);
        if (gs_rpc_calls_send_end(&server->calls, call, call->code, call->answer,
                                  call->answer_bytes) == EAGAIN)
            continue;
        gs_rpc_calls_drop(&server->calls, call);
    }
}

static void expire_calls(gs_rpc_server *server) {
    gs_rpc_calls *calls = &server->calls;
    if (server->now_ns < calls->next_deadline_ns) return;
    gs_rpc_calls_begin_expiry(calls);
    gs_rpc_call_entry *call;
    while ((call = gs_rpc_calls_next_expired(calls, server->now_ns)))
        gs_rpc_calls_lose(&server->calls, call);
}

static void keep_house(gs_rpc_server *server) {
    if (server->now_ns - server->housekept_ns < HOUSEKEEPING_NS) return;
    server->housekept_ns = server->now_ns;
    gs_rpc_peers_judge(&server->peers);
    gs_refusals_tell(&server->intake.refusals, server->now_ns);
    gs_port_watch_look(&server->peers.watch, server->peers.live_fds.count, server->peers.by_fd.count, server->now_ns);
    // Who waits to be read is not silent.
    if (!server->input_left) gs_rpc_peers_mark_silent(&server->peers, server->now_ns);
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

static void count_crowd(gs_rpc_server *server) {
    int64_t passed_ns = server->now_ns - server->counted_ns;
    if (passed_ns < CROWD_LOOK_NS) return;
    double seconds = gs_seconds_of(passed_ns);
    server->is_crowded = (double)(server->intake.num_remote - server->num_counted) > CROWD_PER_SEC * seconds;
    server->counted_ns = server->now_ns;
    server->num_counted = server->intake.num_remote;
}

static gs_status wait_for_input(gs_rpc_server *server, int wake_fd, gs_deadline deadline) {
    const gs_zmq_socket *sockets = server->peers.sockets;
    zmq_pollitem_t items[6] = {{.socket = sockets[GS_RPC_LOCAL].socket, .events = ZMQ_POLLIN}};
    int count = 1;
    if (wake_fd >= 0) items[count++] = (zmq_pollitem_t){.fd = wake_fd, .events = ZMQ_POLLIN};
    int num_near = count;
    for (int side = 0; side < GS_NUM_RPC_SIDES; side++) {
        if (side == GS_RPC_LOCAL || (side == GS_RPC_GUARDED && !server->peers.gate)) continue;
        items[count++] = (zmq_pollitem_t){.socket = sockets[side].socket, .events = ZMQ_POLLIN};
        items[count++] = (zmq_pollitem_t){.socket = sockets[side].monitor, .events = ZMQ_POLLIN};
    }
    long timeout_ms = choose_timeout_ms(server, deadline);
    int found = 0;
    if (server->is_crowded && !server->input_left && timeout_ms > GATHER_MS) {
        found = zmq_poll(items, num_near, GATHER_MS);
        timeout_ms = choose_timeout_ms(server, deadline);
    }
    if (found == 0) found = zmq_poll(items, count, timeout_ms);
    if (found < 0 && errno != EINTR) return gs_error(GS_INTERNAL, "rpc server: poll: %s", zmq_strerror(errno));
    return gs_ok();
}

gs_status gs_rpc_server_turn(gs_rpc_server *server, int wake_fd, gs_deadline deadline) {
    GS_TRY(wait_for_input(server, wake_fd, deadline));
    server->now_ns = gs_now_ns();
    int64_t begun_ns = server->now_ns;
    if (begun_ns - server->turned_ns > ASLEEP_NS) server->peers.silence_floor_ns = begun_ns;
    gs_rpc_peers_read_events(&server->peers);
    server->input_left = gs_rpc_intake_receive(&server->intake);
    gs_rpc_intake_serve_api(&server->intake);
    server->now_ns = gs_now_ns();
    if (server->now_ns - begun_ns > ASLEEP_NS) server->peers.silence_floor_ns = server->now_ns;
    retry_ends(server);
    expire_calls(server);
    keep_house(server);
    count_crowd(server);
    sweep_lost(server);
    server->turned_ns = server->now_ns;
    return gs_ok();
}

void gs_rpc_server_get_stats(const gs_rpc_server *server, gs_rpc_server_stats *stats) {
    const gs_rpc_intake *intake = &server->intake;
    *stats = (gs_rpc_server_stats){.sent = server->peers.num_sent,
                                   .dropped_malformed = intake->num_malformed,
                                   .dropped_stale = intake->num_stale,
                                   .dropped_slow = server->peers.num_slow,
                                   .dropped_flood = intake->num_flood,
                                   .refused_full = intake->num_full,
                                   .refused_open = server->calls.num_over,
                                   .refused_connections = server->peers.num_full,
                                   .forgotten_sessions = server->peers.num_early,
                                   .unkept = server->calls.num_unkept,
                                   .repeated = intake->num_repeated,
                                   .refused = intake->num_refused,
                                   .revoked = server->peers.num_revoked,
                                   .cut = server->calls.num_cut,
                                   .lost = server->num_lost};
    memcpy(stats->received, intake->received, sizeof stats->received);
    stats->connections = server->peers.by_route.count;
    stats->accepted = server->peers.watch.num_accepted;
    stats->failed_handshakes = server->peers.watch.num_failed;
    stats->heard = server->peers.by_fd.count;
    stats->silent = server->peers.live_fds.count - server->peers.by_fd.count;
    stats->calls_open = server->calls.num_open;
}
