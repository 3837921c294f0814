#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/http/router.h"

static void note_nothing(struct gs_route_call *call) {
    (void)call;
}

static const gs_route routes[] = {
    {.verb = "GET", .path = "/v1/jobs", .handle = note_nothing},
    {.verb = "POST", .path = "/v1/jobs", .handle = note_nothing},
    {.verb = "GET", .path = "/v1/jobs/{job}", .handle = note_nothing},
    {.verb = "DELETE", .path = "/v1/jobs/{job}", .handle = note_nothing},
    {.verb = "POST", .path = "/v1/jobs/{job}/stop", .handle = note_nothing},
};

static gs_route_match find(const char *verb, const char *path) {
    gs_route_match match;
    gs_route_find(&match, routes, sizeof routes / sizeof *routes, verb, path);
    return match;
}

static void path_parameter_is_what_stood_there(void **state) {
    (void)state;
    gs_route_match match = find("POST", "/v1/jobs/j-0123/stop");
    assert_ptr_equal(match.route, &routes[4]);
    assert_string_equal(gs_route_param(&match, "job"), "j-0123");
    assert_string_equal(gs_route_param(&match, "rank"), "");
}

static void verb_decides_between_rows_of_a_path(void **state) {
    (void)state;
    assert_ptr_equal(find("GET", "/v1/jobs").route, &routes[0]);
    assert_ptr_equal(find("POST", "/v1/jobs").route, &routes[1]);
    assert_ptr_equal(find("HEAD", "/v1/jobs").route, &routes[0]);
}

static void wrong_verb_lists_what_the_path_knows(void **state) {
    (void)state;
    gs_route_match match = find("PUT", "/v1/jobs/x");
    assert_null(match.route);
    assert_true(match.path_known);
    assert_string_equal(match.allow, "GET, HEAD, DELETE, OPTIONS");
}

static void unknown_and_odd_paths_match_nothing(void **state) {
    (void)state;
    const char *const paths[] = {
        "/", "/v1/jobs/", "/v1/jobs//stop", "/v1/job", "/v1/jobs/a/b", "/v1/jobs/a/stop/", ""};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_false(find("GET", paths[i]).path_known);
    char long_path[400] = "/v1/jobs/";
    memset(long_path + 9, 'a', 300);
    assert_false(find("GET", long_path).path_known);
}

static void accept_header_chooses_the_representation(void **state) {
    (void)state;
    const char *const offers[] = {"text/plain", "application/x-ndjson"};
    assert_int_equal(gs_accept_best(NULL, offers, 2), 0);
    assert_int_equal(gs_accept_best("*/*", offers, 2), 0);
    assert_int_equal(gs_accept_best("application/x-ndjson", offers, 2), 1);
    assert_int_equal(gs_accept_best("text/*;q=0.1, application/x-ndjson;q=0.5", offers, 2), 1);
    assert_int_equal(gs_accept_best("text/plain;q=0, */*", offers, 2), 1);
    assert_int_equal(gs_accept_best("image/png", offers, 2), -1);
    assert_int_equal(gs_accept_best("text/plainer", offers, 2), -1);
    assert_int_equal(gs_accept_best(",,;q", offers, 2), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path_parameter_is_what_stood_there),
        cmocka_unit_test(verb_decides_between_rows_of_a_path),
        cmocka_unit_test(wrong_verb_lists_what_the_path_knows),
        cmocka_unit_test(unknown_and_odd_paths_match_nothing),
        cmocka_unit_test(accept_header_chooses_the_representation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
