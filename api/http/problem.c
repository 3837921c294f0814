#include "api/http/problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Codes are promises to clients: add, never rename.
static const gs_problem problems[] = {
    {"bad_request", 400, "The request is not well-formed HTTP",
     "Send either Content-Length or chunked encoding, once, and one Host header."},
    {"bad_json", 400, "The body is not valid JSON",
     "The detail names the byte where reading stopped. Comments, trailing commas, NaN and "
     "duplicate "
     "members are not JSON."},
    {"bad_parameter", 400, "A query parameter is not valid",
     "See /openapi.json for the parameters of each operation."},
    {"unauthenticated", 401, "No valid credentials", "Send Authorization: Bearer and your token; `gradsync login` keeps one. The first is in admin.token in the "
     "coordinator's data directory."},
    {"forbidden", 403, "Not allowed", "An administrator makes tokens with the role that is needed: POST /v1/tokens, or `gradsync token new`."},
    {"read_only", 403, "This address is for reading", "Ask the server's other address; --http says which it is."},
    {"forgery", 403, "This could be another page's doing", "Send the header X-Gradsync-CSRF with any value, or Authorization in place of the cookie."},
    {"bad_host", 403, "The Host header names another server",
     "Use the address that the server listens on, or start it with --allow-host and the name. "
     "This stops DNS rebinding."},
    {"bad_origin", 403, "The request comes from a foreign web page",
     "Only pages of the host and port that Host names may use this API; a proxy in front has to "
     "pass Host on unchanged."},
    {"not_found", 404, "No such resource", "List the collection to see what there is."},
    {"method_not_allowed", 405, "The resource does not know this method",
     "The Allow header lists what it knows."},
    {"not_acceptable", 406, "The resource has no representation that you accept",
     "Send Accept: application/json or leave the header out."},
    {"conflict", 409, "The request conflicts with what is there",
     "Names are unique among live jobs; read the resource, then decide."},
    {"wrong_state", 409, "The job's state does not allow this", "Read the job, then decide."},
    {"unreadable", 409, "The job's record cannot be read", "It is kept. The coordinator's log says why; the version that wrote it can read it."},
    {"ambiguous", 409, "Several jobs match", "Use the full id of one of the candidates."},
    {"in_flight", 409, "A request with this idempotency key is being processed",
     "Wait, then repeat it."},
    {"gone", 410, "The cursor is older than what is kept", "List again without a cursor."},
    {"precondition_failed", 412, "The resource has changed", "Read it again, then decide."},
    {"too_large", 413, "The body is too large", "Bodies are at most 1 MiB."},
    {"unsupported_media_type", 415, "The body is not JSON", "Send Content-Type: application/json."},
    {"validation", 422, "The request is not valid",
     "Each entry of errors points to a member and says what is wrong with it."},
    {"idempotency_mismatch", 422, "This idempotency key belongs to another request",
     "Use a new key for a new request."},
    {"rate_limited", 429, "Too many requests", "Wait for Retry-After seconds."},
    {"cancelled", 499, "The request was cancelled", "Repeat it."},
    {"internal", 500, "An internal error", "Report it with the request id."},
    {"data_loss", 500, "Stored data is damaged", "Report it with the request id."},
    {"not_implemented", 501, "Not implemented", "This server does not know the operation."},
    {"draining", 503, "The server is going away", "Repeat it after Retry-After seconds."},
    {"busy", 503, "Other large bodies are being worked on", "Repeat it after Retry-After seconds."},
    {"too_many_streams", 503, "Too many live streams are open",
     "Close some, or repeat it after Retry-After seconds."},
    {"coordinator_unavailable", 503, "The coordinator does not answer",
     "Repeat it after Retry-After seconds. Training goes on without the coordinator."},
    {"store_unavailable", 503, "The store is not writable",
     "Look at the coordinator's data directory."},
    {"not_ready", 503, "The server is not ready", "/readyz?verbose says which check fails."},
    {"timeout", 504, "The coordinator did not answer in time", "Repeat it."},
    {"storage_full", 507, "The store or checkpoint volume is full", "Free some space."},
};
#define NUM_PROBLEMS (sizeof problems / sizeof *problems)

const gs_problem *gs_problem_find(const char *code) {
    for (size_t i = 0; code && i < NUM_PROBLEMS; i++)
        if (strcmp(problems[i].code, code) == 0) return &problems[i];
    return NULL;
}

const gs_problem *gs_problem_of_status(gs_status status, const gs_json *details) {
    static const char *const by_code[GS_NUM_CODES] = {
        [GS_CANCELLED] = "cancelled",
        [GS_UNKNOWN] = "internal",
        [GS_INVALID_ARGUMENT] = "validation",
        [GS_DEADLINE_EXCEEDED] = "timeout",
        [GS_NOT_FOUND] = "not_found",
        [GS_ALREADY_EXISTS] = "conflict",
        [GS_PERMISSION_DENIED] = "forbidden",
        [GS_RESOURCE_EXHAUSTED] = "rate_limited",
        [GS_FAILED_PRECONDITION] = "conflict",
        [GS_ABORTED] = "conflict",
        [GS_OUT_OF_RANGE] = "gone",
        [GS_UNIMPLEMENTED] = "not_implemented",
        [GS_INTERNAL] = "internal",
        [GS_UNAVAILABLE] = "coordinator_unavailable",
        [GS_DATA_LOSS] = "data_loss",
        [GS_UNAUTHENTICATED] = "unauthenticated",
    };
    const gs_problem *named = gs_problem_find(gs_json_string_or(details, "code", NULL));
    if (named) return named;
    const char *code = (unsigned)status.code < GS_NUM_CODES ? by_code[status.code] : NULL;
    return gs_problem_find(code ? code : "internal");
}

void gs_http_answer_text(gs_http_response *response, int status, const char *text, size_t bytes) {
    response->status = text ? status : 500;
    gs_strbuf_clear(&response->body);
    if (!text) {
        gs_http_set_header(response, "Content-Type", "application/problem+json");
        gs_strbuf_puts(&response->body, "{\"type\":\"/problems/internal\",\"title\":\"An internal "
                                        "error\",\"status\":500,\"code\":\"internal\"}");
    } else {
        if (!gs_http_response_header(response, "Content-Type"))
            gs_http_set_header(response, "Content-Type", "application/json");
        gs_strbuf_add(&response->body, text, bytes);
    }
    gs_strbuf_puts(&response->body, "\n");
}

void gs_http_answer_json(gs_http_response *response, int status, gs_json *value) {
    char *text = NULL;
    size_t bytes = 0;
    gs_status encoded = gs_json_encode(&text, &bytes, value, false);
    gs_json_release(value);
    gs_http_answer_text(response, status, encoded.code ? NULL : text, bytes);
    free(text);
}

static int64_t seconds_to_wait(const gs_problem *problem, const gs_json *details) {
    int64_t asked = gs_json_int_or(details, "retry_after_seconds", 0);
    if (asked > 0) return asked;
    return problem->http == 503 || problem->http == 429 ? 2 : 0;
}

static void copy_members(gs_json *body, const gs_json *details) {
    static const char *const names[] = {"errors", "hint", "candidates", "position"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const gs_json *value = gs_json_get(details, names[i]);
        if (value) gs_json_set(body, names[i], gs_json_copy(value));
    }
}

void gs_problem_answer(gs_http_response *response, const char *request_id,
                       const gs_problem *problem, const char *detail, const gs_json *details) {
    char type[96];
    snprintf(type, sizeof type, "/problems/%s", problem->code);
    gs_json *body = gs_json_new_object();
    gs_json_set_string(body, "type", type);
    gs_json_set_string(body, "title", problem->title);
    gs_json_set_int(body, "status", problem->http);
    gs_json_set_string(body, "code", problem->code);
    gs_json_set_string(body, "instance", request_id);
    if (detail && *detail) gs_json_set_string(body, "detail", detail);
    copy_members(body, details);
    if (!gs_json_get(body, "hint")) gs_json_set_string(body, "hint", problem->advice);

    int64_t wait_seconds = seconds_to_wait(problem, details);
    if (wait_seconds > 0) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)wait_seconds);
        gs_http_set_header(response, "Retry-After", text);
        gs_json_set_int(body, "retry_after_seconds", wait_seconds);
    }
    gs_http_set_header(response, "Content-Type", "application/problem+json");
    gs_http_set_header(response, "Cache-Control", "no-store");
    if (problem->http == 401) gs_http_set_header(response, "WWW-Authenticate", "Bearer");
    gs_http_answer_json(response, problem->http, body);
}

void gs_problem_answer_status(gs_http_response *response, const char *request_id, gs_status status,
                              const gs_json *details) {
    const gs_problem *problem = gs_problem_of_status(status, details);
    // Our own faults are for the log; the client gets the id to find them there.
    bool hidden = problem->http == 500;
    gs_problem_answer(response, request_id, problem, hidden ? NULL : status.message, details);
}

void gs_problem_answer_code(gs_http_response *response, const char *request_id, const char *code,
                            const char *format, ...) {
    char detail[512];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    const gs_problem *problem = gs_problem_find(code);
    gs_problem_answer(response, request_id, problem ? problem : gs_problem_find("internal"), detail,
                      NULL);
}
