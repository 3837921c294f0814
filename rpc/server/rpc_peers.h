// Who the server talks to, and the socket that it does so by: connections (one each, gone when they
// break) and sessions (one for each incarnation, which outlive a connection so that a repeated
// request finds its first answer). Internal to the server; one thread. A session's calls are in
// rpc_calls.h.
//
// How a loss is noticed, fastest first: the socket monitor says which descriptor was closed (1 ms
// after a kill -9), a send that has nobody to go to, and silence: clients send something every
// second or so, among thousands as seldom as they were told.
#ifndef RPC_SERVER_RPC_PEERS_H
#define RPC_SERVER_RPC_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/clock.h"
#include "rpc/server/key_gate.h"
#include "rpc/server/port_watch.h"
#include "rpc/server/rpc_peer.h"
#include "core/u64_map.h"
#include "rpc/wire/zmq_socket.h"

// Each client is heard, or pings, once in a pace, which stretches so that all of them together ping no more than this.
#define GS_PINGS_A_SECOND 2500
#define GS_PEER_PACE_MS 1000
#define GS_PACES_OF_SILENCE 3
// A kept call waits this long for its client to come back.
#define GS_SESSION_GRACE_NS (30 * GS_NS_PER_SEC)

typedef struct gs_rpc_session gs_rpc_session;
typedef TAILQ_HEAD(gs_rpc_call_list, gs_rpc_call_entry) gs_rpc_call_list;

typedef struct gs_rpc_connection {
    TAILQ_ENTRY(gs_rpc_connection) next;
    gs_zmq_route route;
    uint64_t key;      // of the route
    gs_rpc_peer peer;  // as in the last frame
    gs_rpc_session *session;
    gs_rpc_call_list streams;
    int64_t heard_ns, warned_ns, budget_second;
    uint64_t seq;
    gs_send_gauge *unread;  // owned; what ZeroMQ holds for it of longer bodies
    uint32_t pace_ms, told_ms;  // that it keeps; that it was told after its last frame, else the same
    int budget;
    bool is_ending;  // its key counts no longer; it is cut at the next look
    bool lost;    // swept at the end of the turn
    bool closed;  // by the peer, or by its end
    bool deaf;    // the peer said that it hears nothing: that it closes is no end
} gs_rpc_connection;

struct gs_rpc_session {
    TAILQ_ENTRY(gs_rpc_session) next;  // among those without a connection, oldest first
    uint64_t incarnation, token, serial;  // what each of its messages shows; token 0: none
    uint64_t key;  // in the map of sessions
    char owner[GS_KEY_NAME_BYTES];  // whose key began it; "" where nobody is asked
    gs_rpc_connection *connection;  // the newest; NULL while there is none
    gs_rpc_call_list calls, answered;
    size_t num_open, num_answered, answered_bytes, ending_bytes;
    uint64_t settled_seq;  // requests up to here are over
    uint64_t last_one_way_seq;
    int64_t left_ns;
};

// Workers and the API, which is in this process, have a socket each: however much the ones say, the other is heard
// in its turn. At the guarded one everybody has shown a key.
typedef enum gs_rpc_side { GS_RPC_REMOTE = 0, GS_RPC_LOCAL, GS_RPC_GUARDED, GS_NUM_RPC_SIDES } gs_rpc_side;

typedef struct gs_rpc_peers {
    gs_zmq_socket sockets[GS_NUM_RPC_SIDES];  // the guarded one is {0} without a gate
    gs_key_gate *gate;                        // borrowed; NULL: nobody is asked for a key
    unsigned gate_changes;                    // as of when all were judged last
    uint32_t coordinator_epoch;  // goes out in every header
    TAILQ_HEAD(, gs_rpc_connection) connections;
    TAILQ_HEAD(, gs_rpc_session) absent;
    // live_fds: what ZeroMQ has accepted and not closed, as many as this process may open; by_fd: of these who was heard.
    gs_u64_map by_route, by_fd, live_fds, sessions;
    gs_port_watch watch;
    size_t num_absent;
    uint64_t last_connection, last_session;
    uint64_t seed;  // of keys of sessions: who shows a token chooses it
    int pings_a_second;
    int64_t silence_floor_ns;  // nobody was listened to before
    bool any_lost;
    uint64_t num_revoked;  // connections that were ended because their keys had
    uint64_t num_full;     // that were refused: there are too many
    uint64_t num_early;    // sessions that were forgotten before their time: too many are absent
    uint64_t num_sent, num_slow;  // frames; those for which too many or too much waits already
    gs_send_gauge *unread;        // owned; of all connections
    gs_send_body *last_body;      // owned; many are often told the same
} gs_rpc_peers;

void gs_rpc_peers_init(gs_rpc_peers *peers, uint32_t coordinator_epoch);
void gs_rpc_peers_release(gs_rpc_peers *peers);

// Takes what the monitor has to say; marks connections lost.
void gs_rpc_peers_read_events(gs_rpc_peers *peers);
gs_rpc_connection *gs_rpc_peers_find(const gs_rpc_peers *peers, const gs_zmq_route *route);
// The connection a valid frame came on, made when new. NULL: out of memory or room, or a frame of another incarnation or
// launch token than the connection's first, or of one that another key has begun; or its key counts no longer.
gs_rpc_connection *gs_rpc_peers_accept(gs_rpc_peers *peers, const gs_zmq_route *route,
                                       const gs_frame *frame, int64_t now_ns);
// Longer bodies are counted: of a connection no more than this waits to be read, and less where others together hold so much.
#define GS_COUNTED_BODY_BYTES 512
#define GS_MOST_UNREAD_BYTES ((size_t)64 << 20)
#define GS_MANY_UNREAD_BYTES ((size_t)512 << 20)  // of all: then no connection may have more than
#define GS_FAIR_UNREAD_BYTES ((size_t)1 << 20)

// Fills in the header what belongs to the connection. 0, or the error of the send (EAGAIN: the peer reads too slowly); a peer that
// is gone is marked lost.
int gs_rpc_peers_send(gs_rpc_peers *peers, gs_rpc_connection *connection, gs_frame frame,
                      const char *body, size_t body_bytes);
void gs_rpc_peers_mark_lost(gs_rpc_peers *peers, gs_rpc_connection *connection);
// Answers a ping, and tells how soon the next one is wanted.
void gs_rpc_peers_answer_ping(gs_rpc_peers *peers, gs_rpc_connection *connection, uint64_t ping);
// Ends connections whose keys count no longer.
void gs_rpc_peers_judge(gs_rpc_peers *peers);
void gs_rpc_peers_mark_silent(gs_rpc_peers *peers, int64_t now_ns);
// Frees the connection (its streams have been ended); its session stays for a while.
void gs_rpc_peers_drop(gs_rpc_peers *peers, gs_rpc_connection *connection, int64_t now_ns);
// The oldest session that nobody came back for, NULL when none is due: to be forgotten.
gs_rpc_session *gs_rpc_peers_expired(gs_rpc_peers *peers, int64_t now_ns);
// Frees the session (its calls have been ended) without a connection.
void gs_rpc_peers_forget(gs_rpc_peers *peers, gs_rpc_session *session);

#endif
