#include "rpc/client/rpc_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/log.h"
#include "core/random.h"

#define MAX_OPERATIONS 4096
#define MAX_OUTGOING 4096
#define MAX_STREAM_ITEMS 4096
#define MAX_STREAM_BYTES ((size_t)16 << 20)
#define FIRST_REPEAT_NS (500 * GS_NS_PER_MS)
#define LAST_REPEAT_NS (4 * GS_NS_PER_SEC)
// Unless the server tells of a slower one: a client lets no longer pass without a frame.
#define PACE_NS GS_NS_PER_SEC
#define SLOWEST_PACE_NS (60 * GS_NS_PER_SEC)
// A silent server is told so this long before the connection is closed.
#define SILENCE_TOLD_NS (200 * GS_NS_PER_MS)
#define REOPEN_NS (200 * GS_NS_PER_MS)
// Whom the server refused asks again after this: his key may be known, or another one in its file, by then. At first sooner: that of
// a rank is told by its agent, which may come to it a moment later.
#define REFUSED_NS GS_NS_PER_SEC
#define FIRST_REFUSED_NS (50 * GS_NS_PER_MS)
#define MAX_FRAMES_A_ROUND 256

gs_status gs_rpc_channel_init(gs_rpc_channel *channel, gs_rpc_context *context,
                              const char *endpoint, uint64_t job, uint64_t incarnation) {
    *channel = (gs_rpc_channel){.context = context,
                                .is_inproc = strncmp(endpoint, "inproc://", 9) == 0,
                                .job = job,
                                .incarnation = incarnation,
                                .pace_ns = PACE_NS,
                                .next_repeat_ns = INT64_MAX};
    while (!channel->incarnation) channel->incarnation = gs_random_from_system();
    TAILQ_INIT(&channel->calls);
    TAILQ_INIT(&channel->streams);
    STAILQ_INIT(&channel->outgoing);
    pthread_mutex_init(&channel->lock, NULL);
    channel->endpoint = strdup(endpoint);
    channel->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    gs_status status = gs_ok();
    if (!channel->endpoint)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "rpc client: out of memory");
    else if (channel->wake_fd < 0)
        status = gs_error_from_errno(errno, "rpc client: eventfd");
    if (status.code) gs_rpc_channel_release(channel);
    return status;
}

gs_status gs_rpc_channel_take_key(gs_rpc_channel *channel, const char *path, gs_rpc_key_source source) {
    channel->source = source;
    if (!path || !*path) return gs_ok();
    channel->key_path = strdup(path);
    return channel->key_path ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "rpc client: out of memory");
}

void gs_rpc_channel_wake(gs_rpc_channel *channel) {
    uint64_t one = 1;
    // The counter is full only when the thread has not looked at it for ever so long: it is awake
    // then.
    ssize_t written = write(channel->wake_fd, &one, sizeof one);
    (void)written;
}

gs_status gs_rpc_channel_begin(gs_rpc_channel *channel, gs_rpc_operation *operation) {
    if (channel->closed) return gs_error(GS_CANCELLED, "the client is closed");
    if (channel->num_operations >= MAX_OPERATIONS) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "%d calls are under way", MAX_OPERATIONS);
    }
    if (!gs_rpc_channel_push(channel, GS_FRAME_REQUEST, operation->method, 0, NULL, 0)) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "%d messages wait to be sent", MAX_OUTGOING);
    }
    operation->seq = channel->last_seq;
    if (!gs_u64_map_set(&channel->operations, operation->seq, operation)) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    if (operation->is_stream)
        TAILQ_INSERT_TAIL(&channel->streams, operation, next);
    else
        TAILQ_INSERT_TAIL(&channel->calls, operation, next);
    channel->num_operations++;
    return gs_ok();
}

static void forget_operation(gs_rpc_channel *channel, gs_rpc_operation *operation) {
    gs_u64_map_remove(&channel->operations, operation->seq);
    if (operation->is_stream)
        TAILQ_REMOVE(&channel->streams, operation, next);
    else
        TAILQ_REMOVE(&channel->calls, operation, next);
    channel->num_operations--;
}

void gs_rpc_channel_give_up(gs_rpc_channel *channel, gs_rpc_operation *operation) {
    if (operation->done) return;
    forget_operation(channel, operation);
    if (!operation->num_sent || channel->closed) return;
    // Lost when the queue is full: the server forgets the call at its deadline, a stream with the
    // connection.
    gs_rpc_channel_push(channel, GS_FRAME_CANCEL, GS_METHOD_NONE, operation->seq, NULL, 0);
    gs_rpc_channel_wake(channel);
}

void gs_rpc_operation_finish(gs_rpc_channel *channel, gs_rpc_operation *operation, gs_code code) {
    forget_operation(channel, operation);
    operation->done = true;
    operation->code = code;
    pthread_cond_broadcast(&operation->changed);
}

bool gs_rpc_channel_push(gs_rpc_channel *channel, gs_frame_kind kind, gs_method method,
                         uint64_t call, char *body, size_t body_bytes) {
    gs_rpc_outgoing *outgoing =
        channel->num_outgoing < MAX_OUTGOING ? calloc(1, sizeof *outgoing) : NULL;
    if (!outgoing) {
        free(body);
        return false;
    }
    *outgoing = (gs_rpc_outgoing){.kind = kind,
                                  .method = method,
                                  .seq = ++channel->last_seq,
                                  .call = call,
                                  .body = body,
                                  .body_bytes = body_bytes};
    STAILQ_INSERT_TAIL(&channel->outgoing, outgoing, next);
    channel->num_outgoing++;
    return true;
}

static void pop_outgoing(gs_rpc_channel *channel) {
    gs_rpc_outgoing *outgoing = STAILQ_FIRST(&channel->outgoing);
    STAILQ_REMOVE_HEAD(&channel->outgoing, next);
    channel->num_outgoing--;
    free(outgoing->body);
    free(outgoing);
}

void gs_rpc_channel_release(gs_rpc_channel *channel) {
    if (channel->wake_fd >= 0) close(channel->wake_fd);
    while (!STAILQ_EMPTY(&channel->outgoing)) pop_outgoing(channel);
    gs_u64_map_release(&channel->operations);
    pthread_mutex_destroy(&channel->lock);
    gs_key_file_wipe(&channel->key);
    free(channel->key_path);
    free(channel->endpoint);
}

// Every request of ours up to this seq has been answered or given up, so the server may forget its
// answers, and refuse to run it again. Streams count once they were sent: they are never repeated.
static uint64_t settled_seq(const gs_rpc_channel *channel) {
    const gs_rpc_operation *oldest = TAILQ_FIRST(&channel->calls);
    const gs_rpc_outgoing *first = STAILQ_FIRST(&channel->outgoing);
    uint64_t settled = channel->last_seq;
    if (oldest && oldest->seq <= settled) settled = oldest->seq - 1;
    if (first && first->seq <= settled) settled = first->seq - 1;
    return settled;
}

static int send_frame(gs_rpc_channel *channel, gs_frame frame, const char *body,
                      size_t body_bytes) {
    frame.job = channel->job;
    frame.incarnation = channel->incarnation;
    frame.generation = atomic_load_explicit(&channel->generation, memory_order_relaxed);
    frame.coord_epoch = channel->coord_epoch;
    frame.ack = settled_seq(channel);
    frame.token = channel->shown_token;
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &frame, body, body_bytes);
    channel->sent_ns = gs_now_ns();
    return gs_zmq_send(&channel->socket, NULL, header, body, body_bytes);
}

static uint32_t time_left_ms(const gs_rpc_operation *operation) {
    if (operation->is_stream) return 0;
    int left_ms = gs_deadline_left_ms(operation->deadline);
    return left_ms > 0 ? (uint32_t)left_ms : 1;
}

static int send_operation(gs_rpc_channel *channel, gs_rpc_operation *operation) {
    int error = send_frame(channel,
                           (gs_frame){.kind = GS_FRAME_REQUEST,
                                      .method = operation->method,
                                      .seq = operation->seq,
                                      .time_left_ms = time_left_ms(operation)},
                           operation->body, operation->body_bytes);
    if (error) return error;
    operation->coord_epoch = channel->coord_epoch;
    int64_t pause_ns = FIRST_REPEAT_NS << (operation->num_sent < 3 ? operation->num_sent : 3);
    operation->num_sent++;
    operation->sent_ns = gs_now_ns();
    operation->repeat_ns =
        operation->sent_ns + (pause_ns < LAST_REPEAT_NS ? pause_ns : LAST_REPEAT_NS);
    if (!operation->is_stream && operation->repeat_ns < channel->next_repeat_ns) {
        channel->next_repeat_ns = operation->repeat_ns;
    }
    return 0;
}

static int send_outgoing(gs_rpc_channel *channel, const gs_rpc_outgoing *outgoing) {
    if (outgoing->kind == GS_FRAME_REQUEST) {
        gs_rpc_operation *operation = gs_u64_map_get(&channel->operations, outgoing->seq);
        return operation && !operation->sent_ns ? send_operation(channel, operation) : 0;
    }
    return send_frame(channel,
                      (gs_frame){.kind = outgoing->kind,
                                 .method = outgoing->method,
                                 .seq = outgoing->seq,
                                 .call = outgoing->call},
                      outgoing->body, outgoing->body_bytes);
}

static void send_repeats(gs_rpc_channel *channel) {
    int64_t now_ns = gs_now_ns();
    if (now_ns < channel->next_repeat_ns) return;
    channel->next_repeat_ns = INT64_MAX;
    gs_rpc_operation *operation;
    TAILQ_FOREACH(operation, &channel->calls, next) {
        if (!operation->sent_ns) continue;
        if (operation->repeat_ns <= now_ns && send_operation(channel, operation) != 0) {
            operation->repeat_ns = now_ns + FIRST_REPEAT_NS;  // the queue is full: it is not lost
        }
        if (operation->repeat_ns < channel->next_repeat_ns)
            channel->next_repeat_ns = operation->repeat_ns;
    }
}

// False when the socket takes no more.
static bool flush_outgoing(gs_rpc_channel *channel) {
    while (!STAILQ_EMPTY(&channel->outgoing)) {
        if (send_outgoing(channel, STAILQ_FIRST(&channel->outgoing)) != 0) return false;
        pop_outgoing(channel);
    }
    return true;
}

static void send_ping(gs_rpc_channel *channel, uint32_t time_left_ms) {
    int error = send_frame(channel,
                           (gs_frame){.kind = GS_FRAME_PING,
                                      .seq = ++channel->last_seq,
                                      .time_left_ms = time_left_ms},
                           NULL, 0);
    (void)error;  // nobody to send it to is silence too
    channel->pinged_ns = gs_now_ns();
}

// After a (re)connect: everything that is owed goes out again, in order, then what waits behind it.
static void begin_link(gs_rpc_channel *channel) {
    channel->linked = true;
    channel->linked_ns = channel->heard_ns = gs_now_ns();
    channel->pace_ns = PACE_NS;  // another server may be of before, and tell nothing
    pthread_mutex_lock(&channel->lock);
    send_ping(channel, 0);
    gs_rpc_operation *operation;
    TAILQ_FOREACH(operation, &channel->calls, next) {
        if (operation->num_sent && send_operation(channel, operation) != 0) {
            // Goes out with the repeats.
            operation->sent_ns = channel->linked_ns;
            operation->repeat_ns = channel->next_repeat_ns = channel->linked_ns;
        }
    }
    pthread_mutex_unlock(&channel->lock);
}

// Streams that the server knew end; calls wait for the next connection; one-way messages are lost.
static void end_link(gs_rpc_channel *channel) {
    channel->linked = false;
    atomic_store(&channel->connected, false);
    pthread_mutex_lock(&channel->lock);
    gs_rpc_operation *operation, *following;
    for (operation = TAILQ_FIRST(&channel->streams); operation; operation = following) {
        following = TAILQ_NEXT(operation, next);
        if (operation->num_sent) gs_rpc_operation_finish(channel, operation, GS_UNAVAILABLE);
    }
    TAILQ_FOREACH(operation, &channel->calls, next) operation->sent_ns = 0;
    channel->next_repeat_ns = INT64_MAX;
    STAILQ_HEAD(, gs_rpc_outgoing) kept = STAILQ_HEAD_INITIALIZER(kept);
    while (!STAILQ_EMPTY(&channel->outgoing)) {
        gs_rpc_outgoing *outgoing = STAILQ_FIRST(&channel->outgoing);
        if (outgoing->kind == GS_FRAME_ONE_WAY) {
            pop_outgoing(channel);
        } else {
            STAILQ_REMOVE_HEAD(&channel->outgoing, next);
            STAILQ_INSERT_TAIL(&kept, outgoing, next);
        }
    }
    STAILQ_CONCAT(&channel->outgoing, &kept);
    pthread_mutex_unlock(&channel->lock);
}

static gs_status set_client_options(gs_rpc_channel *channel) {
    gs_zmq_socket *socket = &channel->socket;
    GS_TRY(gs_zmq_set_int(socket, ZMQ_IMMEDIATE, 1));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_SNDHWM, 256));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_RCVHWM, 1024));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_CONNECT_TIMEOUT, 300));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_RECONNECT_IVL, 20));
    // watch_silence.
    return gs_zmq_set_int(socket, ZMQ_RECONNECT_IVL_MAX, 200);
}

static bool shows_key(const gs_rpc_channel *channel) {
    return channel->key_path || channel->source.read;
}

static gs_status ask_for_key(gs_rpc_channel *channel, gs_key_file *key) {
    channel->key_looked_ns = gs_now_ns();
    return channel->source.read ? channel->source.read(channel->source.ctx, key) : gs_key_file_read(key, NULL, channel->key_path);
}

static gs_status read_key(gs_rpc_channel *channel) {
    if (!shows_key(channel)) return gs_ok();
    gs_status status = ask_for_key(channel, &channel->key);
    channel->has_key = !status.code;
    if (status.code) atomic_store(&channel->refusal, GS_RPC_NO_KEY);
    return status;
}

// No routing id is set: the server draws one for each connection, so a reconnect can never be
// mistaken for its own ghost.
static gs_status open_socket(gs_rpc_channel *channel) {
    GS_TRY(gs_zmq_socket_open(&channel->socket, channel->context, ZMQ_DEALER,
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | GS_ZMQ_HANDSHAKE_FAILED));
    gs_status status = set_client_options(channel);
    if (!status.code) status = read_key(channel);
    if (!status.code && channel->has_key) status = gs_zmq_show_key(&channel->socket, &channel->key.pair, &channel->key.server);
    if (!status.code) status = gs_zmq_choose_family(&channel->socket, channel->endpoint);
    if (!status.code && zmq_connect(channel->socket.socket, channel->endpoint) != 0) {
        status =
            gs_error(GS_INVALID_ARGUMENT, "rpc: %s: %s", channel->endpoint, zmq_strerror(errno));
    }
    if (status.code) gs_zmq_socket_close(&channel->socket);
    return status;
}

static void reopen_socket(gs_rpc_channel *channel) {
    gs_zmq_socket_close(&channel->socket);
    gs_status status = open_socket(channel);
    if (status.code) {
        int64_t now_ns = gs_now_ns();
        if (!channel->open_warned_ns || now_ns - channel->open_warned_ns >= 60 * GS_NS_PER_SEC) {
            channel->open_warned_ns = now_ns;
            gs_log_warn("rpc socket not opened", "endpoint=%s error=\"%s\"", channel->endpoint, status.message);
        }
        channel->retry_ns = gs_now_ns() + (shows_key(channel) ? REFUSED_NS : REOPEN_NS);
    } else if (channel->is_inproc) {
        begin_link(channel);  // no monitor events there
    }
}

static void warn_refused(gs_rpc_channel *channel, gs_rpc_refusal refusal) {
    if ((gs_rpc_refusal)atomic_exchange(&channel->refusal, (int)refusal) == refusal) return;
    const char *why = refusal == GS_RPC_KEY_REFUSED ? "the coordinator does not let this key in"
                      : channel->has_key            ? "the coordinator is not the one that this key is for, or asks for none"
                                                    : "the coordinator asks for a key; --key has one";
    gs_log_error("rpc server refuses the connection", "endpoint=%s key=%s reason=\"%s\"", channel->endpoint,
                 channel->has_key ? channel->key.name : "none", why);
}

// ZeroMQ tries none of these again, or without an end with what it had then. A plain one whose server went away amid the
// handshake is none of them.
static bool was_refused(const gs_rpc_channel *channel, int event) {
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) return true;
    return event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && channel->has_key;
}

static void wait_refused(gs_rpc_channel *channel, int event) {
    warn_refused(channel, event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH ? GS_RPC_KEY_REFUSED : GS_RPC_OTHER_SERVER);
    gs_zmq_socket_close(&channel->socket);
    int64_t pause_ns = FIRST_REFUSED_NS << (channel->num_refused < 5 ? channel->num_refused : 5);
    channel->num_refused++;
    channel->retry_ns = gs_now_ns() + (pause_ns < REFUSED_NS ? pause_ns : REFUSED_NS);
}

static void read_events(gs_rpc_channel *channel) {
    int event, value;
    while (channel->socket.monitor && gs_zmq_next_event(&channel->socket, &event, &value)) {
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            atomic_store(&channel->refusal, GS_RPC_NOT_REFUSED);
            channel->num_refused = 0;
            begin_link(channel);
        } else if (event == ZMQ_EVENT_DISCONNECTED && channel->linked) {
            end_link(channel);
            if (shows_key(channel)) reopen_socket(channel);  // with the key of now
        } else if (!channel->linked && was_refused(channel, event)) {
            wait_refused(channel, event);
        }
    }
}

// While there is no connection: another key may be the one that the server lets in, or for the server that is there now.
static void watch_key(gs_rpc_channel *channel, int64_t now_ns) {
    if (!shows_key(channel) || channel->linked || now_ns - channel->key_looked_ns < REFUSED_NS) return;
    gs_key_file now;
    gs_status status = ask_for_key(channel, &now);
    bool is_another = !status.code && memcmp(&now, &channel->key, sizeof now) != 0;
    gs_key_file_wipe(&now);
    if (is_another) reopen_socket(channel);
}

static bool keep_answer(gs_rpc_operation *operation, const void *body, size_t body_bytes) {
    if (!body_bytes) return true;
    operation->answer = malloc(body_bytes);
    if (!operation->answer) return false;
    memcpy(operation->answer, body, body_bytes);
    operation->answer_bytes = body_bytes;
    return true;
}

static void take_item(gs_rpc_channel *channel, gs_rpc_operation *operation, const void *body,
                      size_t body_bytes) {
    gs_rpc_item_node *node = NULL;
    if (operation->num_items < MAX_STREAM_ITEMS && operation->item_bytes < MAX_STREAM_BYTES) {
        node = malloc(sizeof *node + body_bytes);
    }
    if (!node) {
        uint64_t seq = operation->seq;
        gs_rpc_operation_finish(channel, operation, GS_RESOURCE_EXHAUSTED);
        gs_rpc_channel_push(channel, GS_FRAME_CANCEL, GS_METHOD_NONE, seq, NULL, 0);
        return;
    }
    node->bytes = body_bytes;
    memcpy(node->text, body, body_bytes);
    STAILQ_INSERT_TAIL(&operation->items, node, next);
    operation->num_items++;
    operation->item_bytes += body_bytes;
    pthread_cond_broadcast(&operation->changed);
}

// A hello that was said before we knew which life of the server this is: it goes out again, as a new one. The server has nothing
// of the first.
static bool open_again(gs_rpc_channel *channel, gs_rpc_operation *operation, const gs_frame *frame) {
    if (frame->kind != GS_FRAME_END || frame->status != GS_UNAVAILABLE || operation->coord_epoch == frame->coord_epoch ||
        !operation->is_stream || !gs_method_info_of(operation->method)->control)
        return false;
    uint64_t seq = channel->last_seq + 1;
    if (!gs_u64_map_set(&channel->operations, seq, operation)) return false;
    gs_u64_map_remove(&channel->operations, operation->seq);
    operation->seq = channel->last_seq = seq;
    return send_operation(channel, operation) == 0;
}

static void take_pace(gs_rpc_channel *channel, const gs_frame *answer) {
    int64_t pace_ns = (int64_t)answer->time_left_ms * GS_NS_PER_MS;
    if (pace_ns > SLOWEST_PACE_NS) pace_ns = SLOWEST_PACE_NS;
    channel->pace_ns = pace_ns > PACE_NS ? pace_ns : PACE_NS;
}

static void accept_frame(gs_rpc_channel *channel, const gs_frame *frame, const void *body,
                         size_t body_bytes) {
    channel->coord_epoch = frame->coord_epoch;
    if (frame->kind == GS_FRAME_PING) take_pace(channel, frame);
    gs_rpc_operation *operation =
        frame->call ? gs_u64_map_get(&channel->operations, frame->call) : NULL;
    if (!operation || operation->method != frame->method) return;  // answered or given up before
    if (open_again(channel, operation, frame)) return;
    if (frame->kind == GS_FRAME_ITEM) {
        take_item(channel, operation, body, body_bytes);
    } else if (frame->kind == GS_FRAME_REPLY || frame->kind == GS_FRAME_END) {
        bool kept = keep_answer(operation, body, body_bytes);
        gs_rpc_operation_finish(channel, operation, kept ? frame->status : GS_RESOURCE_EXHAUSTED);
    }
}

static void count_malformed(gs_rpc_channel *channel, const char *reason) {
    channel->num_malformed++;
    int64_t now_ns = gs_now_ns();
    if (channel->warned_ns && now_ns - channel->warned_ns < 60 * GS_NS_PER_SEC) return;
    channel->warned_ns = now_ns;
    gs_log_warn("rpc frame dropped", "endpoint=%s reason=\"%s\" dropped=%llu", channel->endpoint,
                reason, (unsigned long long)channel->num_malformed);
}

static void receive_message(gs_rpc_channel *channel, gs_zmq_message *message) {
    gs_frame frame;
    const void *body = zmq_msg_data(&message->body);
    size_t body_bytes = zmq_msg_size(&message->body);
    gs_status status = gs_frame_unpack(&frame, zmq_msg_data(&message->header),
                                       zmq_msg_size(&message->header), body, body_bytes);
    if (status.code == GS_FAILED_PRECONDITION && frame.incarnation == channel->incarnation) {
        pthread_mutex_lock(&channel->lock);
        gs_rpc_operation *operation =
            frame.call ? gs_u64_map_get(&channel->operations, frame.call) : NULL;
        if (operation) {
            operation->peer_proto = frame.proto;
            gs_rpc_operation_finish(channel, operation, GS_FAILED_PRECONDITION);
        }
        pthread_mutex_unlock(&channel->lock);
    }
    if (status.code) {
        count_malformed(channel, status.message);
        return;
    }
    if (frame.incarnation != channel->incarnation) {
        count_malformed(channel, "for another incarnation");
        return;
    }
    channel->heard_ns = gs_now_ns();
    atomic_store(&channel->connected, true);
    pthread_mutex_lock(&channel->lock);
    accept_frame(channel, &frame, body, body_bytes);
    pthread_mutex_unlock(&channel->lock);
}

static void receive_messages(gs_rpc_channel *channel) {
    for (int i = 0; i < MAX_FRAMES_A_ROUND && channel->socket.socket; i++) {
        gs_zmq_message message;
        gs_zmq_outcome outcome = gs_zmq_receive(&channel->socket, &message, false);
        if (outcome == GS_ZMQ_NOTHING) return;
        if (outcome == GS_ZMQ_MALFORMED) {
            count_malformed(channel, "not two frames");
            continue;
        }
        receive_message(channel, &message);
        gs_zmq_message_release(&message);
    }
}

// A server that is there but says nothing is as good as gone.
static void watch_silence(gs_rpc_channel *channel) {
    int64_t now_ns = gs_now_ns();
    if (!channel->socket.socket) {
        if (now_ns >= channel->retry_ns) reopen_socket(channel);
        return;
    }
    watch_key(channel, now_ns);
    if (!channel->linked) return;
    int64_t ping_after_ns = channel->pace_ns * 3 / 2, unheard_ns = now_ns - channel->heard_ns;
    bool silent = unheard_ns > 3 * channel->pace_ns && channel->pinged_ns > channel->heard_ns;
    if (!silent) channel->told_silence_ns = 0;
    if (silent && !channel->told_silence_ns) {
        // It may hear though it is not heard: it must not take the closed connection for a death.
        channel->told_silence_ns = now_ns;
        pthread_mutex_lock(&channel->lock);
        send_ping(channel, SILENCE_TOLD_NS / GS_NS_PER_MS);
        pthread_mutex_unlock(&channel->lock);
    } else if (silent && now_ns - channel->told_silence_ns < SILENCE_TOLD_NS) {
        return;
    } else if (silent) {
        if (atomic_load(&channel->connected)) {
            gs_log_warn("rpc server is silent", "endpoint=%s", channel->endpoint);
        }
        end_link(channel);
        reopen_socket(channel);
    } else if (now_ns - channel->sent_ns >= channel->pace_ns ||
               (unheard_ns >= ping_after_ns && now_ns - channel->pinged_ns >= ping_after_ns)) {
        pthread_mutex_lock(&channel->lock);
        send_ping(channel, 0);
        pthread_mutex_unlock(&channel->lock);
    }
}

// True when something waits that the socket did not take.
static bool send_what_waits(gs_rpc_channel *channel) {
    if (!channel->linked) return false;
    pthread_mutex_lock(&channel->lock);
    bool flushed = flush_outgoing(channel);
    send_repeats(channel);
    pthread_mutex_unlock(&channel->lock);
    return !flushed;
}

static long choose_timeout_ms(gs_rpc_channel *channel, bool stuck) {
    if (stuck) return 10;
    if (!channel->socket.socket) return 50;
    pthread_mutex_lock(&channel->lock);
    int64_t wait_ns = channel->linked ? channel->next_repeat_ns - gs_now_ns() : INT64_MAX;
    pthread_mutex_unlock(&channel->lock);
    int64_t longest_ns = channel->linked ? 500 * GS_NS_PER_MS : GS_NS_PER_SEC;
    if (wait_ns > longest_ns) wait_ns = longest_ns;
    return wait_ns <= 0 ? 0 : (long)(wait_ns / GS_NS_PER_MS) + 1;
}

static void wait_for_input(gs_rpc_channel *channel, long timeout_ms) {
    zmq_pollitem_t items[3] = {{.fd = channel->wake_fd, .events = ZMQ_POLLIN},
                               {.socket = channel->socket.socket, .events = ZMQ_POLLIN},
                               {.socket = channel->socket.monitor, .events = ZMQ_POLLIN}};
    zmq_poll(items, channel->socket.socket ? 3 : 1, timeout_ms);
    if (items[0].revents) {
        uint64_t count;
        ssize_t got = read(channel->wake_fd, &count, sizeof count);
        (void)got;
    }
}

static void say_goodbye(gs_rpc_channel *channel) {
    if (!channel->linked) return;
    pthread_mutex_lock(&channel->lock);
    int error = send_frame(channel, (gs_frame){.kind = GS_FRAME_CANCEL, .seq = ++channel->last_seq},
                           NULL, 0);
    pthread_mutex_unlock(&channel->lock);
    // Over TCP the closed connection tells as much, so it is not waited for.
    if (!error && channel->is_inproc && gs_zmq_set_int(&channel->socket, ZMQ_LINGER, 100).code)
        return;
}

void gs_rpc_channel_run(void *ctx, const atomic_bool *stopping) {
    gs_rpc_channel *channel = ctx;
    reopen_socket(channel);
    while (!atomic_load(stopping)) {
        bool stuck = send_what_waits(channel);
        wait_for_input(channel, choose_timeout_ms(channel, stuck));
        read_events(channel);
        receive_messages(channel);
        watch_silence(channel);
    }
    say_goodbye(channel);
    atomic_store(&channel->connected, false);
    gs_zmq_socket_close(&channel->socket);
}
