// Who may write into a job's checkpoint directory: the newest set of ranks that has begun to train there. A set that
// was cut off, and does not know that another has taken its place, finds this file before its next checkpoint counts; and one
// that was suspended behind its look, however late, finds that what it was about to have count is gone (draft.h).
//
//   CHECKPOINTS/JOB/FENCE.json   cluster and generation, sealed and written atomically; `watched` by ranks whose agents look for
//                                it when they hear nobody; `closed` where a coordinator has put it above ranks that it gave
//                                up, and no rank of that generation has been there
#ifndef RPC_CHECKPOINT_FENCE_H
#define RPC_CHECKPOINT_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/directory.h"
#include "core/status.h"
#include "rpc/json/json.h"

#define GS_CLUSTER_ID_LEN 24

typedef struct gs_fence {
    const char *cluster;  // "": not known, of ranks of an earlier version
    uint32_t generation;  // 0: the same
} gs_fence;

typedef struct gs_fenced_file {
    uint64_t bytes;
    gs_digest digest;  // of the whole file
} gs_fenced_file;

// The same ranks, both known.
bool gs_fence_is(const gs_fence *a, const gs_fence *b);

// What a manifest or a part's record says of who wrote it. Borrows.
gs_fence gs_fence_of(const gs_json *manifest);

// From now on the directory belongs to these ranks: generations before theirs, and those of another cluster, are
// refused, and nothing of theirs counts any more once this has returned. The directory must be there. FAILED_PRECONDITION: it
// belongs to a later one.
GS_NODISCARD gs_status gs_fence_raise(const char *directory, const gs_fence *mine);
// A coordinator's own, above these ranks. Whoever comes next raises its own.
GS_NODISCARD gs_status gs_fence_close(const char *directory, const gs_fence *theirs);
// FAILED_PRECONDITION when the directory belongs to others. Whoever is not known passes, and where there is no fence.
GS_NODISCARD gs_status gs_fence_check(const char *directory, const gs_fence *mine);
// The same in a job's directory that is open: what is looked at, and what is written after it, is one and the same directory's.
GS_NODISCARD gs_status gs_fence_raise_in(const gs_directory *job, const gs_fence *mine);
GS_NODISCARD gs_status gs_fence_check_in(const gs_directory *job, const gs_fence *mine);
GS_NODISCARD gs_status gs_fence_stands_in(bool *stands, const gs_directory *job, const gs_fence *mine);
// Writes at `place`, on the same disk, a sealed file (rpc/json/sealed_json.h) of these ranks, unless the directory belongs to others
// at the very moment from which on it counts: then FAILED_PRECONDITION, and nothing is left. `object` is taken.
GS_NODISCARD gs_status gs_fence_publish(gs_json *object, gs_file_place place, const gs_directory *job, const gs_fence *mine,
                                        gs_fenced_file *file);
// What somebody has begun who put up the fence that stands, and ended before all was done.
GS_NODISCARD gs_status gs_fence_finish(const char *directory);
// Whether it is these ranks, and no others, that have raised the last one, and it is watched.
GS_NODISCARD gs_status gs_fence_stands(bool *stands, const char *directory, const gs_fence *mine);
// The newest generation of the cluster that is known to have been there; 0: none, or another cluster's is the last.
GS_NODISCARD gs_status gs_fence_last(uint32_t *generation, const char *directory, const char *cluster);
// Whether it is closed to them, for a later generation of the same cluster.
GS_NODISCARD gs_status gs_fence_is_above(bool *is_above, const char *directory, const gs_fence *theirs);

#endif
