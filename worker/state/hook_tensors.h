// What communication hooks carry from step to step, among the tensors of a trainer's state: "hook/…", behind all
// others.
//
// While a reducer lives its hooks hold them, in its arena, and the state's list says where; before and after
// it the state does, in the host's memory. So checkpoints, snapshots and digests are the same walks as ever. What
// each rank has of its own is apart from them (own_tensors.h). Compute thread.
#ifndef WORKER_STATE_HOOK_TENSORS_H
#define WORKER_STATE_HOOK_TENSORS_H

#include "core/status.h"
#include "gradsync/reducer/reducer.h"
#include "worker/state/trainer_state.h"

#define GS_HOOK_TENSOR_PREFIX "hook/"

// One that a checkpoint has: room for it at the end of the list, zero.
GS_NODISCARD gs_status gs_hook_tensors_add(gs_trainer_state *state, const gs_state_tensor *tensor);
// What was added goes, as long as no reducer has it.
void gs_hook_tensors_forget(gs_trainer_state *state);
// The reducer's hooks take over: what is at rest here goes into them, nothing at all is zero there as well. Local:
// ranks compare it with the rest of their state (state_transfer.h). INVALID_ARGUMENT names a tensor that is here
// and none of theirs, or the other way round. What is each rank's own is dealt afterwards, once ranks have the same
// state.
GS_NODISCARD gs_status gs_hook_tensors_attach(gs_trainer_state *state, gs_reducer *reducer,
                                              gs_comm *comm);
// After each commit: the state that holds has moved.
void gs_hook_tensors_follow(gs_trainer_state *state, gs_reducer *reducer);
// Before the reducer goes: back into the host's memory. After an error the tensors are gone from the list.
GS_NODISCARD gs_status gs_hook_tensors_detach(gs_trainer_state *state);

#endif
