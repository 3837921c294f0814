// What each rank carries of its own from step to step, among what hooks carry: residuals that it has yet to add.
// The sum over ranks counts. A rank's tensors are its share.
//
// While a reducer lives its hooks hold them, in its arena, and ranks of a host see each other's, those of the
// dead too. Before and after it they lie in a share source: a checkpoint, or memory. When a generation begins its
// ranks deal out what there is (share_deal.h). Compute thread.
#ifndef WORKER_STATE_OWN_TENSORS_H
#define WORKER_STATE_OWN_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/reducer/reducer.h"
#include "worker/state/device_copy.h"
#include "worker/state/share_source.h"

#define GS_OWN_NAME_LEN (GS_PARAM_NAME_LEN + 32)

typedef struct gs_own_tensor {
    char name[GS_OWN_NAME_LEN];  // "hook/powersgd/error/fc1.weight"
    gs_dtype dtype;              // GS_FP32 or GS_FP64
    size_t count, bytes;
    size_t hook_index;  // of the reducer's (gs_reducer_hook_state)
} gs_own_tensor;

typedef struct gs_own_tensors {
    gs_own_tensor *tensors;  // owned; of the hooks of `reducer`
    size_t num_tensors, bytes;
    gs_reducer *reducer;  // borrowed; NULL: they are at rest
    gs_comm *comm;        // its
    bool is_dealt;        // hooks have what they are to have
    gs_share_source source;  // owned; at rest, or not dealt yet
} gs_own_tensors;  // {0} is empty

typedef struct gs_own_deal {
    int from_world, to_world;  // from_world 0: there were none of this step, and all begin with zeros
    int num_received;          // shares that came over the communicator
} gs_own_deal;

void gs_own_tensors_release(gs_own_tensors *own);
// Shares at rest, instead of those that were here; takes the source.
void gs_own_tensors_give(gs_own_tensors *own, const gs_share_source *source);

// Which ones the reducer's hooks have, zero as yet. Local. UNIMPLEMENTED: one that is not fp32 or fp64.
GS_NODISCARD gs_status gs_own_tensors_attach(gs_own_tensors *own, gs_reducer *reducer,
                                             gs_comm *comm);
// Collective, behind attach: every rank fills its tensors with the sum of the shares that it is dealt, those of
// `step`. ABORTED, on all ranks alike, names a rank of then whose share nobody has; INVALID_ARGUMENT a tensor
// that hooks have and shares have not.
GS_NODISCARD gs_status gs_own_tensors_deal(gs_own_deal *dealt, gs_own_tensors *own,
                                           gs_device_copy *copy, int64_t step,
                                           gs_deadline deadline);
// Tensor `index` of a rank's share into the host's memory, as it is behind `step` applied steps. UNAVAILABLE: it
// is of another rank, whose memory is not reached from here or does not hold it. Nobody takes a step meanwhile but
// the next one.
GS_NODISCARD gs_status gs_own_tensors_read(const gs_own_tensors *own, gs_device_copy *copy,
                                           size_t index, int rank, int64_t step, void *to);
// This rank's as it lies now; NULL: the host does not reach it.
void *gs_own_tensors_data(const gs_own_tensors *own, size_t index);
// Before the reducer and its communicator go: into the host's memory, with the shares of those that died here.
GS_NODISCARD gs_status gs_own_tensors_detach(gs_own_tensors *own, gs_device_copy *copy,
                                             int64_t step);

#endif
