// Puts the parts together, and takes each request through the checks that all routes share.
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

#include "api/http/hosts.h"
#include "api/http/listener.h"
#include "api/http/problem.h"
#include "api/routes/route_call.h"
#include "api/routes/routes.h"
#include "core/log.h"

enum { MAX_STREAMS = 64, STREAMS_END_MS = 3000 };

struct gs_api {
    gs_api_services services;
    gs_http_server *server;
    gs_hosts *hosts;
};

static bool check_fault(const gs_http_request *request, gs_http_response *response) {
    if (request->fault == GS_HTTP_TOO_LARGE)
        gs_problem_answer_code(response, request->id, "too_large", "the body is larger than 1 MiB");
    if (request->fault == GS_HTTP_BAD_FRAMING)
        gs_problem_answer_code(response, request->id, "bad_request",
                               "Content-Length, Transfer-Encoding, Host or Origin is given twice, or "
                               "both of the first two are");
    return request->fault == GS_HTTP_FINE;
}

static bool check_names(const gs_api *api, const gs_http_request *request,
                        gs_http_response *response) {
    const char *host = gs_http_header(request, "Host");
    gs_status status = gs_hosts_check_host(api->hosts, host, request->port);
    if (status.code) {
        gs_problem_answer_code(response, request->id, "bad_host", "%s", status.message);
        return false;
    }
    status = gs_hosts_check_origin(gs_http_header(request, "Origin"), host);
    if (status.code)
        gs_problem_answer_code(response, request->id, "bad_origin", "%s", status.message);
    return !status.code;
}

static bool find_route(const gs_api *api, const gs_http_request *request,
                       gs_http_response *response, gs_route_match *match) {
    gs_route_find(match, api->services.routes, api->services.num_routes, request->method,
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

// Returns the template of the route, for the metrics.
static const char *serve_request(gs_api *api, const gs_http_request *request,
                                 gs_http_response *response) {
    gs_route_match match = {0};
    if (!check_fault(request, response) || !check_names(api, request, response)) {
        gs_api_metrics_refuse(api->services.metrics, response->status == 413   ? "too_large"
                                                     : response->status == 400 ? "bad_framing"
                                                                               : "bad_name");
        return "unmatched";
    }
    if (!find_route(api, request, response, &match)) return "unmatched";
    gs_route_call call = {.services = &api->services,
                          .request = request,
                          .response = response,
                          .match = &match,
                          .args = gs_json_new_object()};
    if (choose_representation(&call) && gs_route_call_read_params(&call) &&
        !answer_stream_head(&call))
        match.route->handle(&call);
    gs_json_release(call.args);
    return match.route->path;
}

static void log_request(const gs_http_request *request, const char *route, int status,
                        double seconds) {
    gs_log_level level = GS_LOG_DEBUG;
    if (status >= 500 && status != 503)
        level = GS_LOG_WARN;
    else if (strcmp(request->method, "POST") == 0 || strcmp(request->method, "DELETE") == 0)
        level = GS_LOG_INFO;
    if (!gs_log_enabled(level)) return;
    char path[300];
    gs_log(level, "http request", "id=%s method=%s route=%s path=%s status=%d seconds=%.6f",
           request->id, request->method, route, gs_log_quote(path, sizeof path, request->path),
           status, seconds);
}

static void handle_request(void *ctx, const gs_http_request *request, gs_http_response *response) {
    gs_api *api = ctx;
    gs_api_metrics_begin(api->services.metrics);
    const char *route = serve_request(api, request, response);
    double seconds = gs_seconds_since(request->begin_ns);
    gs_api_metrics_finish(api->services.metrics, request->method, route, response->status,
                          response->stream.read ? -1 : seconds);
    log_request(request, route, response->status, seconds);
}

static void note_refusal(void *ctx, const char *reason) {
    gs_api_metrics_refuse(((gs_api *)ctx)->services.metrics, reason);
}

static gs_status open_services(gs_api *api, const gs_api_options *options) {
    gs_api_services *services = &api->services;
    services->hosted = strncmp(options->rpc_endpoint, "inproc://", 9) == 0;
    services->begin_ns = gs_now_ns();
    services->routes = gs_routes;
    services->num_routes = gs_num_routes;
    services->metrics = gs_api_metrics_create();
    if (services->metrics) services->slots = gs_stream_slots_create(MAX_STREAMS, services->metrics);
    if (!services->slots) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    gs_rpc_client_options client = {.endpoint = options->rpc_endpoint};
    GS_TRY(gs_rpc_client_open(&services->client, options->context, &client));
    return gs_event_hubs_create(&services->hubs, services->client);
}

static gs_status start_server(gs_api *api, const gs_api_options *options) {
    const char *address = options->http_address ? options->http_address : "127.0.0.1:8470";
    bool on_loopback = false;
    GS_TRY(gs_http_address_check(&on_loopback, address));
    if (!on_loopback && !options->insecure_no_auth)
        return gs_error(GS_FAILED_PRECONDITION,
                        "http address %s is not a loopback one, and nobody would have to show "
                        "credentials; gradsync-api --insecure-no-auth serves it behind a proxy",
                        address);
    GS_TRY(gs_hosts_create(&api->hosts, address, on_loopback, options->allow_host));
    gs_http_server_options server = {.address = address,
                                     .request_ms = options->request_ms,
                                     .max_per_address = options->max_per_address,
                                     .handle = handle_request,
                                     .refused = note_refusal,
                                     .ctx = api};
    GS_TRY(gs_http_server_start(&api->server, &server));
    if (!on_loopback)
        gs_log_warn("http api open to everybody who reaches it", "address=%s",
                    gs_http_server_address(api->server));
    return gs_ok();
}

gs_status gs_api_start(gs_api **out, const gs_api_options *options) {
    gs_api *api = calloc(1, sizeof *api);
    if (!api) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    gs_status status = open_services(api, options);
    if (!status.code) status = start_server(api, options);
    if (status.code) {
        gs_api_stop(api);
        return status;
    }
    gs_log_info("http api ready", "address=%s", gs_http_server_address(api->server));
    *out = api;
    return gs_ok();
}

const char *gs_api_address(const gs_api *api) {
    return gs_http_server_address(api->server);
}

void gs_api_stop(gs_api *api) {
    if (!api) return;
    if (api->services.hubs) {
        // Streams say goodbye by themselves; the server then waits for nobody but short requests.
        gs_event_hubs_stop(api->services.hubs);
        gs_deadline deadline = gs_deadline_in_ms(STREAMS_END_MS);
        while (gs_stream_slots_taken(api->services.slots) > 0 && !gs_deadline_passed(deadline))
            gs_sleep_ns(10 * GS_NS_PER_MS);
    }
    gs_http_server_stop(api->server);
    gs_event_hubs_destroy(api->services.hubs);
    gs_rpc_client_close(api->services.client);
    gs_stream_slots_destroy(api->services.slots);
    gs_hosts_destroy(api->hosts);
    gs_api_metrics_destroy(api->services.metrics);
    free(api);
}
