// Whatever bytes come on a connection: the server answers, or closes, within its time; what its handler is told of the path and the
// query is what stands there, a look ahead at the head has seen the same, and the route's own reader takes or refuses it with an
// answer that is one. The server is the real one with the real table of routes; behind them there is nobody.
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/http/early_head.h"
#include "api/http/http_server.h"
#include "api/http/problem.h"
#include "api/routes/route_call.h"
#include "api/routes/routes.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/one_file.h"

enum { PATIENCE_SECONDS = 20, MOST_ANSWER_BYTES = 4 << 20 };

static void require(bool holds) {
    if (!holds) abort();
}

// The input that is on its way: written before it is sent, read by the handler of what was sent.
static const char *input;
static size_t input_bytes;
static atomic_uint num_handled;
static gs_api_services services;
static gs_shared_document document;

static int hex_digit(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at && (c < 'G' || c > 'Z') ? (int)(at - digits) : -1;
}

// A zero byte stays as it is written: nothing may stand behind the end of a text.
static size_t decode(char *out, const char *text, size_t len, bool is_query) {
    size_t bytes = 0;
    for (size_t i = 0; i < len; i++) {
        int high = i + 2 < len && text[i] == '%' ? hex_digit(text[i + 1]) : -1, low = high >= 0 ? hex_digit(text[i + 2]) : -1;
        bool is_escape = low >= 0 && (high || low);
        out[bytes++] = (char)(is_escape ? high << 4 | low : is_query && text[i] == '+' ? ' ' : text[i]);
        if (is_escape) i += 2;
    }
    out[bytes] = '\0';
    return bytes;
}

typedef struct pair_list {
    char *text;  // "name\0value\0" …
    size_t bytes;
} pair_list;

static bool add_pair(void *ctx, const char *name, const char *value) {
    pair_list *seen = ctx;
    size_t name_bytes = strlen(name) + 1, value_bytes = strlen(value) + 1;
    seen->text = realloc(seen->text, seen->bytes + name_bytes + value_bytes);
    require(seen->text != NULL);
    memcpy(seen->text + seen->bytes, name, name_bytes);
    memcpy(seen->text + seen->bytes + name_bytes, value, value_bytes);
    seen->bytes += name_bytes + value_bytes;
    return true;
}

static void compare_query(const gs_http_request *request, const char *query, size_t len) {
    pair_list seen = {0}, said = {0};
    char *name = malloc(len + 1), *value = malloc(len + 1);
    require(name && value);
    gs_http_each_query(request, add_pair, &seen);
    for (const char *at = query, *end = query + len; at < end;) {
        const char *stop = memchr(at, '&', (size_t)(end - at));
        size_t pair_len = stop ? (size_t)(stop - at) : (size_t)(end - at);
        const char *sign = memchr(at, '=', pair_len);
        size_t name_len = sign ? (size_t)(sign - at) : pair_len;
        decode(name, at, name_len, true);
        decode(value, sign ? sign + 1 : at, sign ? pair_len - name_len - 1 : 0, true);
        add_pair(&said, name, value);
        at += pair_len + 1;
    }
    require(seen.bytes == said.bytes && (!seen.bytes || memcmp(seen.text, said.text, seen.bytes) == 0));
    free(name);
    free(value);
    free(seen.text);
    free(said.text);
}

// Of a request's line as everybody writes it: a method, a target, HTTP/1.1, with one space between them.
static void compare_target(const gs_http_request *request) {
    const char *end = memmem(input, input_bytes, "\r\n", 2), *target = memchr(input, ' ', input_bytes);
    if (!end || !target || target > end || end - target < 11 || memcmp(end - 9, " HTTP/1.1", 9) != 0) return;
    target++;
    size_t len = (size_t)(end - 9 - target), method_len = (size_t)(target - 1 - input);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)target[i] <= ' ') return;
    for (size_t i = 0; i < method_len; i++)
        if ((unsigned char)input[i] <= ' ') return;  // the library's texts end at a zero byte that comes as such
    if (*target != '/') return;
    const char *mark = memchr(target, '?', len);
    size_t path_len = mark ? (size_t)(mark - target) : len;
    char *path = malloc(path_len + 1);
    require(path != NULL);
    decode(path, target, path_len, false);
    require(strcmp(path, request->path) == 0);
    free(path);
    require(strlen(request->method) == method_len && memcmp(request->method, input, method_len) == 0);
    if (mark) compare_query(request, mark + 1, len - path_len - 1);
}

// Lines that end as they should, none of which goes on in the next one, and names without spaces.
static bool is_plain(const char *head, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (head[i] == '\0' || (head[i] == '\n' && (i == 0 || head[i - 1] != '\r'))) return false;
        if (head[i] == '\r' && (i + 1 == bytes || head[i + 1] != '\n')) return false;
        if (head[i] == '\n' && i + 1 < bytes && (head[i + 1] == ' ' || head[i + 1] == '\t')) return false;
        if (head[i] == ':' && i > 0 && (head[i - 1] == ' ' || head[i - 1] == '\t')) return false;
    }
    return true;
}

static int count_lines(const char *head, size_t bytes, const char *name) {
    int count = 0;
    size_t len = strlen(name);
    for (const char *at = head; (at = memmem(at, (size_t)(head + bytes - at), "\r\n", 2)); at += 2)
        count += (size_t)(head + bytes - at) > len + 2 && strncasecmp(at + 2, name, len) == 0 && at[2 + len] == ':';
    return count;
}

static void compare_head(const gs_http_request *request) {
    static const char *const single[] = {"Host", "Origin", "Authorization", "Cookie", "Content-Length", "Transfer-Encoding"};
    static const char *const names[] = {"Authorization", "Cookie"};
    static gs_early_head head;
    char value[512];
    head.bytes = input_bytes < sizeof head.text ? input_bytes : sizeof head.text;
    memcpy(head.text, input, head.bytes);
    const char *end = memmem(head.text, head.bytes, "\r\n\r\n", 4);
    if (!end || !is_plain(head.text, (size_t)(end - head.text) + 4)) return;
    for (size_t i = 0; i < 6; i++) require(count_lines(head.text, (size_t)(end - head.text), single[i]) <= 1);
    for (size_t i = 0; i < 2; i++) {
        const char *read = gs_http_header(request, names[i]);
        bool is_found = gs_early_head_find(&head, value, sizeof value, names[i]);
        require(!is_found || (read && strcmp(read, value) == 0));
        require(is_found || !read || strlen(read) >= sizeof value - 64);
    }
}

// As the door does behind its checks, without anybody who would be asked.
static void serve(const gs_http_request *request, gs_http_response *response, const gs_route_match *match) {
    gs_caller caller = {.role = GS_ROLE_ADMIN};
    gs_route_call call = {.services = &services, .request = request, .response = response, .match = match, .caller = &caller,
                          .args = gs_json_new_object()};
    bool is_good = gs_route_call_read_params(&call);
    gs_json *body = is_good && match->route->body ? gs_route_call_read_body(&call) : NULL;
    require(!body || gs_json_type_of(body) == GS_JSON_OBJECT);
    require(is_good || (response->status == 400 && response->body.len));
    if (is_good && match->route->body && !body) {
        require(response->status >= 400 && response->body.len);
    } else if (is_good && match->route->etag) {
        gs_route_call_answer_shared(&call, &document);
        const char *known = gs_http_header(request, "If-None-Match");
        bool is_named = known && (strstr(known, document.tag) || strchr(known, '*'));
        require(response->status == 304 ? is_named : response->shared == document.text);
        require(response->status == 304 || !known || strcmp(known, document.tag) != 0);
    } else if (is_good) {
        gs_route_call_answer(&call, gs_json_retain(call.args));
    }
    gs_json_release(body);
    gs_json_release(call.args);
    gs_route_call_finish(&call);
}

static void handle(void *ctx, const gs_http_request *request, gs_http_response *response) {
    (void)ctx;
    gs_route_match match;
    bool is_first = atomic_fetch_add(&num_handled, 1) == 0;
    require(request->path && request->method && (request->fault || request->body_bytes <= input_bytes));
    if (request->fault) {
        gs_problem_answer_code(response, request->id, request->fault == GS_HTTP_TOO_LARGE ? "too_large" : "bad_request", "fault %d", (int)request->fault);
        return;
    }
    if (is_first) {
        compare_target(request);
        compare_head(request);
    }
    gs_route_find(&match, services.routes, services.num_routes, request->method, request->path);
    if (match.route) serve(request, response, &match);
    else gs_problem_answer_code(response, request->id, "not_found", "no resource at this path");
}

static gs_http_server *start(void) {
    gs_http_server *server = NULL;
    char address[128];
    snprintf(address, sizeof address, "unix:%s/http", fuzz_dir());
    gs_http_server_options options = {.address = address, .handle = handle};
    services = (gs_api_services){.metrics = gs_api_metrics_create(), .bodies = gs_budget_create(GS_API_BODIES_BYTES),
                                 .routes = gs_routes, .num_routes = gs_num_routes};
    require(services.metrics && services.bodies && !gs_shared_document_make(&document, gs_json_new_object()).code);
    require(!gs_http_server_start(&server, &options).code);
    return server;
}

static int connect_to(const gs_http_server *server) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", gs_http_unix_path(gs_http_server_address(server)));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    require(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0);
    while (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0) require(errno == EINTR);  // libFuzzer has a timer
    return fd;
}

// Until the server closes: it has until then.
static size_t read_answers(char *answers, int fd) {
    size_t bytes = 0;
    for (;;) {
        ssize_t got = recv(fd, answers + bytes, MOST_ANSWER_BYTES - bytes, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) return bytes;
        if (got < 0 && errno == EINTR) continue;
        require(got > 0);
        bytes += (size_t)got;
    }
}

// The first one: its lines are headers, and what of a body there is, where there is one alone, is JSON.
static void check_answer(const char *answers, size_t bytes) {
    const char *end = memmem(answers, bytes, "\r\n\r\n", 4), *line = memmem(answers, bytes, "\r\n", 2);
    if (!bytes) return;
    require(end && bytes > 12 && memcmp(answers, "HTTP/1.", 7) == 0);
    bool is_json = false, is_sent_whole = false;
    for (line += 2; line < end; line = (const char *)memmem(line, bytes, "\r\n", 2) + 2) {
        size_t len = (size_t)((const char *)memmem(line, (size_t)(end + 2 - line), "\r\n", 2) - line);
        const char *colon = memchr(line, ':', len);
        require(colon && colon > line && colon[1] == ' ');
        for (size_t i = 0; i < len; i++) require(line[i] != '\r' && line[i] != '\n');
        if (strncasecmp(line, "Content-Type: application/", 26) == 0 && memmem(line, len, "json", 4)) is_json = true;
        if (strncasecmp(line, "Content-Length: ", 16) == 0) is_sent_whole = strtoull(line + 16, NULL, 10) == bytes - (size_t)(end + 4 - answers);
        if (line + len == end) break;
    }
    gs_json *body = NULL;
    if (!is_json || !is_sent_whole || end + 4 == answers + bytes) return;
    require(!gs_json_parse(&body, end + 4, bytes - (size_t)(end + 4 - answers)).code);
    gs_json_release(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static gs_http_server *server;
    static char *answers;
    if (!server) {
        server = start();
        answers = malloc(MOST_ANSWER_BYTES);
        require(answers != NULL);
    }
    input = (const char *)data;
    input_bytes = bytes;
    atomic_store(&num_handled, 0);
    int fd = connect_to(server);
    for (size_t sent = 0; sent < bytes;) {
        ssize_t some = send(fd, data + sent, bytes - sent, MSG_NOSIGNAL);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;  // it has heard enough
        sent += (size_t)some;
    }
    shutdown(fd, SHUT_WR);
    check_answer(answers, read_answers(answers, fd));
    close(fd);
    return 0;
}

static void __attribute__((destructor)) remove_socket(void) {
    fuzz_remove("http");
}
