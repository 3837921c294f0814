// Handlers of sessions: a browser gives its token once, and has a cookie from then on.
#include <stdio.h>
#include <string.h>

#include "api/access/sessions.h"
#include "api/http/problem.h"
#include "api/routes/handlers.h"
#include "core/clock.h"

// No script reads it, no other site's page sends it.
static void set_cookie(gs_route_call *call, const char *value, int seconds) {
    char cookie[200];
    bool is_encrypted = gs_api_is_encrypted(call->services, call->request);
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%d%s",
             is_encrypted ? GS_SESSION_COOKIE_TLS : GS_SESSION_COOKIE, value, seconds, is_encrypted ? "; Secure" : "");
    gs_http_set_header(call->response, "Set-Cookie", cookie);
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    call->response->status = 204;
    explicit_bzero(cookie, sizeof cookie);
}

void gs_handle_begin_session(gs_route_call *call) {
    char secret[GS_SECRET_TEXT_BYTES];
    if (!*call->caller->id) {
        gs_problem_answer_code(call->response, call->request->id, "conflict", "nobody is asked for a token here, so there is none to keep");
        return;
    }
    if (call->caller->is_session) {
        gs_problem_answer_code(call->response, call->request->id, "conflict", "a session begins with a token: send Authorization");
        return;
    }
    gs_status status = gs_sessions_begin(call->services->sessions, secret, call->caller->id, gs_now_ns());
    if (status.code) {
        gs_problem_answer_status(call->response, call->request->id, status, NULL);
        return;
    }
    set_cookie(call, secret, GS_SESSION_SECONDS);
    explicit_bzero(secret, sizeof secret);
}

void gs_handle_end_session(gs_route_call *call) {
    char secret[GS_SECRET_TEXT_BYTES];
    const char *cookies = gs_http_header(call->request, "Cookie");
    gs_session_of_cookies(secret, cookies ? cookies : "", gs_api_is_encrypted(call->services, call->request) ? GS_SESSION_COOKIE_TLS : GS_SESSION_COOKIE);
    gs_sessions_end(call->services->sessions, secret);
    set_cookie(call, "", 0);
}
