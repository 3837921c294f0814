#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/metrics_text.h"

static const double bounds[] = {0.005, 1};
static const gs_metric_family jobs = {.name = "jobs", .help = "h", .type = GS_GAUGE, .labels = {"state", "why"}};
static const gs_metric_family up = {.name = "up", .help = "h", .type = GS_GAUGE};
static const gs_metric_family duration = {.name = "duration_seconds", .help = "h", .type = GS_HISTOGRAM,
                                          .labels = {"op"}, .bounds = bounds, .num_bounds = 2};

static void expect_text(const gs_metric_sample *sample, const char *wanted) {
    gs_strbuf text = {0};
    gs_metric_sample_write(&text, sample);
    assert_string_equal(gs_strbuf_text(&text), wanted);
    gs_strbuf_release(&text);
}

static void numbers_read_back_as_the_same_value(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "up 0\n"}, {-3, "up -3\n"}, {0.1, "up 0.1\n"}, {1.0 / 3, "up 0.33333333333333331\n"},
                 {1e15, "up 1e+15\n"}, {999999999999999, "up 999999999999999\n"}, {INFINITY, "up +Inf\n"},
                 {-INFINITY, "up -Inf\n"}, {NAN, "up NaN\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_metric_sample sample = {.family = &up, .value = cases[i].value};
        expect_text(&sample, cases[i].text);
    }
}

static void label_values_are_escaped(void **state) {
    (void)state;
    const char *const values[] = {"a\"b\\c\nd", ""};
    gs_metric_sample sample = {.family = &jobs, .label_values = values, .value = 2};
    expect_text(&sample, "jobs{state=\"a\\\"b\\\\c\\nd\",why=\"\"} 2\n");
}

static void histograms_are_cumulative_and_end_in_inf(void **state) {
    (void)state;
    const char *const values[] = {"save"};
    gs_metric_sample sample = {.family = &duration, .label_values = values,
                               .histogram = {.counts = {2, 0, 3}, .sum = 7.5}};
    expect_text(&sample, "duration_seconds_bucket{op=\"save\",le=\"0.005\"} 2\n"
                         "duration_seconds_bucket{op=\"save\",le=\"1\"} 2\n"
                         "duration_seconds_bucket{op=\"save\",le=\"+Inf\"} 5\n"
                         "duration_seconds_sum{op=\"save\"} 7.5\n"
                         "duration_seconds_count{op=\"save\"} 5\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_read_back_as_the_same_value),
        cmocka_unit_test(label_values_are_escaped),
        cmocka_unit_test(histograms_are_cumulative_and_end_in_inf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
