// What is done with the files of checkpoints: read to verify, completed where ranks wrote parts, found, missed, removed.
#ifndef COORDINATOR_STORE_FILE_WORK_H
#define COORDINATOR_STORE_FILE_WORK_H

#include "coordinator/model/job.h"
#include "coordinator/store/files/marked_root.h"
#include "coordinator/store/files/purges.h"
#include "coordinator/store/files/sweeper.h"
#include "coordinator/store/trace.h"
#include "coordinator/store/work.h"

typedef struct gs_file_root {
    const char *checkpoints_dir;  // of all jobs
    gs_trace *trace;              // told what was found; NULL: none
    gs_sweeper *sweeper;
    gs_marked_root *marked;  // NULL: it is there
} gs_file_root;

// All are of `job`, below its own directory there. UNAVAILABLE where `marked` is away: nothing is found missing there.

// Reads manifest and files of `item`; DATA_LOSS names the one that is not as reported. Copies both. `report` NULL: as the manifest
// says, which must be of the step and the state of `item`.
gs_work *gs_file_work_verify(const gs_file_root *root, const gs_job *job, const gs_checkpoint *item, const gs_checkpoint_report *report);
// Makes a checkpoint of a directory with all its parts; `found` is then what its manifest says.
// NOT_FOUND: a part is not there. DATA_LOSS: it will never be one of this job.
gs_work *gs_file_work_look_at_parts(const gs_file_root *root, const gs_job *job, const char *directory,
                                    bool all_reported);
// `names`: checkpoints of the job that it does not know.
gs_work *gs_file_work_find_directories(const gs_file_root *root, const gs_job *job, const char *cluster);
// `names`: checkpoints that the job has and that have no manifest any more.
gs_work *gs_file_work_check(const gs_file_root *root, const gs_job *job);
// `life`: whether the directory is still that generation's, and the number of its last sign of life. Raises the fence above
// it where that is asked and the number is still the same.
gs_work *gs_file_work_look_for_life(const gs_file_root *root, const gs_job *job, const char *cluster, const gs_life_look *life);
gs_work *gs_file_work_remove_checkpoint(const gs_file_root *root, const gs_job *job, const char *directory);
// Of a save that will never be one, unless a rank has made a checkpoint of it meanwhile.
gs_work *gs_file_work_remove_parts(const gs_file_root *root, const gs_job *job, const char *directory);
// What saves have left that nobody completes.
gs_work *gs_file_work_sweep(const gs_file_root *root, const gs_job *job);
// All of a job that has been deleted; until it is done it is owed. CANCELLED: it may not begin, or the process ends. What
// is not there is gone only beside the mark of this cluster (rpc/checkpoint/place_mark.h): else its disk may be away. UNAVAILABLE.
gs_work *gs_file_work_purge(const gs_file_root *root, gs_purges *purges, const char *cluster, uint64_t job);

#endif
