// libmicrohttpd, one thread for each connection; a watchdog shuts the socket of whoever drips.
#include "api/http/http_server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "api/http/crowd.h"
#include "api/http/progress.h"
#include "api/http/tls.h"
#include "core/log.h"
#include "core/random.h"
#include "core/thread.h"

enum {
    DEFAULT_BODY_BYTES = 1 << 20,
    // Read of a body that is too large, so that its sender comes to read the answer.
    MAX_SWALLOWED_BYTES = 8 << 20,
    DEFAULT_BODIES_BYTES = 256 << 20,
    SMALL_BODY_BYTES = 16 << 10,  // for which there is always room
    STACK_BYTES = 512 << 10,
    STREAM_BLOCK_BYTES = 16 << 10,
    RESPONSE_MS = 60000,
    DRAIN_REQUESTS = 6,  // what a request may take, so many times: for a block of a stream to be taken
    MOMENT_MS = 300,
    LEAST_SLACK = 64  // connections that were cut and are not gone yet: the library closes whoever comes when there are more
};

struct gs_http_server {
    struct MHD_Daemon *daemon;
    gs_thread *watchdog;
    gs_http_server_options options;
    char address[GS_HTTP_ADDRESS_LEN];
    gs_socket_mark socket;
    unsigned slack;
    int port;
    uint64_t id_seed;
    atomic_uint_fast64_t num_requests;
    atomic_size_t bodies_bytes;  // that are kept, without the first of each
    pthread_mutex_t lock;
    pthread_cond_t changed;
    gs_http_connection *connections;  // they and their members belong to `lock`
};

// A request between libmicrohttpd's first and last call for it.
typedef struct request_state {
    gs_http_request request;
    gs_strbuf body;
    size_t received_bytes;  // of it, kept or not
    size_t counted_bytes;   // in `bodies_bytes`
    bool has_body;          // announces one
    bool swallows;
} request_state;

static int64_t request_limit_ns(const gs_http_server *server) {
    return server->options.request_ms * GS_NS_PER_MS;
}

static gs_http_connection *entry_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void set_phase(gs_http_server *server, struct MHD_Connection *connection,
                      gs_http_phase phase, int64_t limit_ns) {
    gs_http_connection *entry = entry_of(connection);
    if (!entry) return;
    pthread_mutex_lock(&server->lock);
    entry->phase = phase;
    entry->idle_ns = 0;
    entry->phase_ns = entry->moved_ns = gs_now_ns();
    entry->cut_at_ns = entry->phase_ns + limit_ns;
    pthread_mutex_unlock(&server->lock);
}

// A thread that is to read what he says may not come to it before he is the oldest.
static bool is_known_early(const gs_http_server *server, gs_http_connection *entry) {
    gs_early_head head;
    if (!entry->whose && server->options.knows && !server->options.tls && gs_early_head_look(&head, entry->fd))
        entry->whose = server->options.knows(server->options.ctx, &head);
    explicit_bzero(&head, sizeof head);
    return entry->whose != 0;
}

// Under the lock. An answer that is not whole is of no use to anybody, and one that nobody reads neither.
static void cut_off(gs_http_connection *entry) {
    bool is_useless = entry->phase == GS_HTTP_ANSWERING || gs_crowd_is_stuck(entry, gs_now_ns());
    if (is_useless && gs_http_is_untaken(entry->fd)) gs_http_drop_untaken(entry->fd);
    entry->cut = true;
    shutdown(entry->fd, SHUT_RDWR);
}

// Under the lock. True: somebody gave way.
static bool make_room(gs_http_server *server, gs_http_connection *fresh, unsigned *num_cut) {
    unsigned num_all = 0, num_neighbours = 0;
    *num_cut = 0;
    for (const gs_http_connection *entry = server->connections; entry; entry = entry->next) {
        *num_cut += entry->cut;
        if (entry->cut) continue;
        num_all++;
        num_neighbours += gs_crowd_is_neighbour(entry, fresh);
    }
    bool is_crowded = fresh->has_neighbours && num_neighbours > server->options.max_per_address;
    if (is_crowded || num_all > server->options.max_connections / 2) is_known_early(server, fresh);
    if (!is_crowded && num_all <= server->options.max_connections) return false;
    unsigned num_places = is_crowded ? server->options.max_per_address : server->options.max_connections;
    gs_http_connection *victim = gs_crowd_choose(fresh, is_crowded, num_places);
    while (!victim->whose && is_known_early(server, victim)) victim = gs_crowd_choose(fresh, is_crowded, num_places);
    // As long as there is room for all, a stranger has a moment to say who he is; then there is more that gives way to him.
    bool has_just_come = !victim->whose && gs_now_ns() - victim->begin_ns < MOMENT_MS * GS_NS_PER_MS;
    if (has_just_come && num_all <= server->options.max_connections) {
        if (victim == fresh) fresh->cut_at_ns = fresh->begin_ns + MOMENT_MS * GS_NS_PER_MS;
        return false;
    }
    cut_off(victim);
    return true;
}

// Under the lock.
static void unlink_entry(gs_http_connection *entry) {
    if (!entry->link) return;
    *entry->link = entry->next;
    if (entry->next) entry->next->link = entry->link;
    entry->link = NULL;
}

static void link_entry(gs_http_server *server, gs_http_connection *entry) {
    entry->next = server->connections;
    entry->link = &server->connections;
    if (entry->next) entry->next->link = &entry->next;
    server->connections = entry;
}

static void on_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode what) {
    gs_http_server *server = ctx;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        gs_http_connection *entry = calloc(1, sizeof *entry);
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *socket_context = entry;
        if (entry) entry->server = server;
        if (!entry || !info) return;  // lives without a watchdog, and so by idle_ms alone
        entry->fd = info->connect_fd;
        entry->has_neighbours = gs_http_neighbourhood_of(&entry->from, entry->fd);
        entry->begin_ns = entry->phase_ns = gs_now_ns();
        entry->cut_at_ns = entry->begin_ns + request_limit_ns(server);
        pthread_mutex_lock(&server->lock);
        link_entry(server, entry);
        unsigned num_cut;
        bool gave_way = make_room(server, entry, &num_cut);
        pthread_mutex_unlock(&server->lock);
        // Their threads need a core to come to their end, and this one, which takes connections and buries them, leaves them none.
        if (num_cut > server->slack / 2) gs_sleep_ns(num_cut > server->slack * 3 / 4 ? 5 * GS_NS_PER_MS : GS_NS_PER_MS);
        if (gave_way && server->options.refused) server->options.refused(server->options.ctx, "crowd");
        return;
    }
    gs_http_connection *entry = *socket_context;
    *socket_context = NULL;
    if (!entry) return;
    pthread_mutex_lock(&server->lock);
    unlink_entry(entry);
    pthread_mutex_unlock(&server->lock);
    free(entry);
}

// The request line is there: from now on the whole request has one deadline.
static void *on_request_line(void *ctx, const char *uri, struct MHD_Connection *connection) {
    (void)uri;
    gs_http_server *server = ctx;
    set_phase(server, connection, GS_HTTP_WAITING, request_limit_ns(server));
    return NULL;
}

static void run_watchdog(void *ctx, const atomic_bool *stopping) {
    gs_http_server *server = ctx;
    int64_t period_ns = request_limit_ns(server) / 8;
    pthread_mutex_lock(&server->lock);
    while (!atomic_load(stopping)) {
        int64_t now_ns = gs_now_ns();
        int num_cut = 0;
        for (gs_http_connection *entry = server->connections; entry; entry = entry->next) {
            if (!entry->cut && entry->phase == GS_HTTP_ANSWERING) gs_crowd_note_progress(entry, now_ns);
            if (entry->cut || entry->phase == GS_HTTP_STREAMING || now_ns < entry->cut_at_ns) continue;
            cut_off(entry);
            num_cut++;
        }
        if (num_cut > 0 && server->options.refused) {
            pthread_mutex_unlock(&server->lock);
            for (int i = 0; i < num_cut; i++) server->options.refused(server->options.ctx, "slow");
            pthread_mutex_lock(&server->lock);
        }
        gs_cond_wait(&server->changed, &server->lock, gs_deadline_in_ns(period_ns));
    }
    pthread_mutex_unlock(&server->lock);
}

void gs_http_note_known(const gs_http_request *request, uint64_t whose) {
    gs_http_connection *entry = entry_of(request->connection);
    if (!entry) return;
    gs_http_server *server = entry->server;
    bool gave_way = false;
    unsigned num_cut;
    pthread_mutex_lock(&server->lock);
    bool is_new = !entry->whose && entry->link;
    entry->whose = whose;
    if (is_new && !entry->cut) {
        unlink_entry(entry);
        link_entry(server, entry);
        gave_way = make_room(server, entry, &num_cut);
    }
    pthread_mutex_unlock(&server->lock);
    if (gave_way && server->options.refused) server->options.refused(server->options.ctx, "crowd");
}

const char *gs_http_header(const gs_http_request *request, const char *name) {
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

const char *gs_http_query(const gs_http_request *request, const char *name) {
    const char *value = NULL;
    if (MHD_lookup_connection_value_n(request->connection, MHD_GET_ARGUMENT_KIND, name,
                                      strlen(name), &value, NULL) != MHD_YES)
        return NULL;
    return value ? value : "";
}

typedef struct query_walk {
    bool (*visit)(void *ctx, const char *name, const char *value);
    void *ctx;
} query_walk;

static enum MHD_Result visit_query(void *ctx, enum MHD_ValueKind kind, const char *name,
                                   const char *value) {
    (void)kind;
    const query_walk *walk = ctx;
    return walk->visit(walk->ctx, name, value ? value : "") ? MHD_YES : MHD_NO;
}

void gs_http_each_query(const gs_http_request *request,
                        bool (*visit)(void *ctx, const char *name, const char *value), void *ctx) {
    query_walk walk = {visit, ctx};
    MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, visit_query, &walk);
}

gs_http_client gs_http_request_client(const gs_http_request *request) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return (gs_http_client){info ? info->connect_fd : -1};
}

bool gs_http_client_gone(gs_http_client client) {
    // Whatever was sent before the end and is not read yet: a request, or the goodbye of TLS.
    struct pollfd ended = {.fd = client.fd, .events = POLLRDHUP};
    return poll(&ended, 1, 0) > 0 && (ended.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

void gs_http_set_header(gs_http_response *response, const char *name, const char *value) {
    int at = 0;
    while (at < response->num_headers && strcasecmp(response->headers[at].name, name) != 0) at++;
    if (at == GS_HTTP_MAX_HEADERS) return;
    if (at == response->num_headers) response->num_headers++;
    snprintf(response->headers[at].name, sizeof response->headers[at].name, "%s", name);
    snprintf(response->headers[at].value, sizeof response->headers[at].value, "%.*s",
             (int)strcspn(value, "\r\n"), value);
}

const char *gs_http_response_header(const gs_http_response *response, const char *name) {
    for (int i = 0; i < response->num_headers; i++)
        if (strcasecmp(response->headers[i].name, name) == 0) return response->headers[i].value;
    return NULL;
}

typedef struct framing {
    int content_lengths, transfer_encodings, hosts, origins, authorizations, cookies;
    uint64_t content_bytes;
    bool bad_length;
} framing;

static enum MHD_Result note_framing(void *ctx, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    (void)kind;
    framing *seen = ctx;
    if (strcasecmp(name, "Content-Length") == 0) {
        seen->content_lengths++;
        size_t digits = value ? strspn(value, "0123456789") : 0;
        if (digits == 0 || value[digits] != '\0')
            seen->bad_length = true;
        else
            seen->content_bytes = digits > 18 ? UINT64_MAX : strtoull(value, NULL, 10);
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        seen->transfer_encodings++;
    } else if (strcasecmp(name, "Host") == 0) {
        seen->hosts++;
    } else if (strcasecmp(name, "Origin") == 0) {
        seen->origins++;
    } else if (strcasecmp(name, "Authorization") == 0) {
        seen->authorizations++;
    } else if (strcasecmp(name, "Cookie") == 0) {
        seen->cookies++;
    }
    return MHD_YES;
}

static gs_http_fault check_framing(const gs_http_server *server, struct MHD_Connection *connection,
                                   bool *has_body) {
    framing seen = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, note_framing, &seen);
    bool is_doubled = seen.hosts > 1 || seen.origins > 1 || seen.authorizations > 1 || seen.cookies > 1;
    *has_body = seen.transfer_encodings > 0 || seen.content_bytes > 0;
    if (seen.content_lengths + seen.transfer_encodings > 1 || seen.bad_length || is_doubled)
        return GS_HTTP_BAD_FRAMING;
    return seen.content_bytes > server->options.max_body_bytes ? GS_HTTP_TOO_LARGE : GS_HTTP_FINE;
}

typedef struct open_stream {
    gs_http_stream stream;
    gs_http_server *server;
    struct MHD_Connection *connection;
} open_stream;

// Asked for more when all before it was taken: who does not take it in time is cut, who waits for us is not.
static ssize_t read_stream(void *ctx, uint64_t position, char *buffer, size_t max_bytes) {
    (void)position;
    open_stream *it = ctx;
    set_phase(it->server, it->connection, GS_HTTP_STREAMING, 0);
    ssize_t bytes = it->stream.read(it->stream.ctx, buffer, max_bytes);
    set_phase(it->server, it->connection, GS_HTTP_ANSWERING, DRAIN_REQUESTS * request_limit_ns(it->server));
    return bytes > 0 ? bytes : MHD_CONTENT_READER_END_OF_STREAM;
}

static void close_stream(void *ctx) {
    open_stream *it = ctx;
    it->stream.close(it->stream.ctx);
    free(it);
}

// Takes the stream of `response`, also on failure.
static struct MHD_Response *make_stream(gs_http_server *server, struct MHD_Connection *connection, gs_http_response *response) {
    open_stream *stream = malloc(sizeof *stream);
    if (!stream) {
        response->stream.close(response->stream.ctx);
        return NULL;
    }
    *stream = (open_stream){response->stream, server, connection};
    struct MHD_Response *made = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, stream, close_stream);
    if (!made) close_stream(stream);
    return made;
}

static struct MHD_Response *make_response(gs_http_server *server, struct MHD_Connection *connection, gs_http_response *response) {
    struct MHD_Response *made;
    if (response->stream.read) {
        made = make_stream(server, connection, response);
    } else if (response->shared) {
        made = MHD_create_response_from_buffer(response->shared_bytes, (void *)(uintptr_t)response->shared, MHD_RESPMEM_PERSISTENT);
    } else {
        size_t body_bytes = response->body.len;
        char *body = gs_strbuf_take(&response->body);
        made =
            MHD_create_response_from_buffer(body ? body_bytes : 0, body ? body : (void *)"",
                                            body ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
        if (!made) free(body);
    }
    for (int i = 0; made && i < response->num_headers; i++)
        MHD_add_response_header(made, response->headers[i].name, response->headers[i].value);
    return made;
}

// The library leaves out what a body that it knows holds, and of one in pieces the last one comes all the same.
static void drop_pieces(const gs_http_request *request, gs_http_response *response) {
    if (!response->stream.read || strcmp(request->method, "HEAD") != 0) return;
    response->stream.close(response->stream.ctx);
    response->stream = (gs_http_stream){0};
}

// Takes the response.
static enum MHD_Result send_response(gs_http_server *server, struct MHD_Connection *connection,
                                     const request_state *state, gs_http_response *response) {
    gs_http_set_header(response, "X-Request-Id", state->request.id);
    gs_http_set_header(response, "X-Content-Type-Options", "nosniff");
    gs_http_set_header(response, "Cross-Origin-Resource-Policy", "same-origin");

    drop_pieces(&state->request, response);
    bool streams = response->stream.read != NULL;
    struct MHD_Response *made = make_response(server, connection, response);
    gs_strbuf_release(&response->body);
    if (!made) return MHD_NO;
    if (streams) {
        set_phase(server, connection, GS_HTTP_STREAMING, 0);
        MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 60u);
    }
    enum MHD_Result queued = MHD_queue_response(connection, (unsigned)response->status, made);
    MHD_destroy_response(made);
    return queued;
}

static void drop_body(gs_http_server *server, request_state *state) {
    gs_strbuf_release(&state->body);
    atomic_fetch_sub(&server->bodies_bytes, state->counted_bytes);
    state->counted_bytes = 0;
}

// Runs the handler and queues its answer.
static enum MHD_Result answer_request(gs_http_server *server, struct MHD_Connection *connection,
                                      request_state *state) {
    gs_http_response response = {0};
    state->request.body = gs_strbuf_text(&state->body);
    state->request.body_bytes = state->body.len;
    set_phase(server, connection, GS_HTTP_ANSWERING, RESPONSE_MS * GS_NS_PER_MS);
    server->options.handle(server->options.ctx, &state->request, &response);
    drop_body(server, state);  // whoever reads the answer slowly keeps nothing but that
    return send_response(server, connection, state, &response);
}

// Only the headers are there. An answer here closes the connection without reading the body.
static enum MHD_Result answer_early(gs_http_server *server, struct MHD_Connection *connection,
                                    request_state *state) {
    if (state->request.fault) return answer_request(server, connection, state);
    gs_http_response response = {0};
    if (!state->has_body || !server->options.admit) return MHD_YES;
    gs_http_verdict verdict = server->options.admit(server->options.ctx, &state->request, &response);
    state->swallows = verdict == GS_HTTP_SWALLOW_BODY;
    if (verdict != GS_HTTP_REFUSE) return MHD_YES;
    set_phase(server, connection, GS_HTTP_ANSWERING, RESPONSE_MS * GS_NS_PER_MS);
    return send_response(server, connection, state, &response);
}

static request_state *begin_request(gs_http_server *server, struct MHD_Connection *connection,
                                    const char *path, const char *method) {
    request_state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    uint64_t number = atomic_fetch_add(&server->num_requests, 1);
    snprintf(state->request.id, sizeof state->request.id, "r-%016llx",
             (unsigned long long)gs_random_u64((gs_random_key){server->id_seed, 0}, number));
    state->request.connection = connection;
    state->request.method = method;
    state->request.path = path;
    state->request.begin_ns = gs_now_ns();
    state->request.port = server->port;
    state->request.is_encrypted = server->options.tls != NULL;
    gs_http_peer_format(state->request.from, gs_http_request_client(&state->request).fd);
    state->request.fault = check_framing(server, connection, &state->has_body);
    return state;
}

// False: out of memory.
static bool keep_piece(gs_http_server *server, request_state *state, const char *piece, size_t bytes) {
    size_t all = state->body.len + bytes, counted = all > SMALL_BODY_BYTES ? all - SMALL_BODY_BYTES : 0;
    size_t more = counted - state->counted_bytes;
    state->counted_bytes = counted;
    if (more && atomic_fetch_add(&server->bodies_bytes, more) + more > server->options.max_bodies_bytes) {
        state->request.fault = GS_HTTP_TOO_MANY;
        drop_body(server, state);
        return true;
    }
    gs_strbuf_add(&state->body, piece, bytes);
    return !gs_strbuf_failed(&state->body);
}

// First call: headers only. Then once for each piece of the body. Then once more without a piece.
static enum MHD_Result on_access(void *ctx, struct MHD_Connection *connection, const char *path,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_bytes, void **request_context) {
    (void)version;
    gs_http_server *server = ctx;
    request_state *state = *request_context;
    if (!state) {
        state = begin_request(server, connection, path, method);
        if (!state) return MHD_NO;
        *request_context = state;
        return answer_early(server, connection, state);
    }
    state->request.path = path;
    state->request.method = method;
    if (*upload_bytes == 0) return answer_request(server, connection, state);

    state->received_bytes += *upload_bytes;
    if (state->received_bytes > MAX_SWALLOWED_BYTES) return MHD_NO;
    if (state->received_bytes > server->options.max_body_bytes) {
        state->request.fault = GS_HTTP_TOO_LARGE;
        drop_body(server, state);
    } else if (!state->swallows && state->request.fault == GS_HTTP_FINE && !keep_piece(server, state, upload, *upload_bytes)) {
        return MHD_NO;
    }
    *upload_bytes = 0;
    return MHD_YES;
}

static void on_completed(void *ctx, struct MHD_Connection *connection, void **request_context,
                         enum MHD_RequestTerminationCode reason) {
    (void)reason;
    gs_http_server *server = ctx;
    request_state *state = *request_context;
    *request_context = NULL;
    if (state) {
        drop_body(server, state);
        free(state);
    }
    // What comes next may idle first; bytes of a request line without an end count as idling.
    set_phase(server, connection, GS_HTTP_WAITING,
              server->options.idle_ms * GS_NS_PER_MS + request_limit_ns(server));
    gs_http_connection *entry = entry_of(connection);
    if (!entry) return;
    pthread_mutex_lock(&server->lock);
    entry->idle_ns = gs_now_ns();
    pthread_mutex_unlock(&server->lock);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') ? (c | 0x20) - 'a' + 10 : -1;
}

// Of paths and of parameters. A zero byte stays "%00": it would end the text for whoever reads it here, and what stands behind it
// would be seen by a proxy in front alone.
static size_t unescape(void *ctx, struct MHD_Connection *connection, char *text) {
    (void)ctx, (void)connection;
    char *end = text;
    for (const char *from = text; *from;) {
        int high = *from == '%' ? hex_digit(from[1]) : -1, low = high >= 0 ? hex_digit(from[2]) : -1;
        bool is_escape = low >= 0 && (high > 0 || low > 0);
        *end++ = (char)(is_escape ? high << 4 | low : *from);
        from += is_escape ? 3 : 1;
    }
    *end = '\0';
    return (size_t)(end - text);
}

static void forward_log(void *ctx, const char *format, va_list args) {
    (void)ctx;
    char text[256], quoted[300];
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    gs_log_debug("http library", "text=%s", gs_log_quote(quoted, sizeof quoted, text));
}

static void fill_defaults(gs_http_server_options *options) {
    if (!options->max_body_bytes) options->max_body_bytes = DEFAULT_BODY_BYTES;
    if (!options->max_bodies_bytes) options->max_bodies_bytes = DEFAULT_BODIES_BYTES;
    if (!options->request_ms) options->request_ms = 10000;
    if (!options->idle_ms) options->idle_ms = 30000;
    if (!options->max_per_address) options->max_per_address = 128;
    if (!options->max_connections) options->max_connections = 1024;
    // Half of the files that this process may open stay for everything else.
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 < options->max_connections)
        options->max_connections = (unsigned)(files.rlim_cur / 2);
}

// As many again as there may be, where the process may open so many files.
static unsigned choose_slack(const gs_http_server_options *options) {
    unsigned slack = options->max_connections;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < slack) slack = (unsigned)(files.rlim_cur / 4);
    return slack > LEAST_SLACK ? slack : LEAST_SLACK;
}

// The library keeps its connection with the session.
static int show_certificate(gnutls_session_t session, const gnutls_datum_t *authorities, int num_authorities,
                            const gnutls_pk_algorithm_t *algorithms, int num_algorithms, gnutls_pcert_st **chain,
                            unsigned *chain_count, gnutls_privkey_t *key) {
    (void)authorities, (void)num_authorities, (void)algorithms, (void)num_algorithms;
    struct MHD_Connection *connection = gnutls_session_get_ptr(session);
    const union MHD_ConnectionInfo *info =
        connection ? MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT) : NULL;
    if (!info || !info->socket_context) return -1;  // out of memory when it came
    const gs_http_connection *entry = info->socket_context;
    gs_tls_show(entry->server->options.tls, chain, chain_count, key);
    return 0;
}

static gs_status start_daemon(gs_http_server *server, int listener) {
    const gs_http_server_options *options = &server->options;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)show_certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)GS_TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL}};
    if (!options->tls) tls[0].option = MHD_OPTION_END;
    server->daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
            MHD_USE_ITC | MHD_USE_ERROR_LOG | (options->tls ? MHD_USE_TLS : 0),
        0, NULL, NULL, on_access, server, MHD_OPTION_LISTEN_SOCKET, listener,
        MHD_OPTION_EXTERNAL_LOGGER, forward_log, NULL, MHD_OPTION_CONNECTION_LIMIT,
        options->max_connections + server->slack, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)((options->idle_ms + 999) / 1000),
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, server, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_URI_LOG_CALLBACK, on_request_line, server, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    return server->daemon ? gs_ok() : gs_error(GS_INTERNAL, "http server did not start");
}

gs_status gs_http_server_start(gs_http_server **out, const gs_http_server_options *options) {
    int listener = -1;
    char bound[GS_HTTP_ADDRESS_LEN];
    // Our own socket, because libmicrohttpd does not say why it could not bind.
    GS_TRY(gs_listener_open(&listener, bound, options->address));
    gs_http_server *server = calloc(1, sizeof *server);
    if (!server) {
        close(listener);
        return gs_error(GS_RESOURCE_EXHAUSTED, "http server: out of memory");
    }
    server->options = *options;
    server->options.address = NULL;
    fill_defaults(&server->options);
    server->slack = choose_slack(&server->options);
    server->id_seed = gs_random_from_system();
    pthread_mutex_init(&server->lock, NULL);
    gs_cond_init(&server->changed);
    memcpy(server->address, bound, sizeof bound);
    if (gs_http_unix_path(bound)) server->socket = gs_socket_mark_of(gs_http_unix_path(bound));
    server->port = gs_http_unix_path(bound) ? 0 : atoi(strrchr(bound, ':') + 1);

    gs_status status = gs_thread_start(&server->watchdog, "http-watchdog", run_watchdog, server);
    if (!status.code) status = start_daemon(server, listener);
    if (status.code) {
        close(listener);
        gs_http_server_stop(server);
        return status;
    }
    *out = server;
    return gs_ok();
}

const char *gs_http_server_address(const gs_http_server *server) {
    return server->address;
}

void gs_http_server_stop(gs_http_server *server) {
    if (!server) return;
    if (gs_http_unix_path(server->address)) gs_socket_remove(gs_http_unix_path(server->address), server->socket);
    if (server->daemon) {
        int listener = MHD_quiesce_daemon(server->daemon);
        MHD_stop_daemon(server->daemon);
        if (listener >= 0) close(listener);
    }
    if (server->watchdog) {
        pthread_mutex_lock(&server->lock);
        gs_thread_ask_to_stop(server->watchdog);
        pthread_cond_broadcast(&server->changed);
        pthread_mutex_unlock(&server->lock);
        gs_thread_stop(server->watchdog);
    }
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
