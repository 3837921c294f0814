#include "worker/trainer/step.h"

#include "core/failpoint.h"
#include "core/log.h"
#include "gradsync/bucket/grad_norm.h"
#include "gradsync/step/commit.h"
#include "worker/pass/pass_runner.h"
#include "worker/state/hook_tensors.h"
#include "worker/trainer/lr_schedule.h"
#include "worker/trainer/saves.h"
#include "worker/trainer/session_state.h"
#include "worker/trainer/step_opening.h"

// The parameters' digest travels with every step, one of this many parts at a time.
#define DIGEST_PARTS 64

// On a CPU, where work is done when it has been called. A GPU's host runs ahead of it, up to the one wait
// of a step (reduce).
static bool computes_here(const gs_session *session) {
    return gs_device_is_host(session->state->device);
}

gs_status gs_session_await_params(gs_session *session) {
    return gs_sharding_await(&session->sharding);
}

// What all ranks have in one memory another one may be updating, which left the commit that this one did not.
bool gs_session_has_params(const gs_session *session) {
    return !session->sharding.is_on_way && !session->sharding.has_common_params;
}

static gs_status run_model_passes(gs_session *session, gs_step_sums *sums, gs_step_facts *facts) {
    if (!session->active) return gs_ok();
    if (session->pass_runners) return gs_pass_runners_run(session->pass_runners, sums, facts);
    gs_pass_runner runner = {.context = &session->passes,
                             .view = gs_replica_view_of(session->state),
                             .loader = session->train,
                             .gpu = session->gpu,
                             .facts = facts};
    int num_passes = gs_logical_shards_count(&session->reducing) * session->passes_per_shard;
    for (int i = 0; i < num_passes; i++) GS_TRY(gs_pass_runner_run(&runner));
    *sums = runner.sums;
    return gs_ok();
}

// A pass waits for each parameter that it reads. Those that none has read are waited for behind them: this step may
// change them.
static gs_status run_passes(gs_session *session, gs_step_sums *sums, gs_step_facts *facts) {
    facts->phases.comm_exposed += gs_sharding_take_waited(&session->sharding);  // since the last
    GS_TRY(run_model_passes(session, sums, facts));
    double in_forward = gs_sharding_take_waited(&session->sharding);
    GS_TRY(gs_session_await_params(session));
    facts->phases.forward -= in_forward;
    facts->phases.comm_exposed += in_forward + gs_sharding_take_waited(&session->sharding);
    return gs_ok();
}

// Where ranks train apart there is nothing to compare.
static bool sends_digest(const gs_session *session) {
    return session->spec->reducer.check_replicas_every_steps != 0 && !session->state->params_apart;
}

// A part of the parameters in every step, all of them every check_replicas_every_steps.
static void begin_digest(gs_session *session) {
    int64_t every = session->spec->reducer.check_replicas_every_steps;
    gs_trainer_state *state = session->state;
    int64_t step = state->position.step;
    session->params_digest = 0;
    session->is_digesting = sends_digest(session);
    if (!session->is_digesting) return;
    if (step % every == 0) gs_trainer_state_begin_params_digest(state, 0, 1);
    else gs_trainer_state_begin_params_digest(state, (int)(step % DIGEST_PARTS), DIGEST_PARTS);
}

void gs_session_end_digest(gs_session *session) {
    gs_trainer_state *state = session->state;
    if (!session->is_digesting) return;
    session->is_digesting = false;
    session->params_digest = gs_digest_fold(gs_trainer_state_end_params_digest(state));
}

static gs_status commit(gs_session *session, const gs_step_sums *sums, const gs_step_votes *votes,
                        gs_step_facts *facts) {
    gs_progress_enter(session->progress, GS_PHASE_COMMIT);
    gs_session_end_digest(session);
    // A step may take longer than it takes others to come into this rank's place.
    GS_TRY(gs_lead_await(&session->control->lead, &session->control->mailbox));
    gs_commit_vote vote = {.step = facts->step,
                           .generation = session->generation,
                           .plan_digest = session->plans.digest,
                           .next_plan_digest = gs_plan_switch_waiting(&session->plans),
                           .params_digest = session->params_digest,
                           .nonfinite = session->reduced.nonfinite,
                           .wants_drain = votes->drain,
                           .wants_checkpoint = votes->checkpoint,
                           .is_orphaned = votes->orphaned,
                           .wants_save = gs_saves_are_late(votes->saves, session->shards.rank),
                           .is_saving = gs_saves_write_parts(votes->saves),
                           .loss_sum = sums->loss,
                           .num_losses = sums->num_losses,
                           .samples = sums->samples};
    gs_commit_result result;
    GS_TRY(gs_commit_run(&result, session->comm, &vote, gs_session_collective_deadline(session)));
    if (result.params_differ) {
        session->complete = false;
        facts->diverged = true;
        return gs_error(GS_INTERNAL, "replicas have diverged before step %lld",
                        (long long)facts->step);
    }
    session->plans.is_due = result.switches_plan;
    facts->loss = result.loss;
    facts->samples = result.samples;
    facts->drain = result.drain_ranks > 0;
    facts->checkpoint = result.checkpoint_ranks > 0;
    facts->save_is_due = result.save_ranks > 0;
    facts->orphaned = result.all_orphaned;
    facts->saving_ranks = result.saving_ranks;
    return gs_ok();
}

static double unscaled_norm(const gs_session *session) {
    const gs_grad_scaler *loss_scale = &session->state->position.loss_scale;
    return session->reduced.grad_norm / (double)gs_grad_scaler_scale(loss_scale);
}

static gs_status await_passes(gs_session *session) {
    return gs_stream_wait(gs_device_stream(session->state->device),
                          gs_session_collective_deadline(session));
}

static gs_status reduce_buckets(gs_session *session) {
    GS_TRY(
        gs_embedding_rows_post(session->embedding_rows, gs_session_collective_deadline(session)));
    GS_TRY(gs_reducer_finish(session->reducer, &session->reduced,
                             gs_session_collective_deadline(session)));
    return gs_buffers_share(session->state->buffers, session->comm,
                            gs_session_collective_deadline(session));
}

static double learning_rate(const gs_job_spec *spec, int64_t step) {
    static const gs_lr_kind kinds[] = {GS_LR_CONSTANT, GS_LR_LINEAR, GS_LR_COSINE};
    gs_lr_schedule schedule = {.kind = kinds[spec->optimizer.schedule.kind],
                               .peak = spec->optimizer.lr,
                               .warmup_steps = spec->optimizer.schedule.warmup_steps,
                               .total_steps = spec->steps.target,
                               .final_ratio = spec->optimizer.schedule.final_ratio};
    return gs_lr_at(&schedule, step);
}

static gs_status reduce_on_gpu(gs_session *session) {
    GS_TRY(reduce_buckets(session));
    gs_device_times_mark_end(session->gpu.times);
    return await_passes(session);
}

// The device is given the update, too, and goes on with it while the host waits for what was in front of it. What could
// keep the step from being applied comes before.
static gs_status reduce_and_update(gs_session *session, gs_step_facts *facts) {
    gs_deadline deadline = gs_session_collective_deadline(session);
    const double *squares;
    GS_TRY(gs_embedding_rows_post(session->embedding_rows, deadline));
    GS_TRY(gs_buffers_share(session->state->buffers, session->comm, deadline));
    GS_TRY(gs_reducer_finish_buckets(session->reducer, &squares, deadline));
    gs_device_times_mark_end(session->gpu.times);
    float lr = (float)learning_rate(session->spec, session->state->position.step);
    gs_status status = gs_update_ahead_launch(session->ahead, squares, lr);
    if (!status.code) status = gs_reducer_finish(session->reducer, &session->reduced, deadline);
    gs_status resolved = gs_update_ahead_resolve(session->ahead, &session->updated, deadline);
    facts->state_is_broken = resolved.code || (status.code && session->updated);
    return status.code ? status : resolved;
}

// A GPU has all of the step by now. While it works the host digests, then it waits: for the buckets and for
// what stuck to the stream. Times are the device's; the update's are those of the step before.
static gs_status finish_on_gpu(gs_session *session, gs_step_sums *sums, gs_step_facts *facts) {
    const gs_pass_device *gpu = &session->gpu;
    gs_device_phases phases;
    gs_session_end_digest(session);
    GS_TRY(session->active && gs_update_ahead_may(session->ahead) ? reduce_and_update(session, facts)
                                                                  : reduce_on_gpu(session));
    GS_TRY(gs_device_times_read(gpu->times, &phases, session->progress->timeline));
    sums->loss = session->passes.losses_per_pass * *gpu->loss_sum;
    const gs_reduce_stats *stats = gs_reducer_stats(session->reducer);
    int64_t now_ns = gs_now_ns();
    gs_timeline_add_span(session->progress->timeline,
                         &(gs_span){GS_SPAN_REDUCTION, now_ns - stats->exposed_ns, now_ns});
    facts->phases.forward = phases.forward;
    facts->phases.backward = phases.backward;
    facts->phases.optimizer = phases.optimizer;
    facts->phases.comm_exposed += gs_seconds_of(stats->exposed_ns);
    return gs_ok();
}

static gs_status finish_here(gs_session *session, gs_step_facts *facts) {
    int64_t begin_ns = gs_now_ns();
    // What stuck to the stream (a target out of range) ends the step here, before anybody commits.
    GS_TRY(await_passes(session));
    GS_TRY(reduce_buckets(session));
    facts->phases.comm_exposed += gs_progress_note(session->progress, GS_SPAN_REDUCTION, begin_ns);
    return gs_ok();
}

static gs_status reduce(gs_session *session, gs_step_sums *sums, gs_step_facts *facts) {
    gs_progress_enter(session->progress, GS_PHASE_REDUCE);
    GS_TRY(computes_here(session) ? finish_here(session, facts)
                                  : finish_on_gpu(session, sums, facts));
    GS_TRY(gs_backward_update_check(session->update));
    session->complete = gs_reducer_complete(session->reducer);
    facts->loss_scale = session->state->position.loss_scale.scale;
    facts->grad_norm = unscaled_norm(session);
    facts->nonfinite_ranks = session->reduced.nonfinite;
    facts->has_shadows = session->reduced.active_ranks < session->shards.world_size;
    facts->stats = gs_reducer_stats(session->reducer);
    const gs_sparse_rows_result *rows = gs_embedding_rows_result(session->embedding_rows);
    facts->row_wire_bytes = rows ? rows->wire_bytes : 0;
    facts->could_be_static =
        gs_reducer_record_could_be_static(gs_reducer_get_record(session->reducer));
    gs_timeline_reduced(session->progress->timeline, facts->stats);
    gs_link_watch_note(&session->link, facts->stats);
    return gs_ok();
}

// What the last commit agreed on, before the first collective of a step.
static gs_status switch_plan(gs_session *session, gs_step_facts *facts) {
    if (!session->plans.is_due) return gs_ok();
    int64_t begin_ns = gs_now_ns();
    GS_FAILPOINT("plan.switch");
    GS_TRY(gs_pass_graphs_clear(session->gpu.graphs));
    GS_TRY(gs_plan_switch_run(&session->plans, session->reducer, facts->step,
                              gs_session_collective_deadline(session)));
    facts->plan_revision = session->plans.revision;
    facts->switch_seconds = gs_seconds_since(begin_ns);
    GS_FAILPOINT("plan.switched");
    return gs_ok();
}

// What the ranks have learned of the link between them, every now and then.
static gs_status share_link(gs_session *session, int64_t step) {
    gs_link_report report;
    if (!gs_link_watch_is_due(&session->link)) return gs_ok();
    GS_TRY(gs_link_watch_share(&session->link, &report, session->spec->reducer.timeout_seconds));
    if (session->order.control) gs_order_reporter_add_link(&session->order, step, &report);
    gs_link_report_release(&report);
    return gs_ok();
}

// Behind the commit of the last step, before the first collective of this one. What it has sent is here before the gather
// is told.
static gs_status turn_trainable(gs_session *session, int64_t step) {
    size_t num_frozen;
    if (!gs_frozen_params_is_due(session->frozen, step)) return gs_ok();
    GS_FAILPOINT("freeze.turn");
    GS_TRY(gs_session_await_params(session));
    const bool *trainable = gs_frozen_params_turn(session->frozen, step, &num_frozen);
    GS_TRY(gs_status_prefix(gs_reducer_set_trainable(session->reducer, trainable, NULL,
                                                     gs_session_collective_deadline(session)),
                            "model.freeze"));
    gs_optimizer_set_trainable(session->state->optimizer, trainable);
    GS_TRY(gs_sharding_set_trainable(&session->sharding, trainable));
    GS_FAILPOINT("freeze.turned");
    if (session->shards.rank == 0)
        gs_log_info("parameters train", "rank=0 step=%lld frozen=%zu of=%zu", (long long)step, num_frozen,
                    session->state->num_params);
    return gs_ok();
}

static void observe_order(gs_session *session) {
    uint64_t passes;
    size_t num_ready = gs_reducer_num_ready(session->reducer, &passes);
    if (!gs_order_reporter_wants(&session->order, passes)) return;
    const size_t *order = session->pass_runners
                              ? gs_pass_runners_ready_order(session->pass_runners, &num_ready)
                              : gs_reducer_ready_order(session->reducer);
    gs_order_reporter_add(&session->order, session->state->position.step, order, num_ready);
}

// Parameters may change from here on, and their digest is of what they were: it ends before the first of them does.
// Before the first bucket: those of a rank without data are on their way when the step is open.
static void begin_update(gs_session *session) {
    const gs_position *position = &session->state->position;
    if (!session->update) return;
    begin_digest(session);
    gs_backward_update_begin(session->update, (float)learning_rate(session->spec, position->step),
                             gs_grad_scaler_inverse(&position->loss_scale));
}

gs_status gs_session_run_step(gs_session *session, gs_step_facts *facts,
                              const gs_step_votes *votes) {
    gs_trainer_state *state = session->state;
    gs_step_sums sums = {0};
    *facts = (gs_step_facts){.step = state->position.step,
                             .positions = gs_data_loader_positions(session->train)};
    session->complete = session->updated = false;
    GS_FAILPOINT("step.begin");
    GS_TRY(share_link(session, facts->step));
    GS_TRY(switch_plan(session, facts));
    GS_TRY(turn_trainable(session, facts->step));
    // A GPU is handed whole passes, and before them copies for the digest: what others own is there by then.
    if (!computes_here(session)) GS_TRY(gs_session_await_params(session));
    begin_update(session);
    int64_t open_ns = gs_now_ns();
    GS_TRY(gs_session_open_step(session, facts));
    facts->opening_seconds = gs_progress_note(session->progress, GS_SPAN_OPENING, open_ns);
    facts->phases.comm_exposed += facts->opening_seconds;
    GS_TRY(gs_embedding_rows_begin(session->embedding_rows, facts->step));
    if (!session->update) begin_digest(session);
    if (session->gpu.loss_sum) *session->gpu.loss_sum = 0;  // the last wait was behind all that adds to it
    GS_TRY(run_passes(session, &sums, facts));
    gs_backward_update_end_passes(session->update);
    GS_TRY(reduce(session, &sums, facts));
    GS_FAILPOINT("step.reduced");
    int64_t begin_ns = gs_now_ns();
    GS_TRY(commit(session, &sums, votes, facts));
    facts->phases.comm_exposed += gs_progress_note(session->progress, GS_SPAN_COMMIT, begin_ns);
    observe_order(session);
    GS_FAILPOINT("step.committed");
    return gs_ok();
}

// An update of a sharded state needs all of its ranks.
bool gs_session_complete(const gs_session *session) {
    return session->complete && gs_trainer_state_is_whole(session->state);
}

bool gs_session_has_updated(const gs_session *session) {
    return session->updated;
}

void gs_session_discard(gs_session *session) {
    gs_backward_update_undo(session->update);
}

static gs_status step_optimizer(gs_session *session, const gs_step_facts *facts) {
    gs_trainer_state *state = session->state;
    const gs_reduce_result *reduced = &session->reduced;
    if (session->update) return gs_backward_update_finish(session->update, reduced);
    float factor =
        gs_grad_clip_factor(unscaled_norm(session), session->spec->optimizer.grad_clip_norm) *
        gs_grad_scaler_inverse(&state->position.loss_scale);
    if (state->is_sharded)
        return gs_sharding_step(&session->sharding, reduced->used, (float)facts->lr, factor);
    return gs_trainer_state_step(state, gs_reducer_grads(session->reducer), reduced->used, (float)facts->lr,
                                 factor);
}

static gs_status update_params(gs_session *session, gs_step_facts *facts) {
    gs_trainer_state *state = session->state;
    if (session->updated) {
        gs_buffers_adopt(state->buffers);
    } else {
        gs_device_times_mark(session->gpu.times, GS_SPAN_UNSET);
        gs_buffers_adopt(state->buffers);
        GS_TRY(step_optimizer(session, facts));
        GS_TRY(gs_sharding_send(&session->sharding, facts->step));
        gs_device_times_mark(session->gpu.times, GS_SPAN_OPTIMIZER);
    }
    // On a GPU the next step's work follows. A launch that failed is known by now; a GPU that fails later is
    // lost, and its state with it.
    gs_stream *stream = gs_device_stream(state->device);
    if (!computes_here(session)) return gs_stream_take_error(stream);
    return gs_stream_wait(stream, gs_session_collective_deadline(session));
}

static void note_apart(gs_session *session) {
    if (!session->average || !gs_reducer_holds_own(session->reducer)) return;
    gs_replica_average_note(session->average, session->reduced.used);
}

gs_status gs_session_apply(gs_session *session, gs_step_facts *facts) {
    gs_position *position = &session->state->position;
    int64_t begin_ns = gs_now_ns();
    gs_progress_enter(session->progress, GS_PHASE_OPTIMIZER);
    facts->lr = learning_rate(session->spec, position->step);
    session->complete = false;
    if (!session->reduced.nonfinite) {
        GS_TRY(update_params(session, facts));
        session->updated = false;
        position->skipped_in_a_row = 0;
        note_apart(session);
    } else {
        gs_session_discard(session);
        position->skipped_steps++;
        position->skipped_in_a_row++;
    }
    // What hooks carry from step to step follows the parameters.
    GS_TRY(session->reduced.nonfinite ? gs_reducer_rollback(session->reducer)
                                      : gs_reducer_commit(session->reducer));
    gs_hook_tensors_follow(session->state, session->reducer);
    gs_order_reporter_add_offers(&session->order, position->step, session->reducer);
    const gs_trainer_state *state = session->state;
    gs_grad_scaler_update(&position->loss_scale, &state->loss_scaling, session->reduced.nonfinite);
    position->step++;
    position->consumed += session->spec->data.global_batch;
    if (computes_here(session))
        facts->phases.optimizer = gs_progress_note(session->progress, GS_SPAN_OPTIMIZER, begin_ns);
    GS_FAILPOINT("step.applied");
    return gs_ok();
}

gs_status gs_session_average(gs_session *session, gs_step_facts *facts, bool whole) {
    if (!session->average) return gs_ok();
    int64_t begin_ns = gs_now_ns();
    gs_deadline deadline = gs_session_collective_deadline(session);
    GS_FAILPOINT("step.average");
    GS_TRY(whole ? gs_replica_average_run_whole(session->average, facts->step, deadline)
                 : gs_replica_average_run(session->average, facts->step, deadline));
    facts->phases.comm_exposed += gs_seconds_since(begin_ns);
    return gs_ok();
}
