#include "coordinator/store/record/job_documents.h"

#include <stdlib.h>
#include <string.h>

gs_job_documents gs_job_documents_of(const gs_job_spec *spec) {
    return (gs_job_documents){.spec = gs_job_spec_encode(spec), .plan_rebuilds = gs_json_new_object()};
}

gs_json *gs_failure_in_short(const gs_json *failure) {
    gs_json *brief = gs_json_copy(failure);
    gs_json_remove(brief, "log_tail");
    gs_json_remove(brief, "consequences");
    return brief;
}

// Not within a character.
char *gs_sample_in_short(const char *sample) {
    if (!sample) return NULL;
    size_t bytes = strnlen(sample, GS_SAMPLE_SHORT_BYTES + 1);
    if (bytes > GS_SAMPLE_SHORT_BYTES) {
        bytes = GS_SAMPLE_SHORT_BYTES;
        while (bytes > 0 && ((unsigned char)sample[bytes] & 0xc0) == 0x80) bytes--;
    }
    return strndup(sample, bytes);
}

void gs_job_documents_rest(gs_job_documents *documents) {
    gs_job_documents kept = {.failure = documents->failure ? gs_failure_in_short(documents->failure) : NULL,
                             .sample = gs_sample_in_short(documents->sample)};
    gs_job_documents_release(documents);
    *documents = kept;
}

void gs_job_documents_release(gs_job_documents *documents) {
    gs_json_release(documents->spec);
    gs_json_release(documents->failure);
    gs_json_release(documents->final_workers);
    gs_json_release(documents->plan);
    gs_json_release(documents->plan_history);
    gs_json_release(documents->plan_rebuilds);
    free(documents->sample);
    *documents = (gs_job_documents){0};
}
