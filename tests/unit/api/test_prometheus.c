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

static void assert_value(double value, const char *expected) {
    gs_strbuf out = {0};
    gs_prometheus_write_value(&out, value);
    assert_string_equal(gs_strbuf_text(&out), expected);
    gs_strbuf_release(&out);
}

static void values_round_trip_and_are_never_localised(void **state) {
    (void)state;
    assert_value(1, "1");
    assert_value(0.1, "0.1");
    assert_value(1.0 / 3, "0.33333333333333331");
    assert_value(NAN, "NaN");
    assert_value(INFINITY, "+Inf");
    assert_value(-INFINITY, "-Inf");
    assert_value(9007199254740991.0, "9007199254740991");
}

static void label_values_and_help_are_escaped(void **state) {
    (void)state;
    const char *const families[] = {"{\"name\":\"gradsync_x\",\"type\":\"gauge\",\"help\":"
                                    "\"a\\nb\\\\c\",\"series\":[{\"labels\":"
                                    "[[\"name\",\"q\\\"u\\\\o\\nte\"]],\"value\":1}]}"};
    char *text = write_page(families, 1);
    assert_string_equal(text, "# HELP gradsync_x a\\nb\\\\c\n# TYPE gradsync_x gauge\n"
                              "gradsync_x{name=\"q\\\"u\\\\o\\nte\"} 1\n");
    free(text);
}

static void pieces_of_a_family_are_put_together(void **state) {
    (void)state;
    const char *const families[] = {"{\"name\":\"gradsync_a\",\"type\":\"gauge\",\"help\":\"A.\","
                                    "\"series\":[{\"labels\":[[\"r\",\"0\"]],\"value\":1}]}",
                                    "{\"name\":\"gradsync_b\",\"type\":\"gauge\",\"help\":\"B.\","
                                    "\"series\":[{\"labels\":[],\"value\":2}]}",
                                    "{\"name\":\"gradsync_a\",\"type\":\"gauge\",\"help\":\"A.\","
                                    "\"series\":[{\"labels\":[[\"r\",\"1\"]],\"value\":3}]}"};
    char *text = write_page(families, 3);
    assert_string_equal(text, "# HELP gradsync_a A.\n# TYPE gradsync_a gauge\n"
                              "gradsync_a{r=\"0\"} 1\ngradsync_a{r=\"1\"} 3\n"
                              "# HELP gradsync_b B.\n# TYPE gradsync_b gauge\ngradsync_b 2\n");
    free(text);
}

static void histogram_buckets_are_cumulative_and_end_at_infinity(void **state) {
    (void)state;
    const char *const families[] = {
        "{\"name\":\"gradsync_t_seconds\",\"type\":\"histogram\",\"help\":\"T.\",\"series\":[{"
        "\"labels\":"
        "[[\"j\",\"x\"]],\"bounds\":[0.1,1],\"counts\":[2,3,4],\"sum\":7.5}]}"};
    char *text = write_page(families, 1);
    assert_string_equal(
        text, "# HELP gradsync_t_seconds T.\n# TYPE gradsync_t_seconds histogram\n"
              "gradsync_t_seconds_bucket{j=\"x\",le=\"0.1\"} 2\n"
              "gradsync_t_seconds_bucket{j=\"x\",le=\"1\"} 5\n"
              "gradsync_t_seconds_bucket{j=\"x\",le=\"+Inf\"} 9\n"
              "gradsync_t_seconds_sum{j=\"x\"} 7.5\ngradsync_t_seconds_count{j=\"x\"} 9\n");
    free(text);
}

static void families_and_labels_without_a_legal_name_are_left_out(void **state) {
    (void)state;
    const char *const families[] = {
        "{\"name\":\"bad "
        "name\",\"type\":\"gauge\",\"help\":\"\",\"series\":[{\"labels\":[],\"value\":1}]}",
        "{\"name\":\"gradsync_ok\",\"type\":\"gauge\",\"help\":\"Ok.\",\"series\":[{\"labels\":[["
        "\"a-b\",\"x\"]],\"value\":1}]}",
        "{\"name\":\"gradsync_empty\",\"type\":\"gauge\",\"help\":\"None.\",\"series\":[]}"};
    char *text = write_page(families, 3);
    assert_string_equal(text, "# HELP gradsync_ok Ok.\n# TYPE gradsync_ok gauge\ngradsync_ok 1\n");
    free(text);
}

static void promtool_accepts_the_page(void **state) {
    (void)state;
    if (system("command -v promtool >/dev/null 2>&1") != 0) skip();
    const char *const families[] = {
        "{\"name\":\"gradsync_job_loss\",\"type\":\"gauge\",\"help\":\"Loss.\",\"series\":["
        "{\"labels\":[[\"job_id\",\"a\"]],\"value\":\"NaN\"},{\"labels\":[[\"job_id\","
        "\"b\\\"\\\\\\n\"]],\"value\":\"-Infinity\"},"
        "{\"labels\":[[\"job_id\",\"c\"]],\"value\":\"Infinity\"}]}",
        "{\"name\":\"gradsync_steps_total\",\"type\":\"counter\",\"help\":\"Steps \\\\ "
        "and\\nmore.\",\"series\":[{\"labels\":[],\"value\":12}]}",
        "{\"name\":\"gradsync_step_seconds\",\"type\":\"histogram\",\"help\":\"Step "
        "time.\",\"series\":[{\"labels\":"
        "[[\"job_id\",\"a\"]],\"bounds\":[0.001,0.1],\"counts\":[0,5,1],\"sum\":0.4}]}"};
    char *text = write_page(families, 3);
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
        cmocka_unit_test(values_round_trip_and_are_never_localised),
        cmocka_unit_test(label_values_and_help_are_escaped),
        cmocka_unit_test(pieces_of_a_family_are_put_together),
        cmocka_unit_test(histogram_buckets_are_cumulative_and_end_at_infinity),
        cmocka_unit_test(families_and_labels_without_a_legal_name_are_left_out),
        cmocka_unit_test(promtool_accepts_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
