#include "api/render/openapi.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/http/problem.h"
#include "rpc/schema/fields.h"

static gs_json *new_reference(const char *path) {
    gs_json *reference = gs_json_new_object();
    gs_json_set_string(reference, "$ref", path);
    return reference;
}

static gs_json *new_type(const char *type) {
    gs_json *schema = gs_json_new_object();
    gs_json_set_string(schema, "type", type);
    return schema;
}

static gs_json *number_schema(const gs_query_param *param, const char *type) {
    gs_json *schema = new_type(type);
    gs_json_set_int(schema, "minimum", (int64_t)param->least);
    gs_json_set_int(schema, "maximum", (int64_t)param->most);
    return schema;
}

// "?verbose" says what "?verbose=true" says.
static gs_json *bool_schema(void) {
    gs_json *schema = gs_json_new_object(), *values = gs_json_new_array();
    gs_json_push(values, gs_json_new_bool(true));
    gs_json_push(values, gs_json_new_bool(false));
    gs_json_push(values, gs_json_new_string(""));
    gs_json_set(schema, "enum", values);
    return schema;
}

static gs_json *query_schema(const gs_query_param *param) {
    gs_json *schema = NULL, *words = NULL;
    switch (param->type) {
    case GS_QUERY_INT:
        return number_schema(param, "integer");
    case GS_QUERY_NUMBER:
        return number_schema(param, "number");
    case GS_QUERY_BOOL:
        return bool_schema();
    case GS_QUERY_WORDS:
        schema = new_type("array");
        gs_json_set(schema, "items", new_type("string"));
        return schema;
    case GS_QUERY_WORD:
        schema = new_type("string");
        words = gs_json_new_array();
        for (const char *const *word = param->words; word && *word; word++)
            gs_json_push(words, gs_json_new_string(*word));
        gs_json_set(schema, "enum", words);
        return schema;
    case GS_QUERY_STRING:
        break;
    }
    return new_type("string");
}

static gs_json *new_parameter(const char *name, const char *in, bool required, const char *help,
                              gs_json *schema) {
    gs_json *parameter = gs_json_new_object();
    gs_json_set_string(parameter, "name", name);
    gs_json_set_string(parameter, "in", in);
    gs_json_set_bool(parameter, "required", required);
    gs_json_set_string(parameter, "description", help);
    gs_json_set(parameter, "schema", schema);
    return parameter;
}

static void add_path_parameters(gs_json *parameters, const char *path) {
    for (const char *open = strchr(path, '{'); open; open = strchr(open + 1, '{')) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(open + 1, "}"), open + 1);
        bool job = strcmp(name, "job") == 0;
        gs_json_push(
            parameters,
            new_parameter(name, "path", true,
                          job                           ? "Full id, a unique prefix of it, or the name of a live job."
                          : strcmp(name, "token") == 0 ? "Id of a token, or the name of one that counts."
                                                       : "A code of an error.",
                          new_type("string")));
    }
}

// What handlers.c accepts.
static gs_json *new_key_schema(void) {
    gs_json *schema = new_type("string");
    gs_json_set_int(schema, "minLength", 1);
    gs_json_set_int(schema, "maxLength", 255);
    gs_json_set_string(schema, "pattern", "^[!-~]+$");
    return schema;
}

static void add_header_parameters(gs_json *parameters, const gs_route *route) {
    if (route->method == GS_CREATE_JOB)
        gs_json_push(parameters, new_parameter("Idempotency-Key", "header", false,
                                               "The same key and body: the first answer again.",
                                               new_key_schema()));
    if (route->etag)
        gs_json_push(parameters,
                     new_parameter("If-None-Match", "header", false,
                                   "304 when this is still the tag.", new_type("string")));
    for (int i = 0; i < 3 && route->produces[i]; i++)
        if (strcmp(route->produces[i], "text/event-stream") == 0)
            gs_json_push(parameters,
                         new_parameter("Last-Event-ID", "header", false,
                                       "Continue behind this event.", new_type("string")));
}

static gs_json *new_parameters(const gs_route *route) {
    gs_json *parameters = gs_json_new_array();
    add_path_parameters(parameters, route->path);
    for (const gs_query_param *query = route->query; query && query->name; query++)
        gs_json_push(parameters,
                     new_parameter(query->name, "query", false, query->help, query_schema(query)));
    add_header_parameters(parameters, route);
    return parameters;
}

// "createJob" → "CreateJobRequest"
static void schema_name(char name[64], const gs_route *route) {
    snprintf(name, 64, "%c%sRequest", toupper((unsigned char)route->operation[0]),
             route->operation + 1);
}

static gs_json *new_request_body(const gs_route *route) {
    char name[64], path[96];
    schema_name(name, route);
    snprintf(path, sizeof path, "#/components/schemas/%s", name);
    gs_json *media = gs_json_new_object(), *content = gs_json_new_object();
    gs_json *body = gs_json_new_object();
    gs_json_set(media, "schema", new_reference(path));
    gs_json_set(content, "application/json", media);
    gs_json_set_bool(body, "required", route->body_required);
    gs_json_set(body, "content", content);
    return body;
}

// Of a text that does not end readers check an event at a time, others the text: what is said of an object holds for the former.
static gs_json *new_event_schema(void) {
    static const char *const lines[] = {"id", "event", "data"};
    gs_json *schema = gs_json_new_object(), *properties = gs_json_new_object();
    gs_json_set_string(schema, "description", "Events, one behind the other; `data` is JSON.");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) gs_json_set(properties, lines[i], new_type("string"));
    gs_json_set(schema, "properties", properties);
    return schema;
}

static gs_json *new_success(const gs_route *route) {
    gs_json *response = gs_json_new_object(), *content = gs_json_new_object();
    gs_json_set_string(response, "description", route->summary);
    for (int i = 0; i < 3 && route->produces[i]; i++) {
        gs_json *media = gs_json_new_object();
        bool json = strcmp(route->produces[i], "application/json") == 0;
        bool is_events = strcmp(route->produces[i], "text/event-stream") == 0;
        gs_json_set(media, "schema", is_events ? new_event_schema() : new_type(json ? "object" : "string"));
        gs_json_set(content, route->produces[i], media);
    }
    if (route->success == 204)
        gs_json_release(content);
    else
        gs_json_set(response, "content", content);
    return response;
}

// All routes that there are.
typedef struct route_table {
    const gs_route *routes;
    size_t num_routes;
} route_table;

// What an answer always gives that others need: each route with this in its path.
static const struct {
    const char *operation, *param, *value;
} gifts[] = {
    {"createJob", "job", "$response.body#/id"},
    {"getJob", "job", "$response.body#/id"},
    {"createToken", "token", "$response.body#/id"},
};

static gs_json *new_link(const gs_route *to, const char *param, const char *value) {
    gs_json *link = gs_json_new_object(), *parameters = gs_json_new_object();
    gs_json_set_string(parameters, param, value);
    gs_json_set_string(link, "operationId", to->operation);
    gs_json_set(link, "parameters", parameters);
    return link;
}

static void add_gifts(gs_json *links, const gs_route *route, const route_table *table, size_t gift) {
    char place[32];
    snprintf(place, sizeof place, "{%s}", gifts[gift].param);
    for (size_t i = 0; i < table->num_routes; i++) {
        const gs_route *to = &table->routes[i];
        if (to == route || !strstr(to->path, place)) continue;
        gs_json_set(links, to->operation, new_link(to, gifts[gift].param, gifts[gift].value));
    }
}

static void add_links(gs_json *response, const gs_route *route, const route_table *table) {
    gs_json *links = gs_json_new_object();
    for (size_t i = 0; i < sizeof gifts / sizeof *gifts; i++)
        if (strcmp(gifts[i].operation, route->operation) == 0) add_gifts(links, route, table, i);
    if (gs_json_count(links) > 0) gs_json_set(response, "links", links);
    else gs_json_release(links);
}

static gs_json *new_responses(const gs_route *route, const route_table *table) {
    char code[8];
    gs_json *responses = gs_json_new_object(), *success = new_success(route);
    add_links(success, route, table);
    snprintf(code, sizeof code, "%d", route->success);
    gs_json_set(responses, code, success);
    if (route->method == GS_CREATE_JOB) gs_json_set(responses, "200", new_success(route));
    if (route->etag) {
        gs_json *unchanged = gs_json_new_object();
        gs_json_set_string(unchanged, "description", "Unchanged since the tag");
        gs_json_set(responses, "304", unchanged);
    }
    if (strcmp(route->produces[0], "text/event-stream") == 0 ||
        (route->produces[1] && strcmp(route->produces[1], "text/event-stream") == 0)) {
        gs_json *nothing = gs_json_new_object();
        gs_json_set_string(nothing, "description",
                           "The stream has ended and you have seen its end");
        gs_json_set(responses, "204", nothing);
    }
    if (route->role != GS_ROLE_ANYBODY) {
        gs_json_set(responses, "401", new_reference("#/components/responses/Problem"));
        gs_json_set(responses, "403", new_reference("#/components/responses/Problem"));
    }
    gs_json_set(responses, "default", new_reference("#/components/responses/Problem"));
    return responses;
}

// Where tokens are asked for at all. The roles of a bearer token are for its readers: OpenAPI knows no order of them.
static gs_json *new_security(const gs_route *route) {
    gs_json *alternatives = gs_json_new_array();
    if (route->role == GS_ROLE_ANYBODY) return alternatives;
    gs_json *token = gs_json_new_object();
    gs_json_set(token, "token", gs_json_new_array());
    gs_json_push(alternatives, token);
    gs_json *session = gs_json_new_object();
    gs_json_set(session, "session", gs_json_new_array());
    gs_json_push(alternatives, session);
    return alternatives;
}

static gs_json *new_operation(const gs_route *route, const route_table *table) {
    static const char *const roles[] = {
        [GS_ROLE_ANYBODY] = "none",       [GS_ROLE_AGENT] = "agent",   [GS_ROLE_TRAINER] = "trainer",
        [GS_ROLE_METRICS] = "metrics",    [GS_ROLE_VIEWER] = "viewer", [GS_ROLE_OPERATOR] = "operator",
        [GS_ROLE_ADMIN] = "admin",
    };
    gs_json *operation = gs_json_new_object();
    gs_json_set_string(operation, "operationId", route->operation);
    gs_json_set_string(operation, "summary", route->summary);
    gs_json_set_string(operation, "x-role", roles[route->role]);
    gs_json_set(operation, "security", new_security(route));
    gs_json_set(operation, "parameters", new_parameters(route));
    if (route->body) gs_json_set(operation, "requestBody", new_request_body(route));
    gs_json_set(operation, "responses", new_responses(route, table));
    return operation;
}

static gs_json *new_problem_schema(void) {
    static const char *const strings[] = {"type", "title", "code", "detail", "instance", "hint"};
    gs_json *properties = gs_json_new_object(), *required = gs_json_new_array();
    gs_json *schema = new_type("object"), *errors = new_type("array");
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        gs_json_set(properties, strings[i], new_type("string"));
    gs_json_set(properties, "status", new_type("integer"));
    gs_json_set(properties, "retry_after_seconds", new_type("integer"));
    gs_json_set(errors, "items", new_type("object"));
    gs_json_set(properties, "errors", errors);
    gs_json_push(required, gs_json_new_string("type"));
    gs_json_push(required, gs_json_new_string("status"));
    gs_json_push(required, gs_json_new_string("code"));
    gs_json_set(schema, "properties", properties);
    gs_json_set(schema, "required", required);
    return schema;
}

static gs_json *new_security_schemes(void) {
    gs_json *schemes = gs_json_new_object(), *token = gs_json_new_object();
    gs_json_set_string(token, "type", "http");
    gs_json_set_string(token, "scheme", "bearer");
    gs_json_set_string(token, "description",
                       "A token of this server: `gs_` and 43 characters. x-role of an operation is the least role that "
                       "may: metrics, viewer, operator, admin. Nobody is asked at a loopback address, until a token is made.");
    gs_json_set(schemes, "token", token);
    gs_json *session = gs_json_new_object();
    gs_json_set_string(session, "type", "apiKey");
    gs_json_set_string(session, "in", "cookie");
    gs_json_set_string(session, "name", "gradsync");
    gs_json_set_string(session, "description",
                       "What POST /v1/session gives a browser for its token; `__Host-gradsync` where the server encrypts. What changes "
                       "something needs the header X-Gradsync-CSRF, with any value, beside it.");
    gs_json_set(schemes, "session", session);
    return schemes;
}

static gs_json *new_components(const gs_route *routes, size_t num_routes) {
    gs_json *schemas = gs_json_new_object(), *responses = gs_json_new_object();
    gs_json *components = gs_json_new_object(), *problem = gs_json_new_object();
    gs_json *content = gs_json_new_object(), *media = gs_json_new_object();
    gs_json_set(schemas, "Problem", new_problem_schema());
    for (size_t i = 0; i < num_routes; i++) {
        if (!routes[i].body) continue;
        char name[64];
        schema_name(name, &routes[i]);
        gs_json_set(schemas, name, gs_fields_schema(routes[i].body, routes[i].summary));
    }
    gs_json_set(media, "schema", new_reference("#/components/schemas/Problem"));
    gs_json_set(content, "application/problem+json", media);
    gs_json_set_string(problem, "description", "Any error: RFC 9457, with a stable code");
    gs_json_set(problem, "content", content);
    for (size_t i = 0; i < num_routes; i++) {
        if (strcmp(routes[i].operation, "problem") != 0) continue;
        gs_json *links = gs_json_new_object();
        gs_json_set(links, "problem", new_link(&routes[i], "slug", "$response.body#/code"));
        gs_json_set(problem, "links", links);
    }
    gs_json_set(responses, "Problem", problem);
    gs_json_set(components, "schemas", schemas);
    gs_json_set(components, "responses", responses);
    gs_json_set(components, "securitySchemes", new_security_schemes());
    return components;
}

static gs_json *new_paths(const gs_route *routes, size_t num_routes) {
    gs_json *paths = gs_json_new_object();
    for (size_t i = 0; i < num_routes; i++) {
        if (gs_json_get(paths, routes[i].path)) continue;
        gs_json *item = gs_json_new_object();
        for (size_t j = i; j < num_routes; j++) {
            if (strcmp(routes[j].path, routes[i].path) != 0) continue;
            char verb[16];
            snprintf(verb, sizeof verb, "%s", routes[j].verb);
            for (char *c = verb; *c; c++) *c = (char)tolower((unsigned char)*c);
            gs_json_set(item, verb, new_operation(&routes[j], &(route_table){routes, num_routes}));
        }
        gs_json_set(paths, routes[i].path, item);
    }
    return paths;
}

gs_json *gs_openapi_document(const gs_route *routes, size_t num_routes) {
    gs_json *document = gs_json_new_object(), *info = gs_json_new_object();
    gs_json_set_string(info, "title", "gradsync");
    gs_json_set_string(info, "version", GRADSYNC_VERSION);
    gs_json_set_string(info, "description",
                       "Launches, watches and stops distributed training jobs.");
    gs_json_set_string(document, "openapi", "3.1.0");
    gs_json_set(document, "info", info);
    gs_json_set(document, "paths", new_paths(routes, num_routes));
    gs_json_set(document, "components", new_components(routes, num_routes));
    return document;
}
