// One generation of the world: communicator, reducer, batches. What is done in it: step.h,
// step_opening.h, evaluation.h. State and memory outlive sessions, of which a process may have one after the
// other. Compute thread.
#ifndef WORKER_TRAINER_SESSION_H
#define WORKER_TRAINER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/checkpoint/save_team.h"
#include "worker/control/control.h"
#include "worker/control/rendezvous.h"
#include "worker/pass/model_replicas.h"
#include "worker/state/grad_memory.h"
#include "worker/state/trainer_state.h"

typedef struct gs_session gs_session;

typedef struct gs_session_options {
    const gs_job_spec *spec;  // borrows until destroy
    gs_trainer_state *state;  // borrows until destroy
    bool state_is_broken;     // it has to be another rank's
    gs_grad_memory *memory;   // borrows until destroy
    gs_control *control;      // borrows until destroy
    const char *data_root;    // borrows until destroy
    const char *data_address;  // as gs_comm_options; borrows until destroy
    bool sees_no_checkpoints;  // the directory here is not the coordinator's
    gs_place place;
    int num_shards;
    const gs_bucket_plan *plan;   // copied
    gs_model_replicas *model_replicas;  // borrows until destroy; NULL: one replica
    bool plan_is_observed;        // made from an order that was observed
} gs_session_options;

// Local: checks the plan against the model, backs the gradients' memory, opens the data. From here on aborts
// of earlier generations mean nothing.
GS_NODISCARD gs_status gs_session_create(gs_session **out, const gs_session_options *options);
void gs_session_destroy(gs_session *session);

// Collective: communicator, the state of the most advanced rank to all, reducer.
GS_NODISCARD gs_status gs_session_connect(gs_session *session, gs_deadline deadline);
// Of the state that the session began with: the rank's own, once connected the one of all.
gs_digest gs_session_state_digest(const gs_session *session);
bool gs_session_state_is_broken(const gs_session *session);  // an update, or a transfer, failed half-way
gs_comm *gs_session_comm(const gs_session *session);  // NULL before it is connected
const gs_comm_failure *gs_session_unreached(const gs_session *session);  // who did not reach whom when it was not to be
const gs_save_team *gs_session_save_team(const gs_session *session);  // once connected
const char *gs_session_backend(const gs_session *session);
const char *gs_session_backend_reason(const gs_session *session);
const char *gs_session_algorithm(const gs_session *session);  // of the largest bucket
double gs_session_connect_seconds(const gs_session *session);
double gs_session_seconds_since_connecting(const gs_session *session);  // since that began
int gs_session_rank(const gs_session *session);
int gs_session_world_size(const gs_session *session);
uint32_t gs_session_generation(const gs_session *session);
gs_place gs_session_place(const gs_session *session);  // all three
bool gs_session_writes_files(const gs_session *session);  // rank 0 does, for all

// Ends every wait in the communicator, here and elsewhere.
void gs_session_abort(gs_session *session, const char *reason);
// Leaves the communicator and waits until nobody writes into this rank's memory any more, so that a next
// session may use it. DEADLINE_EXCEEDED names who still may.
GS_NODISCARD gs_status gs_session_wait_ended(gs_session *session, gs_deadline deadline);

#endif
