// What deletions have left behind that a kill cut short: the row is gone, and the files of the job are not.
#ifndef COORDINATOR_STORE_LEFTOVERS_H
#define COORDINATOR_STORE_LEFTOVERS_H

#include "coordinator/model/job_table.h"
#include "coordinator/store/writer.h"

// Behind readiness, before anything else is written there: removes each folder of DATA/jobs whose job was deleted. What
// nobody has heard of stays. It frees itself. NULL: no job was deleted, or out of memory, and the next start does it.
gs_write *gs_leftovers_create(const gs_job_table *jobs, const char *data_dir);

#endif
