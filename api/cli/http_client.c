#include "api/cli/http_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "api/cli/identity.h"
#include "core/clock.h"

struct gs_cli_http {
    CURL *curl;
    gs_cli_server server;
    double timeout_seconds;
    bool debug;
};

typedef struct body_taker {
    gs_cli_http *http;
    gs_strbuf text;  // of answers that are read whole, and of errors
    bool (*take)(void *ctx, const char *data, size_t bytes);
    void *ctx;
    bool took, ended_by_taker;
} body_taker;

gs_cli_http *gs_cli_http_open(const gs_cli_server *server, double timeout_seconds, bool debug) {
    gs_cli_http *http = calloc(1, sizeof *http);
    if (!http) return NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    http->curl = curl_easy_init();
    http->server = *server;
    http->timeout_seconds = timeout_seconds;
    http->debug = debug;
    if (http->curl) return http;
    free(http);
    return NULL;
}

void gs_cli_http_close(gs_cli_http *http) {
    if (!http) return;
    curl_easy_cleanup(http->curl);
    curl_global_cleanup();
    free(http);
}

const char *gs_cli_http_server(const gs_cli_http *http) {
    return http->server.url;
}

char *gs_cli_http_escape(gs_cli_http *http, const char *text) {
    char *escaped = curl_easy_escape(http->curl, text, 0);
    char *copy = strdup(escaped ? escaped : "");
    curl_free(escaped);
    return copy;
}

static size_t take_body(char *data, size_t size, size_t count, void *ctx) {
    body_taker *taker = ctx;
    size_t bytes = size * count;
    long status = 0;
    curl_easy_getinfo(taker->http->curl, CURLINFO_RESPONSE_CODE, &status);
    if (taker->take && status < 300) {
        taker->took = true;
        if (taker->take(taker->ctx, data, bytes)) return bytes;
        taker->ended_by_taker = true;
        return 0;
    }
    gs_strbuf_add(&taker->text, data, bytes);
    return gs_strbuf_failed(&taker->text) ? 0 : bytes;
}

static struct curl_slist *make_headers(const gs_cli_http *http, const gs_cli_request *request) {
    char line[320];
    struct curl_slist *headers = NULL;
    snprintf(line, sizeof line, "Accept: %s, application/problem+json;q=0.9",
             request->accept ? request->accept : "application/json");
    headers = curl_slist_append(headers, line);
    if (request->body) headers = curl_slist_append(headers, "Content-Type: application/json");
    if (request->idempotency_key) {
        snprintf(line, sizeof line, "Idempotency-Key: %s", request->idempotency_key);
        headers = curl_slist_append(headers, line);
    }
    if (http->server.token && *http->server.token) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", http->server.token);
        headers = curl_slist_append(headers, line);
    }
    return headers;
}

// One attempt. *status is 0 when there was no answer.
static CURLcode send_once(gs_cli_http *http, long *status, body_taker *taker,
                          const gs_cli_request *request) {
    char url[4096];
    CURL *curl = http->curl;
    const char *socket_path = strncmp(http->server.url, "unix:", 5) == 0 ? http->server.url + 5 : NULL;
    snprintf(url, sizeof url, "%s%s", socket_path ? "http://localhost" : http->server.url, request->path);
    curl_easy_reset(curl);
    if (socket_path) curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket_path);
    struct curl_slist *headers = make_headers(http, request);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->verb);
    if (request->body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body);
    } else if (strcmp(request->verb, "POST") == 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    }
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, taker);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);  // nobody else is shown the token
    // Whatever http_proxy says: what stays on this machine is no proxy's to see.
    if (gs_cli_identity_is_local(http->server.url)) curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (http->server.cacert && *http->server.cacert) curl_easy_setopt(curl, CURLOPT_CAINFO, http->server.cacert);
    // Of https the handshake is part of it, which takes a busy machine its time.
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, strncmp(url, "https:", 6) == 0 ? 30000L : 5000L);
    if (!taker->take) curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 60000L);
    CURLcode code = curl_easy_perform(curl);
    *status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    if (http->debug)
        fprintf(stderr, "%s %s -> %ld%s%s\n", request->verb, url, *status, code ? " " : "",
                code ? curl_easy_strerror(code) : "");
    curl_slist_free_all(headers);
    return code;
}

static bool worth_another_try(CURLcode code, long status) {
    return code == CURLE_COULDNT_CONNECT || code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR ||
           code == CURLE_SEND_ERROR || (code == CURLE_OK && status == 503);
}

static CURLcode send_with_retries(gs_cli_http *http, long *status, body_taker *taker,
                                  const gs_cli_request *request) {
    gs_deadline deadline = gs_deadline_in_seconds(http->timeout_seconds);
    int64_t pause_ms = 100;
    for (;;) {
        gs_strbuf_clear(&taker->text);
        CURLcode code = send_once(http, status, taker, request);
        // What has been taken cannot be taken back: another try would repeat it.
        if (request->once || taker->took || !worth_another_try(code, *status) ||
            gs_deadline_passed(deadline))
            return code;
        int64_t left_ms = gs_deadline_left_ms(deadline);
        gs_sleep_ns((pause_ms < left_ms ? pause_ms : left_ms) * GS_NS_PER_MS);
        pause_ms = pause_ms < 1600 ? pause_ms * 2 : 2000;
    }
}

static int exit_code_of(long status) {
    if (status < 300) return GS_EXIT_OK;
    if (status < 400) return GS_EXIT_UNAVAILABLE;
    switch (status) {
    case 401:
    case 403:
        return GS_EXIT_NOT_ALLOWED;
    case 404:
    case 410:
        return GS_EXIT_NOT_FOUND;
    case 409:
    case 412:
        return GS_EXIT_CONFLICT;
    case 503:
    case 504:
        return GS_EXIT_UNAVAILABLE;
    default:
        return status < 500 ? GS_EXIT_INVALID : GS_EXIT_JOB_FAILED;
    }
}

static void print_field_errors(const gs_json *errors) {
    size_t num_errors = gs_json_count(errors);
    for (size_t i = 0; i < num_errors; i++) {
        const gs_json *error = gs_json_at(errors, i);
        const char *hint = gs_json_string_or(error, "hint", "");
        fprintf(stderr, "  %s: %s%s%s\n", gs_json_string_or(error, "pointer", "/"),
                gs_json_string_or(error, "message", ""), *hint ? "; " : "", hint);
        if (i == 1 && num_errors > 3) {  // an error is three lines at most; --debug has the rest
            fprintf(stderr, "  and %zu more\n", num_errors - 2);
            return;
        }
    }
}

// What happened, where, what to do.
static void print_problem(const gs_cli_http *http, const gs_json *problem, long status) {
    const gs_json *errors = gs_json_get(problem, "errors");
    const char *title = gs_json_string_or(problem, "title", NULL);
    const char *detail = gs_json_string_or(problem, "detail", "");
    const char *hint = gs_json_string_or(problem, "hint", "");
    const char *elsewhere = NULL;
    curl_easy_getinfo(http->curl, CURLINFO_REDIRECT_URL, &elsewhere);
    if (elsewhere && status < 400) {
        fprintf(stderr, "gradsync: %s answers with HTTP status %ld: %s\n  no token is taken there unasked; --server names another\n",
                http->server.url, status, elsewhere);
        return;
    }
    if (!title) {
        fprintf(stderr, "gradsync: the server answered with HTTP status %ld\n", status);
        return;
    }
    fprintf(stderr, "gradsync: %s%s%s\n", title, *detail ? ": " : "", detail);
    if (gs_json_count(errors) > 0)
        print_field_errors(errors);
    else if (status == 401)
        fprintf(stderr, "  `gradsync login %s` keeps a token; GRADSYNC_TOKEN, GRADSYNC_TOKEN_FILE or --token-file show one\n",
                http->server.url);
    else if (*hint)
        fprintf(stderr, "  %s\n", hint);
}

static bool is_mistrusted(CURLcode code) {
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}

static int finish_request(gs_cli_http *http, CURLcode code, long status, body_taker *taker,
                          const gs_cli_request *request) {
    if (taker->ended_by_taker) return GS_EXIT_OK;
    if (code != CURLE_OK && (status == 0 || status < 400)) {
        if (!request->quiet && !(request->resumes && taker->took))
            fprintf(stderr,
                    "gradsync: %s: %s\n  %s\n", http->server.url, curl_easy_strerror(code),
                    is_mistrusted(code) ? "--cacert FILE or GRADSYNC_CACERT names the authority of its certificate"
                                        : "is it running? `gradsync up` starts one; --server or GRADSYNC_SERVER names another");
        return GS_EXIT_UNAVAILABLE;
    }
    int exit_code = exit_code_of(status);
    if (exit_code == GS_EXIT_OK || request->quiet) return exit_code;
    gs_json *problem = NULL;
    gs_status parsed = gs_json_parse(&problem, gs_strbuf_text(&taker->text), taker->text.len);
    print_problem(http, parsed.code ? NULL : problem, status);
    if (http->debug) fprintf(stderr, "%s\n", gs_strbuf_text(&taker->text));
    gs_json_release(problem);
    return exit_code;
}

int gs_cli_http_stream(gs_cli_http *http, const gs_cli_request *request,
                       bool (*take)(void *ctx, const char *data, size_t bytes), void *ctx) {
    body_taker taker = {.http = http, .take = take, .ctx = ctx};
    long status = 0;
    CURLcode code = send_with_retries(http, &status, &taker, request);
    int exit_code = finish_request(http, code, status, &taker, request);
    gs_strbuf_release(&taker.text);
    return exit_code;
}

int gs_cli_http_text(gs_cli_http *http, gs_strbuf *text, const gs_cli_request *request) {
    body_taker taker = {.http = http};
    long status = 0;
    CURLcode code = send_with_retries(http, &status, &taker, request);
    int exit_code = finish_request(http, code, status, &taker, request);
    if (exit_code == GS_EXIT_OK) gs_strbuf_add(text, gs_strbuf_text(&taker.text), taker.text.len);
    gs_strbuf_release(&taker.text);
    return exit_code;
}

int gs_cli_http_call(gs_cli_http *http, gs_json **reply, const gs_cli_request *request) {
    gs_strbuf text = {0};
    if (reply) *reply = NULL;
    int exit_code = gs_cli_http_text(http, &text, request);
    if (exit_code == GS_EXIT_OK && reply && text.len > 0) {
        gs_status status = gs_json_parse(reply, text.text, text.len);
        if (status.code) {
            fprintf(stderr, "gradsync: the server's answer is not JSON: %s\n", status.message);
            exit_code = GS_EXIT_JOB_FAILED;
        }
    }
    gs_strbuf_release(&text);
    return exit_code;
}
