// What a start finds in the store: jobs with their runs, documents and checkpoints.
#ifndef COORDINATOR_STORE_STORED_H
#define COORDINATOR_STORE_STORED_H

#include "coordinator/model/job.h"
#include "coordinator/store/record/job_documents.h"
#include "coordinator/store/job_store.h"

typedef struct gs_stored_job {
    gs_job *job;  // owned until it is taken; NULL then
    gs_job_documents documents;  // owned until they are taken; {0} then
} gs_stored_job;

typedef struct gs_stored {
    gs_stored_job *jobs;  // owned; oldest first
    size_t num_jobs, max_jobs;
    uint64_t *unreadable;  // owned; ids of rows that are left out
    size_t num_unreadable, max_unreadable;
} gs_stored;

// A row that is not readable is left out, and a line in the log says so.
GS_NODISCARD gs_status gs_stored_load(gs_stored *out, gs_job_store *store, int64_t now_ns, int64_t wall_ms);
void gs_stored_release(gs_stored *stored);

#endif
