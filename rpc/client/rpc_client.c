#include "rpc/client/rpc_client.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "rpc/client/rpc_channel.h"
#include "rpc/schema/launch_token.h"
#include "rpc/wire/rpc_error.h"

struct gs_rpc_client {
    gs_rpc_channel channel;
    gs_thread *thread;
    int num_references;  // its own until closed, calls in progress, streams; under the channel's
                         // lock
};

struct gs_rpc_stream {
    gs_rpc_client *client;  // one reference
    gs_rpc_operation operation;
    char *body;
};

static void free_client(gs_rpc_client *client) {
    gs_rpc_channel_release(&client->channel);
    free(client);
}

gs_status gs_rpc_client_open(gs_rpc_client **out, gs_rpc_context *context,
                             const gs_rpc_client_options *options) {
    gs_rpc_client *client = calloc(1, sizeof *client);
    if (!client) return gs_error(GS_RESOURCE_EXHAUSTED, "rpc client: out of memory");
    client->num_references = 1;
    gs_status status = gs_rpc_channel_init(&client->channel, context, options->endpoint,
                                           options->job, options->incarnation);
    if (!status.code) status = gs_rpc_channel_take_key(&client->channel, options->key_path, options->source);
    if (status.code) {
        free(client);
        return status;
    }
    if (options->launch_token) client->channel.shown_token = gs_launch_token_show(options->launch_token);
    status = gs_thread_start(&client->thread, "rpc i/o", gs_rpc_channel_run, &client->channel);
    if (status.code)
        free_client(client);
    else
        *out = client;
    return status;
}

// Leaves the lock; the last one to leave a closed client frees it.
static void leave_client(gs_rpc_client *client) {
    bool last = --client->num_references == 0;
    pthread_mutex_unlock(&client->channel.lock);
    if (last) free_client(client);
}

void gs_rpc_client_close(gs_rpc_client *client) {
    if (!client) return;
    pthread_mutex_lock(&client->channel.lock);
    client->channel.closed = true;
    gs_rpc_operation *operation;
    while ((operation = TAILQ_FIRST(&client->channel.calls)) ||
           (operation = TAILQ_FIRST(&client->channel.streams))) {
        gs_rpc_operation_finish(&client->channel, operation, GS_CANCELLED);
    }
    pthread_mutex_unlock(&client->channel.lock);
    gs_thread_ask_to_stop(client->thread);
    gs_rpc_channel_wake(&client->channel);
    gs_thread_stop(client->thread);
    pthread_mutex_lock(&client->channel.lock);
    leave_client(client);
}

bool gs_rpc_client_connected(const gs_rpc_client *client) {
    return atomic_load(&client->channel.connected);
}

gs_rpc_refusal gs_rpc_client_refusal(const gs_rpc_client *client) {
    return (gs_rpc_refusal)atomic_load(&client->channel.refusal);
}

void gs_rpc_client_set_generation(gs_rpc_client *client, uint32_t generation) {
    atomic_store(&client->channel.generation, generation);
}

static gs_status encode_request(char **body, size_t *bytes, gs_method method,
                                const gs_json *request, gs_method_shape shape) {
    const gs_method_info *info = gs_method_info_of(method);
    *body = NULL;
    *bytes = 0;
    if (!info || info->shape != shape) {
        return gs_error(GS_INVALID_ARGUMENT, "method %d is not one of this shape", method);
    }
    if (!request) return gs_ok();
    gs_status status = gs_json_encode(body, bytes, request, false);
    if (!status.code && *bytes > info->max_body_bytes) {
        free(*body);
        *body = NULL;
        return gs_error(GS_INVALID_ARGUMENT, "request of %zu bytes, most are %zu", *bytes,
                        info->max_body_bytes);
    }
    return status;
}

static void init_operation(gs_rpc_operation *operation, gs_method method, const char *body,
                           size_t body_bytes) {
    *operation = (gs_rpc_operation){.method = method, .body = body, .body_bytes = body_bytes};
    STAILQ_INIT(&operation->items);
    gs_cond_init(&operation->changed);
}

// How an operation ended that has no answer of the server.
static gs_status end_of(const gs_rpc_client *client, const gs_rpc_operation *operation) {
    switch (operation->code) {
    case GS_OK:
        return gs_ok();
    case GS_CANCELLED:
        return gs_error(GS_CANCELLED, "the client was closed");
    case GS_UNAVAILABLE:
        return gs_error(GS_UNAVAILABLE, "the connection to %s was lost", client->channel.endpoint);
    case GS_RESOURCE_EXHAUSTED:
        return gs_error(GS_RESOURCE_EXHAUSTED, "items came faster than they were read");
    case GS_FAILED_PRECONDITION:
        return gs_error(GS_FAILED_PRECONDITION,
                        "%s speaks protocol version %u, this side (build " GRADSYNC_VERSION
                        ") speaks %d to %d",
                        client->channel.endpoint, operation->peer_proto, GS_PROTOCOL_LEAST,
                        GS_PROTOCOL_MOST);
    default:
        return gs_error(operation->code, "%s", gs_code_name(operation->code));
    }
}

// What a finished operation came to. `reply` may be NULL.
static gs_status read_answer(const gs_rpc_client *client, const gs_rpc_operation *operation, gs_json **reply) {
    if (!operation->answer && operation->code) return end_of(client, operation);
    return gs_rpc_answer_decode(reply, operation->code, operation->answer, operation->answer_bytes);
}

// Ok: it is done, however it ended.
static gs_status wait_for_end(gs_rpc_client *client, gs_rpc_operation *operation) {
    while (!operation->done &&
           gs_cond_wait(&operation->changed, &client->channel.lock, operation->deadline)) {
        continue;
    }
    if (operation->done) return gs_ok();
    gs_rpc_channel_give_up(&client->channel, operation);
    if (!atomic_load(&client->channel.connected)) {
        return gs_error(GS_UNAVAILABLE, "not connected to %s", client->channel.endpoint);
    }
    return gs_error(GS_DEADLINE_EXCEEDED, "no answer from %s in time", client->channel.endpoint);
}

static gs_status run_operation(gs_rpc_client *client, gs_rpc_operation *operation) {
    gs_status status = gs_rpc_channel_begin(&client->channel, operation);
    if (status.code) return status;
    gs_rpc_channel_wake(&client->channel);
    return wait_for_end(client, operation);
}

typedef struct answer_text {
    char *text;
    size_t bytes;
} answer_text;

static gs_status call_method(gs_rpc_client *client, gs_method method, const gs_json *request, gs_json **reply,
                             answer_text *wanted, gs_deadline deadline) {
    char *body;
    size_t body_bytes;
    if (reply) *reply = NULL;
    gs_status status = encode_request(&body, &body_bytes, method, request, GS_CALL);
    if (!status.code) {
        gs_rpc_operation operation;
        init_operation(&operation, method, body, body_bytes);
        operation.deadline = deadline;
        pthread_mutex_lock(&client->channel.lock);
        client->num_references++;
        status = run_operation(client, &operation);
        // Others' calls, and what brings their answers, do not wait until this one's is read.
        pthread_mutex_unlock(&client->channel.lock);
        if (!status.code && wanted && !operation.code) {
            *wanted = (answer_text){operation.answer, operation.answer_bytes};
            operation.answer = NULL;
        } else if (!status.code) {
            status = read_answer(client, &operation, reply);
        }
        pthread_mutex_lock(&client->channel.lock);
        leave_client(client);
        pthread_cond_destroy(&operation.changed);
        free(operation.answer);
    }
    free(body);
    const gs_method_info *info = gs_method_info_of(method);
    return gs_status_prefix(status, "%s", info ? info->name : "call");
}

gs_status gs_rpc_call(gs_rpc_client *client, gs_method method, const gs_json *request,
                      gs_json **reply, gs_deadline deadline) {
    return call_method(client, method, request, reply, NULL, deadline);
}

gs_status gs_rpc_call_text(gs_rpc_client *client, gs_method method, const gs_json *request, char **text,
                           size_t *bytes, gs_json **details, gs_deadline deadline) {
    answer_text answer = {0};
    gs_status status = call_method(client, method, request, details, &answer, deadline);
    *text = answer.text;
    *bytes = answer.bytes;
    return status;
}

// Takes the body.
static void send_one_way(gs_rpc_client *client, gs_method method, char *body, size_t body_bytes) {
    pthread_mutex_lock(&client->channel.lock);
    if (client->channel.closed || !atomic_load(&client->channel.connected))
        free(body);
    else if (gs_rpc_channel_push(&client->channel, GS_FRAME_ONE_WAY, method, 0, body, body_bytes)) {
        gs_rpc_channel_wake(&client->channel);
    }
    pthread_mutex_unlock(&client->channel.lock);
}

void gs_rpc_send(gs_rpc_client *client, gs_method method, const gs_json *request) {
    char *body;
    size_t body_bytes;
    gs_status status = encode_request(&body, &body_bytes, method, request, GS_ONE_WAY);
    if (!status.code) send_one_way(client, method, body, body_bytes);
}

void gs_rpc_send_record(gs_rpc_client *client, gs_method method, const void *record, size_t bytes) {
    char *body = malloc(bytes ? bytes : 1);
    if (!body) return;
    memcpy(body, record, bytes);
    send_one_way(client, method, body, bytes);
}

gs_status gs_rpc_stream_open(gs_rpc_stream **out, gs_rpc_client *client, gs_method method,
                             const gs_json *request) {
    gs_rpc_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return gs_error(GS_RESOURCE_EXHAUSTED, "rpc stream: out of memory");
    size_t body_bytes;
    gs_status status = encode_request(&stream->body, &body_bytes, method, request, GS_STREAM);
    if (status.code) {
        free(stream);
        return status;
    }
    init_operation(&stream->operation, method, stream->body, body_bytes);
    stream->operation.is_stream = true;
    stream->client = client;
    pthread_mutex_lock(&client->channel.lock);
    status = gs_rpc_channel_begin(&client->channel, &stream->operation);
    if (!status.code) {
        client->num_references++;
        gs_rpc_channel_wake(&client->channel);
    }
    pthread_mutex_unlock(&client->channel.lock);
    if (status.code) {
        pthread_cond_destroy(&stream->operation.changed);
        free(stream->body);
        free(stream);
        return status;
    }
    *out = stream;
    return gs_ok();
}

static gs_rpc_item_node *pop_item(gs_rpc_operation *operation) {
    gs_rpc_item_node *node = STAILQ_FIRST(&operation->items);
    if (!node) return NULL;
    STAILQ_REMOVE_HEAD(&operation->items, next);
    operation->num_items--;
    operation->item_bytes -= node->bytes;
    return node;
}

gs_status gs_rpc_stream_next(gs_rpc_stream *stream, gs_json **item, gs_deadline deadline) {
    gs_rpc_client *client = stream->client;
    gs_rpc_operation *operation = &stream->operation;
    gs_status status = gs_ok();
    *item = NULL;
    pthread_mutex_lock(&client->channel.lock);
    while (STAILQ_EMPTY(&operation->items) && !operation->done &&
           gs_cond_wait(&operation->changed, &client->channel.lock, deadline)) {
        continue;
    }
    gs_rpc_item_node *node = pop_item(operation);
    if (!node) {
        if (!operation->done)
            status = gs_error(GS_DEADLINE_EXCEEDED, "nothing came yet");
        else
            status = read_answer(client, operation, NULL);
    }
    pthread_mutex_unlock(&client->channel.lock);
    if (node) {
        status = gs_json_parse(item, node->text, node->bytes);
        if (status.code)
            status = gs_error(GS_DATA_LOSS, "an item is no JSON: %.200s", status.message);
        free(node);
    }
    return status;
}

void gs_rpc_stream_close(gs_rpc_stream *stream) {
    if (!stream) return;
    gs_rpc_client *client = stream->client;
    gs_rpc_item_node *node;
    pthread_mutex_lock(&client->channel.lock);
    gs_rpc_channel_give_up(&client->channel, &stream->operation);
    while ((node = pop_item(&stream->operation))) free(node);
    leave_client(client);
    pthread_cond_destroy(&stream->operation.changed);
    free(stream->operation.answer);
    free(stream->body);
    free(stream);
}
