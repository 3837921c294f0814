#include "rpc/schema/step_report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/schema/step_record.h"
#include "tests/support/asserts.h"

static gs_report_rows rows, rows_again;
static uint8_t record[GS_STEP_RECORD_MAX_BYTES];

static gs_step_report make_report(void) {
    gs_step_report report = {.generation = 7, .rank = 3, .step = 41, .buckets = rows.buckets, .num_buckets = 2,
                             .waits = rows.waits, .num_waits = 1, .history = rows.history, .num_history = 1,
                             .num_bins = {16, 17, 0}};
    for (int i = 0; i < GS_NUM_REPORT_VALUES; i++) gs_step_report_set(&report, (gs_report_value)i, 1 + i);
    gs_step_report_set(&report, GS_REPORT_LOSS, NAN);
    gs_step_report_set(&report, GS_REPORT_COULD_BE_STATIC, true);
    report.histograms[GS_REPORT_STEPS].counts[15] = 5;
    report.histograms[GS_REPORT_REDUCES].sum = 0.25;
    rows.buckets[0] = (gs_report_bucket){0, 1, 1000, true, "direct", 0.1, 0.2, 0.3, 0.4, 1e9, 2e9};
    rows.buckets[1] = (gs_report_bucket){-1, -1, 500, false, "none", 0.5, 0, 0, 0, 0, 0};
    rows.waits[0] = (gs_report_waits){40, 0.1, 0.2, 0.3, 0.4, 0.5};
    rows.history[0] = (gs_report_step){.step = 41, .known = 1 << GS_POINT_LOSS, .points = {2.5}};
    return report;
}

static char *show(const gs_step_report *report) {
    char *text = NULL;
    gs_json *json = gs_step_report_to_json(report);
    assert_false(gs_json_encode(&text, NULL, json, false).code);
    gs_json_release(json);
    return text;
}

static void a_record_says_what_the_report_said(void **state) {
    (void)state;
    gs_step_report report = make_report(), back;
    size_t bytes = gs_step_record_pack(record, &report);
    assert_ok(gs_step_record_unpack(&back, &rows_again, record, bytes));
    char *said = show(&report), *heard = show(&back);
    assert_string_equal(said, heard);
    free(said);
    free(heard);
}

static void json_of_a_worker_of_before_is_understood(void **state) {
    (void)state;
    gs_step_report report = make_report(), back;
    gs_json *json = gs_step_report_to_json(&report);
    gs_step_report_from_json(&back, &rows_again, json);
    gs_json_release(json);
    char *said = show(&report), *heard = show(&back);
    assert_string_equal(said, heard);
    free(said);
    free(heard);
}

static void what_was_not_told_is_not_known(void **state) {
    (void)state;
    gs_json *json = NULL;
    static const char text[] = "{\"generation\":1,\"rank\":0,\"step\":4,\"totals\":{\"steps\":4},\"loss\":\"no\"}";
    assert_ok(gs_json_parse(&json, text, sizeof text - 1));
    gs_step_report report;
    gs_step_report_from_json(&report, &rows, json);
    gs_json_release(json);
    assert_int_equal(report.step, 4);
    assert_false(gs_step_report_knows(&report, GS_REPORT_LOSS));
    assert_true(gs_step_report_get(&report, GS_REPORT_ALL_STEPS, 0) == 4);
    assert_true(gs_step_report_get(&report, GS_REPORT_LR, -1) == -1);
}

// A newer worker tells more values: those that are known here are read, the others passed over.
static void values_of_a_newer_worker_are_passed_over(void **state) {
    (void)state;
    gs_step_report report = {.generation = 1, .step = 9}, back;
    gs_step_report_set(&report, GS_REPORT_LR, 0.5);
    report.known |= UINT64_C(1) << 63;
    size_t bytes = gs_step_record_pack(record, &report);
    memset(record + bytes, 0, 8);
    assert_ok(gs_step_record_unpack(&back, &rows, record, bytes + 8));
    assert_true(gs_step_report_get(&back, GS_REPORT_LR, 0) == 0.5);
    assert_int_equal(back.known, UINT64_C(1) << GS_REPORT_LR);
}

static void refuses(size_t bytes) {
    gs_step_report back;
    assert_int_equal(gs_step_record_unpack(&back, &rows_again, record, bytes).code, GS_INVALID_ARGUMENT);
}

static void what_is_no_record_is_refused(void **state) {
    (void)state;
    gs_step_report report = make_report();
    size_t bytes = gs_step_record_pack(record, &report);
    for (size_t length = 0; length < bytes; length++) refuses(length);
    refuses(bytes + 1);
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {{0, 2}, {2, 65}, {4, 17}, {7, 2}, {8, 22}, {11, 1}, {19, 0x80}, {31, 0xff}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        uint8_t before = record[changes[i].at];
        record[changes[i].at] = changes[i].value;
        refuses(bytes);
        record[changes[i].at] = before;
    }
    gs_report_step *step = &rows.history[0];
    step->known |= UINT64_C(1) << GS_NUM_REPORT_POINTS;
    refuses(gs_step_record_pack(record, &report));
}

// Of a hostile worker: sums and texts are made of them.
static void numbers_beyond_what_is_whole_are_refused(void **state) {
    (void)state;
    const uint64_t most = UINT64_C(1) << 53;
    const int64_t steps[] = {-1, (int64_t)most + 1, INT64_MAX, INT64_MIN};
    gs_step_report report = make_report(), back;
    rows.buckets[1].bytes = report.histograms[GS_REPORT_STEPS].counts[15] = most;
    rows.waits[0].step = (int64_t)most;
    assert_ok(gs_step_record_unpack(&back, &rows_again, record, gs_step_record_pack(record, &report)));
    for (uint64_t beyond = most + 1; beyond; beyond = beyond < UINT64_MAX ? UINT64_MAX : 0) {
        report = make_report();
        rows.buckets[1].bytes = beyond;
        refuses(gs_step_record_pack(record, &report));
        report = make_report();
        report.histograms[GS_REPORT_STEPS].counts[15] = beyond;
        refuses(gs_step_record_pack(record, &report));
    }
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        report = make_report();
        rows.waits[0].step = steps[i];
        refuses(gs_step_record_pack(record, &report));
    }
}

// Of a hostile worker.
static void whole_numbers_are_kept_whole(void **state) {
    (void)state;
    gs_step_report report = {0};
    const double told[] = {NAN, -5, 1e300, 7.5}, kept[] = {0, 0, 9007199254740992.0, 7};
    for (int i = 0; i < 4; i++) {
        gs_step_report_set(&report, GS_REPORT_ALL_TOKENS, told[i]);
        assert_true(report.values[GS_REPORT_ALL_TOKENS] == kept[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_says_what_the_report_said),
        cmocka_unit_test(json_of_a_worker_of_before_is_understood),
        cmocka_unit_test(what_was_not_told_is_not_known),
        cmocka_unit_test(values_of_a_newer_worker_are_passed_over),
        cmocka_unit_test(what_is_no_record_is_refused),
        cmocka_unit_test(numbers_beyond_what_is_whole_are_refused),
        cmocka_unit_test(whole_numbers_are_kept_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
