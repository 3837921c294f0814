// HTTP for the command line: one server, retries, errors as exit codes. The only place that knows libcurl.
#ifndef API_CLI_HTTP_CLIENT_H
#define API_CLI_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/strbuf.h"
#include "rpc/json/json.h"

// Exit codes of `gradsync`.
enum {
    GS_EXIT_OK = 0,
    GS_EXIT_JOB_FAILED = 1,
    GS_EXIT_USAGE = 2,
    GS_EXIT_NOT_FOUND = 3,
    GS_EXIT_CONFLICT = 4,
    GS_EXIT_NOT_ALLOWED = 5,
    GS_EXIT_UNAVAILABLE = 6,
    GS_EXIT_INVALID = 7,
    GS_EXIT_TIMEOUT = 8,
    GS_EXIT_CANCELLED = 9,
    GS_EXIT_INTERRUPTED = 130
};

typedef struct gs_cli_http gs_cli_http;

// Where to, and as whom; borrowed until close.
typedef struct gs_cli_server {
    const char *url;     // "http://127.0.0.1:8470"
    const char *token;   // "" or NULL: none
    const char *cacert;  // a file of authorities besides the system's; "" or NULL: none
} gs_cli_server;

//   timeout_seconds  how long refused connections and 503 are tried again
gs_cli_http *gs_cli_http_open(const gs_cli_server *server, double timeout_seconds, bool debug);
void gs_cli_http_close(gs_cli_http *http);  // NULL is fine
const char *gs_cli_http_server(const gs_cli_http *http);

typedef struct gs_cli_request {
    const char *verb, *path;  // the path with its query
    const char *body;         // JSON text, or NULL
    const char *accept;       // NULL: application/json
    const char *idempotency_key;
    bool quiet;  // no message on standard error
    bool once;   // no retries
    // The caller goes on behind what it took, so a stream that breaks is no news.
    bool resumes;
} gs_cli_request;

// Returns an exit code; for errors the problem is told on standard error. *reply (may be NULL as an
// argument) is the JSON body, the caller's, NULL when there was none.
int gs_cli_http_call(gs_cli_http *http, gs_json **reply, const gs_cli_request *request);
// The body as text.
int gs_cli_http_text(gs_cli_http *http, gs_strbuf *text, const gs_cli_request *request);
// Gives the body piece by piece as it comes; `take` returns false to end it.
int gs_cli_http_stream(gs_cli_http *http, const gs_cli_request *request,
                       bool (*take)(void *ctx, const char *data, size_t bytes), void *ctx);

// `text` as a part of a path or query; the caller's (free()).
char *gs_cli_http_escape(gs_cli_http *http, const char *text);

#endif
