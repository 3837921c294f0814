// A trainer's state from the rank that has it to those that do not, when a generation begins.
#ifndef WORKER_STATE_STATE_TRANSFER_H
#define WORKER_STATE_STATE_TRANSFER_H

#include <stdbool.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/step/state_sync.h"
#include "worker/state/trainer_state.h"

// Collective: afterwards all ranks have the state of the most advanced one, position included; of
// their own buffers too, who received it.
//   has_state  false: what is here is what the model was made with, or the rest of a broken state
//   digest     gs_trainer_state_digest of now; {0}: not known
// Of a sharded state the source reads for the others what it was filled from itself, and each takes what it is to hold.
// After an error with result->received this rank has no state any more.
GS_NODISCARD gs_status gs_state_transfer_run(gs_state_sync_result *result, gs_trainer_state *state,
                                             bool has_state, gs_digest digest, gs_comm *comm,
                                             gs_deadline deadline);

#endif
