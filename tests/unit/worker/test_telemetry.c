#include "worker/telemetry/telemetry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"

#define MS GS_NS_PER_MS

static gs_telemetry make_telemetry(void) {
    return (gs_telemetry){.generation = 3, .rank = 1, .world_size = 4, .report_every_ns = GS_REPORT_EVERY_NS,
                          .reported_ns = gs_now_ns()};
}

// One step with `num_buckets` equal buckets: ready at 1 ms, posted at 2, everybody there at 3, done at 5.
static gs_step_facts make_step(int64_t step, gs_reduce_stats *stats, gs_bucket_times *buckets,
                               size_t num_buckets) {
    for (size_t i = 0; i < num_buckets; i++) {
        buckets[i] = (gs_bucket_times){.ready_ns = 100 * MS + MS,
                                       .posted_ns = 100 * MS + 2 * MS,
                                       .all_arrived_ns = 100 * MS + 3 * MS,
                                       .started_ns = 100 * MS + 3 * MS,
                                       .finished_ns = 100 * MS + 5 * MS,
                                       .bytes = 1000000,
                                       .wire_bytes = 1500000,
                                       .algorithm = "direct"};
    }
    *stats = (gs_reduce_stats){.step = step,
                               .backward_begin_ns = 100 * MS,
                               .backward_end_ns = 104 * MS,
                               .busy_ns = 8 * MS,
                               .exposed_ns = 2 * MS,
                               .wait_ns = MS,
                               .num_buckets = num_buckets,
                               .buckets = buckets};
    return (gs_step_facts){.step = step,
                           .loss = 1.5,
                           .samples = 32,
                           .positions = 16,
                           .stats = stats,
                           .phases = {.forward = 0.25}};
}

// As a coordinator of before gets it, and people see it.
static gs_json *report_of(gs_telemetry *telemetry, bool with_history) {
    const gs_step_report report = gs_telemetry_report(telemetry, with_history);
    return gs_step_report_to_json(&report);
}

static double total(const gs_json *report, const char *name) {
    return gs_json_double_or(gs_json_get(report, "totals"), name, -1);
}

static void totals_add_up_and_last_values_stay(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[2];
    for (int64_t step = 0; step < 3; step++) {
        gs_step_facts facts = make_step(step, &stats, buckets, 2);
        facts.row_wire_bytes = 1000;
        stats.encode_ns = 3 * MS;
        stats.decode_ns = MS;
        stats.elements = 500;
        stats.elements_sent = 20;
        stats.knows_residuals = step < 2;
        stats.residual_norm = step < 2 ? 0.5 + (double)step : 0;
        gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    }
    gs_json *report = report_of(&telemetry, true);
    assert_int_equal(gs_json_int_or(report, "step", -1), 3);
    assert_int_equal(gs_json_int_or(report, "tokens", -1), 512);
    assert_near(total(report, "steps"), 3, 0);
    assert_near(total(report, "tokens"), 3 * 512, 0);
    assert_near(total(report, "payload_bytes"), 6e6, 0);
    assert_near(total(report, "wire_bytes"), 9e6 + 3000, 0);
    assert_near(gs_json_double_or(report, "payload_bytes", -1), 2e6, 0);
    assert_near(gs_json_double_or(report, "wire_bytes", -1), 3e6, 0);
    assert_near(total(report, "encode_seconds"), 0.009, 1e-9);
    assert_near(total(report, "decode_seconds"), 0.003, 1e-9);
    assert_int_equal(gs_json_int_or(report, "elements", -1), 500);
    assert_int_equal(gs_json_int_or(report, "elements_sent", -1), 20);
    assert_near(gs_json_double_or(report, "error_feedback_norm", -1), 1.5, 0);
    assert_near(total(report, "comm_busy_seconds"), 0.024, 1e-9);
    assert_near(gs_json_double_or(report, "overlap_ratio", -1), 0.75, 1e-9);
    assert_near(gs_json_double_or(report, "tokens_per_second", -1), 51200, 1e-6);
    assert_int_equal(gs_json_count(gs_json_get(report, "history")), 3);
    gs_json_release(report);
}

static void bandwidth_counts_what_a_rank_waits_for(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    gs_step_facts facts = make_step(0, &stats, buckets, 1);
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    gs_json *report = report_of(&telemetry, false);
    const gs_json *bucket = gs_json_at(gs_json_get(report, "buckets"), 0);
    assert_near(gs_json_double_or(bucket, "algbw_bytes_per_second", 0), 1e6 / 0.003, 1);
    assert_near(gs_json_double_or(bucket, "busbw_bytes_per_second", 0), 1.5e6 / 0.003, 1);
    assert_near(gs_json_double_or(bucket, "ready_seconds", 0), 0.001, 1e-9);
    assert_near(gs_json_double_or(bucket, "finished_seconds", 0), 0.005, 1e-9);
    assert_null(gs_json_get(report, "history"));
    gs_json_release(report);
}

static void many_buckets_are_folded_into_the_last(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[100];
    gs_step_facts facts = make_step(0, &stats, buckets, 100);
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    gs_json *report = report_of(&telemetry, false);
    const gs_json *list = gs_json_get(report, "buckets");
    assert_int_equal(gs_json_count(list), GS_REPORT_MAX_BUCKETS);
    const gs_json *last = gs_json_at(list, GS_REPORT_MAX_BUCKETS - 1);
    assert_int_equal(gs_json_int_or(last, "index", 0), -1);
    assert_int_equal(gs_json_int_or(last, "bytes", 0), (100 - GS_REPORT_MAX_BUCKETS + 1) * 1000000);
    gs_json_release(report);
}

static void history_that_nobody_heard_is_told_later(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    for (int64_t step = 0; step < 300; step++) {
        gs_step_facts facts = make_step(step, &stats, buckets, 1);
        gs_telemetry_observe(&telemetry, &facts, MS);
    }
    gs_json *report = report_of(&telemetry, true);
    const gs_json *history = gs_json_get(report, "history");
    assert_int_equal(gs_json_count(history), GS_REPORT_MAX_HISTORY);
    assert_int_equal(gs_json_int_or(gs_json_at(history, 0), "step", 0), 1);
    gs_json_release(report);
    gs_telemetry_note_heard(&telemetry, true);
    report = report_of(&telemetry, true);
    assert_int_equal(gs_json_count(gs_json_get(report, "history")), 300 - GS_REPORT_MAX_HISTORY);
    gs_json_release(report);
    gs_telemetry_note_heard(&telemetry, false);
    // The first report may have been lost as well.
    report = report_of(&telemetry, true);
    history = gs_json_get(report, "history");
    assert_int_equal(gs_json_int_or(gs_json_at(history, 0), "step", 0), 1);
    gs_json_release(report);
}

static void a_long_outage_is_covered_whole(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    for (int64_t step = 0; step < 20000; step++) {
        gs_step_facts facts = make_step(step, &stats, buckets, 1);
        gs_telemetry_observe(&telemetry, &facts, MS);
        if (step % 100 != 99) continue;
        gs_json_release(report_of(&telemetry, true));
        gs_telemetry_note_heard(&telemetry, step < 1000);
    }
    int64_t first = -1, last = -1;
    int reports = 0;
    for (; gs_telemetry_waits(&telemetry) && reports < 100; reports++) {
        gs_json *report = report_of(&telemetry, true);
        const gs_json *history = gs_json_get(report, "history");
        for (size_t i = 0; i < gs_json_count(history); i++) {
            int64_t step = gs_json_int_or(gs_json_at(history, i), "step", 0);
            assert_true(step > last);
            last = step;
            if (first < 0) first = step;
        }
        gs_json_release(report);
        gs_telemetry_note_heard(&telemetry, true);
    }
    assert_true(first <= 1024);
    assert_int_equal(last, 20000);
    assert_true(reports <= GS_HISTORY_STEPS / GS_REPORT_MAX_HISTORY);
}

static void skipped_steps_are_counted(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    gs_step_facts facts = make_step(0, &stats, buckets, 1);
    facts.nonfinite_ranks = 1;
    facts.loss = NAN;
    gs_telemetry_observe(&telemetry, &facts, MS);
    gs_json *report = report_of(&telemetry, false);
    assert_near(total(report, "skipped_steps"), 1, 0);
    assert_true(isnan(gs_json_double_or(report, "loss", 0)));
    gs_json_release(report);
}

static void histograms_count_every_observation(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[2];
    gs_step_facts facts = make_step(0, &stats, buckets, 2);
    gs_telemetry_observe(&telemetry, &facts, 3 * MS);
    gs_json *report = report_of(&telemetry, false);
    const gs_json *steps = gs_json_get(report, "step_histogram");
    const gs_json *counts = gs_json_get(steps, "counts");
    int64_t sum = 0, value;
    assert_int_equal(gs_json_count(counts), 16);
    for (size_t i = 0; i < gs_json_count(counts); i++) {
        assert_true(gs_json_int(&value, gs_json_at(counts, i)));
        sum += value;
    }
    assert_int_equal(sum, 1);
    assert_near(gs_json_double_or(steps, "sum", 0), 0.003, 1e-9);
    const gs_json *reduce = gs_json_get(report, "reduce_histogram");
    assert_int_equal(gs_json_count(gs_json_get(reduce, "counts")), 17);
    assert_near(gs_json_double_or(reduce, "sum", 0), 0.006, 1e-9);
    gs_json_release(report);
}

static void waits_are_the_union_over_buckets_and_the_newest_stay(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[2];
    for (int64_t step = 0; step < 40; step++) {
        gs_step_facts facts = make_step(step, &stats, buckets, 2);
        stats.begin_ns = 90 * MS;
        buckets[1].posted_ns += MS / 2;  // waits while bucket 0 waits, and half a millisecond longer
        buckets[1].all_arrived_ns += MS / 2;
        gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    }
    gs_json *report = report_of(&telemetry, true);
    const gs_json *waits = gs_json_get(report, "waits");
    assert_int_equal(gs_json_count(waits), GS_REPORT_MAX_WAITS);
    const gs_json *last = gs_json_at(waits, GS_REPORT_MAX_WAITS - 1);
    int64_t step;
    double compute, wait, step_seconds;
    assert_true(gs_json_int(&step, gs_json_at(last, 0)));
    assert_true(gs_json_double(&compute, gs_json_at(last, 1)));
    assert_true(gs_json_double(&wait, gs_json_at(last, 2)));
    assert_true(gs_json_double(&step_seconds, gs_json_at(last, 5)));
    assert_int_equal(step, 39);
    assert_near(compute, 0.011, 1e-12);
    assert_near(wait, 0.0015, 1e-12);
    assert_near(step_seconds, 0.010, 1e-12);
    gs_json_release(report);
}

static void ranks_pick_the_same_of_many_short_steps(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    for (int64_t step = 0; step < 400; step++) {
        gs_step_facts facts = make_step(step, &stats, buckets, 1);
        gs_telemetry_observe(&telemetry, &facts, MS);  // a hundred steps between two reports
    }
    for (int i = 0; i < telemetry.num_waits; i++) {
        assert_int_equal(telemetry.waits[i].step % 8, 0);
    }
    assert_int_equal(telemetry.waits[telemetry.num_waits - 1].step, 392);
}

static void a_report_says_what_was_unused_and_in_which_order_buckets_came(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[3];
    gs_step_facts facts = make_step(0, &stats, buckets, 3);
    buckets[0].ready_ns += MS / 2;  // ready after the other two
    buckets[2].copy_in_ns = 3 * MS;
    stats.num_unused = 4;
    stats.unused_bytes = 400;
    facts.could_be_static = true;
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    gs_json *report = report_of(&telemetry, true);
    const gs_json *rows = gs_json_get(report, "buckets");
    assert_int_equal(gs_json_int_or(gs_json_at(rows, 0), "ready_position", -1), 2);
    assert_int_equal(gs_json_int_or(gs_json_at(rows, 1), "ready_position", -1), 0);
    assert_int_equal(gs_json_int_or(gs_json_at(rows, 2), "ready_position", -1), 1);
    assert_int_equal(gs_json_int_or(report, "unused_parameters", -1), 4);
    assert_int_equal(gs_json_int_or(report, "unused_bytes", -1), 400);
    assert_true(gs_json_bool_or(report, "could_be_static", false));
    assert_near(total(report, "copy_in_seconds"), 0.003, 1e-12);
    const gs_json *counts = gs_json_get(gs_json_get(report, "queue_histogram"), "counts");
    int64_t sum = 0, count;
    for (size_t i = 0; i < gs_json_count(counts); i++) {
        assert_true(gs_json_int(&count, gs_json_at(counts, i)));
        sum += count;
    }
    assert_int_equal(sum, 3);
    gs_json_release(report);
}

// It would make the ranks that still have data stragglers.
static void waiting_of_ranks_without_data_is_not_told(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    for (int64_t step = 0; step < 4; step++) {
        gs_step_facts facts = make_step(step, &stats, buckets, 1);
        facts.has_shadows = step >= 2;
        gs_telemetry_observe(&telemetry, &facts, 100 * MS);
    }
    assert_int_equal(telemetry.num_waits, 2);
    assert_int_equal(telemetry.waits[1].step, 1);
    assert_near(telemetry.totals.blocked_seconds, 0.002, 1e-9);
    assert_int_equal(telemetry.totals.steps, 4);
}

// A static graph leaves buckets at home that no rank uses: they become ready, and that is all.
static void a_bucket_that_stayed_at_home_has_no_times(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[2];
    gs_step_facts facts = make_step(0, &stats, buckets, 2);
    buckets[1] = (gs_bucket_times){.ready_ns = 101 * MS, .bytes = 1000000, .algorithm = "none"};
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    assert_near(telemetry.queue_histogram.sum, 0.001, 1e-9);
    assert_near(telemetry.reduce_histogram.sum, 0.003, 1e-9);
    gs_json *report = report_of(&telemetry, true);
    assert_near(total(report, "payload_bytes"), 1e6, 0);
    const gs_json *home = gs_json_at(gs_json_get(report, "buckets"), 1);
    assert_near(gs_json_double_or(home, "ready_seconds", -1), 0.001, 1e-9);
    assert_null(gs_json_get(home, "launched_seconds"));
    assert_null(gs_json_get(home, "finished_seconds"));
    assert_near(gs_json_double_or(home, "algbw_bytes_per_second", -1), 0, 0);
    gs_json_release(report);
}

static void folded_buckets_that_stayed_at_home_do_not_count(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[100];
    gs_step_facts facts = make_step(0, &stats, buckets, 100);
    for (size_t i = GS_REPORT_MAX_BUCKETS - 1; i < 98; i++)
        buckets[i] = (gs_bucket_times){.ready_ns = 101 * MS, .bytes = 1000000, .algorithm = "none"};
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    gs_json *report = report_of(&telemetry, true);
    const gs_json *rest = gs_json_at(gs_json_get(report, "buckets"), GS_REPORT_MAX_BUCKETS - 1);
    assert_int_equal(gs_json_int_or(rest, "bytes", 0), 2000000);
    assert_near(gs_json_double_or(rest, "launched_seconds", -1), 0.002, 1e-9);
    gs_json_release(report);
}

static void loss_scale_is_told_only_where_there_is_one(void **state) {
    (void)state;
    gs_telemetry telemetry = make_telemetry();
    gs_reduce_stats stats;
    gs_bucket_times buckets[1];
    gs_step_facts facts = make_step(0, &stats, buckets, 1);
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    gs_json *report = report_of(&telemetry, true);
    assert_null(gs_json_get(report, "loss_scale"));
    gs_json_release(report);
    facts = make_step(1, &stats, buckets, 1);
    facts.loss_scale = 512;
    gs_telemetry_observe(&telemetry, &facts, 10 * MS);
    report = report_of(&telemetry, true);
    assert_near(gs_json_double_or(report, "loss_scale", 0), 512, 0);
    gs_json_release(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_are_the_union_over_buckets_and_the_newest_stay),
        cmocka_unit_test(ranks_pick_the_same_of_many_short_steps),
        cmocka_unit_test(a_report_says_what_was_unused_and_in_which_order_buckets_came),
        cmocka_unit_test(waiting_of_ranks_without_data_is_not_told),
        cmocka_unit_test(a_bucket_that_stayed_at_home_has_no_times),
        cmocka_unit_test(folded_buckets_that_stayed_at_home_do_not_count),
        cmocka_unit_test(totals_add_up_and_last_values_stay),
        cmocka_unit_test(bandwidth_counts_what_a_rank_waits_for),
        cmocka_unit_test(many_buckets_are_folded_into_the_last),
        cmocka_unit_test(history_that_nobody_heard_is_told_later),
        cmocka_unit_test(a_long_outage_is_covered_whole),
        cmocka_unit_test(skipped_steps_are_counted),
        cmocka_unit_test(loss_scale_is_told_only_where_there_is_one),
        cmocka_unit_test(histograms_count_every_observation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
