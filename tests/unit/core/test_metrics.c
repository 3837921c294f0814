#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/metrics.h"

static const gs_metric_family jobs = {
    .name = "gradsync_jobs", .help = "Jobs.", .type = GS_GAUGE, .labels = {"state"}};
static const gs_metric_family steps = {
    .name = "gradsync_steps_total", .help = "Steps.", .type = GS_COUNTER, .labels = {"job_id", "rank"}};
static const gs_metric_family duration = {.name = "gradsync_reduce_duration_seconds",
                                          .help = "Time.",
                                          .type = GS_HISTOGRAM,
                                          .labels = {"job_id"},
                                          .bounds = gs_reduce_bounds,
                                          .num_bounds = 16};

static gs_metric *series(gs_metrics *metrics, const gs_metric_family *family, const char *a,
                         const char *b) {
    return gs_metrics_series(metrics, family, (const char *[]){a, b});
}

static void the_same_labels_are_the_same_series(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(8);
    gs_metric *one = series(metrics, &steps, "a", "0");
    assert_ptr_equal(one, series(metrics, &steps, "a", "0"));
    assert_ptr_not_equal(one, series(metrics, &steps, "a", "1"));
    assert_ptr_not_equal(one, series(metrics, &jobs, "a", NULL));
    gs_metric_add(one, 2);
    gs_metric_add(one, 3);
    assert_true(gs_metric_value(one) == 5);
    gs_metrics_destroy(metrics);
}

static void a_full_registry_refuses_counts_and_survives(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(1);
    assert_non_null(series(metrics, &jobs, "queued", NULL));
    gs_metric *refused = series(metrics, &jobs, "running", NULL);
    assert_null(refused);
    gs_metric_add(refused, 1);
    gs_metric_set(refused, 1);
    gs_metric_observe(refused, 1);
    assert_true(gs_metric_value(refused) == 0);
    assert_int_equal(gs_metrics_dropped_count(metrics), 1);
    gs_metrics_destroy(metrics);
}

static void an_observation_on_a_bound_belongs_below_it(void **state) {
    (void)state;
    gs_histogram histogram = {0};
    gs_histogram_observe(&histogram, gs_reduce_bounds, 16, 0.00005);
    gs_histogram_observe(&histogram, gs_reduce_bounds, 16, 0.00006);
    gs_histogram_observe(&histogram, gs_reduce_bounds, 16, 11);
    gs_histogram_observe(&histogram, gs_reduce_bounds, 16, NAN);
    assert_int_equal(histogram.counts[0], 1);
    assert_int_equal(histogram.counts[1], 1);
    assert_int_equal(histogram.counts[16], 2);
}

static void all_bounds_ascend(void **state) {
    (void)state;
    for (int i = 1; i < 16; i++) assert_true(gs_reduce_bounds[i] > gs_reduce_bounds[i - 1]);
    for (int i = 1; i < 15; i++) assert_true(gs_step_bounds[i] > gs_step_bounds[i - 1]);
    for (int i = 1; i < 12; i++) assert_true(gs_checkpoint_bounds[i] > gs_checkpoint_bounds[i - 1]);
    for (int i = 1; i < 8; i++) assert_true(gs_http_bounds[i] > gs_http_bounds[i - 1]);
}

typedef struct visited {
    char text[400];
} visited;

static void note_sample(void *ctx, const gs_metric_sample *sample) {
    visited *out = ctx;
    size_t used = strlen(out->text);
    snprintf(out->text + used, sizeof out->text - used, "%s{%s} ", sample->family->name + 9,
             sample->label_values[0]);
}

static void a_visit_keeps_families_together(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(8);
    series(metrics, &jobs, "queued", NULL);
    series(metrics, &steps, "a", "0");
    series(metrics, &jobs, "running", NULL);
    visited out = {""};
    gs_metrics_visit(metrics, note_sample, &out);
    assert_string_equal(out.text, "jobs{queued} jobs{running} steps_total{a} ");
    gs_metrics_destroy(metrics);
}

static void a_forgotten_job_takes_its_series_along(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(3);
    series(metrics, &steps, "a", "0");
    gs_metric *kept = series(metrics, &steps, "b", "0");
    series(metrics, &duration, "a", NULL);
    gs_metrics_forget(metrics, "job_id", "a");
    visited out = {""};
    gs_metrics_visit(metrics, note_sample, &out);
    assert_string_equal(out.text, "steps_total{b} ");
    assert_ptr_equal(series(metrics, &steps, "b", "0"), kept);
    assert_true(gs_metric_value(series(metrics, &steps, "a", "0")) == 0);
    gs_metrics_destroy(metrics);
}

static void a_visit_in_parts_sees_each_series_once_whatever_is_forgotten(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(8);
    series(metrics, &steps, "a", "0");
    series(metrics, &steps, "b", "0");
    series(metrics, &steps, "c", "0");
    visited out = {""};
    uint64_t cursor = 0;
    assert_true(gs_metrics_visit_some(metrics, &cursor, 2, note_sample, &out));
    gs_metrics_forget(metrics, "job_id", "a");
    series(metrics, &steps, "d", "0");
    assert_false(gs_metrics_visit_some(metrics, &cursor, 2, note_sample, &out));
    assert_string_equal(out.text, "steps_total{a} steps_total{b} steps_total{c} steps_total{d} ");
    assert_false(gs_metrics_visit_some(metrics, &cursor, 2, note_sample, &out));
    gs_metrics_destroy(metrics);
}

static void set_histogram_is_what_a_visit_sees(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(2);
    gs_metric *metric = series(metrics, &duration, "a", NULL);
    gs_metric_observe(metric, 0.001);
    gs_histogram histogram = {.counts = {[2] = 7, [16] = 1}, .sum = 3.5};
    gs_metric_set_histogram(metric, &histogram);
    assert_true(gs_metric_value(metric) == 3.5);
    gs_metrics_destroy(metrics);
}

static void *add_many(void *ctx) {
    for (int i = 0; i < 10000; i++) gs_metric_add(ctx, 1);
    return NULL;
}

static void no_update_of_any_thread_is_lost(void **state) {
    (void)state;
    gs_metrics *metrics = gs_metrics_create(2);
    gs_metric *metric = series(metrics, &steps, "a", "0");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_many, metric), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_true(gs_metric_value(metric) == 40000);
    gs_metrics_destroy(metrics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_labels_are_the_same_series),
        cmocka_unit_test(a_full_registry_refuses_counts_and_survives),
        cmocka_unit_test(an_observation_on_a_bound_belongs_below_it),
        cmocka_unit_test(all_bounds_ascend),
        cmocka_unit_test(a_visit_keeps_families_together),
        cmocka_unit_test(a_forgotten_job_takes_its_series_along),
        cmocka_unit_test(a_visit_in_parts_sees_each_series_once_whatever_is_forgotten),
        cmocka_unit_test(set_histogram_is_what_a_visit_sees),
        cmocka_unit_test(no_update_of_any_thread_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
