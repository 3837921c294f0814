// What the metrics page says of a job, whatever its ranks tell.
#include "coordinator/observe/metrics/job_families.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/observe/reports/job_metrics.h"

static void drop(void *ctx, const gs_json *entry) {
    (void)ctx;
    (void)entry;
}

static const gs_strbuf *find_text(const gs_page_text *page, const char *name) {
    for (size_t i = 0; i < page->num_families; i++)
        if (strcmp(page->families[i].family->name, name) == 0) return &page->families[i].text;
    return NULL;
}

static int count_lines(const gs_strbuf *text) {
    int lines = 0;
    for (const char *at = gs_strbuf_text(text); *at; at++) lines += *at == '\n';
    return lines;
}

static void a_bucket_that_is_told_twice_is_shown_once(void **state) {
    (void)state;
    static const char *const names[] = {"gradsync_bucket_ready_offset_seconds", "gradsync_bucket_ready_position",
                                        "gradsync_reduce_bus_bandwidth_bytes_per_second"};
    const int told[] = {0, 63, 0, -1, 64, 100, -1, 63, 5}, num_told = sizeof told / sizeof told[0];
    gs_report_bucket buckets[9];
    for (int i = 0; i < num_told; i++)
        buckets[i] = (gs_report_bucket){.index = told[i], .ready_position = i, .bytes = 4, .algorithm = "direct"};
    const gs_step_report report = {.step = 1, .buckets = buckets, .num_buckets = (size_t)num_told};
    const gs_metrics_record record = {drop, NULL};
    gs_job_shot shot = {.id = "j-1", .shows_ranks = true, .metrics = gs_job_metrics_create()};
    assert_non_null(shot.metrics);
    gs_job_metrics_take(shot.metrics, 0, 1, &report, &record);
    gs_page_text *page = calloc(1, sizeof *page);
    assert_non_null(page);
    gs_job_families_write(page, &shot);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const gs_strbuf *text = find_text(page, names[i]);
        assert_non_null(text);
        assert_int_equal(count_lines(text), 4);  // 0, 5, 63 and other
    }
    gs_page_text_release(page);
    free(page);
    gs_job_metrics_destroy(shot.metrics);
}

// Of two ranks one waits for the other in each bucket: what was moved is what the later one shows.
static void the_bandwidth_of_a_bucket_is_that_of_its_last_rank(void **state) {
    (void)state;
    const gs_metrics_record record = {drop, NULL};
    gs_job_shot shot = {.id = "j-1", .shows_ranks = true, .metrics = gs_job_metrics_create()};
    assert_non_null(shot.metrics);
    for (int rank = 0; rank < 2; rank++) {
        gs_report_bucket buckets[2];
        for (int i = 0; i < 2; i++) {
            double bandwidth = i == rank ? 3e9 : 5e7 * (1 + i);
            buckets[i] = (gs_report_bucket){.index = i, .bytes = 4, .travelled = true, .algorithm = "direct",
                                            .algbw = bandwidth, .busbw = bandwidth};
        }
        if (rank == 1) buckets[0].busbw = NAN;
        const gs_step_report report = {.step = 1, .buckets = buckets, .num_buckets = 2};
        gs_job_metrics_take(shot.metrics, rank, 2, &report, &record);
    }
    gs_page_text *page = calloc(1, sizeof *page);
    assert_non_null(page);
    gs_job_families_write(page, &shot);
    const char *text = gs_strbuf_text(find_text(page, "gradsync_reduce_bus_bandwidth_bytes_per_second"));
    for (int i = 0; i < 2; i++) {
        char start[32];
        snprintf(start, sizeof start, "bucket=\"%d\"", i);
        const char *line = strstr(text, start);
        assert_non_null(line);
        assert_true(strtod(strchr(line, '}') + 1, NULL) == 3e9);
    }
    gs_page_text_release(page);
    free(page);
    gs_job_metrics_destroy(shot.metrics);
}

#define NUM_RANKS 7

static char *text_of(gs_job_metrics *metrics) {
    gs_job_shot shot = {.id = "j-1", .shows_ranks = true, .metrics = metrics};
    gs_page_text *page = calloc(1, sizeof *page);
    gs_strbuf all = {0};
    assert_non_null(page);
    gs_job_families_write(page, &shot);
    for (size_t i = 0; i < page->num_families; i++) gs_strbuf_printf(&all, "%s", gs_strbuf_text(&page->families[i].text));
    gs_page_text_release(page);
    free(page);
    return gs_strbuf_take(&all);
}

// The loop copies some ranks of a job at a time: in the end it is the same page.
static void a_job_that_is_copied_in_pieces_is_shown_whole(void **state) {
    (void)state;
    const gs_metrics_record record = {drop, NULL};
    gs_job_metrics *metrics = gs_job_metrics_create();
    gs_job_metrics_begin_generation(metrics, NUM_RANKS);
    for (int generation = 0; generation < 2; generation++) {  // what ranks of the former one counted is kept beside
        for (int rank = 0; rank < NUM_RANKS; rank++) {
            gs_step_report report = {.step = 1 + rank};
            for (int i = 0; i < GS_NUM_REPORT_TOTALS; i++) report.values[GS_REPORT_FIRST_TOTAL + i] = 1 + rank + 10 * i;
            gs_job_metrics_take(metrics, rank, NUM_RANKS, &report, &record);
        }
        if (generation == 0) gs_job_metrics_begin_generation(metrics, NUM_RANKS);
    }
    char *wanted = text_of(metrics);
    assert_non_null(strstr(wanted, "rank=\"6\""));
    for (int most = 1; most <= NUM_RANKS + 1; most++) {
        gs_job_metrics *copy = gs_job_metrics_copy_begin(metrics);
        int first = 0;
        for (; !gs_job_metrics_copy_some(copy, metrics, first, most); first += most) assert_true(first < NUM_RANKS);
        char *text = text_of(copy);
        assert_string_equal(text, wanted);
        free(text);
        gs_job_metrics_destroy(copy);
    }
    free(wanted);
    gs_job_metrics_destroy(metrics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_that_is_told_twice_is_shown_once),
        cmocka_unit_test(the_bandwidth_of_a_bucket_is_that_of_its_last_rank),
        cmocka_unit_test(a_job_that_is_copied_in_pieces_is_shown_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
