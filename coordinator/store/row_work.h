// Rows that are written and deleted.
#ifndef COORDINATOR_STORE_ROW_WORK_H
#define COORDINATOR_STORE_ROW_WORK_H

#include "coordinator/model/job_table.h"
#include "coordinator/model/request_keys.h"
#include "coordinator/store/record/job_documents.h"
#include "coordinator/store/work.h"

// As it is now. `key` is stored with it; NULL: none is.
gs_work *gs_row_work_put_job(const gs_job *job, const gs_job_documents *documents, const gs_request_key *key,
                             int64_t now_ns);
// In its place: it is not written, and comes back with this.
void gs_row_work_refuse_job(gs_work *put_job, gs_status status);
gs_work *gs_row_work_delete_job(const gs_tombstone *tombstone);
gs_work *gs_row_work_reserve_generations(uint32_t end);
gs_work *gs_row_work_put_checkpoint(uint64_t job, const gs_checkpoint *checkpoint);
gs_work *gs_row_work_delete_checkpoint(uint64_t job, const char *directory);
gs_work *gs_row_work_prune_keys(void);
gs_work *gs_row_work_forget_purge(uint64_t job);

#endif
