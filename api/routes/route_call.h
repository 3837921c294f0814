// One matched request on its way through a handler, and what handlers share. Private to api/.
#ifndef API_ROUTES_ROUTE_CALL_H
#define API_ROUTES_ROUTE_CALL_H

#include <stdbool.h>

#include "api/access/budget.h"
#include "api/access/rates.h"
#include "api/access/sessions.h"
#include "api/access/token_store.h"
#include "api/http/api_metrics.h"
#include "api/http/http_server.h"
#include "api/http/router.h"
#include "api/live/event_hub.h"
#include "api/live/stream_slots.h"
#include "api/routes/health.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"

#define GS_ENTITY_TAG_BYTES 24

// A document that is the same for whoever asks: encoded once, and kept as long as anybody is served.
typedef struct gs_shared_document {
    char *text;
    size_t bytes;
    char tag[GS_ENTITY_TAG_BYTES];
} gs_shared_document;

// `value` is taken.
GS_NODISCARD gs_status gs_shared_document_make(gs_shared_document *out, gs_json *value);
void gs_shared_document_release(gs_shared_document *document);

typedef struct gs_api_services {  // borrowed by all requests
    gs_rpc_client *client;
    int64_t answer_ms;  // how long the coordinator may take
    gs_api_metrics *metrics;
    gs_event_hubs *hubs;
    gs_stream_slots *slots;
    gs_token_store *tokens;
    gs_sessions *sessions;
    gs_rates *changes;  // of each token
    gs_health *health;
    gs_budget *bodies;  // bytes of memory that bodies may take at once while they are served
    const gs_route *routes;
    size_t num_routes;
    gs_shared_document openapi;  // about them; owned by whoever owns these services
    bool is_behind_proxy;  // which encrypts for us: what browsers keep is for encrypted connections
    bool hosted;  // by the coordinator: its loop is this process's loop
    int64_t begin_ns;
} gs_api_services;

typedef struct gs_route_call {
    const gs_api_services *services;
    const gs_http_request *request;
    gs_http_response *response;
    const gs_route_match *match;
    const gs_caller *caller;
    bool may_view;    // whoever asks may see what a viewer may, also where that is not asked for
    bool is_anybody;  // he showed nothing that says who he is
    gs_json *args;       // members for the RPC: path and query parameters; owned
    uint64_t body_cost;  // taken of `bodies`
    int representation;  // which of the route's media types the client gets
} gs_route_call;

// Whether whoever asks came by an encrypted connection, as far as a browser knows.
bool gs_api_is_encrypted(const gs_api_services *services, const gs_http_request *request);
// Of `bodies`, in all.
#define GS_API_BODIES_BYTES ((uint64_t)256 << 20)
// Path and query parameters → args. False: the response is a problem.
bool gs_route_call_read_params(gs_route_call *call);
// The JSON body, an object, owned by the caller. NULL: the response is a problem; with an empty
// body that is not required, an empty object. A large one waits for its turn among other large ones, two seconds at most.
gs_json *gs_route_call_read_body(gs_route_call *call);
// The call is over: what its body cost is there for others again.
void gs_route_call_finish(gs_route_call *call);
// Calls `method` with the coordinator's patience. False: the response is a problem. *reply is the
// caller's.
bool gs_route_call_rpc(gs_route_call *call, gs_method method, const gs_json *request,
                       gs_json **reply);
// Calls the route's method with args, and answers what it says or why it does not.
void gs_route_call_forward(gs_route_call *call);
// Answers with the route's success code; `reply` is taken.
void gs_route_call_answer(gs_route_call *call, gs_json *reply);
// The same of a document that outlives the answer, without a copy.
void gs_route_call_answer_shared(gs_route_call *call, const gs_shared_document *document);

#endif
