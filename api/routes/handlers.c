// Handlers that answer with one document.
#include "api/routes/handlers.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/problem.h"
#include "api/http/request_fields.h"
#include "api/render/prometheus.h"

enum { METRICS_MS = 5000, LOOP_SECONDS = 5 };

void gs_handle_forward(gs_route_call *call) { gs_route_call_forward(call); }

// Answers 422 with all errors at once.
static void refuse_fields(gs_route_call *call, gs_status status, const gs_field_errors *errors) {
    gs_json *details = gs_field_errors_to_json(errors);
    gs_problem_answer(call->response, call->request->id, gs_problem_find("validation"),
                      status.message, details);
    gs_json_release(details);
}

typedef struct member_copy {
    gs_json *into;
} member_copy;

static bool copy_member(void *ctx, const char *key, const gs_json *value) {
    member_copy *copy = ctx;
    gs_json_set(copy->into, key, gs_json_copy(value));
    return true;
}

// The body as its field table wants it, defaults filled in, added to args.
static bool read_stop_body(gs_route_call *call) {
    gs_json *body = gs_route_call_read_body(call);
    if (!body) return false;
    gs_stop_request stop;
    gs_field_errors errors = {0};
    gs_status status = gs_fields_decode(&stop, gs_stop_request_fields, body, &errors);
    gs_json_release(body);
    if (status.code) {
        refuse_fields(call, status, &errors);
        return false;
    }
    gs_json *checked = gs_fields_encode(&stop, gs_stop_request_fields);
    gs_json_each(checked, copy_member, &(member_copy){call->args});
    gs_json_release(checked);
    return true;
}

void gs_handle_stop_job(gs_route_call *call) {
    if (read_stop_body(call)) gs_handle_forward(call);
}

void gs_handle_delete_job(gs_route_call *call) {
    gs_json *reply = NULL;
    if (!gs_json_get(call->args, "purge")) gs_json_set_bool(call->args, "purge", false);
    if (!gs_route_call_rpc(call, GS_DELETE_JOB, call->args, &reply)) return;
    gs_json_release(reply);
    call->response->status = 204;
}

void gs_handle_preview_plan(gs_route_call *call) {
    gs_json *body = gs_route_call_read_body(call);
    if (!body) return;
    gs_field_errors errors = {0};
    gs_json *request = NULL;
    gs_status status = gs_preview_request_check(&request, body, &errors);
    gs_json_release(body);
    if (status.code == GS_INVALID_ARGUMENT) {
        refuse_fields(call, status, &errors);
    } else if (status.code) {
        gs_problem_answer_status(call->response, call->request->id, status, NULL);
    } else {
        gs_json *reply = NULL;
        if (gs_route_call_rpc(call, GS_PREVIEW_PLAN, request, &reply))
            gs_route_call_answer(call, reply);
    }
    gs_json_release(request);
}

static bool is_idempotency_key(const char *key) {
    size_t len = strlen(key);
    if (len < 1 || len > 255) return false;
    for (const char *c = key; *c; c++)
        if (*c < 0x21 || *c > 0x7e) return false;
    return true;
}

static void answer_created(gs_route_call *call, gs_json *job) {
    char location[160];
    if (gs_json_bool_or(job, "idempotency_replayed", false))
        gs_http_set_header(call->response, "Idempotency-Replayed", "true");
    gs_json_remove(job, "idempotency_replayed");
    snprintf(location, sizeof location, "/v1/jobs/%s", gs_json_string_or(job, "id", ""));
    gs_http_set_header(call->response, "Location", location);
    gs_route_call_answer(call, job);
}

void gs_handle_create_job(gs_route_call *call) {
    const char *key = gs_http_header(call->request, "Idempotency-Key");
    if (key && !is_idempotency_key(key)) {
        gs_problem_answer_code(call->response, call->request->id, "bad_parameter",
                               "Idempotency-Key is not 1 to 255 visible ASCII characters");
        return;
    }
    gs_json *spec = gs_route_call_read_body(call);
    if (!spec) return;
    bool dry_run = gs_json_bool_or(call->args, "dry_run", false);
    gs_json_set(call->args, "spec", spec);
    gs_json_set_bool(call->args, "dry_run", dry_run);
    gs_json_set_string(call->args, "idempotency_key", key);
    gs_json *reply = NULL;
    if (!gs_route_call_rpc(call, GS_CREATE_JOB, call->args, &reply)) return;
    if (dry_run)
        gs_http_answer_json(call->response, 200, reply);
    else
        answer_created(call, reply);
}

void gs_handle_index(gs_route_call *call) {
    static const char *const links[][2] = {{"jobs", "/v1/jobs"},
                                           {"workers", "/v1/workers"},
                                           {"events", "/v1/events"},
                                           {"system", "/v1/system"},
                                           {"preview", "/v1/plans/preview"},
                                           {"openapi", "/openapi.json"},
                                           {"metrics", "/metrics"},
                                           {"ready", "/readyz"}};
    gs_json *list = gs_json_new_object(), *index = gs_json_new_object();
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        gs_json_set_string(list, links[i][0], links[i][1]);
    gs_json_set_string(index, "name", "gradsync");
    gs_json_set_string(index, "version", GRADSYNC_VERSION);
    gs_json_set(index, "links", list);
    gs_route_call_answer(call, index);
}

static void answer_text(gs_route_call *call, int status, const char *type, const char *text) {
    call->response->status = status;
    gs_http_set_header(call->response, "Content-Type", type);
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    gs_strbuf_puts(&call->response->body, text);
}

// This process serves; and inside the coordinator also that its loop turns, which the channel to it
// notices within 3 s. Never asks, so never waits. Whether jobs are accepted is /readyz.
void gs_handle_livez(gs_route_call *call) {
    const gs_api_services *services = call->services;
    bool beginning = gs_now_ns() - services->begin_ns < LOOP_SECONDS * GS_NS_PER_SEC;
    bool stands = services->hosted && !beginning && !gs_rpc_client_connected(services->client);
    answer_text(call, stands ? 503 : 200, "text/plain; charset=utf-8",
                stands ? "the coordinator's loop does not turn\n" : "ok\n");
}

//   may_view  else names alone: details are addresses, paths, what is known and what is not
static void write_checks(gs_strbuf *out, const gs_json *health, bool only_failed, bool may_view) {
    const gs_json *checks = gs_json_get(health, "checks");
    for (size_t i = 0; i < gs_json_count(checks); i++) {
        const gs_json *check = gs_json_at(checks, i);
        bool ok = gs_json_bool_or(check, "ok", false);
        const char *name = gs_json_string_or(check, "name", "?");
        const char *detail = may_view ? gs_json_string_or(check, "detail", "") : "";
        if (only_failed && !ok)
            gs_strbuf_printf(out, "%s%s%s%s", out->len ? "; " : "", name, *detail ? ": " : "",
                             detail);
        else if (!only_failed)
            gs_strbuf_printf(out, "[%c]%s %s%s%s\n", ok ? '+' : '-', name, ok ? "ok" : "failed",
                             *detail ? ": " : "", detail);
    }
}

static const char tokens_behind[] = ": their file cannot be read, and those of before count";

void gs_handle_readyz(gs_route_call *call) {
    gs_json *health = NULL;
    const gs_api_services *services = call->services;
    gs_status status = call->is_anybody ? gs_health_recall(services->health, &health, services->client) : gs_health_ask(&health, services->client);
    const char *behind = call->may_view ? tokens_behind : "";
    // A revocation that counts nowhere yet.
    bool is_behind = gs_token_store_is_behind(call->services->tokens);
    bool ready = !status.code && gs_json_bool_or(health, "ready", false) && !is_behind;
    bool verbose = gs_json_bool_or(call->args, "verbose", false);
    gs_strbuf text = {0};
    if (verbose) {
        gs_strbuf_printf(&text, "[%c]coordinator %s\n", status.code ? '-' : '+',
                         !status.code ? "ok" : call->may_view ? status.message : "failed");
        if (is_behind) gs_strbuf_printf(&text, "[-]tokens failed%s\n", behind);
        write_checks(&text, health, false, call->may_view);
        answer_text(call, ready ? 200 : 503, "text/plain; charset=utf-8", gs_strbuf_text(&text));
        if (!ready) gs_http_set_header(call->response, "Retry-After", "2");
    } else if (ready) {
        answer_text(call, 200, "text/plain; charset=utf-8", "ok\n");
    } else {
        if (status.code)
            gs_strbuf_puts(&text, "coordinator: does not answer");
        else
            write_checks(&text, health, true, call->may_view);
        if (is_behind) gs_strbuf_printf(&text, "%stokens%s", text.len ? "; " : "", behind);
        gs_problem_answer_code(call->response, call->request->id, "not_ready", "%s",
                               gs_strbuf_text(&text));
    }
    gs_strbuf_release(&text);
    gs_json_release(health);
}

// The families of the coordinator, which come in pieces. What came before an error stays on the
// page.
static gs_status collect_families(gs_rpc_client *client, gs_prometheus_page *page) {
    gs_rpc_stream *stream = NULL;
    GS_TRY(gs_rpc_stream_open(&stream, client, GS_GET_METRICS, NULL));
    gs_deadline deadline =
        gs_deadline_in_ms(gs_rpc_client_connected(client) ? METRICS_MS : METRICS_MS / 10);
    gs_status status = gs_ok();
    for (;;) {
        gs_json *item = NULL;
        status = gs_rpc_stream_next(stream, &item, deadline);
        if (status.code || !item) break;
        const gs_json *families = gs_json_get(item, "families");
        for (size_t i = 0; i < gs_json_count(families); i++)
            gs_prometheus_page_add_family(page, gs_json_at(families, i));
        gs_json_release(item);
    }
    gs_rpc_stream_close(stream);
    return status;
}

void gs_handle_metrics(gs_route_call *call) {
    gs_prometheus_page *page = gs_prometheus_page_create();
    if (!page) {
        gs_problem_answer_code(call->response, call->request->id, "internal", "out of memory");
        return;
    }
    gs_status status = collect_families(call->services->client, page);
    gs_api_metrics_set_coordinator_up(call->services->metrics, status.code == GS_OK);
    gs_prometheus_page_add_metrics(page, gs_api_metrics_registry(call->services->metrics));
    answer_text(call, 200, GS_PROMETHEUS_TYPE, "");
    gs_prometheus_page_write(page, &call->response->body);
    gs_prometheus_page_destroy(page);
}

void gs_handle_openapi(gs_route_call *call) {
    gs_route_call_answer_shared(call, &call->services->openapi);
}

void gs_handle_problem_page(gs_route_call *call) {
    const gs_problem *problem = gs_problem_find(gs_route_param(call->match, "slug"));
    if (!problem) {
        gs_problem_answer_code(call->response, call->request->id, "not_found", "no such problem");
        return;
    }
    answer_text(call, 200, "text/plain; charset=utf-8", "");
    gs_strbuf_printf(&call->response->body, "%s\n\nHTTP status %d, code \"%s\".\n%s\n",
                     problem->title, problem->http, problem->code, problem->advice);
}
