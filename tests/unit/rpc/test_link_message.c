#include "rpc/plan/link_message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static gs_link_report make_report(void) {
    gs_link_report report = {.model = {.cost = {0.0011, 8e-9},
                                       .low = {0.001, 7.5e-9},
                                       .high = {0.0012, 9e-9},
                                       .wire_ratio = 0.5,
                                       .step_seconds = 0.25,
                                       .num_samples = 17},
                             .num_params = 3,
                             .num_pairs = 4,
                             .pairs = {{0, 1, 0.0002, 1.2e8, 3}, {0, 2, 0.01, 0, 0}, {1, 0, 0, 1.1e8, 0}, {1, 2, 0, 1.3e8, 0}}};
    report.ready_seconds = calloc(3, sizeof *report.ready_seconds);
    report.ready_seconds[0] = 0.125;
    report.ready_seconds[1] = -1;
    report.ready_seconds[2] = 0.000003;
    return report;
}

static gs_json *encoded_text(const gs_json *message) {
    char *text;
    gs_json *back;
    assert_int_equal(gs_json_encode(&text, NULL, message, false).code, GS_OK);
    assert_int_equal(gs_json_parse(&back, text, strlen(text)).code, GS_OK);
    free(text);
    return back;
}

static void what_is_said_is_heard(void **state) {
    (void)state;
    gs_link_report report = make_report(), heard, copy = {0};
    gs_json *message = gs_link_message_encode(&report), *back = encoded_text(message);
    gs_status status = gs_link_message_decode(&heard, back);
    assert_string_equal(status.message, "");
    assert_true(gs_link_report_equal(&report, &heard));
    assert_true(heard.model.low.byte_seconds == 7.5e-9 && heard.model.high.start_seconds == 0.0012);
    assert_true(heard.model.wire_ratio == 0.5 && heard.model.step_seconds == 0.25);
    assert_int_equal(heard.num_pairs, 4);
    assert_int_equal(heard.pairs[0].retransmitted, 3);
    assert_true(heard.pairs[1].latency_seconds == 0.01);
    gs_link_pair worst = gs_link_worst_pair(&heard);
    assert_true(worst.latency_seconds == 0.01 && worst.bytes_per_second == 1.1e8);
    gs_link_report_copy(&copy, &heard);
    assert_true(gs_link_report_equal(&copy, &heard));
    copy.ready_seconds[2] = 1;
    assert_false(gs_link_report_equal(&copy, &heard));
    gs_link_report_release(&report);
    gs_link_report_release(&heard);
    gs_link_report_release(&copy);
    gs_json_release(message);
    gs_json_release(back);
}

static void who_adds_how_much_is_heard(void **state) {
    (void)state;
    gs_link_report report = make_report(), heard;
    gs_json *equal = gs_link_message_encode(&report);
    assert_null(gs_json_get(equal, "shares"));  // all as much: nothing is said
    report.deal = (gs_link_deal){.num_ranks = 4,
                                 .shares = {92, 0, 408, 500},
                                 .seconds_before = 0.2,
                                 .seconds = 0.07,
                                 .from = 0,
                                 .to = 1,
                                 .slow_bytes_per_second = 2.4e6,
                                 .usual_bytes_per_second = 1.6e7};
    gs_json *message = gs_link_message_encode(&report), *back = encoded_text(message);
    assert_string_equal(gs_link_message_decode(&heard, back).message, "");
    assert_true(gs_link_report_equal(&report, &heard));
    assert_memory_equal(&report.deal, &heard.deal, sizeof heard.deal);
    heard.deal.shares[1] = 1;
    assert_false(gs_link_report_equal(&report, &heard));
    gs_link_report_release(&report);
    gs_link_report_release(&heard);
    gs_json_release(equal);
    gs_json_release(message);
    gs_json_release(back);
}

static void expect_refused(const char *member, const char *json, const char *words) {
    gs_link_report report = make_report(), heard;
    gs_json *message = gs_link_message_encode(&report), *value;
    assert_int_equal(gs_json_parse(&value, json, strlen(json)).code, GS_OK);
    gs_json_set(message, member, value);
    gs_status status = gs_link_message_decode(&heard, message);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, words)) fail_msg("%s = %s: %s", member, json, status.message);
    assert_null(heard.ready_seconds);
    gs_json_release(message);
    gs_link_report_release(&report);
}

static void what_cannot_be_is_refused_by_name(void **state) {
    (void)state;
    expect_refused("cost", "[1]", "link.cost[1]");
    expect_refused("cost", "[-1,1]", "link.cost[0]");
    expect_refused("low", "[\"NaN\",1]", "link.low[0]");
    expect_refused("high", "[1,\"Infinity\"]", "link.high[1]");
    expect_refused("wire_ratio", "-0.5", "link.wire_ratio");
    expect_refused("step_seconds", "\"x\"", "link.step_seconds");
    expect_refused("samples", "-1", "link.samples");
    expect_refused("ready_us", "[1,-2]", "link.ready_us[1]");
    expect_refused("ready_us", "[1,1.5]", "link.ready_us[1]");
    expect_refused("shares", "{}", "link.shares.of[0]");
    expect_refused("shares", "{\"of\":[1,-1]}", "link.shares.of[1]");
    expect_refused("shares", "{\"of\":[1,65536]}", "link.shares.of[1]");
    expect_refused("shares", "{\"of\":[1,1],\"seconds\":[1]}", "link.shares.seconds[1]");
    expect_refused("shares", "{\"of\":[1,1],\"seconds\":[1,1],\"slow\":[0,2,1,1]}", "link.shares.slow[1]");
    expect_refused("shares", "{\"of\":[1,1],\"seconds\":[1,1],\"slow\":[0,1,1,-1]}", "link.shares.slow[3]");
    expect_refused("pairs", "[[0,1,0.1,1]]", "link.pairs[0]");
    expect_refused("pairs", "[[0,1,0.1,1,0],[0,-1,0.1,1,0]]", "link.pairs[1]");
    expect_refused("pairs", "[[-1,0,0.1,1,0]]", "link.pairs[0]");
    expect_refused("pairs", "[[65536,0,0.1,1,0]]", "link.pairs[0]");
    expect_refused("pairs", "[[0,65536,0.1,1,0]]", "link.pairs[0]");
    expect_refused("pairs", "[[0,1,-0.1,1,0]]", "link.pairs[0]");
    expect_refused("pairs", "[[0,1,0.1,-1,0]]", "link.pairs[0]");
    expect_refused("pairs", "[[0,1,0.1,1,-1]]", "link.pairs[0]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_is_heard),
        cmocka_unit_test(who_adds_how_much_is_heard),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
