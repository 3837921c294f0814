// One generation of the world: communicator, reducer, batches. What is done in it: step.h,
// step_opening.h, evaluation.h. The state outlives sessions. Compute thread.
#ifndef WORKER_TRAINER_SESSION_H
#define WORKER_TRAINER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/control/control.h"
#include "worker/control/rendezvous.h"
#include "worker/pass/model_replicas.h"
#include "worker/state/trainer_state.h"

typedef struct gs_session gs_session;

typedef struct gs_session_options {
    const gs_job_spec *spec;  // borrows until destroy
    gs_trainer_state *state;  // borrows until destroy
    gs_control *control;      // borrows until destroy
    const char *data_root;    // borrows until destroy
    gs_place place;
    int num_shards;
    const gs_bucket_plan *plan;   // copied
    gs_model_replicas *model_replicas;  // borrows until destroy; NULL: one replica
    bool plan_is_observed;        // made from an order that was observed
} gs_session_options;

// Local: checks the plan against the model, backs the gradients' memory, opens the data.
GS_NODISCARD gs_status gs_session_create(gs_session **out, const gs_session_options *options);
void gs_session_destroy(gs_session *session);

// Collective: communicator, rank 0's parameters and buffers to all, reducer.
GS_NODISCARD gs_status gs_session_connect(gs_session *session, gs_deadline deadline);
gs_comm *gs_session_comm(const gs_session *session);  // NULL before it is connected
const char *gs_session_backend(const gs_session *session);
const char *gs_session_backend_reason(const gs_session *session);
const char *gs_session_algorithm(const gs_session *session);  // of the largest bucket
double gs_session_connect_seconds(const gs_session *session);
int gs_session_rank(const gs_session *session);
int gs_session_world_size(const gs_session *session);
uint32_t gs_session_generation(const gs_session *session);
bool gs_session_writes_files(const gs_session *session);  // rank 0 does, for all

// Ends every wait in the communicator, here and elsewhere.
void gs_session_abort(gs_session *session, const char *reason);

#endif
