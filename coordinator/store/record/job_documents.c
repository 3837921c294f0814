#include "coordinator/store/record/job_documents.h"

#include <stdlib.h>

gs_job_documents gs_job_documents_of(const gs_job_spec *spec) {
    return (gs_job_documents){.spec = gs_job_spec_encode(spec), .plan_rebuilds = gs_json_new_object()};
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
