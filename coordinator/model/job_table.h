// All jobs, oldest first, and how a job is found: by id, by the beginning of an id, by name.
#ifndef COORDINATOR_MODEL_JOB_TABLE_H
#define COORDINATOR_MODEL_JOB_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/job.h"
#include "core/status.h"
#include "core/u64_map.h"

typedef struct gs_job_table {  // {0} is empty
    gs_job **items;            // owned; oldest first
    size_t count, reserved;
    gs_u64_map by_id;
} gs_job_table;

void gs_job_table_release(gs_job_table *table);
void gs_job_table_add(gs_job_table *table, gs_job *job);  // takes it
void gs_job_destroy(gs_job *job);                 // with its run; NULL is fine
// Takes it out; gs_job_destroy is the caller's.
void gs_job_table_unlink(gs_job_table *table, gs_job *job);

gs_job *gs_job_table_get(const gs_job_table *table, uint64_t id);         // NULL: none
gs_job *gs_job_table_of_text(const gs_job_table *table, const char *id);  // NULL: none, or no id
gs_job *gs_job_table_live_name(const gs_job_table *table, const char *name);
// What people call it: id, unique prefix of at least four characters, the name of a live job or else of the job
// that carried it last.
// NOT_FOUND; FAILED_PRECONDITION: several ids begin so, of which *candidates counts those (else 0).
GS_NODISCARD gs_status gs_job_table_find(const gs_job_table *table, gs_job **job, size_t *candidates,
                                         const char *text);

#endif
