#include "coordinator/serve/decode_people.h"

#include <stdlib.h>
#include <string.h>

#define MAX_GRACE_SECONDS 86400

static void fingerprint_of(char text[GS_DIGEST_TEXT_LEN], const gs_json *spec) {
    char *encoded = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&encoded, &bytes, spec, false);
    gs_digest_format(text, status.code ? (gs_digest){0} : gs_digest_of(encoded, bytes));
    free(encoded);
}

gs_status gs_decode_create_job(gs_engine_event *event, char fingerprint[GS_DIGEST_TEXT_LEN],
                               gs_json **details, const gs_json *request) {
    event->kind = GS_ON_CREATE_JOB;
    *details = NULL;
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors *errors = calloc(1, sizeof *errors);
    gs_status status = spec && errors ? gs_ok()
                                      : gs_error(GS_RESOURCE_EXHAUSTED, "create job: out of memory");
    if (!status.code) status = gs_job_spec_decode(spec, gs_json_get(request, "spec"), errors);
    if (status.code && errors && errors->count > 0) *details = gs_field_errors_to_json(errors);
    free(errors);
    event->create = (gs_create_request){.spec = spec,
                                        .key = gs_json_string_or(request, "idempotency_key", NULL),
                                        .fingerprint = fingerprint,
                                        .dry_run = gs_json_bool_or(request, "dry_run", false)};
    fingerprint_of(fingerprint, gs_json_get(request, "spec"));
    return status;
}

gs_status gs_decode_stop_job(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_STOP_JOB;
    const char *outcome = gs_json_string_or(request, "outcome", "cancelled");
    const char *mode = gs_json_string_or(request, "mode", "graceful");
    event->stop = (gs_stop_request){
        .job = gs_json_string_or(request, "job", NULL),
        .now = !strcmp(mode, "now"),
        .outcome = !strcmp(outcome, "succeeded") ? GS_JOB_SUCCEEDED : GS_JOB_CANCELLED,
        .grace_seconds = -1,
    };
    if (strcmp(outcome, "cancelled") != 0 && strcmp(outcome, "succeeded") != 0)
        return gs_error(GS_INVALID_ARGUMENT, "outcome: must be cancelled or succeeded");
    if (strcmp(mode, "graceful") != 0 && strcmp(mode, "now") != 0)
        return gs_error(GS_INVALID_ARGUMENT, "mode: must be graceful or now");
    double seconds = 0;
    if (!gs_json_double(&seconds, gs_json_get(request, "grace_seconds"))) return gs_ok();
    if (!(seconds >= 0 && seconds <= MAX_GRACE_SECONDS))
        return gs_error(GS_INVALID_ARGUMENT, "grace_seconds: must be between 0 and %d", MAX_GRACE_SECONDS);
    event->stop.grace_seconds = seconds;
    return gs_ok();
}

void gs_decode_delete_job(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_DELETE_JOB;
    event->remove = (gs_delete_request){.job = gs_json_string_or(request, "job", NULL),
                                        .purge = gs_json_bool_or(request, "purge", false)};
}

void gs_decode_release_job(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_RELEASE_JOB;
    event->release.job = gs_json_string_or(request, "job", NULL);
    event->release.step = gs_json_int_or(request, "step", 0);
}

void gs_decode_adopt_job(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_ADOPT_JOB;
    event->adopt.job = gs_json_string_or(request, "job", NULL);
}

void gs_decode_replan_job(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_REPLAN_JOB;
    event->replan.job = gs_json_string_or(request, "job", NULL);
}
