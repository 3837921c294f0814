// The commit collective: one small sum over ranks after the last bucket, and from there the step counts.
//
// It replaces the commit vote, the check that ranks have not drifted apart, and the agreement to drain.
// Everything that decides *how* the update is done lies in the reduced buckets; this vector only
// cross-checks it and decides *that* it is done. 32 64-bit integers, exact in any order.
#ifndef GRADSYNC_STEP_COMMIT_H
#define GRADSYNC_STEP_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

typedef struct gs_commit_vote {
    int64_t step;
    uint32_t generation;
    uint64_t plan_digest;    // folded
    uint64_t next_plan_digest;  // folded, of the plan that waits here to replace it; 0: none
    uint64_t params_digest;  // folded, of the parameters before this step; 0: not checked now
    bool nonfinite, wants_drain, wants_checkpoint, failed;
    bool is_saving;  // this rank's part of the last checkpoint is still being written
    bool wants_save;   // the time for a checkpoint has come
    bool is_orphaned;  // whoever directs this rank has been away for too long
    double loss_sum;  // over this rank's micro-batches, each loss once; summed in fixed point
    int64_t num_losses, samples;
} gs_commit_vote;

typedef struct gs_commit_result {
    int nonfinite_ranks, drain_ranks, checkpoint_ranks, failed_ranks, saving_ranks, save_ranks;
    double loss;  // mean over all micro-batches of all ranks; NaN when any was not finite
    int64_t samples;
    bool switches_plan;  // all ranks hold the same plan that waits: it replaces the old one before the next step
    bool all_orphaned;   // every rank says so: those who are heard speak for the others
    bool params_differ;  // the digests of the parameters are not all equal: replicas diverged
} gs_commit_result;

// FAILED_PRECONDITION when step, generation or plan differ between ranks; then nothing is committed.
GS_NODISCARD gs_status gs_commit_run(gs_commit_result *result, gs_comm *comm,
                                     const gs_commit_vote *vote, gs_deadline deadline);

GS_END_DECLS

#endif
