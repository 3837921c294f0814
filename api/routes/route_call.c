#include "api/routes/route_call.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/http/problem.h"
#include "core/config.h"
#include "core/digest.h"

// A measurement of 16 hosts: 15 rounds of at most 6 s.
enum { EXAMINATION_MS = 105000, DISCONNECTED_MS = 1000, BODY_TURN_MS = 2000 };
// What values take in memory, from above: an object with nothing in it, read and checked and written anew; and for each byte of text,
// since a number is two.
enum { CONTAINER_COST = 2000, BYTE_COST = 40, SMALL_COST = 256 << 10 };

static const gs_query_param *find_query(const gs_route *route, const char *name) {
    for (const gs_query_param *param = route->query; param && param->name; param++)
        if (strcmp(param->name, name) == 0) return param;
    return NULL;
}

static void refuse_unknown_query(gs_route_call *call, const char *name) {
    const char *names[32];
    size_t num_names = 0;
    for (const gs_query_param *param = call->match->route->query; param && param->name; param++)
        if (num_names < 32) names[num_names++] = param->name;
    const char *nearest = gs_nearest_word(name, names, num_names);
    gs_problem_answer_code(call->response, call->request->id, "bad_parameter",
                           nearest ? "unknown parameter '%s'; did you mean '%s'?"
                                   : "unknown parameter '%s'",
                           name, nearest ? nearest : "");
}

static bool read_number(const gs_query_param *param, const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value) && *value >= param->least &&
           *value <= param->most;
}

static bool is_word(const gs_query_param *param, const char *text, size_t len) {
    for (const char *const *word = param->words; word && *word; word++)
        if (strlen(*word) == len && strncmp(*word, text, len) == 0) return true;
    return false;
}

static bool are_words(const gs_query_param *param, const char *text) {
    for (;;) {
        size_t len = strcspn(text, ",");
        if (!is_word(param, text, len)) return false;
        if (text[len] == '\0') return true;
        text += len + 1;
    }
}

static gs_json *split_words(const char *text, const gs_json *before) {
    gs_json *list = before ? gs_json_copy(before) : gs_json_new_array();
    while (*text) {
        size_t len = strcspn(text, ",");
        if (len > 0) gs_json_push(list, gs_json_new_string_len(text, len));
        text += len + (text[len] == ',');
    }
    return list;
}

// NULL: `text` is no value of this parameter.
static gs_json *read_value(const gs_query_param *param, const char *text, const gs_json *before) {
    double number = 0;
    switch (param->type) {
    case GS_QUERY_INT:
        if (strspn(text, "-0123456789") != strlen(text) || !read_number(param, text, &number))
            return NULL;
        return gs_json_new_int((int64_t)number);
    case GS_QUERY_NUMBER:
        return read_number(param, text, &number) ? gs_json_new_double(number) : NULL;
    case GS_QUERY_BOOL:
        if (*text == '\0' || strcmp(text, "true") == 0) return gs_json_new_bool(true);
        return strcmp(text, "false") == 0 ? gs_json_new_bool(false) : NULL;
    case GS_QUERY_WORD:
        return is_word(param, text, strlen(text)) ? gs_json_new_string(text) : NULL;
    case GS_QUERY_WORDS:
        return split_words(text, before);
    case GS_QUERY_STRING:
        break;
    }
    return !param->words || are_words(param, text) ? gs_json_new_string(text) : NULL;
}

static const char *describe_type(const gs_query_param *param, char text[160]) {
    size_t used = 0;
    text[0] = '\0';
    if (param->type == GS_QUERY_INT || param->type == GS_QUERY_NUMBER)
        snprintf(text, 160, "a %snumber from %.15g to %.15g",
                 param->type == GS_QUERY_INT ? "whole " : "", param->least, param->most);
    else if (param->type == GS_QUERY_BOOL)
        snprintf(text, 160, "true or false");
    else
        for (const char *const *word = param->words; word && *word && used < 120; word++)
            used +=
                (size_t)snprintf(text + used, 160 - used, "%s%s", used ? ", " : "one of ", *word);
    return text;
}

typedef struct param_walk {
    gs_route_call *call;
    bool failed;
} param_walk;

static bool take_query(void *ctx, const char *name, const char *text) {
    param_walk *walk = ctx;
    gs_route_call *call = walk->call;
    const gs_query_param *param = find_query(call->match->route, name);
    if (!param) {
        refuse_unknown_query(call, name);
        walk->failed = true;
        return false;
    }
    const char *member = param->member ? param->member : param->name;
    gs_json *value = read_value(param, text, gs_json_get(call->args, member));
    if (!value) {
        char type[160];
        gs_problem_answer_code(call->response, call->request->id, "bad_parameter",
                               "parameter '%s' is not %s", name, describe_type(param, type));
        walk->failed = true;
        return false;
    }
    if (param->member)
        gs_json_set(call->args, member, value);
    else
        gs_json_release(value);  // the handler reads it itself, knowing now that it is valid
    return true;
}

bool gs_route_call_read_params(gs_route_call *call) {
    for (int i = 0; i < call->match->num_params; i++)
        gs_json_set_string(call->args, call->match->params[i].name, call->match->params[i].value);
    param_walk walk = {.call = call};
    gs_http_each_query(call->request, take_query, &walk);
    // Who changes something is told with it.
    char principal[GS_PRINCIPAL_BYTES];
    gs_caller_format(principal, call->caller);
    if (*principal && call->match->route->role >= GS_ROLE_OPERATOR) gs_json_set_string(call->args, "principal", principal);
    return !walk.failed;
}

static bool has_json_type(const gs_http_request *request) {
    const char *type = gs_http_header(request, "Content-Type");
    if (!type) return false;
    size_t len = strcspn(type, "; \t");
    return (len == 16 && strncasecmp(type, "application/json", 16) == 0) ||
           (len > 17 && strncasecmp(type + len - 5, "+json", 5) == 0 &&
            strncasecmp(type, "application/", 12) == 0);
}

// Most bodies are small, and wait for nobody.
static bool take_turn(gs_route_call *call) {
    const gs_http_request *request = call->request;
    uint64_t num_containers = 0;
    for (const char *c = request->body; c < request->body + request->body_bytes; c++) num_containers += *c == '{' || *c == '[';
    if (num_containers > GS_JSON_MOST_CONTAINERS) num_containers = GS_JSON_MOST_CONTAINERS;
    uint64_t cost = CONTAINER_COST * num_containers + BYTE_COST * (uint64_t)request->body_bytes;
    if (cost <= SMALL_COST) return true;
    if (gs_budget_take(call->services->bodies, cost, gs_deadline_in_ms(BODY_TURN_MS))) {
        call->body_cost = cost;
        return true;
    }
    gs_api_metrics_refuse(call->services->metrics, "busy");
    gs_problem_answer_code(call->response, request->id, "busy", "other large bodies are being worked on, and none came to its end within two seconds");
    return false;
}

void gs_route_call_finish(gs_route_call *call) {
    if (call->body_cost) gs_budget_give(call->services->bodies, call->body_cost);
    call->body_cost = 0;
}

gs_json *gs_route_call_read_body(gs_route_call *call) {
    const gs_http_request *request = call->request;
    if (request->body_bytes == 0 && !call->match->route->body_required) return gs_json_new_object();
    if (!has_json_type(request)) {
        const char *type = gs_http_header(request, "Content-Type");
        gs_problem_answer_code(call->response, request->id, "unsupported_media_type",
                               "Content-Type is %s, not application/json", type ? type : "missing");
        return NULL;
    }
    if (!take_turn(call)) return NULL;
    gs_json *body = NULL;
    gs_status status = gs_json_parse_foreign(&body, request->body, request->body_bytes);
    if (status.code) {
        gs_problem_answer(call->response, request->id, gs_problem_find("bad_json"), status.message,
                          NULL);
        return NULL;
    }
    if (gs_json_type_of(body) != GS_JSON_OBJECT) {
        gs_json_release(body);
        gs_problem_answer(call->response, request->id, gs_problem_find("bad_json"),
                          "the body is not a JSON object", NULL);
        return NULL;
    }
    return body;
}

static gs_deadline rpc_deadline(const gs_api_services *services, gs_method method) {
    int64_t patience_ms = method == GS_EXAMINE_WORKERS ? EXAMINATION_MS : services->answer_ms;
    return gs_deadline_in_ms(gs_rpc_client_connected(services->client) ? patience_ms : DISCONNECTED_MS);
}

// Takes the details.
static void answer_failure(gs_route_call *call, gs_status status, gs_json *details) {
    // Nobody there to be late is not the same as being late.
    if (status.code == GS_DEADLINE_EXCEEDED && !gs_rpc_client_connected(call->services->client))
        status = gs_error(GS_UNAVAILABLE, "no connection to the coordinator");
    // Without a body it can only be a parameter that was wrong.
    if (status.code == GS_INVALID_ARGUMENT && !call->match->route->body)
        gs_problem_answer(call->response, call->request->id, gs_problem_find("bad_parameter"),
                          status.message, details);
    else
        gs_problem_answer_status(call->response, call->request->id, status, details);
    gs_json_release(details);
}

bool gs_route_call_rpc(gs_route_call *call, gs_method method, const gs_json *request,
                       gs_json **reply) {
    gs_rpc_client *client = call->services->client;
    gs_status status = gs_rpc_call(client, method, request, reply, rpc_deadline(call->services, method));
    if (!status.code) return true;
    answer_failure(call, status, *reply);
    *reply = NULL;
    return false;
}

// "a", W/"a", "b", * against our tag, which has its quotes.
static bool tag_matches(const char *header, const char *tag) {
    size_t tag_len = strlen(tag);
    while (*header) {
        header += strspn(header, " \t,");
        if (*header == '*') return true;
        if (strncmp(header, "W/", 2) == 0) header += 2;
        size_t len = strcspn(header, ", \t");
        if (len == tag_len && strncmp(header, tag, len) == 0) return true;
        header += len;
    }
    return false;
}

static void format_tag(char tag[GS_ENTITY_TAG_BYTES], const char *text, size_t bytes) {
    snprintf(tag, GS_ENTITY_TAG_BYTES, "\"%016" PRIx64 "\"", gs_hash64(text, bytes, 0));
}

static void show_tag(gs_route_call *call, const char *tag) {
    gs_http_response *response = call->response;
    gs_http_set_header(response, "ETag", tag);
    const char *known = gs_http_header(call->request, "If-None-Match");
    if (!known || !tag_matches(known, tag)) return;
    response->status = 304;
    response->shared = NULL;
    gs_strbuf_clear(&response->body);
}

static void add_tag(gs_route_call *call) {
    char tag[GS_ENTITY_TAG_BYTES];
    format_tag(tag, gs_strbuf_text(&call->response->body), call->response->body.len);
    show_tag(call, tag);
}

static void write_escaped(gs_strbuf *out, const char *text) {
    for (const char *c = text; *c; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                     (*c >= '0' && *c <= '9') || strchr("-_.~", *c);
        gs_strbuf_printf(out, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
}

static bool write_filter(void *ctx, const char *name, const char *value) {
    gs_strbuf *link = ctx;
    if (strcmp(name, "cursor") == 0) return true;
    gs_strbuf_printf(link, "&%s=", name);
    write_escaped(link, value);
    return true;
}

// The address of the next page: this one's, with another cursor.
static void add_link(gs_route_call *call, const char *cursor) {
    gs_strbuf link = {0};
    gs_strbuf_printf(&link, "<%s?cursor=", call->request->path);
    write_escaped(&link, cursor);
    gs_http_each_query(call->request, write_filter, &link);
    gs_strbuf_puts(&link, ">; rel=\"next\"");
    if (link.len < sizeof call->response->headers[0].value)
        gs_http_set_header(call->response, "Link", gs_strbuf_text(&link));
    gs_strbuf_release(&link);
}

static void add_cache_control(gs_route_call *call) {
    gs_http_set_header(call->response, "Cache-Control",
                       call->match->route->etag ? "no-cache" : "no-store");
}

void gs_route_call_answer(gs_route_call *call, gs_json *reply) {
    const char *cursor = gs_json_string_or(reply, "next_cursor", NULL);
    if (cursor) add_link(call, cursor);
    add_cache_control(call);
    gs_http_answer_json(call->response, call->match->route->success, reply);
    if (call->match->route->etag) add_tag(call);
}

gs_status gs_shared_document_make(gs_shared_document *out, gs_json *value) {
    gs_strbuf text = {0};
    char *encoded = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&encoded, &bytes, value, false);
    gs_json_release(value);
    if (status.code) return status;
    gs_strbuf_add(&text, encoded, bytes);
    gs_strbuf_puts(&text, "\n");
    free(encoded);
    if (gs_strbuf_failed(&text)) {
        gs_strbuf_release(&text);
        return gs_error(GS_RESOURCE_EXHAUSTED, "api: out of memory");
    }
    out->bytes = text.len;
    out->text = gs_strbuf_take(&text);
    format_tag(out->tag, out->text, out->bytes);
    return gs_ok();
}

void gs_shared_document_release(gs_shared_document *document) {
    free(document->text);
    *document = (gs_shared_document){0};
}

void gs_route_call_answer_shared(gs_route_call *call, const gs_shared_document *document) {
    add_cache_control(call);
    gs_http_set_header(call->response, "Content-Type", "application/json");
    call->response->status = call->match->route->success;
    call->response->shared = document->text;
    call->response->shared_bytes = document->bytes;
    if (call->match->route->etag) show_tag(call, document->tag);
}

void gs_route_call_forward(gs_route_call *call) {
    gs_rpc_client *client = call->services->client;
    char *text, cursor[256];
    size_t bytes;
    gs_json *details;
    gs_status status = gs_rpc_call_text(client, call->match->route->method, call->args, &text, &bytes, &details,
                                        rpc_deadline(call->services, call->match->route->method));
    if (status.code) {
        answer_failure(call, status, details);
        return;
    }
    if (gs_json_peek_string(cursor, sizeof cursor, text, bytes, "next_cursor")) add_link(call, cursor);
    add_cache_control(call);
    gs_http_answer_text(call->response, call->match->route->success, text, bytes);
    free(text);
    if (call->match->route->etag) add_tag(call);
}

bool gs_api_is_encrypted(const gs_api_services *services, const gs_http_request *request) {
    return request->is_encrypted || services->is_behind_proxy;
}
