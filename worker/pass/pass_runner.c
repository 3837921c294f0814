#include "worker/pass/pass_runner.h"

#include "core/failpoint.h"
#include "kernels/device.h"

static void enter_phase(const gs_pass_runner *runner, gs_trainer_phase phase) {
    if (runner->facts) gs_progress_enter(runner->context->progress, phase);
}

static gs_status next_batch(gs_pass_runner *runner, gs_batch *batch) {
    int64_t begin_ns = gs_now_ns();
    enter_phase(runner, GS_PHASE_DATA);
    GS_TRY(gs_batch_stage_next(runner->gpu.train, batch, runner->loader,
                               gs_deadline_in_seconds(GS_BATCH_SECONDS)));
    if (runner->facts)
        runner->facts->phases.data +=
            gs_progress_note(runner->context->progress, GS_SPAN_DATA, begin_ns);
    return gs_ok();
}

// A pass's half that began at begin_ns has been computed, or given to a GPU, which keeps its own
// times.
static void note_half(const gs_pass_runner *runner, gs_span_kind kind, int64_t begin_ns) {
    gs_step_facts *facts = runner->facts;
    if (!facts) return;
    if (runner->gpu.times) {
        gs_device_times_mark(runner->gpu.times, kind);
        return;
    }
    double seconds = gs_progress_note(runner->context->progress, kind, begin_ns);
    *(kind == GS_SPAN_FORWARD ? &facts->phases.forward : &facts->phases.backward) += seconds;
}

// Where a pass is, for its turns.
typedef struct pass_turn {
    const gs_pass_runner *runner;
    int64_t begin_ns;  // of its half
} pass_turn;

// Owners that update in the backward pass change what this rank has not read, a layer that it leaves out: that is here
// before anybody can.
static gs_status await_params(const gs_pass_runner *runner) {
    const gs_pass_context *context = runner->context;
    return context->update && context->sharding ? gs_sharding_await(context->sharding) : gs_ok();
}

static gs_status turn_pass(void *ctx, bool is_backward) {
    pass_turn *at = ctx;
    note_half(at->runner, is_backward ? GS_SPAN_BACKWARD : GS_SPAN_FORWARD, at->begin_ns);
    if (is_backward) return gs_ok();
    GS_TRY(await_params(at->runner));
    at->begin_ns = gs_now_ns();
    enter_phase(at->runner, GS_PHASE_BACKWARD);
    GS_FAILPOINT("step.backward");
    return gs_ok();
}

static gs_status run_model(gs_pass_runner *runner, gs_model_pass *pass,
                           const gs_pass_marks *marks) {
    const gs_pass_context *context = runner->context;
    pass_turn at = {.runner = runner, .begin_ns = gs_now_ns()};
    enter_phase(runner, GS_PHASE_FORWARD);
    if (runner->facts) {
        gs_reducer_note_forward(context->reducer);
        gs_device_times_mark(runner->gpu.times, GS_SPAN_UNSET);
    }
    GS_FAILPOINT("step.forward");
    return gs_pass_graphs_run(runner->gpu.graphs, &(gs_pass_run){.pass = pass,
                                                                 .model = runner->view.model,
                                                                 .marks = marks,
                                                                 .plan = context->plan,
                                                                 .turn = turn_pass,
                                                                 .turn_ctx = &at});
}

static gs_status begin_pass(gs_pass_runner *runner, gs_reducer_pass *reducing, int64_t samples) {
    return runner->replicas
               ? gs_replicas_begin_pass(runner->replicas, runner->replica, reducing, samples)
               : gs_reducer_begin_pass(runner->context->reducer, reducing, samples);
}

static gs_status end_pass(gs_pass_runner *runner) {
    if (!runner->replicas) return gs_reducer_end_pass(runner->context->reducer);
    // What stuck to the stream (a target out of range) ends the step here: nobody else waits for
    // this replica's stream.
    GS_TRY(gs_stream_wait(gs_device_stream(runner->view.device),
                          gs_pass_context_deadline(runner->context)));
    return gs_replicas_end_pass(runner->replicas, runner->replica);
}

// A pass of 16-bit precision on its way to the main gradients.
typedef struct mixed_pass {
    const gs_mixed_precision *mixed;
    gs_reducer_pass reducing;
} mixed_pass;

static void finish_mixed_grad(void *ctx, size_t param) {
    const mixed_pass *at = ctx;
    gs_mixed_precision_finish_grad(at->mixed, at->reducing.grads, at->reducing.accumulate, param);
}

// Puts the rounding to 16 bits between the model and its marks. `at` lives as long as the pass.
static gs_status mix_pass(gs_model_pass *pass, gs_pass_marks *marks, mixed_pass *at) {
    if (!at->mixed) return gs_ok();
    pass->grads =
        gs_mixed_precision_pass_grads(at->mixed, at->reducing.grads, at->reducing.accumulate);
    if (!pass->grads)
        return gs_error(GS_INTERNAL, "pass %d of shard %d adds up without memory for it",
                        at->reducing.pass, at->reducing.shard);
    pass->accumulate = false;
    marks->finish = finish_mixed_grad;
    marks->finish_ctx = at;
    marks->finished = at->reducing.grads;
    return gs_ok();
}

static gs_model_pass make_pass(const gs_pass_runner *runner, const gs_batch *batch,
                               const gs_reducer_pass *reducing) {
    const gs_position *position = runner->context->position;
    gs_batch_sync *sync = runner->context->batch_sync;
    gs_backward_update *update = runner->context->update;
    gs_sharding *sharding = runner->context->sharding;
    return (gs_model_pass){.batch = batch,
                           .training = true,
                           .step = position->step,
                           .shard = reducing->shard,
                           .params = runner->view.values,
                           .reads = sharding ? gs_sharding_reads : NULL,
                           .reads_ctx = sharding,
                           .writes = sharding && sharding->windows.num_windows
                                         ? gs_reducer_open_callback
                                         : NULL,
                           .writes_ctx = runner->context->reducer,
                           .grads = reducing->grads,
                           .accumulate = reducing->accumulate,
                           .grad_factor =
                               reducing->grad_factor * gs_grad_scaler_scale(&position->loss_scale),
                           // Earlier passes of the step are followed by some that read all anew.
                           .released = update && reducing->reduces ? gs_backward_update_release : NULL,
                           .released_ctx = update,
                           .loss_sum = runner->gpu.loss_sum,
                           .sync = sync ? gs_batch_sync_at(sync, position->step) : NULL};
}

static gs_pass_marks make_marks(const gs_pass_runner *runner) {
    if (runner->replicas)
        return (gs_pass_marks){.ready = gs_replicas_ready_callback,
                               .skipped = gs_replicas_unused_callback,
                               .ctx = gs_replicas_callback_ctx(runner->replicas, runner->replica)};
    return (gs_pass_marks){.ready = gs_reducer_ready_callback,
                           .skipped = gs_reducer_unused_callback,
                           .ctx = runner->context->reducer};
}

static void add_loss(gs_pass_runner *runner, const gs_model_pass *pass) {
    int num_losses = runner->context->losses_per_pass;
    runner->sums.loss += num_losses * pass->loss;
    runner->sums.num_losses += num_losses;
    runner->sums.samples += (int64_t)pass->batch->rows;
}

gs_status gs_pass_runner_run(gs_pass_runner *runner) {
    gs_embedding_rows *rows = runner->context->embedding_rows;
    gs_buffers *buffers = runner->view.buffers;
    gs_batch batch;
    gs_reducer_pass reducing;
    GS_TRY(next_batch(runner, &batch));
    GS_TRY(begin_pass(runner, &reducing, (int64_t)batch.rows));
    // The end of this rank's part: nothing is used, and nothing to wait for.
    if (batch.rows == 0) {
        GS_TRY(await_params(runner));
        GS_TRY(gs_embedding_rows_empty_pass(rows, &reducing));
        return end_pass(runner);
    }
    gs_model_pass pass = make_pass(runner, &batch, &reducing);
    gs_pass_marks marks = make_marks(runner);
    gs_embedding_rows_open_pass(rows, &pass, &reducing,
                                gs_batch_stage_host_tokens(runner->gpu.train, &batch));
    mixed_pass mixed = {.mixed = runner->view.mixed, .reducing = reducing};
    GS_TRY(mix_pass(&pass, &marks, &mixed));
    pass.grads = gs_frozen_params_grads(runner->context->frozen, pass.grads);
    gs_buffers_pass(buffers, reducing.shard, reducing.pass == 0, &pass.buffers, &pass.next_buffers);
    GS_TRY(run_model(runner, &pass, &marks));
    gs_buffers_end_pass(buffers);
    add_loss(runner, &pass);
    return end_pass(runner);
}
