// A trainer's state in host memory, as it was at one step: what a checkpoint is written from. A
// copy of it, so that training goes on; or a view of the state itself, where nothing goes on. Of a
// sharded state it is what this rank saves (gs_trainer_state_saved).
#ifndef WORKER_STATE_STATE_SNAPSHOT_H
#define WORKER_STATE_STATE_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "worker/state/trainer_state.h"

// Of which ranks of a world.
typedef struct gs_share_range {
    int first, count, world_size;
} gs_share_range;

// Its digests are those of the state it was taken from, so that
// a thread that writes it may compute them.
typedef struct gs_state_snapshot {
    gs_state_tensor *tensors;  // owned; the state's list as it was, whatever becomes of that
    size_t num_tensors, num_params;
    // Behind them, of what each rank has of its own: of the shape (ranks, elements), of which the shares of some ranks
    // are here. In no digest.
    size_t num_own;
    gs_share_range shares;
    gs_segment *here;  // owned; of each tensor, which elements
    bool is_part;      // not all of them: digests were made when it was taken
    gs_digest digest, params_digest;
    uint8_t *memory;  // owned; what is here, one after the other, each on 64 bytes; NULL: a view
    uint8_t **data;   // owned, what it points at is not; where begins what is here of each tensor
    size_t bytes, params_bytes;
    gs_position position;
} gs_state_snapshot;

// Memory for snapshots of `state`; take copies, restore copies back but for shares. {0}: without them.
GS_NODISCARD gs_status gs_state_snapshot_init(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state,
                                              gs_share_range shares);
// No copy: the state itself, which must stay as it is until release. UNIMPLEMENTED where the host
// does not reach it as a checkpoint has it: on a GPU, with masters in halves, shares of several ranks.
GS_NODISCARD gs_status gs_state_snapshot_view(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state,
                                              gs_share_range shares);
void gs_state_snapshot_release(gs_state_snapshot *snapshot);
// Whether the state still has the tensors that this one has memory for, and these are the shares.
bool gs_state_snapshot_fits(const gs_state_snapshot *snapshot, const gs_trainer_state *state,
                            gs_share_range shares);
// UNAVAILABLE: a share that is another rank's is not reached from here.
GS_NODISCARD gs_status gs_state_snapshot_take(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state);
// Not of a sharded state.
GS_NODISCARD gs_status gs_state_snapshot_restore(const gs_state_snapshot *snapshot,
                                                 gs_trainer_state *state);
gs_digest gs_state_snapshot_digest(const gs_state_snapshot *snapshot);
gs_digest gs_state_snapshot_params_digest(const gs_state_snapshot *snapshot);

#endif
