#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/render/prometheus.h"

static void add(gs_prometheus_page *page, const char *text) {
    gs_json *family = NULL;
    assert_int_equal(gs_json_parse(&family, text, strlen(text)).code, GS_OK);
    gs_prometheus_page_add_family(page, family);
    gs_json_release(family);
}

static char *write_page(const char *const *families, size_t num_families) {
    gs_strbuf out = {0};
    gs_prometheus_page *page = gs_prometheus_page_create();
    assert_non_null(page);
    for (size_t i = 0; i < num_families; i++) add(page, families[i]);
    gs_prometheus_page_write(page, &out);
    gs_prometheus_page_destroy(page);
    char *text = gs_strbuf_take(&out);
    return text ? text : strdup("");
}

static void help_is_escaped(void **state) {
    (void)state;
    const char *const families[] = {"{\"name\":\"gradsync_x\",\"type\":\"gauge\",\"help\":"
                                    "\"a\\nb\\\\c \\\"d\\\"\",\"text\":\"gradsync_x 1\\n\"}"};
    char *text = write_page(families, 1);
    assert_string_equal(text, "# HELP gradsync_x a\\nb\\\\c \"d\"\n# TYPE gradsync_x gauge\n"
                              "gradsync_x 1\n");
    free(text);
}

static void pieces_of_a_family_are_put_together(void **state) {
    (void)state;
    const char *const families[] = {"{\"name\":\"gradsync_a\",\"type\":\"gauge\",\"help\":\"A.\","
                                    "\"text\":\"gradsync_a{r=\\\"0\\\"} 1\\n\"}",
                                    "{\"name\":\"gradsync_b\",\"type\":\"what\",\"help\":\"B.\","
                                    "\"text\":\"gradsync_b 2\\n\"}",
                                    "{\"name\":\"gradsync_a\",\"type\":\"gauge\",\"help\":\"A.\","
                                    "\"text\":\"gradsync_a{r=\\\"1\\\"} 3\\n\"}"};
    char *text = write_page(families, 3);
    assert_string_equal(text, "# HELP gradsync_a A.\n# TYPE gradsync_a gauge\n"
                              "gradsync_a{r=\"0\"} 1\ngradsync_a{r=\"1\"} 3\n"
                              "# HELP gradsync_b B.\n# TYPE gradsync_b untyped\ngradsync_b 2\n");
    free(text);
}

static void families_without_a_legal_name_or_lines_are_left_out(void **state) {
    (void)state;
    const char *const families[] = {
        "{\"name\":\"bad name\",\"type\":\"gauge\",\"help\":\"\",\"text\":\"bad name 1\\n\"}",
        "{\"name\":\"gradsync_ok\",\"type\":\"gauge\",\"help\":\"Ok.\","
        "\"text\":\"gradsync_ok 1\\n\"}",
        "{\"name\":\"gradsync_empty\",\"type\":\"gauge\",\"help\":\"None.\",\"text\":\"\"}"};
    char *text = write_page(families, 3);
    assert_string_equal(text, "# HELP gradsync_ok Ok.\n# TYPE gradsync_ok gauge\ngradsync_ok 1\n");
    free(text);
}

static const double bounds[] = {0.1, 1};
static const gs_metric_family gauge = {
    .name = "gradsync_x", .help = "X \\ and\nmore.", .type = GS_GAUGE, .labels = {"name"}};
static const gs_metric_family histogram = {.name = "gradsync_t_seconds",
                                           .help = "T.",
                                           .type = GS_HISTOGRAM,
                                           .labels = {"j"},
                                           .bounds = bounds,
                                           .num_bounds = 2};

// A page of a registry's series, with names that need escaping and values that are no numbers.
static char *write_registry(void) {
    gs_metrics *metrics = gs_metrics_create(16);
    gs_prometheus_page *page = gs_prometheus_page_create();
    assert_non_null(metrics);
    assert_non_null(page);
    gs_metric_set(gs_metrics_series(metrics, &gauge, (const char *[]){"q\"u\\o\nte"}), 0.25);
    gs_metric_set(gs_metrics_series(metrics, &gauge, (const char *[]){"b"}), -INFINITY);
    gs_metric *times = gs_metrics_series(metrics, &histogram, (const char *[]){"x"});
    for (int i = 0; i < 4; i++) gs_metric_observe(times, i < 3 ? 0.5 : 2);
    gs_prometheus_page_add_metrics(page, metrics);
    gs_strbuf out = {0};
    gs_prometheus_page_write(page, &out);
    gs_prometheus_page_destroy(page);
    gs_metrics_destroy(metrics);
    char *text = gs_strbuf_take(&out);
    assert_non_null(text);
    return text;
}

static void a_registry_is_written_with_the_same_lines(void **state) {
    (void)state;
    char *text = write_registry();
    assert_string_equal(text,
                        "# HELP gradsync_x X \\\\ and\\nmore.\n# TYPE gradsync_x gauge\n"
                        "gradsync_x{name=\"q\\\"u\\\\o\\nte\"} 0.25\ngradsync_x{name=\"b\"} -Inf\n"
                        "# HELP gradsync_t_seconds T.\n# TYPE gradsync_t_seconds histogram\n"
                        "gradsync_t_seconds_bucket{j=\"x\",le=\"0.1\"} 0\n"
                        "gradsync_t_seconds_bucket{j=\"x\",le=\"1\"} 3\n"
                        "gradsync_t_seconds_bucket{j=\"x\",le=\"+Inf\"} 4\n"
                        "gradsync_t_seconds_sum{j=\"x\"} 3.5\n"
                        "gradsync_t_seconds_count{j=\"x\"} 4\n");
    free(text);
}

static void promtool_accepts_the_page(void **state) {
    (void)state;
    if (system("command -v promtool >/dev/null 2>&1") != 0) skip();
    char *text = write_registry();
    FILE *promtool = popen("promtool check metrics 2>&1", "w");
    assert_non_null(promtool);
    fputs(text, promtool);
    int status = pclose(promtool);
    free(text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_is_escaped),
        cmocka_unit_test(pieces_of_a_family_are_put_together),
        cmocka_unit_test(families_without_a_legal_name_or_lines_are_left_out),
        cmocka_unit_test(a_registry_is_written_with_the_same_lines),
        cmocka_unit_test(promtool_accepts_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
