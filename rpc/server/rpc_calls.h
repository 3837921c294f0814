// The calls and streams of a server: open ones, and answers that may still be asked for again.
// Internal to the server; one thread. What a handler sees of a call is rpc_call.h.
#ifndef RPC_SERVER_RPC_CALLS_H
#define RPC_SERVER_RPC_CALLS_H

#include "rpc/keys/audit.h"
#include "rpc/server/rpc_peers.h"
#include "rpc/server/rpc_tap.h"

// No client counts this far; above it, calls of different sessions might be taken for one another.
#define GS_RPC_MAX_SEQ (UINT64_C(1) << 40)

typedef enum gs_rpc_call_state {
    GS_RPC_CALL_QUEUED = 0,  // its handler has not seen it; it is in the server's queue
    GS_RPC_CALL_OPEN,        // with its handler, or kept
    GS_RPC_CALL_ENDING,      // a stream whose end did not fit the peer's queue yet
    GS_RPC_CALL_ANSWERED     // kept for repeats only
} gs_rpc_call_state;

typedef struct gs_rpc_call_entry {
    TAILQ_ENTRY(gs_rpc_call_entry) next_of_session;     // calls or answered
    TAILQ_ENTRY(gs_rpc_call_entry) next_of_connection;  // streams
    TAILQ_ENTRY(gs_rpc_call_entry) next_waiting;        // queue, ending or timed
    struct gs_rpc_calls *table;
    gs_rpc_session *session;
    gs_rpc_connection *connection;  // of a stream, while it lasts
    gs_rpc_peer peer;
    gs_rpc_call_state state;
    gs_method method;
    bool is_stream, cancelled;  // the latter by its caller
    uint64_t key, seq;
    uint64_t number;  // as handlers got them; 0: none has it yet
    gs_deadline deadline;  // of calls
    void *data;
    char *request;  // while queued
    size_t request_bytes;
    gs_code code;  // when answered or ending
    char *answer;
    size_t answer_bytes;
    struct gs_audited_call *audited;  // owned; what its lines of the audit say; NULL: it has none, or the last is written
} gs_rpc_call_entry;

typedef struct gs_rpc_calls {
    gs_rpc_peers *peers;
    // Told of a call that its handler knows and that is over without it; may be NULL.
    void (*gone)(void *ctx, gs_rpc_call_entry *call);
    void *ctx;
    gs_u64_map by_key;
    gs_rpc_call_list queue;  // API requests, oldest first
    gs_rpc_call_list ending;
    gs_rpc_call_list timed;         // open calls
    gs_rpc_call_entry *next_timed;  // where a walk over them goes on; moves when that one leaves
    const gs_rpc_tap *tap;  // borrowed; may be NULL
    gs_audit *audit;        // likewise
    // Writes the last line of a call there; NULL where there is no audit.
    void (*audit_end)(gs_audit *audit, gs_rpc_call_entry *call, gs_code code, const gs_json *body);
    size_t num_queued, queued_bytes, num_open;
    uint64_t num_handled;
    size_t answered_bytes;
    size_t ending_bytes;  // of ends that wait for room
    uint64_t num_cut;     // ends that were sent without their bodies
    uint64_t num_over;    // calls that were not opened: their session has too many
    uint64_t num_unkept;  // answers that went before they were settled: too many are kept, or too much
    int64_t next_deadline_ns;  // none is earlier
} gs_rpc_calls;

void gs_rpc_calls_init(gs_rpc_calls *calls, gs_rpc_peers *peers,
                       void (*gone)(void *ctx, gs_rpc_call_entry *call), void *ctx);
void gs_rpc_calls_release(gs_rpc_calls *calls);
gs_rpc_call_entry *gs_rpc_calls_find(const gs_rpc_calls *calls, const gs_rpc_session *session,
                                     uint64_t seq);
// The next open call whose deadline has passed; NULL: no more. Between two of these any call may be
// ended or dropped.
void gs_rpc_calls_begin_expiry(gs_rpc_calls *calls);
gs_rpc_call_entry *gs_rpc_calls_next_expired(gs_rpc_calls *calls, int64_t now_ns);
// An open call or stream; NULL: no room.
gs_rpc_call_entry *gs_rpc_calls_open(gs_rpc_calls *calls, gs_rpc_connection *connection,
                                     const gs_frame *frame, bool is_stream, gs_deadline deadline);
// False: too many requests wait already, or too much of them.
#define GS_RPC_MAX_QUEUED 8192
#define GS_RPC_MAX_QUEUED_BYTES ((size_t)64 << 20)
GS_NODISCARD bool gs_rpc_calls_enqueue(gs_rpc_calls *calls, gs_rpc_call_entry *call,
                                       const void *request, size_t bytes);
gs_rpc_call_entry *gs_rpc_calls_dequeue(gs_rpc_calls *calls);  // NULL: empty
// Keeps the answer for repeats; takes `answer`.
void gs_rpc_calls_answer(gs_rpc_calls *calls, gs_rpc_call_entry *call, gs_code code, char *answer,
                         size_t bytes);
// A stream's end that waits for room; takes `answer`. Where too much waits already, of this session or of all, it waits
// without its body, as RESOURCE_EXHAUSTED.
#define GS_RPC_MAX_ENDING_BYTES ((size_t)64 << 20)
#define GS_RPC_MAX_ENDING_BYTES_OF_SESSION ((size_t)8 << 20)
void gs_rpc_calls_postpone_end(gs_rpc_calls *calls, gs_rpc_call_entry *call, gs_code code,
                               char *answer, size_t bytes);
// To the session's newest connection. An answer that does not get through is asked for again by the
// client.
void gs_rpc_calls_send_answer(gs_rpc_calls *calls, const gs_rpc_call_entry *call);
// A stream's end. 0, or the error of the send.
int gs_rpc_calls_send_end(gs_rpc_calls *calls, gs_rpc_call_entry *call, gs_code code,
                          const char *answer, size_t bytes);
// Frees it, whatever its state.
void gs_rpc_calls_drop(gs_rpc_calls *calls, gs_rpc_call_entry *call);
bool gs_rpc_calls_was_closed(const gs_rpc_call_entry *call);  // as rpc_call.h has it
// Drops it; its handler, if it knows of it, is told to forget it.
void gs_rpc_calls_lose(gs_rpc_calls *calls, gs_rpc_call_entry *call);
// Answers that the client no longer waits for.
void gs_rpc_calls_settle(gs_rpc_calls *calls, gs_rpc_session *session, uint64_t ack);

#endif
