// The folders of deleted jobs below DATA/jobs. Each is first put aside, which is short and in line with what is written there,
// so that a job that comes back with its id has one of its own; then removed, on the thread of trees. What a kill leaves of that
// the next start finds.
#ifndef COORDINATOR_STORE_LEFTOVERS_H
#define COORDINATOR_STORE_LEFTOVERS_H

#include "coordinator/model/job_table.h"
#include "coordinator/store/writer.h"

#define GS_ASIDE_LEN 1300

// `aside`: where it is now; "": there was none.
GS_NODISCARD gs_status gs_leftovers_put_aside(char aside[GS_ASIDE_LEN], const char *folder);
void gs_leftovers_remove(gs_writer *writer, const char *aside);

// Behind readiness, before anything else is written there: each folder whose job was deleted, and what was put aside. What
// nobody has heard of stays. It frees itself. NULL: no job was deleted, or out of memory, and the next start does it.
gs_write *gs_leftovers_create(const gs_job_table *jobs, const char *data_dir, gs_writer *writer);

#endif
