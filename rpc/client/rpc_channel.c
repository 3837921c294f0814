// The i/o thread of a client: socket, monitor, repeats, liveness.
#include "rpc/client/rpc_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"

#define MAX_OPERATIONS 4096
#define MAX_OUTGOING 4096
#define MAX_STREAM_ITEMS 4096
#define MAX_STREAM_BYTES ((size_t)16 << 20)
#define FIRST_REPEAT_NS (500 * GS_NS_PER_MS)
#define LAST_REPEAT_NS (4 * GS_NS_PER_SEC)
#define PING_AFTER_NS (1500 * GS_NS_PER_MS)
#define SILENCE_NS (3 * GS_NS_PER_SEC)
// The server takes a connection that says nothing for 3 s for lost.
#define AUDIBLE_NS GS_NS_PER_SEC
#define REOPEN_NS (200 * GS_NS_PER_MS)
#define MAX_FRAMES_A_ROUND 256

void gs_rpc_channel_wake(gs_rpc_client *client) {
    uint64_t one = 1;
    // The counter is full only when the thread has not looked at it for ever so long: it is awake
    // then.
    ssize_t written = write(client->wake_fd, &one, sizeof one);
    (void)written;
}

gs_status gs_rpc_channel_begin(gs_rpc_client *client, gs_rpc_operation *operation) {
    if (client->closed) return gs_error(GS_CANCELLED, "the client is closed");
    if (client->num_operations >= MAX_OPERATIONS) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "%d calls are under way", MAX_OPERATIONS);
    }
    if (!gs_rpc_channel_push(client, GS_FRAME_REQUEST, operation->method, 0, NULL, 0)) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "%d messages wait to be sent", MAX_OUTGOING);
    }
    operation->seq = client->last_seq;
    if (!gs_u64_map_set(&client->operations, operation->seq, operation)) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    if (operation->is_stream) TAILQ_INSERT_TAIL(&client->streams, operation, next);
    else TAILQ_INSERT_TAIL(&client->calls, operation, next);
    client->num_operations++;
    return gs_ok();
}

static void forget_operation(gs_rpc_client *client, gs_rpc_operation *operation) {
    gs_u64_map_remove(&client->operations, operation->seq);
    if (operation->is_stream) TAILQ_REMOVE(&client->streams, operation, next);
    else TAILQ_REMOVE(&client->calls, operation, next);
    client->num_operations--;
}

void gs_rpc_channel_give_up(gs_rpc_client *client, gs_rpc_operation *operation) {
    if (operation->done) return;
    forget_operation(client, operation);
    if (!operation->num_sent || client->closed) return;
    // Lost when the queue is full: the server forgets the call at its deadline, a stream with the
    // connection.
    gs_rpc_channel_push(client, GS_FRAME_CANCEL, GS_METHOD_NONE, operation->seq, NULL, 0);
    gs_rpc_channel_wake(client);
}

void gs_rpc_operation_finish(gs_rpc_client *client, gs_rpc_operation *operation, gs_code code) {
    forget_operation(client, operation);
    operation->done = true;
    operation->code = code;
    pthread_cond_broadcast(&operation->changed);
}

bool gs_rpc_channel_push(gs_rpc_client *client, gs_frame_kind kind, gs_method method, uint64_t call,
                         char *body, size_t body_bytes) {
    gs_rpc_outgoing *outgoing =
        client->num_outgoing < MAX_OUTGOING ? calloc(1, sizeof *outgoing) : NULL;
    if (!outgoing) {
        free(body);
        return false;
    }
    *outgoing = (gs_rpc_outgoing){.kind = kind,
                                  .method = method,
                                  .seq = ++client->last_seq,
                                  .call = call,
                                  .body = body,
                                  .body_bytes = body_bytes};
    STAILQ_INSERT_TAIL(&client->outgoing, outgoing, next);
    client->num_outgoing++;
    return true;
}

static void pop_outgoing(gs_rpc_client *client) {
    gs_rpc_outgoing *outgoing = STAILQ_FIRST(&client->outgoing);
    STAILQ_REMOVE_HEAD(&client->outgoing, next);
    client->num_outgoing--;
    free(outgoing->body);
    free(outgoing);
}

// Every request of ours up to this seq has been answered or given up, so the server may forget its
// answers, and refuse to run it again. Streams count once they were sent: they are never repeated.
static uint64_t settled_seq(const gs_rpc_client *client) {
    const gs_rpc_operation *oldest = TAILQ_FIRST(&client->calls);
    const gs_rpc_outgoing *first = STAILQ_FIRST(&client->outgoing);
    uint64_t settled = client->last_seq;
    if (oldest && oldest->seq <= settled) settled = oldest->seq - 1;
    if (first && first->seq <= settled) settled = first->seq - 1;
    return settled;
}

static int send_frame(gs_rpc_client *client, gs_frame frame, const char *body, size_t body_bytes) {
    frame.job = client->job;
    frame.incarnation = client->incarnation;
    frame.generation = atomic_load_explicit(&client->generation, memory_order_relaxed);
    frame.coord_epoch = client->coord_epoch;
    frame.ack = settled_seq(client);
    frame.send_ns = gs_now_ns();
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, &frame, body, body_bytes);
    client->sent_ns = frame.send_ns;
    return gs_zmq_send(&client->socket, NULL, header, body, body_bytes);
}

static uint32_t time_left_ms(const gs_rpc_operation *operation) {
    if (operation->is_stream) return 0;
    int left_ms = gs_deadline_left_ms(operation->deadline);
    return left_ms > 0 ? (uint32_t)left_ms : 1;
}

static int send_operation(gs_rpc_client *client, gs_rpc_operation *operation) {
    int error = send_frame(client,
                           (gs_frame){.kind = GS_FRAME_REQUEST,
                                      .method = operation->method,
                                      .seq = operation->seq,
                                      .time_left_ms = time_left_ms(operation)},
                           operation->body, operation->body_bytes);
    if (error) return error;
    int64_t pause_ns = FIRST_REPEAT_NS << (operation->num_sent < 3 ? operation->num_sent : 3);
    operation->num_sent++;
    operation->sent_ns = gs_now_ns();
    operation->repeat_ns =
        operation->sent_ns + (pause_ns < LAST_REPEAT_NS ? pause_ns : LAST_REPEAT_NS);
    if (!operation->is_stream && operation->repeat_ns < client->next_repeat_ns) {
        client->next_repeat_ns = operation->repeat_ns;
    }
    return 0;
}

static int send_outgoing(gs_rpc_client *client, const gs_rpc_outgoing *outgoing) {
    if (outgoing->kind == GS_FRAME_REQUEST) {
        gs_rpc_operation *operation = gs_u64_map_get(&client->operations, outgoing->seq);
        return operation && !operation->sent_ns ? send_operation(client, operation) : 0;
    }
    return send_frame(client,
                      (gs_frame){.kind = outgoing->kind,
                                 .method = outgoing->method,
                                 .seq = outgoing->seq,
                                 .call = outgoing->call},
                      outgoing->body, outgoing->body_bytes);
}

static void send_repeats(gs_rpc_client *client) {
    int64_t now_ns = gs_now_ns();
    if (now_ns < client->next_repeat_ns) return;
    client->next_repeat_ns = INT64_MAX;
    gs_rpc_operation *operation;
    TAILQ_FOREACH(operation, &client->calls, next) {
        if (!operation->sent_ns) continue;
        if (operation->repeat_ns <= now_ns && send_operation(client, operation) != 0) {
            operation->repeat_ns = now_ns + FIRST_REPEAT_NS;  // the queue is full: it is not lost
        }
        if (operation->repeat_ns < client->next_repeat_ns)
            client->next_repeat_ns = operation->repeat_ns;
    }
}

// False when the socket takes no more.
static bool flush_outgoing(gs_rpc_client *client) {
    while (!STAILQ_EMPTY(&client->outgoing)) {
        if (send_outgoing(client, STAILQ_FIRST(&client->outgoing)) != 0) return false;
        pop_outgoing(client);
    }
    return true;
}

static void send_ping(gs_rpc_client *client) {
    int error =
        send_frame(client, (gs_frame){.kind = GS_FRAME_PING, .seq = ++client->last_seq}, NULL, 0);
    (void)error;  // nobody to send it to is silence too
    client->pinged_ns = gs_now_ns();
}

// After a (re)connect: everything that is owed goes out again, in order, then what waits behind it.
static void begin_link(gs_rpc_client *client) {
    client->linked = true;
    client->linked_ns = client->heard_ns = gs_now_ns();
    pthread_mutex_lock(&client->lock);
    send_ping(client);
    gs_rpc_operation *operation;
    TAILQ_FOREACH(operation, &client->calls, next) {
        if (operation->num_sent && send_operation(client, operation) != 0) {
            // Goes out with the repeats.
            operation->sent_ns = client->linked_ns;
            operation->repeat_ns = client->next_repeat_ns = client->linked_ns;
        }
    }
    pthread_mutex_unlock(&client->lock);
}

// Streams that the server knew end; calls wait for the next connection; one-way messages are lost.
static void end_link(gs_rpc_client *client) {
    client->linked = false;
    atomic_store(&client->connected, false);
    pthread_mutex_lock(&client->lock);
    gs_rpc_operation *operation, *following;
    for (operation = TAILQ_FIRST(&client->streams); operation; operation = following) {
        following = TAILQ_NEXT(operation, next);
        if (operation->num_sent) gs_rpc_operation_finish(client, operation, GS_UNAVAILABLE);
    }
    TAILQ_FOREACH(operation, &client->calls, next) operation->sent_ns = 0;
    client->next_repeat_ns = INT64_MAX;
    STAILQ_HEAD(, gs_rpc_outgoing) kept = STAILQ_HEAD_INITIALIZER(kept);
    while (!STAILQ_EMPTY(&client->outgoing)) {
        gs_rpc_outgoing *outgoing = STAILQ_FIRST(&client->outgoing);
        if (outgoing->kind == GS_FRAME_ONE_WAY) {
            pop_outgoing(client);
        } else {
            STAILQ_REMOVE_HEAD(&client->outgoing, next);
            STAILQ_INSERT_TAIL(&kept, outgoing, next);
        }
    }
    STAILQ_CONCAT(&client->outgoing, &kept);
    pthread_mutex_unlock(&client->lock);
}

static gs_status set_client_options(gs_rpc_client *client) {
    gs_zmq_socket *socket = &client->socket;
    GS_TRY(gs_zmq_set_int(socket, ZMQ_IMMEDIATE, 1));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_SNDHWM, 256));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_RCVHWM, 1024));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_CONNECT_TIMEOUT, 300));
    GS_TRY(gs_zmq_set_int(socket, ZMQ_RECONNECT_IVL, 20));
    // watch_silence.
    return gs_zmq_set_int(socket, ZMQ_RECONNECT_IVL_MAX, 200);
}

// No routing id is set: the server draws one for each connection, so a reconnect can never be
// mistaken for its own ghost.
static gs_status open_socket(gs_rpc_client *client) {
    GS_TRY(gs_zmq_socket_open(&client->socket, client->context, ZMQ_DEALER,
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED));
    gs_status status = set_client_options(client);
    if (!status.code) status = gs_zmq_choose_family(&client->socket, client->endpoint);
    if (!status.code && zmq_connect(client->socket.socket, client->endpoint) != 0) {
        status =
            gs_error(GS_INVALID_ARGUMENT, "rpc: %s: %s", client->endpoint, zmq_strerror(errno));
    }
    if (status.code) gs_zmq_socket_close(&client->socket);
    return status;
}

static void reopen_socket(gs_rpc_client *client) {
    gs_zmq_socket_close(&client->socket);
    gs_status status = open_socket(client);
    if (status.code) {
        gs_log_warn("rpc socket not opened", "endpoint=%s error=\"%s\"", client->endpoint,
                    status.message);
        client->retry_ns = gs_now_ns() + REOPEN_NS;
    } else if (client->is_inproc) {
        begin_link(client);  // no monitor events there
    }
}

static void read_events(gs_rpc_client *client) {
    int event, value;
    while (client->socket.monitor && gs_zmq_next_event(&client->socket, &event, &value)) {
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) begin_link(client);
        else if (event == ZMQ_EVENT_DISCONNECTED && client->linked) end_link(client);
    }
}

static bool keep_answer(gs_rpc_operation *operation, const void *body, size_t body_bytes) {
    if (!body_bytes) return true;
    operation->answer = malloc(body_bytes);
    if (!operation->answer) return false;
    memcpy(operation->answer, body, body_bytes);
    operation->answer_bytes = body_bytes;
    return true;
}

static void take_item(gs_rpc_client *client, gs_rpc_operation *operation, const void *body,
                      size_t body_bytes) {
    gs_rpc_item_node *node = NULL;
    if (operation->num_items < MAX_STREAM_ITEMS && operation->item_bytes < MAX_STREAM_BYTES) {
        node = malloc(sizeof *node + body_bytes);
    }
    if (!node) {
        uint64_t seq = operation->seq;
        gs_rpc_operation_finish(client, operation, GS_RESOURCE_EXHAUSTED);
        gs_rpc_channel_push(client, GS_FRAME_CANCEL, GS_METHOD_NONE, seq, NULL, 0);
        return;
    }
    node->bytes = body_bytes;
    memcpy(node->text, body, body_bytes);
    STAILQ_INSERT_TAIL(&operation->items, node, next);
    operation->num_items++;
    operation->item_bytes += body_bytes;
    pthread_cond_broadcast(&operation->changed);
}

static void accept_frame(gs_rpc_client *client, const gs_frame *frame, const void *body,
                         size_t body_bytes) {
    client->coord_epoch = frame->coord_epoch;
    gs_rpc_operation *operation =
        frame->call ? gs_u64_map_get(&client->operations, frame->call) : NULL;
    if (!operation || operation->method != frame->method) return;  // answered or given up before
    if (frame->kind == GS_FRAME_ITEM) {
        take_item(client, operation, body, body_bytes);
    } else if (frame->kind == GS_FRAME_REPLY || frame->kind == GS_FRAME_END) {
        bool kept = keep_answer(operation, body, body_bytes);
        gs_rpc_operation_finish(client, operation, kept ? frame->status : GS_RESOURCE_EXHAUSTED);
    }
}

static void count_malformed(gs_rpc_client *client, const char *reason) {
    client->num_malformed++;
    int64_t now_ns = gs_now_ns();
    if (client->warned_ns && now_ns - client->warned_ns < 60 * GS_NS_PER_SEC) return;
    client->warned_ns = now_ns;
    gs_log_warn("rpc frame dropped", "endpoint=%s reason=\"%s\" dropped=%llu", client->endpoint,
                reason, (unsigned long long)client->num_malformed);
}

static void receive_message(gs_rpc_client *client, gs_zmq_message *message) {
    gs_frame frame;
    const void *body = zmq_msg_data(&message->body);
    size_t body_bytes = zmq_msg_size(&message->body);
    gs_status status = gs_frame_unpack(&frame, zmq_msg_data(&message->header),
                                       zmq_msg_size(&message->header), body, body_bytes);
    if (status.code == GS_FAILED_PRECONDITION && frame.incarnation == client->incarnation) {
        pthread_mutex_lock(&client->lock);
        gs_rpc_operation *operation =
            frame.call ? gs_u64_map_get(&client->operations, frame.call) : NULL;
        if (operation) gs_rpc_operation_finish(client, operation, GS_FAILED_PRECONDITION);
        pthread_mutex_unlock(&client->lock);
    }
    if (status.code) {
        count_malformed(client, status.message);
        return;
    }
    if (frame.incarnation != client->incarnation) {
        count_malformed(client, "for another incarnation");
        return;
    }
    client->heard_ns = gs_now_ns();
    atomic_store(&client->connected, true);
    pthread_mutex_lock(&client->lock);
    accept_frame(client, &frame, body, body_bytes);
    pthread_mutex_unlock(&client->lock);
}

static void receive_messages(gs_rpc_client *client) {
    for (int i = 0; i < MAX_FRAMES_A_ROUND && client->socket.socket; i++) {
        gs_zmq_message message;
        gs_zmq_outcome outcome = gs_zmq_receive(&client->socket, &message, false);
        if (outcome == GS_ZMQ_NOTHING) return;
        if (outcome == GS_ZMQ_MALFORMED) {
            count_malformed(client, "not two frames");
            continue;
        }
        receive_message(client, &message);
        gs_zmq_message_release(&message);
    }
}

// A server that is there but says nothing is as good as gone.
static void watch_silence(gs_rpc_client *client) {
    int64_t now_ns = gs_now_ns();
    if (!client->socket.socket) {
        if (now_ns >= client->retry_ns) reopen_socket(client);
        return;
    }
    if (!client->linked) return;
    bool unheard = now_ns - client->heard_ns >= PING_AFTER_NS;
    if (now_ns - client->heard_ns > SILENCE_NS && client->pinged_ns > client->heard_ns) {
        if (atomic_load(&client->connected)) {
            gs_log_warn("rpc server is silent", "endpoint=%s", client->endpoint);
        }
        end_link(client);
        reopen_socket(client);
    } else if (now_ns - client->sent_ns >= AUDIBLE_NS ||
               (unheard && now_ns - client->pinged_ns >= PING_AFTER_NS)) {
        pthread_mutex_lock(&client->lock);
        send_ping(client);
        pthread_mutex_unlock(&client->lock);
    }
}

// True when something waits that the socket did not take.
static bool send_what_waits(gs_rpc_client *client) {
    if (!client->linked) return false;
    pthread_mutex_lock(&client->lock);
    bool flushed = flush_outgoing(client);
    send_repeats(client);
    pthread_mutex_unlock(&client->lock);
    return !flushed;
}

static long choose_timeout_ms(gs_rpc_client *client, bool stuck) {
    if (stuck) return 10;
    if (!client->socket.socket) return 50;
    pthread_mutex_lock(&client->lock);
    int64_t wait_ns = client->linked ? client->next_repeat_ns - gs_now_ns() : INT64_MAX;
    pthread_mutex_unlock(&client->lock);
    int64_t longest_ns = client->linked ? 500 * GS_NS_PER_MS : GS_NS_PER_SEC;
    if (wait_ns > longest_ns) wait_ns = longest_ns;
    return wait_ns <= 0 ? 0 : (long)(wait_ns / GS_NS_PER_MS) + 1;
}

static void wait_for_input(gs_rpc_client *client, long timeout_ms) {
    zmq_pollitem_t items[3] = {{.fd = client->wake_fd, .events = ZMQ_POLLIN},
                               {.socket = client->socket.socket, .events = ZMQ_POLLIN},
                               {.socket = client->socket.monitor, .events = ZMQ_POLLIN}};
    zmq_poll(items, client->socket.socket ? 3 : 1, timeout_ms);
    if (items[0].revents) {
        uint64_t count;
        ssize_t got = read(client->wake_fd, &count, sizeof count);
        (void)got;
    }
}

static void say_goodbye(gs_rpc_client *client) {
    if (!client->linked) return;
    pthread_mutex_lock(&client->lock);
    int error =
        send_frame(client, (gs_frame){.kind = GS_FRAME_CANCEL, .seq = ++client->last_seq}, NULL, 0);
    pthread_mutex_unlock(&client->lock);
    // Over TCP the closed connection tells as much, so it is not waited for.
    if (!error && client->is_inproc && gs_zmq_set_int(&client->socket, ZMQ_LINGER, 100).code)
        return;
}

void gs_rpc_channel_run(void *ctx, const atomic_bool *stopping) {
    gs_rpc_client *client = ctx;
    reopen_socket(client);
    while (!atomic_load(stopping)) {
        bool stuck = send_what_waits(client);
        wait_for_input(client, choose_timeout_ms(client, stuck));
        read_events(client);
        receive_messages(client);
        watch_silence(client);
    }
    say_goodbye(client);
    atomic_store(&client->connected, false);
    gs_zmq_socket_close(&client->socket);
}
