#include "worker/trainer/step_opening.h"

#include <stdlib.h>

#include "gradsync/reducer/bucket_queue.h"
#include "worker/trainer/session_state.h"

// Statistics travel between the buckets of a step: at the same place on all ranks, as no bucket
// waits for room. A hidden layer has a weight, a bias and the norm's two.
_Static_assert(4 * GS_SPEC_MAX_DIMS <= GS_MAX_BUCKETS_IN_FLIGHT, "every parameter may be a bucket");

static bool syncs_batch_norm(const gs_job_spec *spec) {
    return spec->model.kind == GS_MODEL_MLP && spec->model.mlp.batch_norm == GS_BATCH_NORM_SYNC;
}

void gs_session_deal_shards(gs_session *session) {
    session->reducing = session->shards;
    static const gs_reducer_op ops[] = {[GS_REDUCER_MEAN] = GS_MEAN,
                                        [GS_REDUCER_SUM] = GS_SUM,
                                        [GS_REDUCER_SAMPLE_MEAN] = GS_SAMPLE_MEAN};
    session->op = ops[session->spec->reducer.op];
    session->joins_shards = syncs_batch_norm(session->spec);
    if (!session->joins_shards) return;
    // One shard each; as ranks may own different numbers of logical shards, samples weigh.
    session->reducing.num_shards = session->shards.world_size;
    session->op = GS_SAMPLE_MEAN;
}

gs_status gs_session_prepare_inputs(gs_session *session) {
    const gs_job_spec *spec = session->spec;
    const gs_trainer_state *state = session->state;
    if (spec->data.split == GS_SPLIT_BY_RANK && spec->data.uneven_inputs != GS_UNEVEN_EVEN) {
        gs_join_options join = {.divisor = spec->data.join_divisor == GS_JOIN_ACTIVE
                                               ? GS_DIVIDE_BY_ACTIVE
                                               : GS_DIVIDE_BY_INITIAL,
                                .stops = spec->data.uneven_inputs == GS_UNEVEN_STOP};
        GS_TRY(gs_join_create(&session->join, &join, session->comm));
    }
    if (!syncs_batch_norm(spec)) return gs_ok();
    size_t most = 0;
    for (size_t i = 0; i < state->num_buffers; i++) {
        size_t count = gs_param_spec_count(&state->buffer_specs[i]);
        if (count > most) most = count;
    }
    return gs_batch_sync_create(&session->batch_sync, session->comm, most,
                                spec->reducer.timeout_seconds);
}

void gs_session_release_inputs(gs_session *session) {
    gs_batch_sync_destroy(session->batch_sync);
    gs_join_destroy(session->join);
}

gs_status gs_session_finish_epoch(gs_session *session) {
    const gs_trainer_state *state = session->state;
    if (!session->join || !gs_data_loader_begins_epoch(session->train, state->position.consumed))
        return gs_ok();
    GS_TRY(gs_sharding_await(&session->sharding));
    gs_tensor_view *buffers = calloc(1 + state->num_buffers, sizeof *buffers);
    if (!buffers) return gs_error(GS_RESOURCE_EXHAUSTED, "session: out of memory");
    for (size_t i = 0; i < state->num_buffers; i++)
        buffers[i] = (gs_tensor_view){gs_buffers_committed(state->buffers)[i],
                                      gs_param_spec_count(&state->buffer_specs[i]),
                                      state->buffer_specs[i].dtype};
    gs_tensor_view params = {state->memory, state->memory_bytes, GS_U8};
    gs_status status =
        gs_join_finish(session->join, &(gs_join_state){&params, buffers, 1, state->num_buffers},
                       gs_session_collective_deadline(session));
    free(buffers);
    return status;
}

// The announcement; `round` as the collectives of the step want it.
static gs_status open_round(gs_session *session, gs_join_round *round, gs_step_facts *facts,
                            gs_deadline deadline) {
    const gs_position *position = &session->state->position;
    *round = (gs_join_round){.num_active = session->shards.world_size, .active = true};
    if (!session->join) return gs_ok();
    bool active = gs_data_loader_has_batch(session->train, position->consumed);
    gs_status status = gs_join_open(session->join, round, active, position->step, deadline);
    facts->inputs_ended = status.code == GS_OUT_OF_RANGE;
    if (status.code) return status;
    if (round->num_active > 0) return gs_ok();
    return gs_error(GS_INTERNAL, "step %lld: an epoch in which no rank has data",
                    (long long)position->step);
}

gs_status gs_session_open_step(gs_session *session, gs_step_facts *facts) {
    gs_deadline deadline = gs_session_collective_deadline(session);
    gs_join_round round;
    GS_TRY(open_round(session, &round, facts, deadline));
    session->active = round.active;
    GS_TRY(gs_reducer_set_grad_unit(session->reducer,
                                    (double)gs_grad_scaler_scale(&session->state->position.loss_scale)));
    // Before the buckets: those of a rank without data are on their way when begin returns.
    if (!session->join) {
        GS_TRY(gs_buffers_begin(session->state->buffers, session->comm, deadline));
        return session->pass_runners ? gs_pass_runners_begin(session->pass_runners, facts->step)
                                     : gs_reducer_begin(session->reducer, facts->step);
    }
    // A rank without data has no pass that waits for parameters. Its zeros let owners update what it may not have yet.
    if (!round.active) GS_TRY(gs_sharding_await(&session->sharding));
    GS_TRY(
        gs_buffers_begin_uneven(session->state->buffers, &round, session->comm, deadline));
    GS_TRY(gs_reducer_begin_uneven(session->reducer, facts->step, &round));
    return round.active ? gs_ok() : gs_join_shadow(session->join, deadline);
}
