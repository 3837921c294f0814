// The passes of a step on the replicas of a rank (replica_set.h): each runs the shards that it
// would have as a process of its own, with batches of its own, and marks its gradients in
// gradsync/replicas/replicas.h.
#ifndef WORKER_PASS_REPLICA_STEP_H
#define WORKER_PASS_REPLICA_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/replicas/replicas.h"
#include "worker/pass/pass_runner.h"
#include "worker/trainer/session.h"

typedef struct gs_replica_step gs_replica_step;

// *out stays NULL when the session's job has one replica for each process. Opens the data of the
// others.
GS_NODISCARD gs_status gs_replica_step_create(gs_replica_step **out, gs_session *session);
// Waits for the replicas' threads first.
void gs_replica_step_destroy(gs_replica_step *step);

// The shards whose batches replica 0 takes, of the session's.
gs_logical_shards gs_replica_step_shards(const gs_session *session);
// `whole`, or what the reducer of a rank with replicas is made from instead.
GS_NODISCARD gs_status gs_replica_step_reducer_options(gs_reducer_options *out,
                                                       const gs_reducer_options *whole,
                                                       const gs_session *session);
// Collective, behind the session's reducer.
GS_NODISCARD gs_status gs_replica_step_connect(gs_replica_step *step,
                                               const gs_reducer_options *whole,
                                               gs_deadline deadline);

// In place of gs_reducer_begin, and of running the passes.
GS_NODISCARD gs_status gs_replica_step_begin(gs_replica_step *step, int64_t number);
GS_NODISCARD gs_status gs_replica_step_run(gs_replica_step *step, gs_step_sums *sums,
                                           gs_step_facts *facts);

const size_t *gs_replica_step_ready_order(const gs_replica_step *step, size_t *num_ready);

#endif
