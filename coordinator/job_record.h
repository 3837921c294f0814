// A job as the database keeps it: everything that must survive the coordinator. Loop thread.
#ifndef COORDINATOR_JOB_RECORD_H
#define COORDINATOR_JOB_RECORD_H

#include "coordinator/job.h"
#include "core/status.h"

// The text is the caller's (free()).
GS_NODISCARD gs_status gs_job_to_record(char **text, const gs_job *job);
// The run of a record that trained is rebuilt in phase reloading.
GS_NODISCARD gs_status gs_job_from_record(gs_job **out, uint64_t id, const char *text);

#endif
