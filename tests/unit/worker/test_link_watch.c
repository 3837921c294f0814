#include "worker/telemetry/link_watch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/near.h"

static const double sizes[] = {4096, 65536, 262144, 1048576, 4194304, 26214400};

static void add(gs_link_fit *fit, gs_link_cost cost, double bytes, double off) {
    gs_link_fit_add(fit, bytes, (cost.start_seconds + cost.byte_seconds * bytes) * off);
}

static void expect_near(double value, double wanted, double share, const char *what) {
    if (!is_near(value, wanted, (gs_near){.relative = share})) fail_msg("%s: %g, not %g", what, value, wanted);
}

// Off by up to a fifth, each by itself; the range says how far the estimate may be.
static void a_cost_is_found_in_noise(void **state) {
    (void)state;
    int outside = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        gs_random_key key = {seed, 4};
        gs_link_cost cost = {pow(10, -5 + 3 * gs_random_uniform(key, 0)), pow(10, -10 + 3 * gs_random_uniform(key, 1))};
        gs_link_fit fit = {0};
        for (uint64_t i = 0; i < 300; i++) add(&fit, cost, sizes[i % 6], 0.9 + 0.2 * gs_random_uniform(key, 10 + i));
        gs_link_model model = gs_link_fit_model(&fit);
        double whole = model.cost.start_seconds + model.cost.byte_seconds * sizes[3];
        expect_near(whole, cost.start_seconds + cost.byte_seconds * sizes[3], 0.05, "time of 1 MiB");
        if (cost.byte_seconds * sizes[5] > cost.start_seconds) expect_near(model.cost.byte_seconds, cost.byte_seconds, 0.15, "seconds of a byte");
        if (cost.byte_seconds * sizes[0] < cost.start_seconds) expect_near(model.cost.start_seconds, cost.start_seconds, 0.15, "start");
        assert_true(model.low.byte_seconds <= model.cost.byte_seconds && model.cost.byte_seconds <= model.high.byte_seconds);
        outside += model.low.byte_seconds > cost.byte_seconds || cost.byte_seconds > model.high.byte_seconds;
    }
    // Nine of ten ranges hold it.
    assert_in_range(outside, 0, 50);
}

static void what_was_held_up_does_not_count(void **state) {
    (void)state;
    gs_link_cost cost = {0.001, 1e-8};
    gs_link_fit fit = {0};
    for (int i = 0; i < 200; i++) add(&fit, cost, sizes[i % 6], i > 20 && i % 7 == 0 ? 30 : 1);
    expect_near(gs_link_fit_model(&fit).cost.byte_seconds, 1e-8, 0.02, "seconds of a byte");
    expect_near(gs_link_fit_model(&fit).cost.start_seconds, 0.001, 0.02, "start");
}

static void a_link_that_changes_is_followed(void **state) {
    (void)state;
    gs_link_fit fit = {0};
    for (int i = 0; i < 100; i++) add(&fit, (gs_link_cost){0.001, 1e-8}, sizes[i % 6], 1);
    for (int i = 0; i < 400; i++) add(&fit, (gs_link_cost){0.002, 3e-8}, sizes[i % 6], 1);
    expect_near(gs_link_fit_model(&fit).cost.byte_seconds, 3e-8, 0.1, "seconds of a byte");
}

// Over five times slower: what looks like an accident over and over is the link.
static void a_link_that_becomes_ten_times_slower_is_noticed(void **state) {
    (void)state;
    gs_link_fit fit = {0}, same = {0};
    for (int i = 0; i < 100; i++) add(&fit, (gs_link_cost){0.0001, 8e-9}, sizes[i % 6], 1);
    same = fit;
    for (int i = 0; i < 7; i++) add(&fit, (gs_link_cost){0.0001, 8e-8}, sizes[3 + i % 3], 1);
    expect_near(fit.cost.byte_seconds, 8e-9, 0.02, "seconds of a byte, before eight in a row");
    assert_true(fit.spread > 0.05);
    add(&fit, (gs_link_cost){0.0001, 8e-8}, sizes[5], 1);
    expect_near(gs_link_fit_model(&fit).cost.byte_seconds, 8e-8, 0.1, "seconds of a byte");
    for (int i = 0; i < 400; i++) add(&fit, (gs_link_cost){0.0001, 8e-8}, sizes[i % 6], 1);
    expect_near(gs_link_fit_model(&fit).cost.byte_seconds, 8e-8, 0.02, "seconds of a byte");
    // Buckets of one size.
    for (int i = 0; i < 8; i++) add(&same, (gs_link_cost){0.0001, 8e-8}, sizes[5], 1);
    gs_link_model model = gs_link_fit_model(&same);
    assert_int_equal(model.num_samples, 8);
    expect_near(model.cost.byte_seconds, 8e-8, 0.02, "seconds of a byte, of one size");
    expect_near(model.cost.start_seconds, 0.0001, 0.02, "start, of one size");
    assert_true(isfinite(model.high.start_seconds) && isfinite(model.high.byte_seconds));
}

// What a token bucket lets through at first says nothing of 4 MiB.
static void a_calibration_counts_whatever_it_took(void **state) {
    (void)state;
    gs_link_fit fit = {0};
    for (int i = 0; i < 5; i++) gs_link_fit_calibrate(&fit, 4096, 0.0001);
    for (int i = 0; i < 3; i++) gs_link_fit_calibrate(&fit, 262144, 0.0003);
    for (int i = 0; i < 2; i++) gs_link_fit_calibrate(&fit, 4194304, 8e-9 * 4194304);
    assert_int_equal(fit.num_samples, 10);
    for (int i = 0; i < 200; i++) gs_link_fit_add(&fit, 26214400, 8e-9 * 26214400);
    gs_link_model model = gs_link_fit_model(&fit);
    expect_near(model.cost.start_seconds + model.cost.byte_seconds * 26214400, 8e-9 * 26214400, 0.05, "time of 25 MiB");
}

static gs_bucket_times bucket_of(double posted, double finished, size_t bytes) {
    return (gs_bucket_times){.posted_ns = 1 + (int64_t)(posted * 1e9), .all_arrived_ns = 1 + (int64_t)(posted * 1e9), .finished_ns = 1 + (int64_t)(finished * 1e9),
                             .bytes = bytes, .wire_bytes = bytes};
}

// Four that share the line end nearly at a time: the last three took nothing, as far as their ends say.
static void buckets_that_share_the_line_are_one_train(void **state) {
    (void)state;
    gs_link_watch watch = {.comm = (gs_comm *)&watch};
    const double byte = 8.5e-9, bytes = 4194304, whole = 4 * bytes * byte;
    for (int i = 0; i < 9; i++) gs_link_fit_calibrate(&watch.fit, i < 5 ? 4096 : 262144, 0.0001 + 4e-9 * (i < 5 ? 4096 : 262144));
    for (int step = 0; step < 60; step++) {
        gs_bucket_times buckets[5];
        for (int i = 0; i < 4; i++) buckets[i] = bucket_of(0.001 * i, whole * (0.97 + 0.01 * i), (size_t)bytes);
        buckets[4] = bucket_of(1, 1 + 0.0001 + 1048576 * byte, 1048576);
        gs_link_watch_note(&watch, &(gs_reduce_stats){.buckets = buckets, .num_buckets = 5});
    }
    gs_link_model model = gs_link_fit_model(&watch.fit);
    expect_near(model.cost.byte_seconds, byte, 0.03, "seconds of a byte");
    assert_true(model.cost.start_seconds < 0.001);
}

// A plan of equal buckets tells nothing of the start: what was measured before stays.
static void one_size_alone_takes_nothing_back(void **state) {
    (void)state;
    gs_link_cost cost = {0.002, 1e-8};
    gs_link_fit fit = {0};
    for (int i = 0; i < 12; i++) add(&fit, cost, sizes[i % 5], 1);
    for (int i = 0; i < 2000; i++) add(&fit, cost, sizes[4], 1);
    gs_link_cost found = gs_link_fit_model(&fit).cost;
    expect_near(found.start_seconds + found.byte_seconds * sizes[4], 0.002 + 1e-8 * sizes[4], 0.01, "time of 4 MiB");
    assert_true(found.start_seconds > 0 && found.byte_seconds > 0);
}

static void of_little_nothing_is_known(void **state) {
    (void)state;
    gs_link_fit fit = {0};
    for (int i = 0; i < 7; i++) add(&fit, (gs_link_cost){0.001, 1e-8}, sizes[i % 6], 1);
    assert_int_equal(gs_link_fit_model(&fit).num_samples, 0);
    gs_link_fit same = {0};
    for (int i = 0; i < 50; i++) gs_link_fit_add(&same, 4096, 0.001);
    gs_link_model model = gs_link_fit_model(&same);
    assert_true(!model.num_samples || (isfinite(model.cost.start_seconds) && isfinite(model.high.byte_seconds)));
    gs_link_fit_add(&same, 4096, 0);
    gs_link_fit_add(&same, 4096, NAN);
    gs_link_fit_add(&same, -1, 1);
    assert_int_equal(same.num_samples, 50);
}

static size_t tried_bytes;

// In place of the one that times sums.
gs_status __wrap_gs_link_balance_consider(gs_link_balance *balance, bool *changed, gs_comm *comm, size_t bytes, double timeout_seconds);
gs_status __wrap_gs_link_balance_consider(gs_link_balance *balance, bool *changed, gs_comm *comm, size_t bytes, double timeout_seconds) {
    (void)balance, (void)comm, (void)timeout_seconds;
    *changed = false;
    tried_bytes = bytes;
    return gs_ok();
}

// Else ranks would sum different ones: what a rank measured of its own buckets, however slow, says nothing of the size.
static void a_trial_sums_what_the_calibration_said(void **state) {
    (void)state;
    gs_device *device = NULL;
    gs_comm *comm = NULL;
    assert_ok(gs_device_open(&device, "cpu", NULL));
    assert_ok(gs_comm_create(&comm, &(gs_comm_options){.backend = "self", .world_size = 1, .device = device}, gs_deadline_in_seconds(60)));
    gs_link_watch watch = {.comm = comm, .trial_bytes = 4194304, .ready = calloc(1, sizeof(double)), .shared = calloc(4096, sizeof(double))};
    for (int i = 0; i < 9; i++) gs_link_fit_calibrate(&watch.fit, i < 5 ? 4096 : 262144, 0.0001);
    for (int step = 0; step < 60; step++) {
        gs_bucket_times slow = bucket_of(step, step + 0.9, 1048576);
        gs_link_watch_note(&watch, &(gs_reduce_stats){.buckets = &slow, .num_buckets = 1});
    }
    gs_link_report report;
    assert_ok(gs_link_watch_share(&watch, &report, 60));
    assert_int_equal(tried_bytes, 4194304);
    gs_link_report_release(&report);
    gs_link_watch_end(&watch);
    gs_comm_destroy(comm);
    gs_device_close(device);
}

// Within a host there is nothing to watch.
static void nothing_watches_nothing(void **state) {
    (void)state;
    gs_link_watch watch = {0};
    gs_link_watch_note(&watch, &(gs_reduce_stats){0});
    assert_false(gs_link_watch_is_due(&watch));
    gs_link_watch_end(&watch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cost_is_found_in_noise),
        cmocka_unit_test(what_was_held_up_does_not_count),
        cmocka_unit_test(a_link_that_changes_is_followed),
        cmocka_unit_test(a_link_that_becomes_ten_times_slower_is_noticed),
        cmocka_unit_test(a_calibration_counts_whatever_it_took),
        cmocka_unit_test(buckets_that_share_the_line_are_one_train),
        cmocka_unit_test(one_size_alone_takes_nothing_back),
        cmocka_unit_test(of_little_nothing_is_known),
        cmocka_unit_test(a_trial_sums_what_the_calibration_said),
        cmocka_unit_test(nothing_watches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
