#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/http/http_server.h"
#include "tests/support/http.h"
#include "tests/unit/api/fake_coordinator.h"

enum { QUICK_MS = 300 };

static int start(void **state) {
    *state = fake_start(0);
    return 0;
}

static int start_impatient(void **state) {
    *state = fake_start(QUICK_MS);
    return 0;
}

static int stop(void **state) {
    fake_stop(*state);
    return 0;
}

static gs_wire_response send_raw(fake_coordinator *fake, const char *request, const char *body) {
    return gs_wire_exchange(fake_address(fake), request, body, true);
}

static void assert_problem(gs_wire_response response, int status, const char *code) {
    char type[512], expected[64];
    snprintf(expected, sizeof expected, "\"code\":\"%s\"", code);
    assert_int_equal(response.status, status);
    assert_true(gs_wire_header(&response, "Content-Type", type));
    assert_string_equal(type, "application/problem+json");
    assert_non_null(strstr(response.body, expected));
    gs_wire_response_release(&response);
}

static void length_and_chunked_together_are_refused(void **state) {
    assert_problem(send_raw(*state,
                            "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                            NULL),
                   400, "bad_request");
}

static void two_lengths_are_refused(void **state) {
    assert_problem(send_raw(*state,
                            "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                            "Content-Length: 3\r\n\r\n{} ",
                            NULL),
                   400, "bad_request");
}

static void two_hosts_are_refused(void **state) {
    assert_problem(
        send_raw(*state, "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", NULL), 400,
        "bad_request");
}

static void two_origins_are_refused(void **state) {
    char request[256];
    const char *address = fake_address(*state);
    snprintf(request, sizeof request,
             "POST /v1/jobs/j/stop HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\n"
             "Origin: http://evil\r\nContent-Length: 0\r\n\r\n",
             address, address);
    assert_problem(send_raw(*state, request, NULL), 400, "bad_request");
}

// A text would end there: whoever allows paths in front of this server would see another one.
static void a_zero_byte_ends_no_path_and_no_parameter(void **state) {
    static const char *const targets[] = {"/livez%00/v1/jobs", "/v1/jobs?limit=1%00"}, *const codes[] = {"not_found", "bad_parameter"};
    for (int i = 0; i < 2; i++) {
        char request[128];
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", targets[i], fake_address(*state));
        assert_problem(send_raw(*state, request, NULL), i ? 400 : 404, codes[i]);
    }
}

static void announced_large_body_is_refused_before_it_is_read(void **state) {
    assert_problem(
        send_raw(*state,
                 "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: 5000000\r\n\r\n",
                 NULL),
        413, "too_large");
}

static void chunked_large_body_is_counted(void **state) {
    enum { CHUNK = 65536, NUM_CHUNKS = 20 };
    gs_strbuf body = {0};
    char *chunk = malloc(CHUNK);
    memset(chunk, ' ', CHUNK);
    for (int i = 0; i < NUM_CHUNKS; i++) {
        gs_strbuf_printf(&body, "%x\r\n", CHUNK);
        gs_strbuf_add(&body, chunk, CHUNK);
        gs_strbuf_puts(&body, "\r\n");
    }
    gs_strbuf_puts(&body, "0\r\n\r\n");
    assert_problem(send_raw(*state,
                            "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                            gs_strbuf_text(&body)),
                   413, "too_large");
    free(chunk);
    gs_strbuf_release(&body);
}

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &pages, &resident), 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

// Of an open route, so that no token is needed: each connection would keep what it sends.
static void a_body_that_nobody_reads_is_not_kept(void **state) {
    enum { NUM_WIRES = 64, READ_MS = 2000, BODY = 1 << 20 };
    static gs_wire wires[NUM_WIRES];
    char *body = malloc(BODY);
    memset(body, ' ', BODY - 1);
    body[BODY - 1] = '\0';
    for (int i = 0; i < NUM_WIRES; i++) {  // what a connection costs anyway
        gs_wire_open(&wires[i], fake_address(*state));
        gs_wire_send(&wires[i], "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_true(gs_wire_wait(&wires[i], "ok\n"));
        gs_strbuf_clear(&wires[i].received);
    }
    long before_kib = resident_kib();
    for (int i = 0; i < NUM_WIRES; i++) {
        gs_wire_send(&wires[i], "GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n");
        gs_wire_send(&wires[i], body);  // all of it but a byte
    }
    long grown_kib = 0;
    for (gs_deadline deadline = gs_deadline_in_ms(READ_MS); grown_kib < NUM_WIRES * 512 && !gs_deadline_passed(deadline);) {
        gs_sleep_ns(10 * GS_NS_PER_MS);  // what waits in the kernel is read meanwhile
        grown_kib = resident_kib() - before_kib;
    }
    for (int i = 0; i < NUM_WIRES; i++) {
        gs_wire_send(&wires[i], " ");
        assert_true(gs_wire_wait(&wires[i], "ok\n"));
        gs_wire_close(&wires[i]);
    }
    print_message("%ld KiB for %d bodies of 1 MiB\n", grown_kib, NUM_WIRES);
    assert_true(grown_kib < NUM_WIRES * 512);
    free(body);
}

// It was sent by somebody who meant well: the connection goes on behind it.
static void a_body_that_nobody_reads_does_no_harm(void **state) {
    fake_answer(*state, GS_REPLAN_JOB, GS_OK, "", "{\"here\":1}");
    gs_wire wire;
    gs_wire_open(&wire, fake_address(*state));
    for (int i = 0; i < 2; i++) {
        gs_strbuf_clear(&wire.received);
        gs_wire_send(&wire, "POST /v1/jobs/j/replan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
        assert_true(gs_wire_wait(&wire, "{\"here\":1}"));
    }
    gs_wire_close(&wire);
}

static void chunked_small_body_is_read(void **state) {
    fake_answer(*state, GS_CREATE_JOB, GS_OK, "", "{\"id\":\"j-1\"}");
    gs_wire_response response =
        send_raw(*state,
                 "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                 "3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n");
    assert_int_equal(response.status, 201);
    assert_string_equal(fake_last_request(*state, GS_CREATE_JOB),
                        "{\"spec\":{\"a\":1},\"dry_run\":false}");
    gs_wire_response_release(&response);
}

static void every_answer_has_its_own_request_id(void **state) {
    char first[512], second[512];
    gs_wire_response a =
        gs_wire_exchange(fake_address(*state), "GET /livez HTTP/1.1\r\n\r\n", NULL, false);
    gs_wire_response b =
        gs_wire_exchange(fake_address(*state), "GET /nothing HTTP/1.1\r\n\r\n", NULL, false);
    assert_true(gs_wire_header(&a, "X-Request-Id", first));
    assert_true(gs_wire_header(&b, "X-Request-Id", second));
    assert_string_not_equal(first, second);
    assert_non_null(strstr(b.body, second));
    gs_wire_response_release(&a);
    gs_wire_response_release(&b);
}

// A byte now and then keeps any idle timeout away; only an absolute deadline ends this.
static void drip_until_closed(fake_coordinator *fake, const char *begin) {
    gs_wire wire;
    gs_wire_open(&wire, fake_address(fake));
    gs_wire_send(&wire, begin);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    bool closed = false;
    while (!closed && !gs_deadline_passed(deadline)) {
        gs_wire_send(&wire, "x");
        gs_http_client client = {wire.fd};
        closed = gs_http_client_gone(client);
        gs_sleep_ns(10 * GS_NS_PER_MS);
    }
    assert_true(closed);
    gs_wire_close(&wire);
}

static void dripping_headers_are_cut(void **state) {
    drip_until_closed(*state, "GET /livez HTTP/1.1\r\nX-Slow: ");
}

static void dripping_body_is_cut(void **state) {
    drip_until_closed(
        *state, "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
}

static void dripping_request_line_is_cut(void **state) {
    drip_until_closed(*state, "GET /");
}

static void connection_is_kept_between_requests(void **state) {
    gs_wire wire;
    gs_wire_open(&wire, fake_address(*state));
    gs_wire_send(&wire, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(gs_wire_wait(&wire, "ok\n"));
    gs_strbuf_clear(&wire.received);
    gs_wire_send(&wire, "GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_true(gs_wire_wait(&wire, "/v1/jobs"));
    gs_wire_close(&wire);
}

static int ask_livez(const char *address) {
    gs_wire_response response = gs_wire_exchange(address, "GET /livez HTTP/1.1\r\n\r\n", NULL, false);
    int status = response.status;
    gs_wire_response_release(&response);
    return status;
}

// Nobody listens at the endpoint, as when the loop behind it stands.
static void livez_inside_a_coordinator_notices_a_loop_that_stands(void **state) {
    (void)state;
    gs_rpc_context *context = NULL;
    gs_api *api = NULL;
    assert_int_equal(gs_rpc_context_create(&context).code, GS_OK);
    gs_api_options options = {
        .http_address = "127.0.0.1:0", .context = context, .rpc_endpoint = "inproc://none"};
    assert_int_equal(gs_api_start(&api, &options).code, GS_OK);
    assert_int_equal(ask_livez(gs_api_address(api)), 200);  // it may still come
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (ask_livez(gs_api_address(api)) != 503) {
        assert_false(gs_deadline_passed(deadline));
        gs_sleep_ns(100 * GS_NS_PER_MS);
    }
    gs_api_stop(api);
    gs_rpc_context_destroy(context);
}

static void address_in_use_is_named(void **state) {
    gs_rpc_context *context = NULL;
    gs_api *api = NULL;
    assert_int_equal(gs_rpc_context_create(&context).code, GS_OK);
    gs_api_options options = {
        .http_address = fake_address(*state), .context = context, .rpc_endpoint = "inproc://none"};
    gs_status status = gs_api_start(&api, &options);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, "in use"));
    options.http_address = "0.0.0.0:0";
    status = gs_api_start(&api, &options);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "--insecure-no-auth"));
    options.http_address = "nonsense";
    assert_int_equal(gs_api_start(&api, &options).code, GS_INVALID_ARGUMENT);
    options.http_address = "127.0.0.1:99999";
    assert_int_equal(gs_api_start(&api, &options).code, GS_INVALID_ARGUMENT);
    gs_rpc_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(length_and_chunked_together_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(two_lengths_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(two_hosts_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(two_origins_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(a_zero_byte_ends_no_path_and_no_parameter, start, stop),
        cmocka_unit_test_setup_teardown(announced_large_body_is_refused_before_it_is_read, start,
                                        stop),
        cmocka_unit_test_setup_teardown(chunked_large_body_is_counted, start, stop),
        cmocka_unit_test_setup_teardown(a_body_that_nobody_reads_is_not_kept, start, stop),
        cmocka_unit_test_setup_teardown(a_body_that_nobody_reads_does_no_harm, start, stop),
        cmocka_unit_test_setup_teardown(chunked_small_body_is_read, start, stop),
        cmocka_unit_test_setup_teardown(every_answer_has_its_own_request_id, start, stop),
        cmocka_unit_test_setup_teardown(dripping_headers_are_cut, start_impatient, stop),
        cmocka_unit_test_setup_teardown(dripping_body_is_cut, start_impatient, stop),
        cmocka_unit_test_setup_teardown(dripping_request_line_is_cut, start_impatient, stop),
        cmocka_unit_test_setup_teardown(connection_is_kept_between_requests, start, stop),
        cmocka_unit_test_setup_teardown(address_in_use_is_named, start, stop),
        cmocka_unit_test(livez_inside_a_coordinator_notices_a_loop_that_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
