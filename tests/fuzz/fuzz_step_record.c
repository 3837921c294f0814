// Whatever bytes a rank sends: the reader says what is wrong, or what it read is packed to a record that says the same
// again, and can be shown; and the coordinator takes it among the reports of a job.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/reports/job_metrics.h"
#include "coordinator/observe/reports/stragglers.h"
#include "rpc/schema/step_record.h"
#include "tests/fuzz/fuzz.h"

static gs_report_rows rows, rows_again, rows_before;
static uint8_t record[GS_STEP_RECORD_MAX_BYTES], record_again[GS_STEP_RECORD_MAX_BYTES];

static char *show(const gs_step_report *report) {
    char *text = NULL;
    gs_json *json = gs_step_report_to_json(report);
    if (gs_json_encode(&text, NULL, json, false).code) abort();
    gs_json_release(json);
    return text;
}

static void drop(void *ctx, const gs_json *entry) {
    (void)ctx;
    (void)entry;
}

// Of a job of two, whose other rank tells what the last input was. They speak of the same steps, one behind the other: only
// then are they compared, and windows of many steps become full.
static void take(const gs_step_report *report) {
    static gs_job_metrics *metrics;
    static gs_step_report before;
    static int64_t next_step;
    const gs_metrics_record to = {drop, NULL};
    if (!metrics && !(metrics = gs_job_metrics_create())) abort();
    for (size_t i = 0; i < report->num_waits; i++) rows.waits[i].step = next_step + (int64_t)i;
    for (size_t i = 0; i < before.num_waits; i++) rows_before.waits[i].step = next_step + (int64_t)i;
    next_step += (int64_t)report->num_waits;
    gs_job_metrics_take(metrics, 0, 2, report, &to);
    gs_job_metrics_take(metrics, 1, 2, &before, &to);
    before = *report;
    rows_before = rows;
    before.buckets = rows_before.buckets;
    before.waits = rows_before.waits;
    before.history = rows_before.history;
    // Of whatever numbers ranks tell, what is made of them is a number.
    for (int rank = 0; rank < 2; rank++) {
        const gs_straggler_view view = gs_stragglers_view(gs_job_metrics_stragglers(metrics), rank);
        if (!isfinite(view.lag_seconds) || !isfinite(view.blame_seconds) || !isfinite(view.lost_seconds)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_step_report report, again;
    if (gs_step_record_unpack(&report, &rows, data, bytes).code) return 0;
    size_t packed = gs_step_record_pack(record, &report);
    if (gs_step_record_unpack(&again, &rows_again, record, packed).code) abort();
    if (gs_step_record_pack(record_again, &again) != packed || memcmp(record, record_again, packed) != 0) abort();
    char *text = show(&report), *text_again = show(&again);
    if (strcmp(text, text_again) != 0) abort();
    take(&report);
    free(text);
    free(text_again);
    return 0;
}
