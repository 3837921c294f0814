// Whatever bytes a rank sends: the reader says what is wrong, or what it read is packed to a record that says the same
// again, and can be shown.
#include <stdlib.h>
#include <string.h>

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_step_report report, again;
    if (gs_step_record_unpack(&report, &rows, data, bytes).code) return 0;
    size_t packed = gs_step_record_pack(record, &report);
    if (gs_step_record_unpack(&again, &rows_again, record, packed).code) abort();
    if (gs_step_record_pack(record_again, &again) != packed || memcmp(record, record_again, packed) != 0) abort();
    char *text = show(&report), *text_again = show(&again);
    if (strcmp(text, text_again) != 0) abort();
    free(text);
    free(text_again);
    return 0;
}
