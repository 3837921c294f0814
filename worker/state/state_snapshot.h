// A copy of a trainer's state in host memory: what a checkpoint is written from while training goes on,
// and what an undone step is taken back to.
#ifndef WORKER_STATE_STATE_SNAPSHOT_H
#define WORKER_STATE_STATE_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "worker/state/trainer_state.h"

// Its digests are those of the state it was taken from, so that
// a thread that writes it may compute them.
typedef struct gs_state_snapshot {
    const gs_state_tensor *tensors;  // borrowed from the state
    size_t num_tensors, num_params;
    uint8_t *memory;  // owned; tensors one after the other, each on 64 bytes
    size_t *offsets;  // owned; num_tensors of them
    size_t bytes, params_bytes;
    gs_position position;
} gs_state_snapshot;

// Memory for snapshots of `state`; take copies, restore copies back.
GS_NODISCARD gs_status gs_state_snapshot_init(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state);
void gs_state_snapshot_release(gs_state_snapshot *snapshot);
GS_NODISCARD gs_status gs_state_snapshot_take(gs_state_snapshot *snapshot,
                                              const gs_trainer_state *state);
GS_NODISCARD gs_status gs_state_snapshot_restore(const gs_state_snapshot *snapshot,
                                                 gs_trainer_state *state);
gs_digest gs_state_snapshot_digest(const gs_state_snapshot *snapshot);
gs_digest gs_state_snapshot_params_digest(const gs_state_snapshot *snapshot);

#endif
