#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/http/problem.h"

static gs_json *answer(gs_http_response *response, gs_status status, const char *details_text) {
    gs_json *details = NULL, *body = NULL;
    if (details_text)
        assert_int_equal(gs_json_parse(&details, details_text, strlen(details_text)).code, GS_OK);
    gs_problem_answer_status(response, "r-1", status, details);
    gs_json_release(details);
    assert_int_equal(gs_json_parse(&body, response->body.text, response->body.len).code, GS_OK);
    return body;
}

static void assert_maps(gs_code code, const char *details, int http, const char *slug) {
    gs_http_response response = {0};
    gs_json *body = answer(&response, gs_error(code, "it went wrong"), details);
    assert_int_equal(response.status, http);
    assert_string_equal(gs_json_string_or(body, "code", ""), slug);
    assert_int_equal(gs_json_int_or(body, "status", 0), http);
    assert_string_equal(gs_json_string_or(body, "instance", ""), "r-1");
    assert_string_equal(gs_http_response_header(&response, "Content-Type"),
                        "application/problem+json");
    gs_json_release(body);
    gs_strbuf_release(&response.body);
}

static void every_code_has_its_http_twin(void **state) {
    (void)state;
    assert_maps(GS_INVALID_ARGUMENT, NULL, 422, "validation");
    assert_maps(GS_NOT_FOUND, NULL, 404, "not_found");
    assert_maps(GS_ALREADY_EXISTS, NULL, 409, "conflict");
    assert_maps(GS_FAILED_PRECONDITION, NULL, 409, "conflict");
    assert_maps(GS_RESOURCE_EXHAUSTED, NULL, 429, "rate_limited");
    assert_maps(GS_UNAVAILABLE, NULL, 503, "coordinator_unavailable");
    assert_maps(GS_DEADLINE_EXCEEDED, NULL, 504, "timeout");
    assert_maps(GS_UNIMPLEMENTED, NULL, 501, "not_implemented");
    assert_maps(GS_INTERNAL, NULL, 500, "internal");
    assert_maps(GS_OUT_OF_RANGE, NULL, 410, "gone");
    assert_maps(GS_CANCELLED, NULL, 499, "cancelled");
    assert_maps(GS_UNKNOWN, NULL, 500, "internal");
    assert_maps(GS_PERMISSION_DENIED, NULL, 403, "forbidden");
    assert_maps(GS_ABORTED, NULL, 409, "conflict");
    assert_maps(GS_DATA_LOSS, NULL, 500, "data_loss");
    assert_maps(GS_UNAUTHENTICATED, NULL, 401, "unauthenticated");
}

static void details_name_a_better_code(void **state) {
    (void)state;
    assert_maps(GS_FAILED_PRECONDITION, "{\"code\":\"wrong_state\"}", 409, "wrong_state");
    assert_maps(GS_INVALID_ARGUMENT, "{\"code\":\"idempotency_mismatch\"}", 422,
                "idempotency_mismatch");
    assert_maps(GS_RESOURCE_EXHAUSTED, "{\"code\":\"storage_full\"}", 507, "storage_full");
    assert_maps(GS_FAILED_PRECONDITION, "{\"code\":\"unreadable\"}", 409, "unreadable");
    assert_maps(GS_NOT_FOUND, "{\"code\":\"made up\"}", 404, "not_found");
}

static void internal_errors_tell_nothing_but_the_id(void **state) {
    (void)state;
    gs_http_response response = {0};
    gs_json *body = answer(&response, gs_error(GS_INTERNAL, "secret path /etc/x"), NULL);
    assert_null(strstr(response.body.text, "secret"));
    assert_null(gs_json_get(body, "detail"));
    gs_json_release(body);
    gs_strbuf_release(&response.body);
}

static void waiting_is_advised_where_it_helps(void **state) {
    (void)state;
    gs_http_response response = {0};
    gs_json *body = answer(&response, gs_error(GS_UNAVAILABLE, "x"), "{\"retry_after_seconds\":7}");
    assert_string_equal(gs_http_response_header(&response, "Retry-After"), "7");
    assert_int_equal(gs_json_int_or(body, "retry_after_seconds", 0), 7);
    gs_json_release(body);
    gs_strbuf_release(&response.body);
}

static void all_field_errors_are_passed_on(void **state) {
    (void)state;
    gs_http_response response = {0};
    gs_json *body = answer(&response, gs_error(GS_INVALID_ARGUMENT, "2 problems found"),
                           "{\"errors\":[{\"pointer\":\"/a\"},{\"pointer\":\"/b\"}]}");
    assert_int_equal(gs_json_count(gs_json_get(body, "errors")), 2);
    assert_string_equal(gs_json_string_or(body, "detail", ""), "2 problems found");
    gs_json_release(body);
    gs_strbuf_release(&response.body);
}

static void headers_have_no_line_breaks(void **state) {
    (void)state;
    gs_http_response response = {0};
    gs_http_set_header(&response, "Location", "/v1/jobs/x\r\nSet-Cookie: a=b");
    assert_string_equal(gs_http_response_header(&response, "location"), "/v1/jobs/x");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_http_twin),
        cmocka_unit_test(details_name_a_better_code),
        cmocka_unit_test(internal_errors_tell_nothing_but_the_id),
        cmocka_unit_test(waiting_is_advised_where_it_helps),
        cmocka_unit_test(all_field_errors_are_passed_on),
        cmocka_unit_test(headers_have_no_line_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
