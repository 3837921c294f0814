// Verb and path → a row of the route table, with what stood at {job} and its kin.
#ifndef API_HTTP_ROUTER_H
#define API_HTTP_ROUTER_H

#include <stdbool.h>
#include <stddef.h>

#include "rpc/schema/fields.h"
#include "rpc/schema/messages.h"
#include "rpc/schema/role.h"

#define GS_ROUTE_MAX_PARAMS 2
#define GS_ROUTE_PARAM_LEN 128

typedef enum gs_query_type {
    GS_QUERY_STRING = 0,
    GS_QUERY_INT,
    GS_QUERY_NUMBER,
    GS_QUERY_BOOL,   // "", "true", "false"
    GS_QUERY_WORDS,  // "a,b": a JSON list
    GS_QUERY_WORD    // one of `words`
} gs_query_type;

typedef struct gs_query_param {
    const char *name;
    gs_query_type type;
    const char *member;  // of the RPC request; NULL: for the handler alone
    double least, most;  // of numbers
    const char *const *words;  // of a WORD, and of a STRING that is a list of them: "a,b"
    const char *help;
} gs_query_param;

struct gs_route_call;

typedef struct gs_route {
    const char *verb, *path;  // "/v1/jobs/{job}/stop"
    const char *operation;    // "stopJob"
    const char *summary;
    int success;
    gs_role role;
    gs_method method;  // what it calls; GS_METHOD_NONE: nothing
    void (*handle)(struct gs_route_call *call);
    const gs_query_param *query;  // ended by a row without a name, or NULL
    const gs_field *body;         // of the request's JSON body, or NULL
    bool body_required;
    bool etag;                // answers carry one, and If-None-Match is honoured
    const char *produces[3];  // media types besides problems, the first is the default
} gs_route;

typedef struct gs_route_match {
    const gs_route *route;  // NULL: see path_known
    bool path_known;        // some row has this path, but not this verb
    char allow[64];         // the verbs that the path knows: "GET, HEAD, OPTIONS"
    struct {
        char name[16], value[GS_ROUTE_PARAM_LEN];
    } params[GS_ROUTE_MAX_PARAMS];
    int num_params;
} gs_route_match;

// HEAD finds the row of GET.
void gs_route_find(gs_route_match *match, const gs_route *routes, size_t num_routes,
                   const char *verb, const char *path);
const char *gs_route_param(const gs_route_match *match, const char *name);  // "" when absent

// Which of `offers` (media types without parameters) an Accept header prefers; -1: none. No header:
// 0.
int gs_accept_best(const char *accept, const char *const *offers, int num_offers);

#endif
