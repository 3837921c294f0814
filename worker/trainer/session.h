// One generation of the world: communicator, reducer, batches; and the step as a transaction in it.
//
// run_step leaves parameters, optimizer, buffers and position untouched whatever happens: it computes and
// reduces gradients, writes buffers beside, and lets all ranks commit. apply then does the update, from
// reduced buckets alone. After an abort apply still works when the step is complete here (rule F2).
// The state outlives sessions.
#ifndef WORKER_TRAINER_SESSION_H
#define WORKER_TRAINER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/status.h"
#include "gradsync/bucket/reduce_stats.h"
#include "rpc/schema/job_spec.h"
#include "worker/control/control.h"
#include "worker/pass/replica_set.h"
#include "worker/state/trainer_state.h"

typedef struct gs_session gs_session;

typedef struct gs_session_options {
    const gs_job_spec *spec;      // borrows until destroy
    gs_trainer_state *state;      // borrows until destroy
    gs_control *control;          // borrows until destroy
    const char *data_root;        // borrows until destroy
    uint32_t generation;
    int rank, world_size, num_shards;
    const gs_bucket_plan *plan;   // copied
    gs_replica_set *replica_set;  // borrows until destroy; NULL: one replica
    bool plan_is_observed;        // made from an order that was observed
} gs_session_options;

// Local: checks the plan against the model, backs the gradients' memory, opens the data.
GS_NODISCARD gs_status gs_session_create(gs_session **out, const gs_session_options *options);
void gs_session_destroy(gs_session *session);

// Collective: communicator, rank 0's parameters and buffers to all, reducer.
GS_NODISCARD gs_status gs_session_connect(gs_session *session, gs_deadline deadline);
const char *gs_session_backend(const gs_session *session);
const char *gs_session_backend_reason(const gs_session *session);
const char *gs_session_algorithm(const gs_session *session);  // of the largest bucket
double gs_session_connect_seconds(const gs_session *session);
int gs_session_rank(const gs_session *session);
int gs_session_world_size(const gs_session *session);
uint32_t gs_session_generation(const gs_session *session);
bool gs_session_writes_files(const gs_session *session);  // rank 0 does, for all

typedef struct gs_step_votes {
    bool drain, checkpoint;
} gs_step_votes;

// Seconds of one step, by phase.
typedef struct gs_step_phases {
    double data, forward, backward, comm_exposed, optimizer, checkpoint;
} gs_step_phases;

typedef struct gs_step_facts {
    int64_t step;            // its number, from 0
    double loss;             // mean over all micro-batches of all ranks
    double grad_norm, lr;    // of the gradients without the loss scale
    double loss_scale;       // of this step; 0: precision is not fp16
    int64_t samples, positions;  // of the global batch; of a sample
    int nonfinite_ranks;     // > 0: no update
    bool has_shadows;        // ranks without data took part
    bool drain, checkpoint;  // agreed by all ranks
    bool inputs_ended;       // with OUT_OF_RANGE: a rank has no data left and the job stops then
    bool diverged;           // with the error: parameters were not the same on all ranks
    gs_step_phases phases;
    int plan_revision;           // that began with this step; 0: it was in use before
    double switch_seconds;       // that it took
    double opening_seconds;        // in what ranks agree on before they compute: waiting for the last one
    const gs_reduce_stats *stats;  // until the next step
    uint64_t row_wire_bytes;       // of the embedding's rows, which travel beside the buckets
    bool could_be_static;          // this rank used the same parameters in all steps so far
} gs_step_facts;

// Computes, reduces, commits. Ok: all ranks have committed, and each must apply now.
// Any error ends the session: nothing of this step was applied here.
GS_NODISCARD gs_status gs_session_run_step(gs_session *session, gs_step_facts *facts,
                                           const gs_step_votes *votes);
// The step in flight is reduced to the last bucket and not applied yet.
bool gs_session_complete(const gs_session *session);
// Adopts buffers, clips, updates, advances the position. Only after run_step, or when complete.
GS_NODISCARD gs_status gs_session_apply(gs_session *session, gs_step_facts *facts);

// Collective, after apply: where an epoch of uneven parts ends, ranks that share no buffers (buffers none)
// meet: they take those of the last rank that had data. Elsewhere nothing happens.
GS_NODISCARD gs_status gs_session_finish_epoch(gs_session *session);

typedef struct gs_evaluation {
    int64_t step, batches;
    double loss, accuracy;
    bool has_accuracy;
} gs_evaluation;

bool gs_session_can_evaluate(const gs_session *session);
// Collective: the mean over all ranks' evaluation batches; the same bits for every world size.
GS_NODISCARD gs_status gs_session_evaluate(gs_session *session, gs_evaluation *evaluation);

// Ends every wait in the communicator, here and elsewhere.
void gs_session_abort(gs_session *session, const char *reason);

#endif
