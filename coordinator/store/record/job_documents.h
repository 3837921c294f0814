// What of a job only people read, as the JSON that they are shown. It is kept and written, and decides nothing.
#ifndef COORDINATOR_STORE_RECORD_JOB_DOCUMENTS_H
#define COORDINATOR_STORE_RECORD_JOB_DOCUMENTS_H

#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"

typedef struct gs_job_documents {
    gs_json *spec;           // owned; the full effective specification
    gs_json *failure;        // owned; NULL while nothing failed
    gs_json *final_workers;  // owned; the members of the last generation, as GetJobWorkers shows them; NULL: none
    gs_json *plan;           // owned; as GetJobPlan shows it; NULL: none yet
    gs_json *plan_history;   // owned; of the plans so far, the newest last; NULL: none yet
    gs_json *plan_rebuilds;  // owned; {reason: how often}
    char *sample;            // owned; what the model wrote at the end; NULL: nothing
} gs_job_documents;

// Of a new job.
gs_job_documents gs_job_documents_of(const gs_job_spec *spec);
// Without the last lines of the log and the consequences. The caller's.
gs_json *gs_failure_in_short(const gs_json *failure);
#define GS_SAMPLE_SHORT_BYTES 1024
// Its first characters. The caller's; NULL of NULL.
char *gs_sample_in_short(const char *sample);
// Of a job that has ended, whose row has them all: a failure and the sample in short are left.
void gs_job_documents_rest(gs_job_documents *documents);
void gs_job_documents_release(gs_job_documents *documents);

#endif
