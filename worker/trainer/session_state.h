// What a session holds; for the files that are its parts alone: session.c, step_opening.c, step.c,
// pass_runner.c, pass_device.c, replica_step.c, plan_switch.c, evaluation.c. Compute thread.
#ifndef WORKER_TRAINER_SESSION_STATE_H
#define WORKER_TRAINER_SESSION_STATE_H

#include "core/clock.h"
#include "core/log.h"
#include "gradsync/reducer/order_watch.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/step/batch_sync.h"
#include "gradsync/step/join.h"
#include "gradsync/step/logical_shards.h"
#include "gradsync/tensor/arena.h"
#include "worker/data/data_loader.h"
#include "worker/pass/embedding_rows.h"
#include "worker/pass/pass_device.h"
#include "worker/pass/replica_step.h"
#include "worker/trainer/session.h"

// A batch that is not there after this long is a broken disk.
#define GS_DATA_TIMEOUT_SECONDS 120.0

struct gs_session {
    gs_session_options options;
    gs_bucket_plan plan;
    gs_logical_shards shards;
    gs_logical_shards reducing;  // as the reducer counts them
    gs_reducer_op op;
    bool joins_shards;  // a rank's shards run as one
    int passes_per_shard;
    uint64_t plan_digest;

    gs_data_loader *train, *evaluation;  // evaluation: NULL when the job has none
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    size_t reducer_bytes;               // of the arena; behind them the rows of the embedding
    gs_embedding_rows *embedding_rows;  // NULL: gradients are dense
    gs_join *join;                      // NULL: every rank has data in every step
    gs_batch_sync *batch_sync;          // NULL: no statistics over ranks
    gs_replica_step *replica_step;      // NULL: one replica
    gs_pass_device gpu;                 // empty on CPUs
    double connect_seconds;

    bool active;  // this rank has data for the step in flight
    bool complete;
    uint64_t params_digest;    // of the step in flight
    gs_reduce_result reduced;  // of the step in flight; used while complete

    gs_plan_offer next_plan;  // waits until all ranks have it; digest 0: none
    bool switches_plan;       // they have: before the next step
    gs_order_watch watch;     // rank 0
    uint64_t watched_passes;  // of the reducer
};

static inline double gs_seconds_since(int64_t begin_ns) {
    return (double)(gs_now_ns() - begin_ns) / (double)GS_NS_PER_SEC;
}

// A phase of the step that began at begin_ns and ends now: into the timeline. Returns its seconds.
static inline double gs_session_note_phase(const gs_session *session, gs_span_kind kind,
                                           int64_t begin_ns) {
    gs_timeline_add(session->options.control->timeline, kind, begin_ns);
    return gs_seconds_since(begin_ns);
}

// The timeline from here on: steps of the plan in use. Without memory it shows fewer buckets.
static inline void gs_session_prepare_timeline(const gs_session *session, int plan_revision) {
    gs_status status =
        gs_timeline_prepare(session->options.control->timeline,
                            &(gs_timeline_plan){.generation = session->options.generation,
                                                .revision = plan_revision,
                                                .digest = session->plan_digest,
                                                .num_buckets = session->plan.num_buckets});
    if (status.code) gs_log_warn("timeline is cut", "reason=\"%s\"", status.message);
}

// How long a collective that is posted now may take.
static inline gs_deadline gs_session_collective_deadline(const gs_session *session) {
    return gs_deadline_in_seconds(session->options.spec->reducer.timeout_seconds);
}

// Losses that one pass stands for.
static inline int gs_session_losses_per_pass(const gs_session *session) {
    return session->joins_shards ? gs_logical_shards_count(&session->shards) : 1;
}

// step_opening.c: before the communicator, behind it, at destroy; and first in a step.
void gs_session_deal_shards(gs_session *session);
GS_NODISCARD gs_status gs_session_prepare_inputs(gs_session *session);
void gs_session_release_inputs(gs_session *session);
GS_NODISCARD gs_status gs_session_open_step(gs_session *session, gs_step_facts *facts);

#endif
