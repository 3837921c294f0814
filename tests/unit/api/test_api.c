#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/routes/routes.h"
#include "core/clock.h"
#include "tests/support/http.h"
#include "tests/unit/api/fake_coordinator.h"

static int start(void **state) {
    *state = fake_start(0);
    return 0;
}

// For what is held while large texts are read, which takes as long as the machine has other work.
static int start_patiently(void **state) {
    *state = fake_start_with_patience(60000, 60000);
    return 0;
}

static int start_in_haste(void **state) {
    *state = fake_start_with_patience(0, 200);
    return 0;
}

static int stop(void **state) {
    fake_stop(*state);
    return 0;
}

static gs_wire_response ask(fake_coordinator *fake, const char *line, const char *headers,
                            const char *body) {
    char request[2048];
    snprintf(request, sizeof request, "%s HTTP/1.1\r\n%s\r\n", line, headers);
    return gs_wire_exchange(fake_address(fake), request, body, false);
}

static gs_wire_response post(fake_coordinator *fake, const char *path, const char *body) {
    char line[512];
    snprintf(line, sizeof line, "POST %s", path);
    return ask(fake, line, "Content-Type: application/json\r\n", body);
}

static void assert_status(gs_wire_response response, int status, const char *part) {
    assert_int_equal(response.status, status);
    assert_non_null(strstr(response.body, part));
    gs_wire_response_release(&response);
}

static void assert_header(const gs_wire_response *response, const char *name, const char *value) {
    char text[512];
    assert_true(gs_wire_header(response, name, text));
    assert_string_equal(text, value);
}

static void each_route_calls_its_method(void **state) {
    static const struct {
        const char *line, *request;
        gs_method method;
        int status;
    } cases[] = {
        {"GET /v1/jobs", "{}", GS_LIST_JOBS, 200},
        {"GET /v1/jobs?limit=5&order=asc&state=running,failed&label=a:b&label=c:d&fields=id",
         "{\"limit\":5,\"order\":\"asc\",\"state\":\"running,failed\",\"label\":[\"a:b\",\"c:d\"],"
         "\"fields\":\"id\"}",
         GS_LIST_JOBS, 200},
        {"GET /v1/jobs/hello", "{\"job\":\"hello\"}", GS_GET_JOB, 200},
        {"DELETE /v1/jobs/j-1?purge=true", "{\"job\":\"j-1\",\"purge\":true}", GS_DELETE_JOB, 204},
        {"POST /v1/jobs/j-1/stop",
         "{\"job\":\"j-1\",\"mode\":\"graceful\",\"outcome\":\"cancelled\",\"grace_seconds\":30.0}",
         GS_STOP_JOB, 202},
        {"GET /v1/jobs/j-1/workers", "{\"job\":\"j-1\"}", GS_GET_JOB_WORKERS, 200},
        {"GET /v1/jobs/j-1/plan", "{\"job\":\"j-1\"}", GS_GET_JOB_PLAN, 200},
        {"POST /v1/jobs/j-1/replan", "{\"job\":\"j-1\"}", GS_REPLAN_JOB, 202},
        {"POST /v1/jobs/j-1/release", "{\"job\":\"j-1\"}", GS_RELEASE_JOB, 202},
        {"POST /v1/jobs/j-1/release?step=7", "{\"job\":\"j-1\",\"step\":7}", GS_RELEASE_JOB, 202},
        {"POST /v1/jobs/j-1/adopt", "{\"job\":\"j-1\"}", GS_ADOPT_JOB, 202},
        {"GET /v1/jobs/j-1/metrics", "{\"job\":\"j-1\"}", GS_GET_JOB_METRICS, 200},
        {"GET /v1/jobs/j-1/diagnosis", "{\"job\":\"j-1\"}", GS_GET_JOB_DIAGNOSIS, 200},
        {"POST /v1/jobs/j-1/tracing?on=false", "{\"job\":\"j-1\",\"on\":false}", GS_TRACE_JOB, 202},
        {"GET /v1/jobs/j-1/series?name=loss,lr&from_step=1&to_step=9&max_points=8",
         "{\"job\":\"j-1\",\"names\":[\"loss\",\"lr\"],\"from_step\":1,\"to_step\":9,\"max_"
         "points\":8}",
         GS_GET_JOB_SERIES, 200},
        {"GET /v1/jobs/j-1/events?limit=2", "{\"job\":\"j-1\",\"limit\":2}", GS_LIST_EVENTS, 200},
        {"GET /v1/jobs/j-1/checkpoints", "{\"job\":\"j-1\"}", GS_LIST_CHECKPOINTS, 200},
        {"GET /v1/workers", "{}", GS_LIST_WORKERS, 200},
        {"GET /v1/events", "{}", GS_LIST_EVENTS, 200},
        {"GET /v1/system", "{}", GS_GET_SYSTEM, 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_answer(*state, cases[i].method, GS_OK, "", "{\"here\":1}");
        gs_wire_response response = ask(*state, cases[i].line, "", NULL);
        assert_int_equal(response.status, cases[i].status);
        assert_string_equal(response.body, cases[i].status == 204 ? "" : "{\"here\":1}\n");
        assert_string_equal(fake_last_request(*state, cases[i].method), cases[i].request);
        gs_wire_response_release(&response);
    }
}

// Nothing in the table answers 404, 405 or 501: what is documented exists.
static void every_row_of_the_route_table_is_callable(void **state) {
    for (int method = GS_CREATE_JOB; method < GS_NUM_METHODS; method++)
        fake_answer(*state, (gs_method)method, GS_OK, "",
                    "{\"ended\":true,\"end\":true,\"ready\":true,\"records\":[]}");
    for (size_t i = 0; i < gs_num_routes; i++) {
        const gs_route *route = &gs_routes[i];
        if (strcmp(route->produces[0], "text/event-stream") == 0) continue;
        // This API has none: test_tokens.c
        if (strncmp(route->path, "/v1/tokens", 10) == 0 || strcmp(route->operation, "beginSession") == 0) continue;
        char line[256], *brace;
        snprintf(line, sizeof line, "%s %s", route->verb, route->path);
        while ((brace = strchr(line, '{'))) {
            size_t len = strcspn(brace, "}") + 1;
            memmove(brace + 9, brace + len, strlen(brace + len) + 1);
            memcpy(brace, "not_found", 9);
        }
        const char *body = !route->body ? NULL
                           : route->method == GS_PREVIEW_PLAN
                               ? "{\"tensors\":[{\"elements\":1}],\"limits_bytes\":[1]}"
                               : "{}";
        gs_wire_response response =
            ask(*state, line, body ? "Content-Type: application/json\r\n" : "", body);
        assert_int_equal(response.status, route->success);
        gs_wire_response_release(&response);
    }
}

// Ranks hear of it one after the other: more steps are asked for than are shown.
static void a_timeline_is_a_document_or_a_download(void **state) {
    fake_answer(*state, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-7\"}");
    fake_answer(*state, GS_GET_JOB_TIMELINE, GS_OK, "",
                "{\"end\":true,\"job\":\"j-7\",\"state\":\"queued\",\"ranks\":[]}");
    gs_wire_response response = ask(*state, "GET /v1/jobs/hello/timeline?steps=last:2&ranks=0", "", NULL);
    assert_string_equal(fake_last_request(*state, GS_GET_JOB_TIMELINE),
                        "{\"job\":\"j-7\",\"steps\":\"last:34\",\"ranks\":\"0\"}");
    assert_status(response, 200, "\"job\":\"j-7\"");
    response = ask(*state, "GET /v1/jobs/j-7/timeline?format=trace", "", NULL);
    assert_header(&response, "Content-Disposition", "attachment; filename=\"j-7-timeline.json\"");
    assert_status(response, 200, "\"traceEvents\":[");
    assert_status(ask(*state, "GET /v1/jobs/j-7/timeline?format=svg", "", NULL), 400, "bad_parameter");
    fake_answer(*state, GS_GET_JOB_TIMELINE, GS_INVALID_ARGUMENT, "steps: \"x\"", "{}");
    assert_status(ask(*state, "GET /v1/jobs/j-7/timeline?steps=x", "", NULL), 400, "bad_parameter");
    // A stream that ends early is no timeline.
    fake_answer(*state, GS_GET_JOB_TIMELINE, GS_OK, "", "{\"rank\":0,\"steps\":[]}");
    assert_status(ask(*state, "GET /v1/jobs/j-7/timeline", "", NULL), 503, "did not finish");
    fake_answer(*state, GS_GET_JOB, GS_NOT_FOUND, "no such job", "{}");
    assert_status(ask(*state, "GET /v1/jobs/j-8/timeline", "", NULL), 404, "not_found");
    fake_answer(*state, GS_GET_JOB, GS_FAILED_PRECONDITION, "2 ids begin so",
                "{\"code\":\"ambiguous\",\"candidates\":[\"j-71\",\"j-72\"]}");
    assert_status(ask(*state, "GET /v1/jobs/j-7/timeline", "", NULL), 409, "[\"j-71\",\"j-72\"]");
}

// The coordinator says what is wrong with it: it gets the words as they were written.
static void steps_that_are_out_of_range_are_passed_on_as_written(void **state) {
    static const char *const wrong[] = {"last:0", "last:1025", "last:-3", "last:9223372036854775807",
                                        "last:99999999999999999999", "last:3x", "last:"};
    fake_answer(*state, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-7\"}");
    fake_answer(*state, GS_GET_JOB_TIMELINE, GS_INVALID_ARGUMENT, "steps", "{}");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[100], request[100];
        snprintf(line, sizeof line, "GET /v1/jobs/j-7/timeline?steps=%s", wrong[i]);
        snprintf(request, sizeof request, "{\"job\":\"j-7\",\"steps\":\"%s\"}", wrong[i]);
        assert_status(ask(*state, line, "", NULL), 400, "bad_parameter");
        assert_string_equal(fake_last_request(*state, GS_GET_JOB_TIMELINE), request);
    }
}

static void submission_answers_where_the_job_is(void **state) {
    fake_answer(*state, GS_CREATE_JOB, GS_OK, "", "{\"id\":\"j-77\",\"version\":1}");
    gs_wire_response response =
        ask(*state, "POST /v1/jobs",
            "Content-Type: application/json; charset=utf-8\r\nIdempotency-Key: k1\r\n",
            "{\"name\":\"a\"}");
    assert_int_equal(response.status, 201);
    assert_header(&response, "Location", "/v1/jobs/j-77");
    assert_string_equal(fake_last_request(*state, GS_CREATE_JOB),
                        "{\"spec\":{\"name\":\"a\"},\"dry_run\":false,\"idempotency_key\":\"k1\"}");
    gs_wire_response_release(&response);
}

static void replayed_submission_says_so(void **state) {
    fake_answer(*state, GS_CREATE_JOB, GS_OK, "",
                "{\"id\":\"j-77\",\"idempotency_replayed\":true}");
    gs_wire_response response = post(*state, "/v1/jobs", "{}");
    assert_header(&response, "Idempotency-Replayed", "true");
    assert_string_equal(response.body, "{\"id\":\"j-77\"}\n");
    gs_wire_response_release(&response);
}

static void dry_run_creates_nothing(void **state) {
    fake_answer(*state, GS_CREATE_JOB, GS_OK, "", "{\"spec\":{}}");
    gs_wire_response response = post(*state, "/v1/jobs?dry_run=true", "{}");
    char location[512];
    assert_int_equal(response.status, 200);
    assert_false(gs_wire_header(&response, "Location", location));
    assert_string_equal(fake_last_request(*state, GS_CREATE_JOB), "{\"dry_run\":true,\"spec\":{}}");
    gs_wire_response_release(&response);
}

static void tag_makes_polling_cheap(void **state) {
    char tag[512], headers[600];
    fake_answer(*state, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\",\"version\":3}");
    gs_wire_response response = ask(*state, "GET /v1/jobs/j-1", "", NULL);
    assert_true(gs_wire_header(&response, "ETag", tag));
    gs_wire_response_release(&response);
    snprintf(headers, sizeof headers, "If-None-Match: \"x\", %s\r\n", tag);
    response = ask(*state, "GET /v1/jobs/j-1", headers, NULL);
    assert_int_equal(response.status, 304);
    assert_string_equal(response.body, "");
    gs_wire_response_release(&response);
    fake_answer(*state, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\",\"version\":4}");
    response = ask(*state, "GET /v1/jobs/j-1", headers, NULL);
    assert_int_equal(response.status, 200);
    gs_wire_response_release(&response);
}

static void the_document_of_the_api_is_the_same_for_all(void **state) {
    char tag[512], headers[600];
    gs_wire_response first = ask(*state, "GET /openapi.json", "", NULL);
    assert_int_equal(first.status, 200);
    assert_header(&first, "Content-Type", "application/json");
    assert_true(gs_wire_header(&first, "ETag", tag));
    assert_true(strlen(first.body) > 50000 && strcmp(first.body + strlen(first.body) - 2, "}\n") == 0);
    gs_wire_response again = ask(*state, "GET /openapi.json", "", NULL);
    assert_string_equal(again.body, first.body);
    gs_wire_response_release(&again);
    snprintf(headers, sizeof headers, "If-None-Match: %s\r\n", tag);
    again = ask(*state, "GET /openapi.json", headers, NULL);
    assert_int_equal(again.status, 304);
    assert_string_equal(again.body, "");
    gs_wire_response_release(&again);
    gs_wire_response_release(&first);
}

static void next_page_is_linked(void **state) {
    fake_answer(*state, GS_LIST_JOBS, GS_OK, "", "{\"items\":[],\"next_cursor\":\"a+b/c\"}");
    gs_wire_response response = ask(*state, "GET /v1/jobs?limit=2", "", NULL);
    assert_header(&response, "Link", "</v1/jobs?cursor=a%2Bb%2Fc&limit=2>; rel=\"next\"");
    gs_wire_response_release(&response);
    // Without its filters and its order the next page would be one of another list.
    response = ask(*state, "GET /v1/jobs?order=asc&cursor=old&name=a%26b&label=k:v&label=l:w", "",
                   NULL);
    assert_header(&response, "Link",
                  "</v1/jobs?cursor=a%2Bb%2Fc&order=asc&name=a%26b&label=k%3Av&label=l%3Aw>; "
                  "rel=\"next\"");
    gs_wire_response_release(&response);
}

static void refused_parameter_of_a_get_is_no_invalid_document(void **state) {
    fake_answer(*state, GS_LIST_JOBS, GS_INVALID_ARGUMENT, "cursor: as it was given", NULL);
    assert_status(ask(*state, "GET /v1/jobs?cursor=zzz", "", NULL), 400, "bad_parameter");
    assert_status(ask(*state, "GET /v1/jobs?state=queued,runing", "", NULL), 400, "'state'");
    assert_int_equal(fake_num_calls(*state, GS_LIST_JOBS), 1);
}

static void loss_that_is_not_a_number_is_valid_json(void **state) {
    fake_answer(*state, GS_GET_JOB, GS_OK, "", "{\"latest\":{\"loss\":\"NaN\"}}");
    gs_wire_response response = ask(*state, "GET /v1/jobs/j-1", "", NULL);
    gs_json *body = NULL;
    assert_int_equal(gs_json_parse(&body, response.body, strlen(response.body)).code, GS_OK);
    assert_string_equal(gs_json_string_or(gs_json_get(body, "latest"), "loss", ""), "NaN");
    gs_json_release(body);
    gs_wire_response_release(&response);
}

static void errors_of_the_coordinator_keep_their_meaning(void **state) {
    static const struct {
        gs_code code;
        const char *details;
        int status;
        const char *part;
    } cases[] = {
        {GS_NOT_FOUND, NULL, 404, "\"not_found\""},
        {GS_FAILED_PRECONDITION, "{\"code\":\"ambiguous\",\"candidates\":[\"j-1\",\"j-2\"]}", 409,
         "\"candidates\":[\"j-1\",\"j-2\"]"},
        {GS_FAILED_PRECONDITION, "{\"code\":\"wrong_state\"}", 409, "\"wrong_state\""},
        {GS_ALREADY_EXISTS, NULL, 409, "\"conflict\""},
        {GS_UNAVAILABLE, NULL, 503, "\"retry_after_seconds\":2"},
        {GS_INTERNAL, NULL, 500, "\"internal\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_answer(*state, GS_GET_JOB, cases[i].code, "it is so", cases[i].details);
        assert_status(ask(*state, "GET /v1/jobs/j-1", "", NULL), cases[i].status, cases[i].part);
    }
}

static void all_errors_of_a_specification_are_told_at_once(void **state) {
    fake_answer(*state, GS_CREATE_JOB, GS_INVALID_ARGUMENT, "2 problems found",
                "{\"errors\":[{\"pointer\":\"/a\",\"code\":\"unknown_member\"},{\"pointer\":\"/"
                "b\",\"code\":\"out_of_range\"}]}");
    gs_wire_response response = post(*state, "/v1/jobs", "{}");
    assert_int_equal(response.status, 422);
    assert_header(&response, "Content-Type", "application/problem+json");
    assert_non_null(strstr(response.body, "\"/a\""));
    assert_non_null(strstr(response.body, "\"/b\""));
    assert_non_null(strstr(response.body, "\"code\":\"validation\""));
    gs_wire_response_release(&response);
}

static void broken_json_is_told_with_its_position(void **state) {
    gs_wire_response response = post(*state, "/v1/jobs", "{\"a\": nope}");
    assert_int_equal(response.status, 400);
    assert_non_null(strstr(response.body, "\"code\":\"bad_json\""));
    assert_non_null(strstr(response.body, "byte"));
    gs_wire_response_release(&response);
    assert_status(post(*state, "/v1/jobs", "[]"), 400, "not a JSON object");
    assert_status(post(*state, "/v1/jobs", "{\"a\":1,\"a\":2}"), 400, "bad_json");
    assert_status(post(*state, "/v1/jobs", ""), 400, "bad_json");
    assert_int_equal(fake_num_calls(*state, GS_CREATE_JOB), 0);
}

static char *make_preview(const char *tensor, int num_tensors, size_t bytes) {
    gs_strbuf body = {0};
    gs_strbuf_puts(&body, "{\"limits_bytes\":[1],\"tensors\":[");
    for (int i = 0; i < num_tensors; i++) gs_strbuf_printf(&body, "%s%s", i ? "," : "", tensor);
    gs_strbuf_puts(&body, "]}");
    while (body.len < bytes) gs_strbuf_puts(&body, "    ");
    return gs_strbuf_take(&body);
}

static void a_body_of_nothing_but_containers_is_refused(void **state) {
    char *body = make_preview("{}", 340000, 0);
    gs_wire_response response = post(*state, "/v1/plans/preview", body);
    assert_int_equal(response.status, 400);
    assert_non_null(strstr(response.body, "more than 73728 objects and arrays"));
    gs_wire_response_release(&response);
    free(body);
}

static void wait_calls(fake_coordinator *fake, gs_method method, int num_calls) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (fake_num_calls(fake, method) < num_calls && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(fake_num_calls(fake, method), num_calls);
}

// Of 16,000 tensors in 1 MiB 70 MiB are counted: three of them fit into 256.
static void large_bodies_wait_for_their_turn_and_small_ones_do_not(void **state) {
    enum { FIT = 3 };
    char *body = make_preview("{\"elements\":1}", 16000, (1 << 20) - 8), head[256];
    gs_wire wires[FIT];
    fake_answer(*state, GS_PREVIEW_PLAN, GS_OK, "", "{\"buckets\":[]}");
    fake_answer(*state, GS_CREATE_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    fake_hold(*state, GS_PREVIEW_PLAN, true);
    snprintf(head, sizeof head, "POST /v1/plans/preview HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    for (int i = 0; i < FIT; i++) {
        gs_wire_open(&wires[i], fake_address(*state));
        gs_wire_send(&wires[i], head);
        gs_wire_send(&wires[i], body);
    }
    wait_calls(*state, GS_PREVIEW_PLAN, FIT);
    gs_wire_response response = post(*state, "/v1/plans/preview", body);
    assert_header(&response, "Retry-After", "2");
    assert_status(response, 503, "\"code\":\"busy\"");
    assert_status(post(*state, "/v1/jobs", "{}"), 201, "j-1");
    fake_hold(*state, GS_PREVIEW_PLAN, false);
    for (int i = 0; i < FIT; i++) {
        assert_true(gs_wire_wait(&wires[i], "buckets"));
        gs_wire_close(&wires[i]);
    }
    assert_status(post(*state, "/v1/plans/preview", body), 200, "buckets");
    free(body);
}

static bool answers(fake_coordinator *fake) {
    gs_wire_response response = ask(fake, "GET /v1/jobs/j-1", "", NULL);
    bool is_answer = response.status == 200;
    gs_wire_response_release(&response);
    return is_answer;
}

static void an_answer_that_is_late_is_not_waited_for(void **state) {
    fake_answer(*state, GS_GET_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!answers(*state)) assert_false(gs_deadline_passed(deadline));
    fake_hold(*state, GS_GET_JOB, true);
    int64_t begin_ns = gs_now_ns();
    assert_status(ask(*state, "GET /v1/jobs/j-1", "", NULL), 504, "\"code\":\"timeout\"");
    assert_true(gs_seconds_since(begin_ns) < 9);  // without a word of ours it is ten
}

static void body_must_be_json(void **state) {
    assert_status(ask(*state, "POST /v1/jobs", "Content-Type: text/plain\r\n", "{}"), 415,
                  "text/plain");
    assert_status(ask(*state, "POST /v1/jobs", "", "{}"), 415, "missing");
}

static void bad_parameters_are_named(void **state) {
    assert_status(ask(*state, "GET /v1/jobs?limit=0", "", NULL), 400,
                  "'limit' is not a whole number from 1 to 500");
    assert_status(ask(*state, "GET /v1/jobs?limit=2x", "", NULL), 400, "bad_parameter");
    assert_status(ask(*state, "GET /v1/jobs?limits=2", "", NULL), 400, "did you mean 'limit'?");
    assert_status(ask(*state, "GET /v1/jobs?order=up", "", NULL), 400, "one of asc, desc");
    assert_status(ask(*state, "POST /v1/jobs?dry_run=maybe", "", "{}"), 400, "true or false");
    assert_status(ask(*state, "POST /v1/jobs",
                      "Content-Type: application/json\r\nIdempotency-Key: a b\r\n", "{}"),
                  400, "Idempotency-Key");
}

static void stop_body_is_checked(void **state) {
    fake_answer(*state, GS_STOP_JOB, GS_OK, "", "{}");
    assert_status(post(*state, "/v1/jobs/j/stop", "{\"mode\":\"later\",\"grace\":1}"), 422,
                  "/mode");
    assert_status(post(*state, "/v1/jobs/j/stop", "{\"mod\":\"now\"}"), 422, "did you mean");
    assert_int_equal(fake_num_calls(*state, GS_STOP_JOB), 0);
    assert_status(post(*state, "/v1/jobs/j/stop", "{\"mode\":\"now\",\"outcome\":\"succeeded\"}"),
                  202, "{}");
    assert_non_null(strstr(fake_last_request(*state, GS_STOP_JOB),
                           "\"mode\":\"now\",\"outcome\":\"succeeded\""));
}

static void preview_takes_what_a_plan_may_hold(void **state) {
    static const char *const bodies[] = {
        "{\"tensors\":[{\"elements\":9007199254740992}],\"limits_bytes\":[0]}",
        "{\"tensors\":[{\"elements\":0}],\"limits_bytes\":[9007199254740992]}",
    };
    fake_answer(*state, GS_PREVIEW_PLAN, GS_OK, "", "{\"buckets\":[]}");
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        assert_status(post(*state, "/v1/plans/preview", bodies[i]), 200, "buckets");
    assert_status(post(*state, "/v1/plans/preview",
                       "{\"tensors\":[{\"elements\":9007199254740993}],\"limits_bytes\":[1]}"),
                  422, "/tensors/0/elements");
    // No tensors are a list too: the coordinator sees it.
    assert_status(post(*state, "/v1/plans/preview", "{\"tensors\":[],\"limits_bytes\":[1]}"), 200,
                  "buckets");
    assert_non_null(strstr(fake_last_request(*state, GS_PREVIEW_PLAN), "\"tensors\":[]"));
}

static void preview_names_the_bad_field(void **state) {
    static const char *const cases[][2] = {
        {"{\"tensors\":[],\"limits_bytes\":[]}", "/limits_bytes"},
        {"{\"tensors\":[{\"elements\":-1}],\"limits_bytes\":[1]}", "/tensors/0/elements"},
        {"{\"tensors\":[{\"elements\":1.5}],\"limits_bytes\":[1]}", "/tensors/0/elements"},
        {"{\"tensors\":[{\"elements\":1,\"dtype\":\"fp8\"}],\"limits_bytes\":[1]}",
         "/tensors/0/dtype"},
        {"{\"tensors\":[{\"elements\":1}],\"limits_bytes\":[-1]}", "/limits_bytes/0"},
        {"{\"tensors\":[{\"elements\":1}]}", "/limits_bytes"},
        {"{\"tensors\":[{\"elements\":1}],\"limits_bytes\":[1],\"revers\":true}", "did you mean"},
    };
    fake_answer(*state, GS_PREVIEW_PLAN, GS_OK, "", "{\"buckets\":[]}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_status(post(*state, "/v1/plans/preview", cases[i][0]), 422, cases[i][1]);
    assert_int_equal(fake_num_calls(*state, GS_PREVIEW_PLAN), 0);
    assert_status(
        post(*state, "/v1/plans/preview",
             "{\"tensors\":[{\"name\":\"w\",\"elements\":768}],\"limits_bytes\":[1048576]}"),
        200, "buckets");
    assert_string_equal(
        fake_last_request(*state, GS_PREVIEW_PLAN),
        "{\"tensors\":[{\"name\":\"w\",\"elements\":768,\"dtype\":\"fp32\",\"device\":\"cpu\"}],"
        "\"limits_bytes\":[1048576],\"reverse\":false}");
}

static void wrong_method_lists_the_right_ones(void **state) {
    gs_wire_response response = ask(*state, "PATCH /v1/jobs/j-1", "", NULL);
    assert_int_equal(response.status, 405);
    assert_header(&response, "Allow", "GET, HEAD, DELETE, OPTIONS");
    gs_wire_response_release(&response);
    assert_status(ask(*state, "BREW /v1/jobs", "", NULL), 405, "method_not_allowed");
}

static void options_answers_without_a_body(void **state) {
    gs_wire_response response = ask(*state, "OPTIONS /v1/jobs", "", NULL);
    assert_int_equal(response.status, 204);
    assert_header(&response, "Allow", "GET, HEAD, POST, OPTIONS");
    gs_wire_response_release(&response);
}

static void head_has_the_headers_of_get(void **state) {
    fake_answer(*state, GS_LIST_JOBS, GS_OK, "", "{\"items\":[]}");
    gs_wire_response response = ask(*state, "HEAD /v1/jobs", "", NULL);
    assert_int_equal(response.status, 200);
    assert_header(&response, "Content-Length", "13");
    assert_string_equal(response.body, "");
    gs_wire_response_release(&response);
}

// Else what comes behind it on the connection would be read as the next answer.
static void head_of_what_is_sent_in_pieces_has_no_piece(void **state) {
    static const char *const queries[] = {"", "?follow=true"};
    for (int i = 0; i < 2; i++) {
        gs_wire wire;
        char request[128];
        fake_answer(*state, GS_READ_LOGS, GS_OK, "", "{\"records\":[{\"rank\":0,\"text\":\"one\"}],\"cursor\":\"1\",\"ended\":true}");
        fake_answer_then(*state, GS_READ_LOGS, "{\"records\":[],\"cursor\":\"1\",\"ended\":true}");
        gs_wire_open(&wire, fake_address(*state));
        snprintf(request, sizeof request, "HEAD /v1/jobs/j/logs%s HTTP/1.1\r\nHost: localhost\r\n\r\n", queries[i]);
        gs_wire_send(&wire, request);
        assert_true(gs_wire_wait(&wire, "\r\n\r\n"));
        assert_non_null(strstr(gs_strbuf_text(&wire.received), "HTTP/1.1 200"));
        assert_non_null(strstr(gs_strbuf_text(&wire.received), "Content-Type: text/plain"));
        gs_wire_send(&wire, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_true(gs_wire_wait(&wire, "\r\n\r\nHTTP/1.1 200"));
        assert_int_equal(strncmp(strstr(gs_strbuf_text(&wire.received), "\r\n\r\n") + 4, "HTTP/1.1 200", 12), 0);
        gs_wire_close(&wire);
    }
}

static void unknown_paths_are_not_found(void **state) {
    assert_status(ask(*state, "GET /nope", "", NULL), 404, "\"not_found\"");
    assert_status(ask(*state, "GET /v1/jobs/j/nope", "", NULL), 404, "\"not_found\"");
}

static void unacceptable_representation_is_refused(void **state) {
    assert_status(ask(*state, "GET /v1/jobs", "Accept: image/png\r\n", NULL), 406,
                  "application/json");
}

static void foreign_names_are_refused(void **state) {
    const char *address = fake_address(*state);
    gs_wire_response response = gs_wire_exchange(
        address, "GET /livez HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", NULL,
        true);
    assert_status(response, 403, "bad_host");
    assert_status(ask(*state, "POST /v1/jobs", "Origin: http://evil.example\r\n", "{}"), 403,
                  "bad_origin");
    assert_status(ask(*state, "POST /v1/jobs", "Origin: http://127.0.0.1:1\r\n", "{}"), 403,
                  "bad_origin");
    char own[128];
    snprintf(own, sizeof own, "Origin: http://%s\r\n", address);
    assert_status(ask(*state, "GET /livez", own, NULL), 200, "ok");
}

static void problem_pages_explain_the_code(void **state) {
    assert_status(ask(*state, "GET /problems/too_many_streams", "", NULL), 200, "503");
    assert_status(ask(*state, "GET /problems/nope", "", NULL), 404, "not_found");
}

static void life_does_not_depend_on_the_coordinator(void **state) {
    fake_answer(*state, GS_GET_HEALTH, GS_UNAVAILABLE, "away", NULL);
    assert_status(ask(*state, "GET /livez", "", NULL), 200, "ok");
    assert_status(ask(*state, "GET /readyz", "", NULL), 503, "not_ready");
}

static void readiness_names_the_failed_check(void **state) {
    fake_answer(*state, GS_GET_HEALTH, GS_OK, "",
                "{\"live\":true,\"ready\":false,\"checks\":[{\"name\":\"store\",\"ok\":false,"
                "\"detail\":\"disk full\"},"
                "{\"name\":\"control\",\"ok\":true}]}");
    assert_status(ask(*state, "GET /readyz", "", NULL), 503, "store: disk full");
    assert_status(ask(*state, "GET /readyz?verbose", "", NULL), 503,
                  "[-]store failed: disk full\n[+]control ok\n");
    fake_answer(*state, GS_GET_HEALTH, GS_OK, "", "{\"ready\":true,\"checks\":[]}");
    assert_status(ask(*state, "GET /healthz", "", NULL), 200, "ok");
}

static void metrics_page_joins_both_sides(void **state) {
    fake_answer(*state, GS_GET_METRICS, GS_OK, "",
                "{\"families\":[{\"name\":\"gradsync_jobs\",\"type\":\"gauge\",\"help\":\"Jobs.\","
                "\"text\":\"gradsync_jobs{state=\\\"running\\\"} 2\\n\"}]}");
    gs_wire_response response =
        ask(*state, "GET /metrics", "Accept: application/openmetrics-text,*/*;q=0.1\r\n", NULL);
    assert_int_equal(response.status, 200);
    assert_header(&response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    assert_non_null(strstr(response.body, "gradsync_jobs{state=\"running\"} 2\n"));
    assert_non_null(strstr(response.body, "gradsync_coordinator_up 1\n"));
    assert_non_null(strstr(response.body, "gradsync_http_requests_in_flight 1\n"));
    gs_wire_response_release(&response);
}

static void metrics_page_survives_the_coordinator(void **state) {
    fake_answer(*state, GS_GET_METRICS, GS_UNAVAILABLE, "away", NULL);
    assert_status(ask(*state, "GET /metrics", "", NULL), 200, "gradsync_coordinator_up 0\n");
}

static const char two_records[] =
    "{\"records\":[{\"cursor\":\"1\",\"rank\":3,\"host\":\"node-b\",\"text\":\"step 12\"},"
    "{\"cursor\":\"2\",\"rank\":0,\"host\":\"node-a\",\"text\":\"bye\"}],\"cursor\":\"2\","
    "\"ended\":false}";

static void logs_are_text_or_ndjson(void **state) {
    fake_answer(*state, GS_READ_LOGS, GS_OK, "", two_records);
    fake_answer_then(*state, GS_READ_LOGS, "{\"records\":[],\"cursor\":\"2\",\"ended\":false}");
    gs_wire_response response =
        ask(*state,
            "GET /v1/jobs/j/logs?rank=0,3&tail=9&stream=stderr&level=warning&grep=N&generation=2",
            "", NULL);
    assert_int_equal(response.status, 200);
    assert_header(&response, "Content-Type", "text/plain; charset=utf-8");
    assert_string_equal(response.body, "[r3 node-b] step 12\n[r0 node-a] bye\n");
    // Going on behind the cursor, the tail is not asked for again.
    assert_string_equal(fake_last_request(*state, GS_READ_LOGS),
                        "{\"job\":\"j\",\"rank\":\"0,3\",\"stream\":\"stderr\",\"level\":"
                        "\"warning\",\"grep\":\"N\","
                        "\"generation\":2,\"since\":\"2\"}");
    gs_wire_response_release(&response);

    fake_answer(*state, GS_READ_LOGS, GS_OK, "", two_records);
    fake_answer_then(*state, GS_READ_LOGS, "{\"records\":[],\"cursor\":\"2\",\"ended\":false}");
    response = ask(*state, "GET /v1/jobs/j/logs", "Accept: application/x-ndjson\r\n", NULL);
    assert_header(&response, "Content-Type", "application/x-ndjson");
    assert_non_null(strstr(response.body, "{\"cursor\":\"1\",\"rank\":3,"));
    gs_wire_response_release(&response);
}

static void followed_logs_end_with_the_job_and_lose_nothing(void **state) {
    // The job has ended, but lines are left: they come, and only then the end.
    fake_answer(*state, GS_READ_LOGS, GS_OK, "",
                "{\"records\":[{\"rank\":0,\"host\":\"h\",\"text\":\"one\"}],\"cursor\":\"1\","
                "\"ended\":true}");
    fake_answer_then(*state, GS_READ_LOGS, "{\"records\":[],\"cursor\":\"1\",\"ended\":true}");
    gs_wire_response response = ask(*state, "GET /v1/jobs/j/logs?follow=true", "", NULL);
    assert_string_equal(response.body, "[r0 h] one\n");
    assert_int_equal(fake_num_calls(*state, GS_READ_LOGS), 2);
    assert_non_null(strstr(fake_last_request(*state, GS_READ_LOGS), "\"wait_seconds\":2"));
    gs_wire_response_release(&response);
}

static void logs_of_unknown_jobs_are_not_found(void **state) {
    fake_answer(*state, GS_READ_LOGS, GS_NOT_FOUND, "no job", NULL);
    assert_status(ask(*state, "GET /v1/jobs/j/logs?follow=true", "", NULL), 404, "not_found");
}

static void silent_coordinator_is_unavailable(void **state) {
    (void)state;
    gs_rpc_context *context = NULL;
    gs_api *api = NULL;
    assert_int_equal(gs_rpc_context_create(&context).code, GS_OK);
    gs_api_options options = {
        .http_address = "127.0.0.1:0", .context = context, .rpc_endpoint = "tcp://127.0.0.1:1"};
    assert_int_equal(gs_api_start(&api, &options).code, GS_OK);
    gs_wire_response response =
        gs_wire_exchange(gs_api_address(api), "GET /v1/jobs HTTP/1.1\r\n\r\n", NULL, false);
    assert_header(&response, "Retry-After", "2");
    assert_status(response, 503, "coordinator_unavailable");
    gs_api_stop(api);
    gs_rpc_context_destroy(context);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(each_route_calls_its_method),
        TEST(a_timeline_is_a_document_or_a_download),
        TEST(steps_that_are_out_of_range_are_passed_on_as_written),
        TEST(every_row_of_the_route_table_is_callable),
        TEST(submission_answers_where_the_job_is),
        TEST(replayed_submission_says_so),
        TEST(dry_run_creates_nothing),
        TEST(tag_makes_polling_cheap),
        TEST(the_document_of_the_api_is_the_same_for_all),
        TEST(next_page_is_linked),
        TEST(refused_parameter_of_a_get_is_no_invalid_document),
        TEST(loss_that_is_not_a_number_is_valid_json),
        TEST(errors_of_the_coordinator_keep_their_meaning),
        TEST(all_errors_of_a_specification_are_told_at_once),
        TEST(broken_json_is_told_with_its_position),
        TEST(a_body_of_nothing_but_containers_is_refused),
        cmocka_unit_test_setup_teardown(large_bodies_wait_for_their_turn_and_small_ones_do_not, start_patiently, stop),
        cmocka_unit_test_setup_teardown(an_answer_that_is_late_is_not_waited_for, start_in_haste, stop),
        TEST(body_must_be_json),
        TEST(bad_parameters_are_named),
        TEST(stop_body_is_checked),
        TEST(preview_takes_what_a_plan_may_hold),
        TEST(preview_names_the_bad_field),
        TEST(wrong_method_lists_the_right_ones),
        TEST(options_answers_without_a_body),
        TEST(head_has_the_headers_of_get),
        TEST(head_of_what_is_sent_in_pieces_has_no_piece),
        TEST(unknown_paths_are_not_found),
        TEST(unacceptable_representation_is_refused),
        TEST(foreign_names_are_refused),
        TEST(problem_pages_explain_the_code),
        TEST(life_does_not_depend_on_the_coordinator),
        TEST(readiness_names_the_failed_check),
        TEST(metrics_page_joins_both_sides),
        TEST(metrics_page_survives_the_coordinator),
        TEST(logs_are_text_or_ndjson),
        TEST(followed_logs_end_with_the_job_and_lose_nothing),
        TEST(logs_of_unknown_jobs_are_not_found),
        cmocka_unit_test(silent_coordinator_is_unavailable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
