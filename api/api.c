// Puts the parts together.
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

#include "api/door.h"
#include "api/http/listener.h"
#include "api/http/tls.h"
#include "api/render/openapi.h"
#include "api/routes/route_call.h"
#include "api/routes/routes.h"
#include "core/log.h"

enum { MAX_STREAMS = 64, MAX_READERS_STREAMS = 16, MAX_READERS = 256, STREAMS_END_MS = 3000, ANSWER_MS = 10000, CHANGES_PER_SECOND = 100, CHANGES_AT_ONCE = 500 };

struct gs_api {
    gs_api_services services;
    gs_stream_slots *readers_slots;  // of their own: readers take nobody else's
    gs_door *door, *readers;         // the second one may be NULL
    gs_tls *tls;
    gs_audit *audit;  // borrowed
};

static gs_status open_services(gs_api *api, const gs_api_options *options) {
    gs_api_services *services = &api->services;
    services->hosted = strncmp(options->rpc_endpoint, "inproc://", 9) == 0;
    services->begin_ns = gs_now_ns();
    services->answer_ms = options->answer_ms ? options->answer_ms : ANSWER_MS;
    services->routes = gs_routes;
    services->num_routes = gs_num_routes;
    GS_TRY(gs_shared_document_make(&services->openapi, gs_openapi_document(gs_routes, gs_num_routes)));
    services->metrics = gs_api_metrics_create();
    if (services->metrics) services->slots = gs_stream_slots_create(MAX_STREAMS, services->metrics);
    if (!services->slots) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    services->sessions = gs_sessions_create();
    services->changes = gs_rates_create(CHANGES_PER_SECOND, CHANGES_AT_ONCE);
    services->health = gs_health_create();
    services->bodies = gs_budget_create(GS_API_BODIES_BYTES);
    if (!services->sessions || !services->changes || !services->bodies || !services->health) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    gs_rpc_client_options client = {.endpoint = options->rpc_endpoint, .key_path = options->rpc_key};
    GS_TRY(gs_rpc_client_open(&services->client, options->context, &client));
    return gs_event_hubs_create(&services->hubs, services->client);
}

// What others than this machine's users reach asks for tokens, and does not tell them to everybody on the way.
static gs_status check_exposure(const gs_api_options *options, const char *address, bool on_loopback) {
    if (on_loopback || options->insecure_no_auth) return gs_ok();
    if (!options->tokens_path)
        return gs_error(GS_FAILED_PRECONDITION,
                        "http address %s is not a loopback one, and there are no tokens to ask for: --tokens FILE "
                        "names them; --insecure-no-auth asks nobody", address);
    if (options->tls_cert || options->insecure_no_tls) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "http address %s is not a loopback one, and tokens would cross the network unencrypted: "
                    "--tls-cert and --tls-key encrypt; --insecure-no-tls allows it behind a proxy that encrypts; --insecure-no-auth asks nobody", address);
}

static gs_status open_tls(gs_api *api, const gs_api_options *options) {
    if (!options->tls_cert && !options->tls_key) return gs_ok();
    if (!options->tls_cert || !options->tls_key)
        return gs_error(GS_INVALID_ARGUMENT, "--tls-cert and --tls-key belong together, and --tls-%s is missing",
                        options->tls_cert ? "key" : "cert");
    return gs_tls_open(&api->tls, options->tls_cert, options->tls_key);
}

static gs_status open_tokens(gs_api *api, const gs_api_options *options, bool on_loopback) {
    gs_token_store_options tokens = {.path = options->tokens_path,
                                     .is_required = options->require_token || !on_loopback,
                                     .is_ignored = options->insecure_no_auth && !options->require_token};
    if (options->require_token && !options->tokens_path)
        return gs_error(GS_FAILED_PRECONDITION, "--require-token: there are no tokens to ask for; --tokens FILE names them");
    return gs_token_store_open(&api->services.tokens, &tokens);
}

// Where nobody is asked, whoever is there; and nothing can be changed.
static gs_status open_readers(gs_api *api, const gs_api_options *options) {
    bool on_loopback = false;
    if (!options->http_readonly) return gs_ok();
    GS_TRY(gs_http_address_check(&on_loopback, options->http_readonly));
    bool is_file = gs_http_unix_path(options->http_readonly) != NULL;
    gs_api_services services = api->services;
    api->readers_slots = services.slots = gs_stream_slots_create(MAX_READERS_STREAMS, services.metrics);
    if (!services.slots) return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    gs_door_options door = {.kind = GS_DOOR_OF_READERS, .services = &services, .audit = api->audit,
                            .address = options->http_readonly, .allow_host = options->allow_host, .on_loopback = on_loopback,
                            .tls = is_file ? NULL : api->tls, .request_ms = options->request_ms, .max_connections = MAX_READERS};
    GS_TRY(gs_status_prefix(gs_door_open(&api->readers, &door), "--http-readonly"));
    if (on_loopback) gs_log_info("http api to read", "address=%s", gs_door_address(api->readers));
    else gs_log_warn("http api may be read by everybody who reaches it", "address=%s", gs_door_address(api->readers));
    return gs_ok();
}

static gs_status start_server(gs_api *api, const gs_api_options *options) {
    const char *address = options->http_address ? options->http_address : "127.0.0.1:8470";
    bool on_loopback = false;
    GS_TRY(gs_http_address_check(&on_loopback, address));
    GS_TRY(check_exposure(options, address, on_loopback));
    bool asks_by_file = gs_http_unix_path(address) && !options->require_token;
    if (gs_http_unix_path(address) && options->tls_cert)
        return gs_error(GS_INVALID_ARGUMENT, "--tls-cert: nothing is encrypted at a Unix socket");
    GS_TRY(open_tls(api, options));
    GS_TRY(open_tokens(api, options, on_loopback));
    api->audit = options->audit;
    api->services.is_behind_proxy = options->insecure_no_tls && !on_loopback && !api->tls;
    gs_door_options door = {.kind = asks_by_file ? GS_DOOR_OF_FILE : GS_DOOR_OF_TOKENS, .services = &api->services, .audit = api->audit,
                            .address = address, .allow_host = options->allow_host, .on_loopback = on_loopback, .tls = api->tls,
                            .request_ms = options->request_ms, .max_per_address = options->max_per_address};
    GS_TRY(gs_door_open(&api->door, &door));
    GS_TRY(open_readers(api, options));
    address = gs_door_address(api->door);
    if (!asks_by_file && gs_token_store_asks(api->services.tokens))
        gs_log_info("http api asks for tokens", "address=%s", address);
    else if (!on_loopback)
        gs_log_warn("http api open to everybody who reaches it", "address=%s", address);
    if (!on_loopback && !api->tls && gs_token_store_asks(api->services.tokens))
        gs_log_warn("http api unencrypted: who listens on the way has the tokens", "address=%s", address);
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
    gs_log_info("http api ready", "address=%s://%s", api->tls ? "https" : "http", gs_door_address(api->door));
    *out = api;
    return gs_ok();
}

const char *gs_api_address(const gs_api *api) {
    return gs_door_address(api->door);
}

const char *gs_api_readonly_address(const gs_api *api) {
    return api->readers ? gs_door_address(api->readers) : NULL;
}

static int num_streams(const gs_api *api) {
    return gs_stream_slots_taken(api->services.slots) + (api->readers_slots ? gs_stream_slots_taken(api->readers_slots) : 0);
}

void gs_api_stop(gs_api *api) {
    if (!api) return;
    if (api->services.hubs) {
        // Streams say goodbye by themselves; the server then waits for nobody but short requests.
        gs_event_hubs_stop(api->services.hubs);
        gs_deadline deadline = gs_deadline_in_ms(STREAMS_END_MS);
        while (num_streams(api) > 0 && !gs_deadline_passed(deadline))
            gs_sleep_ns(10 * GS_NS_PER_MS);
    }
    gs_door_close(api->readers);
    gs_door_close(api->door);
    gs_event_hubs_destroy(api->services.hubs);
    gs_rpc_client_close(api->services.client);
    gs_stream_slots_destroy(api->services.slots);
    gs_stream_slots_destroy(api->readers_slots);
    gs_tls_close(api->tls);
    gs_sessions_destroy(api->services.sessions);
    gs_rates_destroy(api->services.changes);
    gs_budget_destroy(api->services.bodies);
    gs_health_destroy(api->services.health);
    gs_token_store_close(api->services.tokens);
    gs_api_metrics_destroy(api->services.metrics);
    gs_shared_document_release(&api->services.openapi);
    free(api);
}
