// Whatever bytes a rank sends: the reader says what is wrong, or what it read is packed to a record that says the same
// again, and can be shown; and the coordinator takes it among the reports of a job.
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/reports/job_metrics.h"
#include "rpc/schema/step_record.h"
#include "tests/fuzz/fuzz.h"

static gs_report_rows rows, rows_again;
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

// Of a job of two, both of whose ranks tell it, so that steps are compared.
static void take(const gs_step_report *report) {
    static gs_job_metrics *metrics;
    const gs_metrics_record to = {drop, NULL};
    if (!metrics && !(metrics = gs_job_metrics_create())) abort();
    for (int rank = 0; rank < 2; rank++) gs_job_metrics_take(metrics, rank, 2, report, &to);
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
