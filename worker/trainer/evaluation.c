#include "worker/trainer/evaluation.h"

#include <math.h>

#include "worker/trainer/session_state.h"

// Losses are summed as integers of this unit: exact in any order.
#define LOSS_UNIT 1073741824.0  // 2^30

bool gs_session_can_evaluate(const gs_session *session) {
    return session->evaluation != NULL;
}

enum { LOSS = 0, NOT_FINITE, BATCHES, ROWS, CORRECT, NUM_SUMS };

static gs_status evaluate_batch(gs_session *session, const gs_batch *batch,
                                int64_t sums[NUM_SUMS]) {
    const gs_trainer_state *state = session->state;
    gs_model_pass pass = {
        .batch = batch,
        .step = state->position.step,
        .params = state->values,
        .buffers = (const void *const *)gs_buffers_committed(state->buffers),
    };
    GS_TRY(state->model.ops->forward(state->model.state, &pass));
    if (isfinite(pass.loss)) sums[LOSS] += llround(pass.loss * LOSS_UNIT);
    else sums[NOT_FINITE]++;
    sums[BATCHES]++;
    sums[ROWS] += (int64_t)batch->rows;
    sums[CORRECT] += pass.num_correct;
    return gs_ok();
}

gs_status gs_session_evaluate(gs_session *session, gs_evaluation *evaluation) {
    int64_t mine[NUM_SUMS] = {0}, all[NUM_SUMS];
    for (;;) {
        gs_batch batch;
        gs_progress_enter(session->progress, GS_PHASE_DATA);
        gs_status status = gs_batch_stage_next(session->gpu.evaluation, &batch, session->evaluation,
                                               gs_deadline_in_seconds(GS_BATCH_SECONDS));
        if (status.code == GS_OUT_OF_RANGE) break;
        if (status.code) return gs_status_prefix(status, "evaluation");
        gs_progress_enter(session->progress, GS_PHASE_EVALUATE);
        GS_TRY(evaluate_batch(session, &batch, mine));
    }
    gs_collective collective = {.kind = GS_ALLREDUCE,
                                .send = mine,
                                .recv = all,
                                .count = NUM_SUMS,
                                .dtype = GS_I64,
                                .step = session->state->position.step,
                                .bucket = -1};
    GS_TRY(gs_comm_run(session->comm, &collective, gs_session_collective_deadline(session)));
    double batches = (double)(all[BATCHES] ? all[BATCHES] : 1);
    *evaluation = (gs_evaluation){
        .step = session->state->position.step,
        .batches = all[BATCHES],
        .loss = all[NOT_FINITE] ? (double)NAN : (double)all[LOSS] / LOSS_UNIT / batches,
        .accuracy = all[ROWS] ? (double)all[CORRECT] / (double)all[ROWS] : 0,
        .has_accuracy = session->spec->model.kind == GS_MODEL_MLP,
    };
    return gs_ok();
}

