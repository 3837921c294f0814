// Handlers of tokens: who may use the API.
#include <stdio.h>
#include <string.h>

#include "api/http/problem.h"
#include "api/http/request_fields.h"
#include "api/routes/handlers.h"
#include "core/clock.h"
#include "core/log.h"

static void answer_status(gs_route_call *call, gs_status status) {
    bool is_told = status.code == GS_NOT_FOUND || status.code == GS_ALREADY_EXISTS ||
                   status.code == GS_FAILED_PRECONDITION || status.code == GS_INVALID_ARGUMENT;
    if (is_told) {
        gs_problem_answer_status(call->response, call->request->id, status, NULL);
        return;
    }
    gs_log_error("tokens cannot be changed", "request=%s reason=\"%s\"", call->request->id, status.message);
    gs_problem_answer_code(call->response, call->request->id, "store_unavailable",
                           "tokens cannot be written; the server's log says why, at %s", call->request->id);
}

void gs_handle_whoami(gs_route_call *call) {
    const gs_caller *caller = call->caller;
    gs_json *view = gs_json_new_object();
    gs_json_set_bool(view, "asked_for_tokens", gs_token_store_asks(call->services->tokens));
    gs_json_set_string(view, "role", gs_token_role_name(caller->role));
    if (*caller->id) gs_json_set_string(view, "id", caller->id);
    if (*caller->name) gs_json_set_string(view, "name", caller->name);
    if (caller->is_session) gs_json_set_bool(view, "session", true);
    if (caller->expires_ms) gs_json_set_time(view, "expires_at", caller->expires_ms);
    gs_route_call_answer(call, view);
}

void gs_handle_list_tokens(gs_route_call *call) {
    gs_route_call_answer(call, gs_token_store_view(call->services->tokens));
}

// False: the response is a problem.
static bool read_order(gs_route_call *call, gs_token_request *order) {
    gs_json *body = gs_route_call_read_body(call);
    if (!body) return false;
    gs_field_errors errors = {0};
    gs_status status = gs_fields_decode(order, gs_token_request_fields, body, &errors);
    gs_json_release(body);
    if (!status.code) return true;
    gs_json *details = gs_field_errors_to_json(&errors);
    gs_problem_answer(call->response, call->request->id, gs_problem_find("validation"), status.message, details);
    gs_json_release(details);
    return false;
}

static const gs_role role_of_word[] = {GS_ROLE_METRICS, GS_ROLE_VIEWER, GS_ROLE_OPERATOR, GS_ROLE_ADMIN};

void gs_handle_create_token(gs_route_call *call) {
    gs_token_request order;
    gs_token made;
    char secret[GS_SECRET_TEXT_BYTES], location[64];
    if (!read_order(call, &order)) return;
    gs_status status = gs_token_store_make(call->services->tokens, &made, secret, order.name, role_of_word[order.role],
                                           order.expires_in_seconds);
    if (status.code) {
        answer_status(call, status);
        return;
    }
    gs_json *view = gs_token_view(&made, gs_wall_ms());
    gs_json_set_string(view, "token", secret);
    explicit_bzero(secret, sizeof secret);
    snprintf(location, sizeof location, "/v1/tokens/%s", made.id);
    gs_http_set_header(call->response, "Location", location);
    gs_route_call_answer(call, view);
}

void gs_handle_revoke_token(gs_route_call *call) {
    gs_status status = gs_token_store_revoke(call->services->tokens, gs_route_param(call->match, "token"));
    if (status.code) answer_status(call, status);
    else call->response->status = 204;
}
