// Whatever comes as a job specification: JSON that parses encodes to JSON that parses to the same,
// and a specification that is accepted is one that is accepted again, unchanged, in its full form.
#include <stdlib.h>
#include <string.h>

#include "rpc/schema/job_spec.h"
#include "tests/fuzz/fuzz.h"

static void check_round_trip(const gs_json *value) {
    char *first, *second;
    size_t first_bytes, second_bytes;
    gs_json *again = NULL;
    if (!value) return;  // null
    if (gs_json_encode(&first, &first_bytes, value, false).code) abort();
    if (gs_json_parse(&again, first, first_bytes).code) abort();
    if (gs_json_encode(&second, &second_bytes, again, false).code) abort();
    if (first_bytes != second_bytes || memcmp(first, second, first_bytes) != 0) abort();
    gs_json_release(again);
    free(first);
    free(second);
}

static void check_spec(const gs_json *value) {
    gs_job_spec *spec = calloc(2, sizeof *spec);
    gs_field_errors *errors = calloc(2, sizeof *errors);
    if (!spec || !errors) abort();
    gs_status status = gs_job_spec_decode(&spec[0], value, &errors[0]);
    if (!status.code != !errors[0].count) abort();
    gs_json_release(gs_field_errors_to_json(&errors[0]));
    if (!status.code) {
        gs_json *full = gs_job_spec_encode(&spec[0]);
        if (gs_job_spec_decode(&spec[1], full, &errors[1]).code) abort();
        if (memcmp(&spec[0], &spec[1], sizeof *spec) != 0) abort();
        if (gs_job_spec_passes_per_shard(&spec[0]) < 1) abort();
        gs_json_release(full);
    }
    free(errors);
    free(spec);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_json *value = NULL;
    gs_status status = gs_json_parse_relaxed(&value, (const char *)data, bytes);
    gs_json_release(value);
    bool relaxed_accepts = !status.code;
    status = gs_json_parse(&value, (const char *)data, bytes);
    if (status.code) return 0;
    if (!relaxed_accepts) abort();
    check_round_trip(value);
    check_spec(value);
    gs_json_release(value);
    return 0;
}
