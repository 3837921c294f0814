// Who comes to a communicator with less than others gets it from them: parameters, optimizer state,
// buffers, position.
//
// Every rank says what it has: nothing but initial values, or the state of a step. The source is
// the lowest rank among those with the most advanced step, whatever its number; where nobody has
// anything, rank 0's initial values count. When all have the same, that is all: one small
// collective. Else whoever has less receives, in pieces of a few MiB, and what it then holds is
// compared with the source's digest.
//
// Not for a state of which each rank holds a part (sharded optimizers).
#ifndef GRADSYNC_STEP_STATE_SYNC_H
#define GRADSYNC_STEP_STATE_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/status.h"
#include "gradsync/comm/coalesce.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

// All that a rank's next step follows from. Counts and types are the same on all ranks, compared
// before anything moves. Borrowed for the call.
typedef struct gs_state_sync_options {
    // The same values on all ranks of one step: parameters (or both halves of their masters),
    // optimizer state and counts of updates, buffers, a hook's memory where it is common. On a GPU
    // its memory or the host's, each as it is.
    const gs_tensor_view *tensors;
    size_t num_tensors;
    // What each rank has of its own (local statistics): never compared; who receives starts from
    // the source's.
    const gs_tensor_view *own;
    size_t num_own;
    // Where the run is: counts, the loss scale, in plain bytes of the host without padding.
    void *position;
    size_t position_bytes;

    bool has_state;  // false: initial values; `step` is not looked at
    int64_t step;    // that were applied
    // The digest of tensors and position, by what makes the same of the same on all ranks. NULL: of
    // their bytes, in order. Called again after a state was received. {0} says that it could not be
    // made.
    gs_digest (*digest)(void *ctx);
    void *digest_ctx;
    gs_digest known;  // that of what is here now, where it is known already; {0}: it is made
} gs_state_sync_options;

typedef struct gs_state_sync_result {
    int source;
    int64_t step;       // of the source; 0: initial values
    bool has_state;     // the source had one
    bool received;      // what was here before is overwritten, after an error with no whole state
    int num_receivers;  // 0: all had the same
    size_t bytes;       // that each of them received
} gs_state_sync_result;

// Collective. FAILED_PRECONDITION names the ranks that hold another state of the source's step, and
// a rank with another list of tensors; nothing has moved then. DATA_LOSS names the ranks that hold
// something else than they were sent. `result` is filled in after an error, too. What follows from
// the tensors (16-bit values of masters) is the caller's to renew.
GS_NODISCARD gs_status gs_state_sync_sized(gs_state_sync_result *result,
                                           const gs_state_sync_options *options,
                                           size_t options_bytes, gs_comm *comm,
                                           gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_state_sync(gs_state_sync_result *result,
                                                   const gs_state_sync_options *options,
                                                   gs_comm *comm, gs_deadline deadline) {
    return gs_state_sync_sized(result, options, sizeof *options, comm, deadline);
}

GS_END_DECLS

#endif
