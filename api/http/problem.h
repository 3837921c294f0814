// Errors as HTTP sees them: application/problem+json (RFC 9457) out of a status and its details.
//
// One catalogue gives each error a stable code, which is also the last part of its type and of the
// page that explains it (/problems/{code}).
#ifndef API_HTTP_PROBLEM_H
#define API_HTTP_PROBLEM_H

#include <stddef.h>

#include "api/http/http_server.h"
#include "core/status.h"
#include "rpc/json/json.h"

typedef struct gs_problem {
    const char *code;  // "wrong_state"
    int http;
    const char *title, *advice;
} gs_problem;

const gs_problem *gs_problem_find(const char *code);  // NULL: no such code
// What a status means to an HTTP client. `details` (of an RPC reply, may be NULL) may hold a better
// code, and field errors make it "validation".
const gs_problem *gs_problem_of_status(gs_status status, const gs_json *details);

// Fills the response: status, body, Retry-After where waiting helps.
//   detail   a sentence about this case, or NULL
//   details  may hold errors, hint, candidates, position, retry_after_seconds; borrowed, may be
//   NULL
void gs_problem_answer(gs_http_response *response, const char *request_id,
                       const gs_problem *problem, const char *detail, const gs_json *details);
void gs_problem_answer_status(gs_http_response *response, const char *request_id, gs_status status,
                              const gs_json *details);
// The same by code; the format is the detail.
void gs_problem_answer_code(gs_http_response *response, const char *request_id, const char *code,
                            const char *format, ...) GS_PRINTF(4, 5);

// Puts a JSON value into the body with its type; `value` is taken.
void gs_http_answer_json(gs_http_response *response, int status, gs_json *value);
// The same of JSON that is encoded already; NULL is our own fault.
void gs_http_answer_text(gs_http_response *response, int status, const char *text, size_t bytes);

#endif
