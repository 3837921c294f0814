// What a pass changes beside gradients (BatchNorm statistics and the like): written beside the old
// values, adopted when the step commits, so that a redone step starts from what the first attempt saw.
//
// Policy `broadcast` (PyTorch's default): before the first pass of a step all ranks take rank 0's
// values. In exact mode each shard starts from the committed values and shard 0's result is adopted.
#ifndef GRADSYNC_BUFFERS_H
#define GRADSYNC_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/digest.h"
#include "core/param_spec.h"
#include "gradsync/comm.h"
#include "kernels/device.h"

typedef struct gs_buffers gs_buffers;

typedef enum gs_buffers_policy { GS_BUFFERS_BROADCAST = 0, GS_BUFFERS_LOCAL } gs_buffers_policy;

// Zeroed committed values.
GS_NODISCARD gs_status gs_buffers_create(gs_buffers **out, const gs_param_spec *specs,
                                         size_t num_buffers, gs_buffers_policy policy, bool exact,
                                         gs_device *device);
void gs_buffers_destroy(gs_buffers *buffers);

void *const *gs_buffers_committed(const gs_buffers *buffers);  // to fill at start, to save, to evaluate
// Before the first pass of a step: the policy's collective. Also discards what an undone step left.
GS_NODISCARD gs_status gs_buffers_begin(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline);
// For one pass: what it reads and what it writes. `first_of_shard`: exact mode starts anew from the
// committed values there.
void gs_buffers_pass(gs_buffers *buffers, int shard, bool first_of_shard,
                     const void *const **read, void *const **write);
void gs_buffers_end_pass(gs_buffers *buffers);  // what was written is what the next pass reads
// After the last pass, before the commit (policy broadcast): every rank takes what rank 0's passes
// wrote (exact mode: shard 0's), so that adopt stores the same everywhere and rank 0 may die.
// Collective; what is committed does not change.
GS_NODISCARD gs_status gs_buffers_share(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline);
// The step committed. Without a share each rank keeps its own values (exact: the owner of shard 0
// alone has new ones), and the next begin brings rank 0's.
void gs_buffers_adopt(gs_buffers *buffers);
gs_digest gs_buffers_digest(const gs_buffers *buffers);

#endif
