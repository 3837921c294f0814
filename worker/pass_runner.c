#include "worker/pass_runner.h"

#include "core/failpoint.h"
#include "worker/session_state.h"

static void enter_phase(const gs_pass_runner *runner, gs_trainer_phase phase) {
    if (runner->facts) gs_control_set_phase(runner->session->options.control, phase);
}

static gs_status next_batch(gs_pass_runner *runner, gs_batch *batch) {
    int64_t begin_ns = gs_now_ns();
    enter_phase(runner, GS_PHASE_DATA);
    GS_TRY(gs_data_loader_next(runner->loader, batch,
                               gs_deadline_in_seconds(GS_DATA_TIMEOUT_SECONDS)));
    if (runner->facts)
        runner->facts->phases.data +=
            gs_session_note_phase(runner->session, GS_SPAN_DATA, begin_ns);
    return gs_ok();
}

static gs_status run_model(gs_pass_runner *runner, gs_model_pass *pass) {
    gs_session *session = runner->session;
    const gs_model *model = runner->view.model;
    gs_step_facts *facts = runner->facts;
    int64_t begin_ns = gs_now_ns();
    enter_phase(runner, GS_PHASE_FORWARD);
    if (facts) gs_reducer_note_forward(session->reducer);
    GS_FAILPOINT("step.forward");
    GS_TRY(model->ops->forward(model->state, pass));
    if (facts) facts->phases.forward += gs_session_note_phase(session, GS_SPAN_FORWARD, begin_ns);

    begin_ns = gs_now_ns();
    enter_phase(runner, GS_PHASE_BACKWARD);
    GS_FAILPOINT("step.backward");
    GS_TRY(model->ops->backward(model->state, pass));
    if (facts) facts->phases.backward += gs_session_note_phase(session, GS_SPAN_BACKWARD, begin_ns);
    return gs_ok();
}

static gs_status begin_pass(gs_pass_runner *runner, gs_reducer_pass *reducing, int64_t samples) {
    return runner->replicas
               ? gs_replicas_begin_pass(runner->replicas, runner->replica, reducing, samples)
               : gs_reducer_begin_pass(runner->session->reducer, reducing, samples);
}

static gs_status end_pass(gs_pass_runner *runner) {
    if (!runner->replicas) return gs_reducer_end_pass(runner->session->reducer);
    // What stuck to the stream (a target out of range) ends the step here: nobody else waits for
    // this replica's stream.
    GS_TRY(gs_stream_wait(gs_device_stream(runner->view.device),
                          gs_session_collective_deadline(runner->session)));
    return gs_replicas_end_pass(runner->replicas, runner->replica);
}

// A pass of 16-bit precision on its way to the main gradients.
typedef struct mixed_pass {
    const gs_mixed_precision *mixed;
    gs_reducer_pass reducing;
    void (*ready)(void *ctx, size_t param);
    void *ready_ctx;
} mixed_pass;

static void finish_mixed_grad(void *ctx, size_t param) {
    const mixed_pass *at = ctx;
    gs_mixed_precision_finish_grad(at->mixed, at->reducing.grads, at->reducing.accumulate, param);
    at->ready(at->ready_ctx, param);
}

// Puts the rounding to 16 bits between the model and its marks. `at` lives as long as the pass.
static gs_status mix_pass(gs_model_pass *pass, mixed_pass *at) {
    if (!at->mixed) return gs_ok();
    pass->grads =
        gs_mixed_precision_pass_grads(at->mixed, at->reducing.grads, at->reducing.accumulate);
    if (!pass->grads)
        return gs_error(GS_INTERNAL, "pass %d of shard %d adds up without memory for it",
                        at->reducing.pass, at->reducing.shard);
    at->ready = pass->ready;
    at->ready_ctx = pass->ready_ctx;
    pass->accumulate = false;
    pass->ready = finish_mixed_grad;
    pass->ready_ctx = at;
    return gs_ok();
}

static gs_model_pass make_pass(const gs_pass_runner *runner, const gs_batch *batch,
                               const gs_reducer_pass *reducing) {
    const gs_session *session = runner->session;
    const gs_position *position = &session->options.state->position;
    gs_model_pass pass = {
        .batch = batch,
        .training = true,
        .step = position->step,
        .shard = reducing->shard,
        .params = runner->view.values,
        .grads = reducing->grads,
        .accumulate = reducing->accumulate,
        .grad_factor = reducing->grad_factor * gs_grad_scaler_scale(&position->loss_scale),
        .ready = gs_reducer_ready_callback,
        .ready_ctx = session->reducer,
        .sync = session->batch_sync ? gs_batch_sync_at(session->batch_sync, position->step) : NULL,
        .skipped = gs_reducer_unused_callback,
        .skipped_ctx = session->reducer};
    if (!runner->replicas) return pass;
    pass.ready = gs_replicas_ready_callback;
    pass.skipped = gs_replicas_unused_callback;
    pass.ready_ctx = pass.skipped_ctx = gs_replicas_callback_ctx(runner->replicas, runner->replica);
    return pass;
}

gs_status gs_pass_runner_run(gs_pass_runner *runner) {
    gs_session *session = runner->session;
    gs_buffers *buffers = runner->view.buffers;
    gs_batch batch;
    gs_reducer_pass reducing;
    GS_TRY(next_batch(runner, &batch));
    GS_TRY(begin_pass(runner, &reducing, (int64_t)batch.rows));
    // The end of this rank's part: nothing is used, and nothing to wait for.
    if (batch.rows == 0) {
        GS_TRY(gs_embedding_rows_empty_pass(session->embedding_rows, &reducing));
        return end_pass(runner);
    }
    gs_model_pass pass = make_pass(runner, &batch, &reducing);
    gs_embedding_rows_open_pass(session->embedding_rows, &pass, &reducing);
    mixed_pass mixed = {.mixed = runner->view.mixed, .reducing = reducing};
    GS_TRY(mix_pass(&pass, &mixed));
    gs_buffers_pass(buffers, reducing.shard, reducing.pass == 0, &pass.buffers, &pass.next_buffers);
    GS_TRY(run_model(runner, &pass));
    gs_buffers_end_pass(buffers);
    int num_losses = session->joins_shards ? gs_logical_shards_count(&session->shards) : 1;
    runner->sums.loss += num_losses * pass.loss;
    runner->sums.num_losses += num_losses;
    runner->sums.samples += (int64_t)batch.rows;
    return end_pass(runner);
}
