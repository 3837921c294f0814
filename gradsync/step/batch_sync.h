// Statistics of a batch that lies on several ranks: synchronised batch norm, forward and backward.
//
// One small all-gather for each, folded in rank order: means and squared distances by Chan's
// formula (never as E[x²] − E[x]²), sums as sums. All ranks compute from the same bytes and get the
// same bits. Ranks may differ in rows; one without any contributes nothing. Not here: the
// normalisation.
//
// These collectives lie between those of the reducer's buckets. All ranks post them in one order,
// whatever the timing, when their passes mark gradients in the same order and every bucket is
// posted as soon as it is ready: with plans of which the reducer posts all (gs_reducer_posts_all).
//
// Threads: one at a time, as the communicator's (comm.h); create and destroy are such calls too.
//
// Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance".
#ifndef GRADSYNC_STEP_BATCH_SYNC_H
#define GRADSYNC_STEP_BATCH_SYNC_H

#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/step/model.h"

GS_BEGIN_DECLS

// Memory for `max_channels`, made once: a pass allocates nothing.
typedef struct gs_batch_sync gs_batch_sync;

GS_NODISCARD gs_status gs_batch_sync_create(gs_batch_sync **out, gs_comm *comm, size_t max_channels,
                                            double timeout_seconds);  // borrows comm until destroy
void gs_batch_sync_destroy(gs_batch_sync *sync);

// For gs_model_pass.sync, in the passes of this step; all ranks run equally many passes. Valid
// until destroy.
const gs_model_sync *gs_batch_sync_at(gs_batch_sync *sync, int64_t step);

GS_END_DECLS

#endif
