#include "coordinator/observe/observer.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"

void gs_observer_note_store(gs_observer *observer, gs_status status) {
    if (status.code && !observer->store_failed) gs_log_error("store cannot be written", "reason=\"%s\"", status.message);
    observer->store_failed = status.code != GS_OK;
    observer->num_store_failures += observer->store_failed;
    snprintf(observer->store_error, sizeof observer->store_error, "%s", status.message);
}

gs_json *gs_job_candidates_to_view(const gs_job_table *jobs, const char *text) {
    gs_json *candidates = gs_json_new_array();
    for (size_t i = 0; i < jobs->count; i++) {
        const gs_job *job = jobs->items[i];
        if (gs_job_is_candidate(job, text)) gs_json_push(candidates, gs_json_new_string(job->id_text));
    }
    return candidates;
}

gs_status gs_observer_find_job(const gs_observer *observer, gs_job **job, gs_json **details,
                               const gs_json *request) {
    const char *text = gs_json_string_or(request, "job", NULL);
    size_t candidates = 0;
    gs_status status = gs_job_table_find(&observer->state->jobs, job, &candidates, text);
    if (!status.code && gs_job_is_unrecorded(*job)) status = gs_error(GS_NOT_FOUND, "no job \"%s\"", text);
    if (status.code != GS_FAILED_PRECONDITION) return status;
    *details = gs_json_new_object();
    gs_json_set_string(*details, "code", candidates ? "ambiguous" : "unreadable");
    if (candidates) gs_json_set(*details, "candidates", gs_job_candidates_to_view(&observer->state->jobs, text));
    else gs_json_set_string(*details, "hint", GS_UNREADABLE_HINT);
    return status;
}
