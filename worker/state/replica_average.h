// Ranks that train apart (reducer.hook local_sgd, noop): what changes on each of them by itself,
// and the averages that make one state of them again. Of the parameters where a period is over; of
// parameters and optimizer state before anything is saved. Averages over groups bring neighbours
// together and leave the groups apart.
//
// How far apart ranks are stands in the trainer's state, on all of them alike
// (gs_trainer_state_is_apart): what is apart is no state of the job, and is neither saved nor given
// to others.
//
// Threads: the compute thread; nothing else is in flight in the communicator during the calls.
#ifndef WORKER_STATE_REPLICA_AVERAGE_H
#define WORKER_STATE_REPLICA_AVERAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "rpc/schema/job_hook.h"
#include "worker/state/trainer_state.h"

typedef struct gs_replica_average gs_replica_average;

// Collective. *out NULL: with this hook all ranks have the same results. Borrows state and comm
// until destroy. UNIMPLEMENTED: with masters in halves.
GS_NODISCARD gs_status gs_replica_average_create(gs_replica_average **out, const gs_job_hook *hook,
                                                 gs_trainer_state *state, gs_comm *comm,
                                                 gs_deadline deadline);
void gs_replica_average_destroy(gs_replica_average *average);

// The optimizer has applied an update from results of this rank's own; `used` by parameter, the same
// on all ranks. What did not move is in no average: the mean of equal values may have other last bits.
void gs_replica_average_note(gs_replica_average *average, const uint8_t *used);
// Behind the update of `step`, on all ranks: the parameters where they are due, or all that is
// apart. What is not apart keeps its bits. After an error ranks stay apart.
GS_NODISCARD gs_status gs_replica_average_run(gs_replica_average *average, int64_t step,
                                              gs_deadline deadline);
GS_NODISCARD gs_status gs_replica_average_run_whole(gs_replica_average *average, int64_t step,
                                                    gs_deadline deadline);

#endif
