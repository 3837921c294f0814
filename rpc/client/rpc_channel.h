// What is under way between a client and its server, and the loop that moves its frames. Internal
// to the client, which waits for what comes of it.
//
// `lock` guards everything below it; operations belong to their caller or stream, and are in the
// lists only while the server owes something. The socket belongs to the i/o thread alone.
#ifndef RPC_CLIENT_RPC_CHANNEL_H
#define RPC_CLIENT_RPC_CHANNEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/clock.h"
#include "core/status.h"
#include "core/u64_map.h"
#include "rpc/client/rpc_identity.h"
#include "rpc/schema/messages.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/zmq_socket.h"

typedef struct gs_rpc_item_node {
    STAILQ_ENTRY(gs_rpc_item_node) next;
    size_t bytes;
    char text[];
} gs_rpc_item_node;

// A call or a stream that the server owes something.
typedef struct gs_rpc_operation {
    TAILQ_ENTRY(gs_rpc_operation) next;  // in channel->calls or channel->streams, by seq
    uint64_t seq;
    gs_method method;
    bool is_stream;
    const char *body;
    size_t body_bytes;
    gs_deadline deadline;        // of calls
    int64_t sent_ns, repeat_ns;  // on this connection; 0: not yet
    int num_sent;
    uint32_t coord_epoch;  // that was known when it was sent
    pthread_cond_t changed;
    // Set by the i/o thread; an operation that is done is in no list.
    bool done;
    gs_code code;
    uint16_t peer_proto;  // of an answer in a version that this side does not speak
    char *answer;  // body of the reply or of the end
    size_t answer_bytes;
    STAILQ_HEAD(, gs_rpc_item_node) items;
    size_t num_items, item_bytes;
} gs_rpc_operation;

// A frame that waits for the socket: a one-way message or a cancel (body owned), or the first
// sending of an operation (looked up by its seq: it may have been given up meanwhile).
typedef struct gs_rpc_outgoing {
    STAILQ_ENTRY(gs_rpc_outgoing) next;
    gs_frame_kind kind;
    gs_method method;
    uint64_t seq, call;
    char *body;
    size_t body_bytes;
} gs_rpc_outgoing;

typedef struct gs_rpc_channel {
    gs_rpc_context *context;
    char *endpoint;
    bool is_inproc;
    uint64_t job, incarnation;
    uint64_t shown_token;  // in each frame; 0: none
    atomic_uint generation;
    atomic_bool connected;
    atomic_int refusal;  // gs_rpc_refusal
    int wake_fd;

    // Of the i/o thread.
    gs_zmq_socket socket;
    char *key_path;            // owned; NULL: source, or none
    gs_rpc_key_source source;  // {0}: key_path, or none
    bool has_key;
    gs_key_file key;  // as last read
    int64_t key_looked_ns, open_warned_ns;
    int num_refused;  // since it was let in
    bool linked;  // frames can be sent
    int64_t linked_ns, heard_ns, sent_ns, pinged_ns, told_silence_ns, retry_ns, warned_ns;
    int64_t pace_ns;  // how often the server is to be heard from, and hears
    uint64_t num_malformed;

    pthread_mutex_t lock;
    bool closed;
    uint64_t last_seq;
    uint32_t coord_epoch;
    int64_t next_repeat_ns;
    TAILQ_HEAD(, gs_rpc_operation) calls, streams;
    size_t num_operations;
    gs_u64_map operations;  // by seq
    STAILQ_HEAD(, gs_rpc_outgoing) outgoing;
    size_t num_outgoing;
} gs_rpc_channel;

GS_NODISCARD gs_status gs_rpc_channel_init(gs_rpc_channel *channel, gs_rpc_context *context,
                                           const char *endpoint, uint64_t job,
                                           uint64_t incarnation);
// The key of this side, once, before the thread runs.
GS_NODISCARD gs_status gs_rpc_channel_take_key(gs_rpc_channel *channel, const char *path, gs_rpc_key_source source);
void gs_rpc_channel_release(gs_rpc_channel *channel);  // when nothing runs on it any more

// The thread of the socket. ctx: the channel.
void gs_rpc_channel_run(void *ctx, const atomic_bool *stopping);
void gs_rpc_channel_wake(gs_rpc_channel *channel);

// Under the lock.
GS_NODISCARD gs_status gs_rpc_channel_begin(gs_rpc_channel *channel, gs_rpc_operation *operation);
// Takes the operation out of the lists; tells the server when it may know of it.
void gs_rpc_channel_give_up(gs_rpc_channel *channel, gs_rpc_operation *operation);
// Takes `body`. False when too many wait: dropped.
bool gs_rpc_channel_push(gs_rpc_channel *channel, gs_frame_kind kind, gs_method method,
                         uint64_t call, char *body, size_t body_bytes);
void gs_rpc_operation_finish(gs_rpc_channel *channel, gs_rpc_operation *operation, gs_code code);

#endif
