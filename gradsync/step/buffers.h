// What a pass changes beside gradients (BatchNorm statistics and the like): written beside the old
// values, adopted when the step commits, so that a redone step starts from what the first attempt
// saw.
//
// Policy `broadcast` (PyTorch's default): before the first pass of a step all ranks take the
// source's values; nothing travels when all have the same since the last step's share. `average`:
// after the last pass floats become their mean over the ranks that had data, integers the source's.
// `local`: each rank keeps its own. The source is rank 0; with uneven inputs the highest rank that
// has data. In exact mode each shard starts from the committed values and shard 0's result is
// adopted.
//
// On a GPU values are its memory: whoever fills, saves or compares them uploads and downloads, and a hook's
// collectives are on device memory. Copies are enqueued on the compute stream.
//
// Nothing that a pass reads is overwritten while its backward may be pending: values change banks.
// What a pass was given stays as it was until two more passes have begun, or the step commits.
//
// Threads: one at a time, that of the device and, where a communicator is handed in, of that; create and destroy too.
#ifndef GRADSYNC_STEP_BUFFERS_H
#define GRADSYNC_STEP_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/param_spec.h"
#include "gradsync/comm/comm.h"
#include "gradsync/step/join.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_buffers gs_buffers;

typedef enum gs_buffers_policy {
    GS_BUFFERS_BROADCAST = 0,
    GS_BUFFERS_LOCAL,
    GS_BUFFERS_AVERAGE
} gs_buffers_policy;

// Zeroed committed values. Exact mode does not average.
GS_NODISCARD gs_status gs_buffers_create(gs_buffers **out, const gs_param_spec *specs,
                                         size_t num_buffers, gs_buffers_policy policy, bool exact,
                                         gs_device *device);
void gs_buffers_destroy(gs_buffers *buffers);

// A collective of the user's own in place of the policy's: on the values that the passes of a step
// will read, or on those that they have left and the step will adopt. Called on every rank in every
// step, also where there was no data. What is committed does not change before the step does.
typedef struct gs_buffers_hook {
    gs_status (*run)(void *ctx, void *const *values, const gs_param_spec *specs, size_t num_buffers,
                     const gs_join_round *round, gs_comm *comm, gs_deadline deadline);
    void *ctx;
    bool before_forward;
} gs_buffers_hook;
// Copied; NULL: none. Between steps, on all ranks alike.
void gs_buffers_set_hook(gs_buffers *buffers, const gs_buffers_hook *hook);

// To fill at start, to save, to evaluate. Who fills them later does it on all ranks alike.
void *const *gs_buffers_committed(const gs_buffers *buffers);
// Before the first pass of a step: the policy's collective. Also discards what an undone step left.
GS_NODISCARD gs_status gs_buffers_begin(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline);
// The same for a step in which some ranks have no data; their share goes with it.
GS_NODISCARD gs_status gs_buffers_begin_uneven(gs_buffers *buffers, const gs_join_round *round,
                                               gs_comm *comm, gs_deadline deadline);
// For one pass: what it reads and what it writes. `first_of_shard`: exact mode starts anew from the
// committed values there.
void gs_buffers_pass(gs_buffers *buffers, int shard, bool first_of_shard, const void *const **read,
                     void *const **write);
void gs_buffers_end_pass(gs_buffers *buffers);  // what was written is what the next pass reads
// After the last pass, before the commit: every rank takes what the source's passes wrote (exact
// mode: shard 0's), or the average, so that adopt stores the same everywhere and the source may
// die. Collective; what is committed does not change.
GS_NODISCARD gs_status gs_buffers_share(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline);
// The step committed. Without a share each rank keeps its own values (exact: the owner of shard 0
// alone has new ones), and the next begin brings the source's.
void gs_buffers_adopt(gs_buffers *buffers);

GS_END_DECLS

#endif
