// Norms of gradients that lie in pieces, each on the rank that owns it; clipping by them; and
// whether any is not finite.
//
// The 2-norm of a reducer's gradients is in its result already, and so is whether they are finite
// (gs_reduce_result). This is for other norms, for gradients of a caller's own, and for norms over
// more ranks than those that share them: the communicator may be any, such as one of all ranks of a
// model that is cut among groups. Then `counts` leaves out what several groups hold, so that it
// counts once.
//
// Every rank of the communicator takes part, whatever it owns, and if that is nothing. Nothing is
// kept from call to call.
#ifndef GRADSYNC_SHARDED_SHARD_NORM_H
#define GRADSYNC_SHARDED_SHARD_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/segment.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

// What this rank owns. Borrowed for the call.
typedef struct gs_shard_grads {
    const gs_segment *segments;  // gs_shards_of_rank
    size_t num_segments;
    void *const *grads;  // fp32, where each segment begins; NULL in it: that one has no gradient
    const bool *counts;  // of each parameter: whether it is in the norm; NULL: all are
    gs_device *device;   // whose memory it is
} gs_shard_grads;

// The p-norm of all ranks' gradients together, p > 0; the largest magnitude when p is INFINITY.
// Infinite or NaN elements make it so. 0 when nobody has any. Collective; the same bits on every
// rank.
GS_NODISCARD gs_status gs_shard_norm(double *norm, const gs_shard_grads *own, double p,
                                     gs_comm *comm, gs_deadline deadline);
// The same, and brings gradients of a greater norm to `max_norm`: all that are owned here, in the
// norm or not, times max_norm / (norm + 1e-6). Where the norm is not finite they stay what they
// are: no factor saves them.
GS_NODISCARD gs_status gs_shard_clip(double *norm, const gs_shard_grads *own, double p,
                                     double max_norm, gs_comm *comm, gs_deadline deadline);
// Whether any rank owns an element that is infinite or NaN, whatever `counts` says: what a loss
// scale has to know. Collective; the same on every rank.
GS_NODISCARD gs_status gs_shard_nonfinite(bool *nonfinite, const gs_shard_grads *own, gs_comm *comm,
                                          gs_deadline deadline);

GS_END_DECLS

#endif
