#include "rpc/server/rpc_peers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/random.h"
#include "rpc/schema/launch_token.h"

#define MAX_CONNECTIONS 65536
#define MAX_ABSENT 16384

static char live_mark;  // the value of live_fds

void gs_rpc_peers_init(gs_rpc_peers *peers, uint32_t coordinator_epoch) {
    *peers = (gs_rpc_peers){.coordinator_epoch = coordinator_epoch, .pings_a_second = GS_PINGS_A_SECOND, .seed = gs_random_from_system()};
    TAILQ_INIT(&peers->connections);
    TAILQ_INIT(&peers->absent);
}

void gs_rpc_peers_release(gs_rpc_peers *peers) {
    gs_send_body_release(peers->last_body);
    gs_send_gauge_release(peers->unread);
    gs_u64_map_release(&peers->by_route);
    gs_u64_map_release(&peers->by_fd);
    gs_u64_map_release(&peers->live_fds);
    gs_u64_map_release(&peers->sessions);
    for (int i = 0; i < GS_NUM_RPC_SIDES; i++) gs_zmq_socket_close(&peers->sockets[i]);
}

static uint64_t key_of_fd(int fd) {
    return (uint64_t)fd + 1;
}

static uint64_t key_of_route(const gs_zmq_route *route) {
    uint64_t key = gs_hash64(route->id, route->id_bytes, (uint64_t)route->socket);
    return key ? key : 1;
}

void gs_rpc_peers_mark_lost(gs_rpc_peers *peers, gs_rpc_connection *connection) {
    connection->lost = true;
    peers->any_lost = true;
}

// The other end has closed it, or has ended. Who was given up here before is lost by that.
static void mark_closed(gs_rpc_peers *peers, gs_rpc_connection *connection) {
    connection->closed |= !connection->lost;
    gs_rpc_peers_mark_lost(peers, connection);
}

static void read_events_of(gs_rpc_peers *peers, gs_rpc_side side) {
    int event, fd;
    while (gs_zmq_next_event(&peers->sockets[side], &event, &fd)) {
        gs_port_watch_note(&peers->watch, event);
        if (event == ZMQ_EVENT_ACCEPTED) {
            if (!gs_u64_map_set(&peers->live_fds, key_of_fd(fd), &live_mark)) continue;
        } else if (event == ZMQ_EVENT_DISCONNECTED) {
            gs_rpc_connection *connection = gs_u64_map_get(&peers->by_fd, key_of_fd(fd));
            gs_u64_map_remove(&peers->live_fds, key_of_fd(fd));
            gs_u64_map_remove(&peers->by_fd, key_of_fd(fd));
            if (connection) mark_closed(peers, connection);
        }
    }
}

void gs_rpc_peers_read_events(gs_rpc_peers *peers) {
    read_events_of(peers, GS_RPC_REMOTE);
    if (peers->sockets[GS_RPC_GUARDED].monitor) read_events_of(peers, GS_RPC_GUARDED);
}

gs_rpc_connection *gs_rpc_peers_find(const gs_rpc_peers *peers, const gs_zmq_route *route) {
    gs_rpc_connection *connection = gs_u64_map_get(&peers->by_route, key_of_route(route));
    bool same = connection && connection->route.socket == route->socket && connection->route.id_bytes == route->id_bytes &&
                memcmp(connection->route.id, route->id, route->id_bytes) == 0;
    return same ? connection : NULL;
}

// Descriptors are reused. All events up to now are read first: ZeroMQ's one i/o thread reports the
// end of a descriptor's old connection before it delivers anything of the new one.
static void own_fd(gs_rpc_peers *peers, gs_rpc_connection *connection) {
    gs_rpc_peers_read_events(peers);
    uint64_t key = key_of_fd(connection->route.fd);
    gs_rpc_connection *older = gs_u64_map_get(&peers->by_fd, key);
    if (older) mark_closed(peers, older);
    // Closed before its frame was read.
    if (!gs_u64_map_get(&peers->live_fds, key) || !gs_u64_map_set(&peers->by_fd, key, connection)) mark_closed(peers, connection);
}

// Who knows an incarnation alone takes no place of the one who shows its token, nor has it before him.
static uint64_t key_of_session(const gs_rpc_peers *peers, const gs_frame *frame) {
    const uint64_t shown[] = {frame->incarnation, gs_launch_token_shown(frame->token)};
    uint64_t key = shown[1] ? gs_hash64(shown, sizeof shown, peers->seed) : frame->incarnation;
    return key ? key : 1;
}

// What another key has begun, with what was said and answered there, is nobody else's.
static gs_rpc_session *find_session(gs_rpc_peers *peers, const gs_frame *frame, const char *owner) {
    uint64_t key = key_of_session(peers, frame);
    gs_rpc_session *session = gs_u64_map_get(&peers->sessions, key);
    bool is_its = session && session->incarnation == frame->incarnation && session->token == gs_launch_token_shown(frame->token);
    if (session) return is_its && strcmp(session->owner, owner) == 0 ? session : NULL;
    session = calloc(1, sizeof *session);
    if (!session || !gs_u64_map_set(&peers->sessions, key, session)) {
        free(session);
        return NULL;
    }
    session->key = key;
    session->incarnation = frame->incarnation;
    session->token = gs_launch_token_shown(frame->token);
    session->serial = ++peers->last_session;
    memcpy(session->owner, owner, strlen(owner) + 1);
    TAILQ_INIT(&session->calls);
    TAILQ_INIT(&session->answered);
    TAILQ_INSERT_TAIL(&peers->absent, session, next);
    peers->num_absent++;
    return session;
}

static void adopt_session(gs_rpc_peers *peers, gs_rpc_connection *connection,
                          gs_rpc_session *session) {
    if (session->connection) {
        // The client came back before its old connection was seen to be dead.
        gs_rpc_peers_mark_lost(peers, session->connection);
    } else {
        TAILQ_REMOVE(&peers->absent, session, next);
        peers->num_absent--;
    }
    session->connection = connection;
    connection->session = session;
}

// The API is in this process, and always heard each second.
static uint32_t pace_of(const gs_rpc_peers *peers, const gs_rpc_connection *connection) {
    size_t shared_ms = peers->by_route.count * 1000 / (size_t)peers->pings_a_second;
    bool is_local = connection->route.socket == GS_RPC_LOCAL;
    return !is_local && shared_ms > GS_PEER_PACE_MS ? (uint32_t)shared_ms : GS_PEER_PACE_MS;
}

static gs_rpc_connection *open_connection(gs_rpc_peers *peers, const gs_zmq_route *route,
                                          const gs_frame *frame) {
    gs_rpc_caller caller = {0};
    bool guarded = route->socket == GS_RPC_GUARDED;
    if (guarded && (!peers->gate || !route->user || !gs_key_gate_find(peers->gate, route->user, &caller))) return NULL;
    if (caller.incarnation && caller.incarnation != frame->incarnation) return NULL;  // it is one rank, and no other
    caller.is_local = route->socket == GS_RPC_LOCAL;
    if (peers->by_route.count >= MAX_CONNECTIONS) {
        peers->num_full++;
        return NULL;
    }
    uint64_t key = key_of_route(route);
    if (gs_u64_map_get(&peers->by_route, key)) return NULL;  // another route of the same hash
    gs_rpc_connection *connection = calloc(1, sizeof *connection);
    if (connection) connection->unread = gs_send_gauge_create();
    gs_rpc_session *session = connection && connection->unread ? find_session(peers, frame, caller.name) : NULL;
    if (!session || !gs_u64_map_set(&peers->by_route, key, connection)) {
        if (connection) gs_send_gauge_release(connection->unread);
        free(connection);
        return NULL;
    }
    connection->route = *route;
    connection->route.user = NULL;  // of the message; what it says is in peer.caller
    connection->peer.caller = caller;
    connection->key = key;
    connection->pace_ms = connection->told_ms = pace_of(peers, connection);
    connection->peer.connection = ++peers->last_connection;
    TAILQ_INIT(&connection->streams);
    TAILQ_INSERT_TAIL(&peers->connections, connection, next);
    adopt_session(peers, connection, session);
    if (route->fd >= 0) own_fd(peers, connection);
    return connection;
}

gs_rpc_connection *gs_rpc_peers_accept(gs_rpc_peers *peers, const gs_zmq_route *route,
                                       const gs_frame *frame, int64_t now_ns) {
    gs_rpc_connection *connection = gs_rpc_peers_find(peers, route);
    // A route that was another's would come with another user.
    if (connection && route->socket == GS_RPC_GUARDED &&
        (!route->user || strcmp(route->user, connection->peer.caller.id) != 0))
        return NULL;
    if (!connection) connection = open_connection(peers, route, frame);
    uint64_t token = gs_launch_token_shown(frame->token);
    if (!connection || connection->session->incarnation != frame->incarnation || connection->session->token != token) return NULL;
    connection->heard_ns = now_ns;
    connection->pace_ms = connection->told_ms;
    connection->peer.incarnation = frame->incarnation;
    connection->peer.token = token;
    connection->peer.job = frame->job;
    connection->peer.generation = frame->generation;
    connection->peer.coordinator_epoch = frame->coord_epoch;
    return connection;
}

// What it has not read yet leaves room for this. One that has read all gets whatever it is.
static bool has_room(const gs_rpc_peers *peers, const gs_rpc_connection *connection, size_t bytes) {
    size_t unread_bytes = gs_send_gauge_bytes(connection->unread);
    size_t all_bytes = peers->unread ? gs_send_gauge_bytes(peers->unread) : 0;
    size_t most_bytes = all_bytes > GS_MANY_UNREAD_BYTES ? GS_FAIR_UNREAD_BYTES : GS_MOST_UNREAD_BYTES;
    return unread_bytes == 0 || unread_bytes + bytes <= most_bytes;
}

static bool keep_body(gs_rpc_peers *peers, const char *body, size_t bytes) {
    if (peers->last_body && gs_send_body_is(peers->last_body, body, bytes)) return true;
    gs_send_body_release(peers->last_body);
    if (!peers->unread) peers->unread = gs_send_gauge_create();
    peers->last_body = peers->unread ? gs_send_body_create(body, bytes, peers->unread) : NULL;
    return peers->last_body;
}

static int send_frame(gs_rpc_peers *peers, gs_rpc_connection *connection, const uint8_t header[GS_FRAME_HEADER_BYTES],
                      const char *body, size_t bytes) {
    gs_zmq_socket *socket = &peers->sockets[connection->route.socket];
    if (bytes >= GS_COUNTED_BODY_BYTES && !has_room(peers, connection, bytes)) return EAGAIN;
    if (bytes < GS_COUNTED_BODY_BYTES || !keep_body(peers, body, bytes))
        return gs_zmq_send(socket, &connection->route, header, body, bytes);
    return gs_zmq_send_body(socket, &connection->route, header, peers->last_body, connection->unread);
}

int gs_rpc_peers_send(gs_rpc_peers *peers, gs_rpc_connection *connection, gs_frame frame,
                      const char *body, size_t body_bytes) {
    frame.coord_epoch = peers->coordinator_epoch;
    frame.generation = connection->peer.generation;
    frame.incarnation = connection->peer.incarnation;
    frame.job = connection->peer.job;
    frame.seq = ++connection->seq;
    frame.ack = connection->session->settled_seq;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &frame, body, body_bytes);
    int error = send_frame(peers, connection, header, body, body_bytes);
    if (error == EHOSTUNREACH) mark_closed(peers, connection);  // of which the monitor tells at the next turn
    if (error)
        peers->num_slow += error == EAGAIN;
    else
        peers->num_sent++;
    return error;
}

void gs_rpc_peers_answer_ping(gs_rpc_peers *peers, gs_rpc_connection *connection, uint64_t ping) {
    gs_frame answer = {.kind = GS_FRAME_PING, .call = ping, .time_left_ms = pace_of(peers, connection)};
    int error = gs_rpc_peers_send(peers, connection, answer, NULL, 0);
    if (!error) connection->told_ms = answer.time_left_ms;  // else it asks again
}

// A peer that was told to be heard sooner may not have read that yet.
static int64_t most_silence_ns(const gs_rpc_connection *connection) {
    uint32_t pace_ms = connection->told_ms > connection->pace_ms ? connection->told_ms : connection->pace_ms;
    return GS_PACES_OF_SILENCE * pace_ms * GS_NS_PER_MS;
}

// ZeroMQ has no way to end one connection of many. The socket below it is shut instead, which its own thread takes for what
// the peer has done; if that number is another connection's by now, that one comes again.
static void cut_off(gs_rpc_peers *peers, gs_rpc_connection *connection) {
    peers->num_revoked++;
    gs_log_warn("a key counts no longer, its connection is ended", "id=%s name=%s connection=%llu", connection->peer.caller.id,
                connection->peer.caller.name, (unsigned long long)connection->peer.connection);
    if (connection->route.fd >= 0 && gs_u64_map_get(&peers->by_fd, key_of_fd(connection->route.fd)) == connection)
        shutdown(connection->route.fd, SHUT_RDWR);
    gs_rpc_peers_mark_lost(peers, connection);
}

void gs_rpc_peers_judge(gs_rpc_peers *peers) {
    if (!peers->gate) return;
    unsigned changes = gs_key_gate_changes(peers->gate);
    bool all = changes != peers->gate_changes;
    int64_t now_ms = gs_wall_ms();
    peers->gate_changes = changes;
    gs_rpc_connection *connection;
    TAILQ_FOREACH(connection, &peers->connections, next) {
        const gs_rpc_caller *caller = &connection->peer.caller;
        if (!caller->is_known || connection->lost) continue;
        if (connection->is_ending) {
            cut_off(peers, connection);
            continue;
        }
        bool ended = caller->expires_ms && now_ms >= caller->expires_ms;
        gs_rpc_caller now;
        if (all && !ended) ended = !gs_key_gate_find(peers->gate, caller->id, &now) || !gs_rpc_caller_equal(&now, caller);
        // A token ends by its use: what was made of it is still on its way, and more is not made.
        if (ended && caller->role == GS_ROLE_ENROL) connection->is_ending = true;
        else if (ended) cut_off(peers, connection);
    }
}

void gs_rpc_peers_mark_silent(gs_rpc_peers *peers, int64_t now_ns) {
    gs_rpc_connection *connection;
    TAILQ_FOREACH(connection, &peers->connections, next) {
        int64_t since_ns = connection->heard_ns;
        if (since_ns < peers->silence_floor_ns) since_ns = peers->silence_floor_ns;
        if (connection->lost || now_ns - since_ns <= most_silence_ns(connection)) continue;
        gs_rpc_peers_mark_lost(peers, connection);
    }
}

void gs_rpc_peers_drop(gs_rpc_peers *peers, gs_rpc_connection *connection, int64_t now_ns) {
    gs_rpc_session *session = connection->session;
    gs_u64_map_remove(&peers->by_route, connection->key);
    if (connection->route.fd >= 0 &&
        gs_u64_map_get(&peers->by_fd, key_of_fd(connection->route.fd)) == connection) {
        gs_u64_map_remove(&peers->by_fd, key_of_fd(connection->route.fd));
    }
    if (session->connection == connection) {
        session->connection = NULL;
        session->left_ns = now_ns;
        TAILQ_INSERT_TAIL(&peers->absent, session, next);
        peers->num_absent++;
    }
    TAILQ_REMOVE(&peers->connections, connection, next);
    gs_send_gauge_release(connection->unread);
    free(connection);
}

gs_rpc_session *gs_rpc_peers_expired(gs_rpc_peers *peers, int64_t now_ns) {
    gs_rpc_session *oldest = TAILQ_FIRST(&peers->absent);
    if (!oldest) return NULL;
    bool due = now_ns - oldest->left_ns > GS_SESSION_GRACE_NS, early = !due && peers->num_absent > MAX_ABSENT;
    peers->num_early += early;
    return due || early ? oldest : NULL;
}

void gs_rpc_peers_forget(gs_rpc_peers *peers, gs_rpc_session *session) {
    gs_u64_map_remove(&peers->sessions, session->key);
    TAILQ_REMOVE(&peers->absent, session, next);
    peers->num_absent--;
    free(session);
}
