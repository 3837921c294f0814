#include "rpc/server/rpc_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"

#define MAX_OPEN_OF_SESSION 4096
#define MAX_ANSWERS_OF_SESSION 4096
#define MAX_ANSWERED_BYTES_OF_SESSION ((size_t)8 << 20)
#define MAX_ANSWERED_BYTES ((size_t)64 << 20)

void gs_rpc_calls_init(gs_rpc_calls *calls, gs_rpc_peers *peers,
                       void (*gone)(void *ctx, gs_rpc_call_entry *call), void *ctx) {
    *calls =
        (gs_rpc_calls){.peers = peers, .gone = gone, .ctx = ctx, .next_deadline_ns = INT64_MAX};
    TAILQ_INIT(&calls->queue);
    TAILQ_INIT(&calls->ending);
    TAILQ_INIT(&calls->timed);
}

void gs_rpc_calls_release(gs_rpc_calls *calls) {
    gs_u64_map_release(&calls->by_key);
}

// Serials are small and counted, so the pair fits: 2^24 sessions before a seq of 2^40 could meet
// another's.
static uint64_t key_of(const gs_rpc_session *session, uint64_t seq) {
    uint64_t key =
        (session->serial << 40) ^ seq ^ (session->serial >> 24) * UINT64_C(0x9e3779b97f4a7c15);
    return key ? key : 1;
}

gs_rpc_call_entry *gs_rpc_calls_find(const gs_rpc_calls *calls, const gs_rpc_session *session,
                                     uint64_t seq) {
    gs_rpc_call_entry *call = gs_u64_map_get(&calls->by_key, key_of(session, seq));
    return call && call->session == session && call->seq == seq ? call : NULL;
}

gs_rpc_call_entry *gs_rpc_calls_open(gs_rpc_calls *calls, gs_rpc_connection *connection,
                                     const gs_frame *frame, bool is_stream, gs_deadline deadline) {
    gs_rpc_session *session = connection->session;
    uint64_t key = key_of(session, frame->seq);
    if (session->num_open >= MAX_OPEN_OF_SESSION) {
        calls->num_over++;
        return NULL;
    }
    if (gs_u64_map_get(&calls->by_key, key)) return NULL;
    gs_rpc_call_entry *call = calloc(1, sizeof *call);
    if (!call || !gs_u64_map_set(&calls->by_key, key, call)) {
        free(call);
        return NULL;
    }
    call->table = calls;
    call->session = session;
    call->peer = connection->peer;
    call->state = GS_RPC_CALL_OPEN;
    call->method = frame->method;
    call->is_stream = is_stream;
    call->key = key;
    call->seq = frame->seq;
    call->deadline = deadline;
    TAILQ_INSERT_TAIL(&session->calls, call, next_of_session);
    session->num_open++;
    calls->num_open++;
    if (is_stream) {
        call->connection = connection;
        TAILQ_INSERT_TAIL(&connection->streams, call, next_of_connection);
    } else {
        TAILQ_INSERT_TAIL(&calls->timed, call, next_waiting);
        if (deadline.at_ns < calls->next_deadline_ns) calls->next_deadline_ns = deadline.at_ns;
    }
    return call;
}

// Out of whichever list its state has put it in.
static void stop_waiting(gs_rpc_calls *calls, gs_rpc_call_entry *call) {
    if (call->state == GS_RPC_CALL_QUEUED) {
        TAILQ_REMOVE(&calls->queue, call, next_waiting);
        calls->num_queued--;
        calls->queued_bytes -= call->request_bytes;
        free(call->request);
        call->request = NULL;
    } else if (call->state == GS_RPC_CALL_ENDING) {
        TAILQ_REMOVE(&calls->ending, call, next_waiting);
        calls->ending_bytes -= call->answer_bytes;
        call->session->ending_bytes -= call->answer_bytes;
    } else if (call->state == GS_RPC_CALL_OPEN && !call->is_stream) {
        if (calls->next_timed == call) calls->next_timed = TAILQ_NEXT(call, next_waiting);
        TAILQ_REMOVE(&calls->timed, call, next_waiting);
    }
}

void gs_rpc_calls_begin_expiry(gs_rpc_calls *calls) {
    calls->next_timed = TAILQ_FIRST(&calls->timed);
    calls->next_deadline_ns = INT64_MAX;
}

gs_rpc_call_entry *gs_rpc_calls_next_expired(gs_rpc_calls *calls, int64_t now_ns) {
    gs_rpc_call_entry *call;
    while ((call = calls->next_timed)) {
        calls->next_timed = TAILQ_NEXT(call, next_waiting);
        if (call->deadline.at_ns <= now_ns) return call;
        if (call->deadline.at_ns < calls->next_deadline_ns) {
            calls->next_deadline_ns = call->deadline.at_ns;
        }
    }
    return NULL;
}

bool gs_rpc_calls_enqueue(gs_rpc_calls *calls, gs_rpc_call_entry *call, const void *request,
                          size_t bytes) {
    bool fits = calls->num_queued == 0 || calls->queued_bytes + bytes <= GS_RPC_MAX_QUEUED_BYTES;
    if (!fits || calls->num_queued >= GS_RPC_MAX_QUEUED) return false;
    call->request = malloc(bytes ? bytes : 1);
    if (!call->request) return false;
    if (bytes) memcpy(call->request, request, bytes);
    call->request_bytes = bytes;
    stop_waiting(calls, call);
    call->state = GS_RPC_CALL_QUEUED;
    TAILQ_INSERT_TAIL(&calls->queue, call, next_waiting);
    calls->num_queued++;
    calls->queued_bytes += bytes;
    return true;
}

gs_rpc_call_entry *gs_rpc_calls_dequeue(gs_rpc_calls *calls) {
    gs_rpc_call_entry *call = TAILQ_FIRST(&calls->queue);
    if (!call) return NULL;
    TAILQ_REMOVE(&calls->queue, call, next_waiting);
    calls->num_queued--;
    calls->queued_bytes -= call->request_bytes;
    call->state = GS_RPC_CALL_OPEN;
    if (!call->is_stream) {
        TAILQ_INSERT_TAIL(&calls->timed, call, next_waiting);
        if (call->deadline.at_ns < calls->next_deadline_ns) {
            calls->next_deadline_ns = call->deadline.at_ns;
        }
    }
    return call;
}

static void leave_connection(gs_rpc_call_entry *call) {
    if (!call->connection) return;
    TAILQ_REMOVE(&call->connection->streams, call, next_of_connection);
    call->connection = NULL;
}

void gs_rpc_calls_drop(gs_rpc_calls *calls, gs_rpc_call_entry *call) {
    gs_rpc_session *session = call->session;
    stop_waiting(calls, call);
    leave_connection(call);
    gs_u64_map_remove(&calls->by_key, call->key);
    if (call->state == GS_RPC_CALL_ANSWERED) {
        TAILQ_REMOVE(&session->answered, call, next_of_session);
        session->num_answered--;
        session->answered_bytes -= call->answer_bytes;
        calls->answered_bytes -= call->answer_bytes;
    } else {
        TAILQ_REMOVE(&session->calls, call, next_of_session);
        session->num_open--;
        calls->num_open--;
    }
    free(call->request);
    free(call->answer);
    free(call->audited);
    free(call);
}

bool gs_rpc_calls_was_closed(const gs_rpc_call_entry *call) {
    const gs_rpc_connection *connection = call->connection;
    return call->cancelled || (connection && connection->closed && !connection->deaf);
}

void gs_rpc_calls_lose(gs_rpc_calls *calls, gs_rpc_call_entry *call) {
    if (call->state == GS_RPC_CALL_OPEN) {
        if (calls->audit_end) calls->audit_end(calls->audit, call, GS_CANCELLED, NULL);
        if (calls->tap && call->number)
            calls->tap->gone(calls->tap->ctx, call->number, gs_rpc_calls_was_closed(call));
        if (calls->gone) calls->gone(calls->ctx, call);
    }
    gs_rpc_calls_drop(calls, call);
}

// The oldest answers go first. What was answered and is no longer kept must not run again. The API of this process, whose
// lists are long and whose line does not break, does not ask again: of what is not kept for it nothing is missed.
static void make_room(gs_rpc_calls *calls, gs_rpc_session *session) {
    bool asks_again = !session->connection || !session->connection->peer.caller.is_local;
    while (session->num_answered > MAX_ANSWERS_OF_SESSION ||
           session->answered_bytes > MAX_ANSWERED_BYTES_OF_SESSION ||
           calls->answered_bytes > MAX_ANSWERED_BYTES) {
        gs_rpc_call_entry *oldest = TAILQ_FIRST(&session->answered);
        if (!oldest) return;
        if (oldest->seq > session->settled_seq) session->settled_seq = oldest->seq;
        calls->num_unkept += asks_again;
        gs_rpc_calls_drop(calls, oldest);
    }
}

void gs_rpc_calls_answer(gs_rpc_calls *calls, gs_rpc_call_entry *call, gs_code code, char *answer,
                         size_t bytes) {
    gs_rpc_session *session = call->session;
    stop_waiting(calls, call);
    leave_connection(call);
    free(call->answer);
    TAILQ_REMOVE(&session->calls, call, next_of_session);
    TAILQ_INSERT_TAIL(&session->answered, call, next_of_session);
    session->num_open--;
    session->num_answered++;
    calls->num_open--;
    call->state = GS_RPC_CALL_ANSWERED;
    call->data = NULL;
    call->code = code;
    call->answer = answer;
    call->answer_bytes = bytes;
    session->answered_bytes += bytes;
    calls->answered_bytes += bytes;
    make_room(calls, session);
}

// Few bytes go where ZeroMQ's queue has a place, however much lies there: most often at the next try.
static void cut_end(gs_rpc_calls *calls, gs_rpc_call_entry *call) {
    static const char body[] = "{\"message\":\"too many answers wait to be read\"}";
    free(call->answer);
    call->answer = malloc(sizeof body - 1);  // without it the code says enough
    call->answer_bytes = call->answer ? sizeof body - 1 : 0;
    if (call->answer) memcpy(call->answer, body, sizeof body - 1);
    call->code = GS_RESOURCE_EXHAUSTED;
    calls->num_cut++;
}

void gs_rpc_calls_postpone_end(gs_rpc_calls *calls, gs_rpc_call_entry *call, gs_code code,
                               char *answer, size_t bytes) {
    call->state = GS_RPC_CALL_ENDING;
    call->data = NULL;
    call->code = code;
    call->answer = answer;
    call->answer_bytes = bytes;
    bool fits = calls->ending_bytes + bytes <= GS_RPC_MAX_ENDING_BYTES &&
                call->session->ending_bytes + bytes <= GS_RPC_MAX_ENDING_BYTES_OF_SESSION;
    if (!fits && bytes >= GS_COUNTED_BODY_BYTES) cut_end(calls, call);
    calls->ending_bytes += call->answer_bytes;
    call->session->ending_bytes += call->answer_bytes;
    TAILQ_INSERT_TAIL(&calls->ending, call, next_waiting);
}

void gs_rpc_calls_settle(gs_rpc_calls *calls, gs_rpc_session *session, uint64_t ack) {
    if (ack <= session->settled_seq) return;
    session->settled_seq = ack;
    gs_rpc_call_entry *call = TAILQ_FIRST(&session->answered), *following;
    for (; call; call = following) {
        following = TAILQ_NEXT(call, next_of_session);
        if (call->seq <= ack) gs_rpc_calls_drop(calls, call);
    }
}

static gs_status pass_reply(void) {
    GS_FAILPOINT("rpc.reply");
    return gs_ok();
}

void gs_rpc_calls_send_answer(gs_rpc_calls *calls, const gs_rpc_call_entry *call) {
    gs_rpc_connection *connection = call->session->connection;
    if (!connection || connection->lost || pass_reply().code) return;
    gs_frame frame = {
        .kind = GS_FRAME_REPLY, .method = call->method, .status = call->code, .call = call->seq};
    int error =
        gs_rpc_peers_send(calls->peers, connection, frame, call->answer, call->answer_bytes);
    (void)error;
}

int gs_rpc_calls_send_end(gs_rpc_calls *calls, gs_rpc_call_entry *call, gs_code code,
                          const char *answer, size_t bytes) {
    if (!call->connection) return EHOSTUNREACH;
    // Also where the connection is given up: its peer may be there, and would wait for ever.
    gs_frame frame = {
        .kind = GS_FRAME_END, .method = call->method, .status = code, .call = call->seq};
    int error = gs_rpc_peers_send(calls->peers, call->connection, frame, answer, bytes);
    bool is_known = error == EAGAIN && call->state == GS_RPC_CALL_ENDING;  // it waits as before, and was counted then
    if (is_known) calls->peers->num_slow--;
    return error;
}
