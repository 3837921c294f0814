// HTTP/1.1 as the rest of the API sees it: whole requests in, answers or streams out. The only place
// that knows libmicrohttpd.
//
// A thread for each connection, so a handler may block. Guarantees before a handler runs: the body
// is complete and at most max_body_bytes; framing is unambiguous; the request arrived within its
// deadline, however slowly it dripped. What the API means lives elsewhere.
#ifndef API_HTTP_HTTP_SERVER_H
#define API_HTTP_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "api/http/early_head.h"
#include "api/http/listener.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/strbuf.h"

#define GS_HTTP_ID_LEN 20
#define GS_HTTP_MAX_HEADERS 16
#define GS_HTTP_STREAM_END (-1)

typedef struct gs_http_server gs_http_server;

// What went wrong before the request was one: answered by the handler like any other error.
typedef enum gs_http_fault {
    GS_HTTP_FINE = 0,
    GS_HTTP_BAD_FRAMING,  // Content-Length and chunked, or two of what there is one of
    GS_HTTP_TOO_LARGE,    // the body
    GS_HTTP_TOO_MANY      // bodies are on their way, and there is no room for this one
} gs_http_fault;

typedef struct gs_http_request {  // borrowed for the call of the handler
    const char *method, *path;    // the path without the query, decoded
    const char *body;             // "" when there is none
    size_t body_bytes;
    gs_http_fault fault;
    char id[GS_HTTP_ID_LEN];  // "r-" and hexadecimal digits: X-Request-Id
    int64_t begin_ns;
    int port;          // that we listen on; 0: a Unix socket
    bool is_encrypted;
    char from[GS_HTTP_PEER_LEN];  // who is at the other end
    void *connection;  // private
} gs_http_request;

// NULL when absent. A query parameter without "=" is "".
const char *gs_http_header(const gs_http_request *request, const char *name);
const char *gs_http_query(const gs_http_request *request, const char *name);
void gs_http_each_query(const gs_http_request *request,
                        bool (*visit)(void *ctx, const char *name, const char *value), void *ctx);
// Whether the other side has closed; also from a stream's read. Never blocks.
typedef struct gs_http_client {
    int fd;
} gs_http_client;
gs_http_client gs_http_request_client(const gs_http_request *request);
bool gs_http_client_gone(gs_http_client client);

// A stream: `read` may block (below 20 s) and returns the bytes written or GS_HTTP_STREAM_END,
// never 0.
typedef struct gs_http_stream {
    ssize_t (*read)(void *ctx, char *buffer, size_t max_bytes);
    void (*close)(void *ctx);  // always called once
    void *ctx;
} gs_http_stream;

typedef struct gs_http_response {
    int status;
    struct {
        char name[32], value[224];
    } headers[GS_HTTP_MAX_HEADERS];
    int num_headers;
    gs_strbuf body;         // owned
    const char *shared;     // in place of a body: borrowed as long as the server serves, and sent without a copy
    size_t shared_bytes;
    gs_http_stream stream;  // instead of a body when `read` is set
} gs_http_response;

// Whose the connection is, which from now on gives way behind those of strangers: the same number for all that he has, and not 0. Of a
// handler, before it waits for anything.
void gs_http_note_known(const gs_http_request *request, uint64_t whose);
// Replaces a header of that name. Line breaks in the value end it.
void gs_http_set_header(gs_http_response *response, const char *name, const char *value);
const char *gs_http_response_header(const gs_http_response *response, const char *name);

// What becomes of a body.
typedef enum gs_http_verdict {
    GS_HTTP_KEEP_BODY = 0,
    GS_HTTP_SWALLOW_BODY,  // it is read, so that the connection goes on, and the handler gets none: nobody looks at it
    GS_HTTP_REFUSE         // the request, and the response is filled: the connection ends
} gs_http_verdict;

typedef struct gs_http_server_options {
    const char *address;       // "127.0.0.1:8470", "[::1]:0", "localhost:8470", "unix:/PATH"
    struct gs_tls *tls;        // borrowed until stop; NULL: nothing is encrypted
    size_t max_body_bytes;     // 0: 1 MiB
    size_t max_bodies_bytes;   // of all requests together, without the first 16 KiB of each; 0: 256 MiB
    int64_t request_ms;        // from the first byte to the last; 0: 10 s
    int64_t idle_ms;           // between requests; 0: 30 s
    // Beyond these whoever comes takes the place of a connection of which nobody knows whose it is, so that a crowd of strangers
    // shuts nobody out: of the one whose answer has not moved for longest, two seconds at least; else of the oldest that waits; else of
    // the oldest that is being answered. Where all are known, of one of those who hold most of these places, or more than half as many
    // as who holds most (a sixteenth at least): that has idled for a second, that has sent a part of a request for two, that waits at
    // all, that has not read for two, that has been answered for five; of each kind of whoever has done so for longest. Else of one that
    // has idled for a second or sent a part of a request for two; else he is cut himself. Who is one of those and comes again takes no
    // place of another, nor of what he is doing.
    unsigned max_connections;  // 0: 1024, less where the process may not open that many files
    unsigned max_per_address;  // 0: 128; 127.0.0.0/8 is one address, and so is an IPv6 network of 64 bits
    // Whose a request is, as far as what has come of it unread shows that, as for gs_http_note_known; 0: it does not. Not
    // asked where it is encrypted. Any thread; it must not wait. May be NULL.
    uint64_t (*knows)(void *ctx, const gs_early_head *head);
    // Of a request that announces a body, before a byte of it is read. Any thread. May be NULL: all bodies are kept.
    gs_http_verdict (*admit)(void *ctx, const gs_http_request *request, gs_http_response *response);
    // Any thread. Fills the response (zeroed before).
    void (*handle)(void *ctx, const gs_http_request *request, gs_http_response *response);
    // A connection was cut because of `reason`: "slow", "crowd". May be NULL.
    void (*refused)(void *ctx, const char *reason);
    void *ctx;
} gs_http_server_options;

// INVALID_ARGUMENT: no address. FAILED_PRECONDITION: in use.
GS_NODISCARD gs_status gs_http_server_start(gs_http_server **out,
                                            const gs_http_server_options *options);
const char *gs_http_server_address(const gs_http_server *server);  // with the real port
void gs_http_server_stop(gs_http_server *server);  // waits for handlers; NULL is fine

#endif
