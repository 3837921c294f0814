// The checks that all requests share, in their order.
#include "api/door.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/access/secret.h"
#include "api/http/problem.h"
#include "api/routes/route_call.h"
#include "core/digest.h"
#include "core/log.h"

struct gs_door {
    gs_door_kind kind;
    gs_api_services services;
    gs_hosts *hosts;
    gs_audit *audit;  // not ours; NULL: none
    gs_http_server *server;
    // Of a door of readers. What costs every rank, or the coordinator's loop, how often an address may have it; and one timeline at a
    // time for all of them, of the few that the cluster makes, so that they refuse nobody who has a token.
    gs_rates *timeline_rates, *metrics_rates;
    gs_budget *timelines;
};

// A second, and at once.
enum { TIMELINES_A_SECOND = 1, TIMELINES_AT_ONCE = 5, SCRAPES_A_SECOND = 5, SCRAPES_AT_ONCE = 20, TIMELINE_TURN_MS = 1000 };

static bool check_fault(const gs_http_request *request, gs_http_response *response) {
    if (request->fault == GS_HTTP_TOO_LARGE)
        gs_problem_answer_code(response, request->id, "too_large", "the body is larger than 1 MiB");
    if (request->fault == GS_HTTP_BAD_FRAMING)
        gs_problem_answer_code(response, request->id, "bad_request",
                               "Content-Length, Transfer-Encoding, Host, Origin, Authorization or Cookie is given "
                               "twice, or both of the first two are");
    if (request->fault == GS_HTTP_TOO_MANY)
        gs_problem_answer_code(response, request->id, "busy", "other large bodies are on their way, and there is no room for this one");
    return request->fault == GS_HTTP_FINE;
}

static bool is_reading(const gs_http_request *request) {
    return strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0 ||
           strcmp(request->method, "OPTIONS") == 0;
}

static bool check_names(const gs_door *door, const gs_http_request *request,
                        gs_http_response *response) {
    if (request->port == 0) return true;  // no browser comes by a Unix socket
    const char *host = gs_http_header(request, "Host");
    gs_status status = gs_hosts_check_host(door->hosts, host, request->port);
    if (status.code) {
        gs_problem_answer_code(response, request->id, "bad_host", "%s", status.message);
        return false;
    }
    status = gs_hosts_check_origin(gs_http_header(request, "Origin"), host);
    if (!status.code && !is_reading(request)) status = gs_hosts_check_site(gs_http_header(request, "Sec-Fetch-Site"));
    if (status.code)
        gs_problem_answer_code(response, request->id, "bad_origin", "%s", status.message);
    return !status.code;
}

static bool find_route(const gs_door *door, const gs_http_request *request,
                       gs_http_response *response, gs_route_match *match) {
    gs_route_find(match, door->services.routes, door->services.num_routes, request->method,
                  request->path);
    if (match->route) return true;
    if (!match->path_known) {
        gs_problem_answer_code(response, request->id, "not_found", "no resource at this path");
        return false;
    }
    gs_http_set_header(response, "Allow", match->allow);
    if (strcmp(request->method, "OPTIONS") == 0)
        response->status = 204;
    else
        gs_problem_answer_code(response, request->id, "method_not_allowed", "use %s", match->allow);
    return false;
}

// At a door of readers nothing else is there, whoever asks.
static bool check_kind(const gs_door *door, const gs_http_request *request, gs_http_response *response, const gs_route *route) {
    if (door->kind != GS_DOOR_OF_READERS || (is_reading(request) && route->role <= GS_ROLE_VIEWER)) return true;
    gs_problem_answer_code(response, request->id, "read_only", "here jobs, logs and metrics are read, and nothing else");
    gs_api_metrics_refuse(door->services.metrics, "read_only");
    return false;
}

// Who is asked for a token may show a session's cookie in its place.
static gs_status admit_caller(const gs_door *door, const gs_http_request *request, gs_caller *caller, gs_role needed) {
    const char *header = gs_http_header(request, "Authorization"), *cookies = gs_http_header(request, "Cookie");
    char secret[GS_SECRET_TEXT_BYTES] = "", token_id[GS_TOKEN_ID_BYTES] = "";
    if (!header && cookies && needed != GS_ROLE_ANYBODY && gs_token_store_asks(door->services.tokens))
        gs_session_of_cookies(secret, cookies, gs_api_is_encrypted(&door->services, request) ? GS_SESSION_COOKIE_TLS : GS_SESSION_COOKIE);
    if (!*secret) return gs_token_store_admit(door->services.tokens, caller, header, needed);
    uint64_t session;
    if (!gs_sessions_find(door->services.sessions, token_id, &session, secret, gs_now_ns())) token_id[0] = '\0';
    explicit_bzero(secret, sizeof secret);
    gs_status status = gs_token_store_admit_session(door->services.tokens, caller, token_id, needed);
    caller->session = session;
    return status;
}

// A browser sends a cookie whoever's page asks. A header of one's own it sends to its own server alone, unless that allows
// more, and this one never does.
static bool check_forgery(const gs_door *door, const gs_http_request *request, gs_http_response *response, const gs_caller *caller) {
    if (!caller->is_session || is_reading(request) || gs_http_header(request, "X-Gradsync-CSRF")) return true;
    gs_problem_answer_code(response, request->id, "forgery", "a session changes nothing without the header X-Gradsync-CSRF");
    gs_api_metrics_refuse(door->services.metrics, "forgery");
    return false;
}

// What changes something, or would: of what a viewer may, only sessions do.
static bool is_audited(const gs_http_request *request, const gs_route *route) {
    return !is_reading(request) && (!route || route->role >= GS_ROLE_OPERATOR || strcmp(route->path, "/v1/session") == 0);
}

static void refuse_rate(const gs_door *door, const gs_http_request *request, gs_http_response *response, double wait_seconds, const char *detail) {
    char seconds[16];
    gs_problem_answer_code(response, request->id, "rate_limited", "%s", detail);
    snprintf(seconds, sizeof seconds, "%d", 1 + (int)wait_seconds);
    gs_http_set_header(response, "Retry-After", seconds);
    gs_api_metrics_refuse(door->services.metrics, "rate_limited");
}

// Of each token so many a second that are not for reading: most cost the disk, the others the coordinator's loop.
static bool check_rate(const gs_door *door, const gs_http_request *request, gs_http_response *response, const gs_caller *caller) {
    char detail[256];
    if (!*caller->id || is_reading(request)) return true;
    double wait_seconds = gs_rates_take(door->services.changes, caller->id, gs_now_ns());
    if (wait_seconds == 0) return true;
    snprintf(detail, sizeof detail, "token %s (%s) asks for more than 100 changes or previews a second", caller->id, caller->name);
    refuse_rate(door, request, response, wait_seconds, detail);
    return false;
}

// *has_turn: of the timelines, to be given back when the request is served.
static bool check_reader(const gs_door *door, const gs_http_request *request, gs_http_response *response, const gs_route *route, bool *has_turn) {
    char from[GS_HTTP_PEER_LEN];
    *has_turn = false;
    bool asks_ranks = route->method == GS_GET_JOB_TIMELINE;
    if (door->kind != GS_DOOR_OF_READERS || (!asks_ranks && route->method != GS_GET_METRICS)) return true;
    gs_http_peer_neighbourhood(from, request->from);
    double wait_seconds = gs_rates_take(asks_ranks ? door->timeline_rates : door->metrics_rates, from, gs_now_ns());
    if (wait_seconds > 0) {
        refuse_rate(door, request, response, wait_seconds, asks_ranks ? "one timeline a second at this address, for each of those who ask; who has a token asks the other one"
                                                                      : "/metrics five times a second at this address, for each of those who ask; who has a token asks the other one");
        return false;
    }
    if (!asks_ranks) return true;
    *has_turn = gs_budget_take(door->timelines, 1, gs_deadline_in_ms(TIMELINE_TURN_MS));
    if (!*has_turn) refuse_rate(door, request, response, 1, "another timeline is being made for readers at this address; who has a token asks the other one");
    return *has_turn;
}

// Whether whoever asks may. The one place where roles count.
static bool check_role(const gs_door *door, const gs_http_request *request, gs_http_response *response,
                       const gs_route *route, gs_caller *caller) {
    const char *header = gs_http_header(request, "Authorization");
    gs_role needed = door->kind == GS_DOOR_OF_TOKENS ? route->role : GS_ROLE_ANYBODY;
    gs_status status = admit_caller(door, request, caller, needed);
    unsigned uid;
    caller->is_exempt = needed == GS_ROLE_ANYBODY;
    if (door->kind == GS_DOOR_OF_READERS) caller->role = GS_ROLE_VIEWER;
    if (!status.code && door->kind == GS_DOOR_OF_FILE && sscanf(request->from, "unix uid=%u", &uid) == 1)
        snprintf(caller->name, sizeof caller->name, "uid-%u", uid);
    if (!status.code) return check_forgery(door, request, response, caller);
    bool is_unknown = status.code == GS_UNAUTHENTICATED;
    gs_problem_answer_code(response, request->id, is_unknown ? "unauthenticated" : "forbidden", "%s", status.message);
    if (is_unknown)
        gs_http_set_header(response, "WWW-Authenticate",
                           header ? "Bearer realm=\"gradsync\", error=\"invalid_token\"" : "Bearer realm=\"gradsync\"");
    gs_api_metrics_refuse(door->services.metrics, is_unknown ? "unauthenticated" : "forbidden");
    return false;
}

// What is asked of every request, from its headers alone. False: refused, and answered.
//   template  of the route, for metrics
static bool admit_request(gs_door *door, const gs_http_request *request, gs_http_response *response,
                          gs_route_match *match, gs_caller *caller, const char **template) {
    *template = "unmatched";
    if (!check_fault(request, response) || !check_names(door, request, response)) {
        gs_api_metrics_refuse(door->services.metrics, response->status == 413   ? "too_large"
                                                     : response->status == 503 ? "busy"
                                                     : response->status == 400 ? "bad_framing"
                                                                               : "bad_name");
        return false;
    }
    if (!find_route(door, request, response, match)) return false;
    *template = match->route->path;
    return check_kind(door, request, response, match->route) && check_role(door, request, response, match->route, caller);
}

static bool choose_representation(gs_route_call *call) {
    const gs_route *route = call->match->route;
    int num_offers = 0;
    while (num_offers < 3 && route->produces[num_offers]) num_offers++;
    call->representation =
        gs_accept_best(gs_http_header(call->request, "Accept"), route->produces, num_offers);
    if (call->representation >= 0) return true;
    gs_problem_answer_code(call->response, call->request->id, "not_acceptable",
                           "this resource is %s%s%s", route->produces[0],
                           num_offers > 1 ? " or " : "", num_offers > 1 ? route->produces[1] : "");
    return false;
}

// HEAD of something that never ends: its headers, without beginning it.
static bool answer_stream_head(gs_route_call *call) {
    const char *type = call->match->route->produces[call->representation];
    if (strcmp(call->request->method, "HEAD") != 0 || strcmp(type, "text/event-stream") != 0)
        return false;
    call->response->status = 200;
    gs_http_set_header(call->response, "Content-Type", type);
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    return true;
}

// Of what is for everybody, who is told the whole: who could see all of it elsewhere.
static bool may_view(const gs_door *door, const gs_http_request *request, const gs_route *route) {
    gs_caller shown;
    if (door->kind != GS_DOOR_OF_TOKENS || route->role >= GS_ROLE_VIEWER || !gs_token_store_asks(door->services.tokens)) return true;
    return admit_caller(door, request, &shown, GS_ROLE_VIEWER).code == GS_OK;
}

static void serve_request(gs_door *door, const gs_http_request *request, gs_http_response *response,
                          const gs_route_match *match, const gs_caller *caller) {
    bool views = may_view(door, request, match->route);
    gs_route_call call = {.services = &door->services,
                          .request = request,
                          .response = response,
                          .match = match,
                          .caller = caller,
                          .may_view = views,
                          .is_anybody = !views || door->kind == GS_DOOR_OF_READERS,
                          .args = gs_json_new_object()};
    if (choose_representation(&call) && gs_route_call_read_params(&call) &&
        !answer_stream_head(&call))
        match->route->handle(&call);
    gs_json_release(call.args);
    gs_route_call_finish(&call);
}

static void log_request(const gs_http_request *request, const gs_caller *caller, const char *route, int status,
                        double seconds) {
    gs_log_level level = GS_LOG_DEBUG;
    if (status >= 500 && status != 503)
        level = GS_LOG_WARN;
    else if (strcmp(request->method, "POST") == 0 || strcmp(request->method, "DELETE") == 0)
        level = GS_LOG_INFO;
    if (!gs_log_enabled(level)) return;
    char path[300], shown[256];
    snprintf(shown, sizeof shown, "%s", request->path);
    gs_secret_mask(shown);
    gs_log(level, "http request", "id=%s method=%s route=%s path=%s status=%d seconds=%.6f%s%s%s%s",
           request->id, request->method, route, gs_log_quote(path, sizeof path, shown),
           status, seconds, *caller->id ? " token=" : "", caller->id, *caller->id ? " name=" : "", caller->name);
}

//   response   NULL: the request begins
//   was_asked  it had begun: its end stands beside that
static void audit_request(gs_door *door, const gs_http_request *request, const gs_http_response *response,
                          const gs_caller *caller, const gs_route *route, bool was_asked) {
    if (!is_audited(request, route)) return;
    const char *role = gs_token_role_name(caller->role);
    char path[256];
    snprintf(path, sizeof path, "%s", request->path);
    gs_secret_mask(path);
    gs_audit_line line = {.kind = !response ? GS_AUDIT_ASKED : role ? GS_AUDIT_ANSWERED : GS_AUDIT_REFUSED,
                          .request_id = request->id, .method = request->method, .route = route ? route->path : "unmatched",
                          .path = path, .token = caller->id, .name = caller->name, .role = role ? role : "",
                          .from = request->from, .status = response ? response->status : 0,
                          .made = response ? gs_http_response_header(response, "Location") : NULL,
                          // Who may change nothing, or was told so, pushes out no line of who did.
                          .is_lesser = (role && caller->role < GS_ROLE_OPERATOR) || (response && !was_asked && (response->status == 403 || response->status == 429)),
                          .seconds = gs_seconds_since(request->begin_ns)};
    gs_audit_write(door->audit, &line);
    gs_api_metrics_set_audit_lost(door->services.metrics, gs_audit_lost(door->audit));
}

static void note_answer(gs_door *door, const gs_http_request *request, gs_http_response *response,
                        const gs_caller *caller, const char *template, const gs_route *route, bool was_asked) {
    double seconds = gs_seconds_since(request->begin_ns);
    audit_request(door, request, response, caller, route, was_asked);
    gs_api_metrics_finish(door->services.metrics, request->method, template, response->status,
                          response->stream.read ? -1 : seconds);
    log_request(request, caller, template, response->status, seconds);
}

// All connections of one token are one caller's, whichever way he shows it; and so are those of all where nobody is asked.
static uint64_t number_caller(const gs_caller *caller) {
    return gs_hash64(caller->id, strlen(caller->id), 0) | 1;
}

// Before it waits for a coordinator: meanwhile his connection would give way as a stranger's that does not read.
static void note_caller(const gs_door *door, const gs_http_request *request, const gs_caller *caller) {
    bool asks_nobody = door->kind == GS_DOOR_OF_FILE || (door->kind == GS_DOOR_OF_TOKENS && !gs_token_store_asks(door->services.tokens));
    const char *header = gs_http_header(request, "Authorization");
    gs_caller shown;  // what is for everybody has not asked for it
    bool shows_token = header && door->kind == GS_DOOR_OF_TOKENS &&
                       gs_token_store_admit(door->services.tokens, &shown, header, GS_ROLE_METRICS).code == GS_OK;
    if (*caller->id || asks_nobody || shows_token) gs_http_note_known(request, number_caller(shows_token ? &shown : caller));
}

static void handle_request(void *ctx, const gs_http_request *request, gs_http_response *response) {
    gs_door *door = ctx;
    gs_route_match match = {0};
    gs_caller caller = {0};
    const char *template;
    bool has_turn = false;
    gs_api_metrics_begin(door->services.metrics);
    bool is_admitted = admit_request(door, request, response, &match, &caller, &template);
    note_caller(door, request, &caller);
    bool is_served = is_admitted && check_rate(door, request, response, &caller) && check_reader(door, request, response, match.route, &has_turn);
    if (is_served) {
        audit_request(door, request, NULL, &caller, match.route, false);
        serve_request(door, request, response, &match, &caller);
    }
    if (has_turn) gs_budget_give(door->timelines, 1);
    note_answer(door, request, response, &caller, template, match.route, is_served);
}

static gs_http_verdict admit_body(void *ctx, const gs_http_request *request, gs_http_response *response) {
    gs_door *door = ctx;
    gs_route_match match = {0};
    gs_caller caller = {0};
    const char *template;
    bool is_admitted = admit_request(door, request, response, &match, &caller, &template);
    note_caller(door, request, &caller);
    if (is_admitted) return match.route->body ? GS_HTTP_KEEP_BODY : GS_HTTP_SWALLOW_BODY;
    gs_api_metrics_begin(door->services.metrics);
    note_answer(door, request, response, &caller, template, match.route, false);
    return GS_HTTP_REFUSE;
}

// As admit_caller would, whatever is asked for.
static uint64_t knows_caller(void *ctx, const gs_early_head *head) {
    const gs_door *door = ctx;
    gs_caller caller = {0};
    char header[256], cookies[2048], secret[GS_SECRET_TEXT_BYTES] = "", token_id[GS_TOKEN_ID_BYTES] = "";
    if (door->kind != GS_DOOR_OF_TOKENS || !gs_token_store_asks(door->services.tokens)) return 0;
    bool is_known = gs_early_head_find(head, header, sizeof header, "Authorization") &&
                    gs_token_store_admit(door->services.tokens, &caller, header, GS_ROLE_METRICS).code == GS_OK;
    if (!is_known && gs_early_head_find(head, cookies, sizeof cookies, "Cookie"))
        gs_session_of_cookies(secret, cookies, door->services.is_behind_proxy ? GS_SESSION_COOKIE_TLS : GS_SESSION_COOKIE);
    uint64_t number;
    if (*secret)
        is_known = gs_sessions_find(door->services.sessions, token_id, &number, secret, gs_now_ns()) &&
                   gs_token_store_admit_session(door->services.tokens, &caller, token_id, GS_ROLE_METRICS).code == GS_OK;
    explicit_bzero(header, sizeof header);
    explicit_bzero(cookies, sizeof cookies);
    explicit_bzero(secret, sizeof secret);
    return is_known ? number_caller(&caller) : 0;
}

static void note_refusal(void *ctx, const char *reason) {
    gs_api_metrics_refuse(((gs_door *)ctx)->services.metrics, reason);
}

static gs_status open_door(gs_door *door, const gs_door_options *options) {
    gs_http_server_options server = {.address = options->address,
                                     .tls = options->tls,
                                     .request_ms = options->request_ms,
                                     .max_connections = options->max_connections,
                                     .max_per_address = options->max_per_address,
                                     .knows = knows_caller,
                                     .admit = admit_body,
                                     .handle = handle_request,
                                     .refused = note_refusal,
                                     .ctx = door};
    if (door->kind == GS_DOOR_OF_READERS) {
        door->timeline_rates = gs_rates_create(TIMELINES_A_SECOND, TIMELINES_AT_ONCE);
        door->metrics_rates = gs_rates_create(SCRAPES_A_SECOND, SCRAPES_AT_ONCE);
        door->timelines = gs_budget_create(1);
        if (!door->timeline_rates || !door->metrics_rates || !door->timelines) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    }
    GS_TRY(gs_hosts_create(&door->hosts, options->address, options->on_loopback, options->allow_host));
    if (options->tls) gs_hosts_serve_https(door->hosts);
    return gs_http_server_start(&door->server, &server);
}

gs_status gs_door_open(gs_door **out, const gs_door_options *options) {
    gs_door *door = calloc(1, sizeof *door);
    if (!door) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    door->kind = options->kind;
    door->services = *options->services;
    door->audit = options->audit;
    gs_status status = open_door(door, options);
    if (status.code) gs_door_close(door);
    else *out = door;
    return status;
}

const char *gs_door_address(const gs_door *door) {
    return gs_http_server_address(door->server);
}

void gs_door_close(gs_door *door) {
    if (!door) return;
    gs_http_server_stop(door->server);
    gs_hosts_destroy(door->hosts);
    gs_rates_destroy(door->timeline_rates);
    gs_rates_destroy(door->metrics_rates);
    gs_budget_destroy(door->timelines);
    free(door);
}
