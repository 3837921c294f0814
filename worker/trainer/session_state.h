// What a session holds; for the files that are its parts alone: session.c, step_opening.c, step.c,
// evaluation.c. Compute thread.
#ifndef WORKER_TRAINER_SESSION_STATE_H
#define WORKER_TRAINER_SESSION_STATE_H

#include "core/clock.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/step/batch_sync.h"
#include "gradsync/step/join.h"
#include "gradsync/step/logical_shards.h"
#include "gradsync/tensor/arena.h"
#include "rpc/schema/job_spec.h"
#include "worker/checkpoint/save_team.h"
#include "worker/control/control.h"
#include "worker/data/data_loader.h"
#include "worker/pass/backward_update.h"
#include "worker/pass/embedding_rows.h"
#include "worker/pass/frozen_params.h"
#include "worker/pass/pass_context.h"
#include "worker/pass/pass_device.h"
#include "worker/pass/pass_runners.h"
#include "worker/pass/update_ahead.h"
#include "worker/state/hook_choice.h"
#include "worker/state/replica_average.h"
#include "worker/state/sharding.h"
#include "worker/state/trainer_state.h"
#include "worker/telemetry/link_watch.h"
#include "worker/trainer/order_reporter.h"
#include "worker/trainer/plan_switch.h"

typedef struct gs_session gs_session;

struct gs_session {
    // Borrowed until destroy.
    const gs_job_spec *spec;
    gs_trainer_state *state;
    gs_control *control;
    gs_progress *progress;  // the control's
    const char *data_root, *data_address;
    gs_model_replicas *model_replicas;  // NULL: one replica

    uint32_t generation;
    bool state_is_broken;
    gs_digest state_digest;
    bool plan_is_observed;  // made from an order that was observed
    gs_logical_shards shards;
    gs_logical_shards reducing;  // as the reducer counts them
    gs_reducer_op op;
    gs_job_hook_choice hook;
    gs_dtype wire_dtype;  // of the reducer's options
    bool joins_shards;  // a rank's shards run as one
    int passes_per_shard;
    gs_plan_switch plans;    // the one in use, and the next
    gs_order_reporter order;  // rank 0
    gs_link_watch link;       // empty within a host
    bool sees_no_checkpoints;
    gs_save_team save_team;   // since connect

    gs_data_loader *train, *evaluation;  // evaluation: NULL when the job has none
    gs_arena *arena;  // borrowed
    gs_comm *comm;
    gs_comm_failure unreached;
    gs_reducer *reducer;
    // Of the arena; behind the reducer's the rows of the embedding, and the parameters of a sharded state.
    size_t reducer_bytes, row_bytes;
    gs_embedding_rows *embedding_rows;  // NULL: gradients are dense
    gs_frozen_params *frozen;           // NULL: all train
    gs_join *join;                      // NULL: every rank has data in every step
    gs_replica_average *average;        // NULL: ranks do not train apart
    gs_sharding sharding;          // empty: every rank has the whole state
    gs_batch_sync *batch_sync;          // NULL: no statistics over ranks
    gs_pass_runners *pass_runners;      // NULL: one replica
    gs_backward_update *update;         // NULL: the optimizer steps behind the commit
    gs_update_ahead *ahead;             // NULL: updates wait for what the host makes of the norm
    gs_pass_device gpu;                 // empty on CPUs
    gs_pass_context passes;             // what they work with, of the above; since connect
    int64_t connect_begin_ns;
    double connect_seconds;

    bool active;  // this rank has data for the step in flight
    bool complete;
    bool updated;  // parameters and optimizer are behind the step in flight already: apply does the rest
    uint64_t params_digest;    // of the step in flight
    bool is_digesting;         // it has begun, and reads the parameters
    gs_reduce_result reduced;  // of the step in flight; used while complete
};

// How long a collective that is posted now may take.
static inline gs_deadline gs_session_collective_deadline(const gs_session *session) {
    return gs_deadline_in_seconds(session->spec->reducer.timeout_seconds);
}

#endif
