#include "worker/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/arena.h"
#include "gradsync/coalesce.h"
#include "gradsync/commit.h"
#include "gradsync/logical_shards.h"
#include "gradsync/reducer.h"
#include "worker/data/data_loader.h"
#include "worker/lr_schedule.h"

// A batch that is not there after this long is a broken disk.
#define DATA_TIMEOUT_SECONDS 120.0
// The parameters' digest travels with every step, one of this many parts at a time.
#define DIGEST_PARTS 64
// Losses are summed as integers of this unit: exact in any order.
#define LOSS_UNIT 1073741824.0  // 2^30

struct gs_session {
    gs_session_options options;
    gs_bucket_plan plan;
    gs_logical_shards shards;
    int passes_per_shard;
    uint64_t plan_digest;

    gs_data_loader *train, *evaluation;  // evaluation: NULL when the job has none
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    double connect_seconds;

    bool complete;
    gs_reduce_result reduced;  // of the step in flight; used while complete
};

// What one step adds up on its way.
typedef struct step_sums {
    double loss;
    int64_t num_losses, samples;
} step_sums;

static double seconds_since(int64_t begin_ns) {
    return (double)(gs_now_ns() - begin_ns) / (double)GS_NS_PER_SEC;
}

static gs_deadline collective_deadline(const gs_session *session) {
    return gs_deadline_in_seconds(session->options.spec->reducer.timeout_seconds);
}

static gs_reducer_options reducer_options(const gs_session *session) {
    const gs_job_spec *spec = session->options.spec;
    const gs_trainer_state *state = session->options.state;
    return (gs_reducer_options){
        .params = state->param_specs,
        .num_params = state->num_params,
        .plan = &session->plan,
        .shards = session->shards,
        .passes_per_shard = session->passes_per_shard,
        .op = spec->reducer.op == GS_REDUCER_SUM ? GS_SUM : GS_MEAN,
        .unused_is_error = spec->reducer.unused_parameters == GS_UNUSED_ERROR,
        .arena = session->arena,
        .device = state->device,
    };
}

static bool has_evaluation(const gs_job_spec *spec) {
    return spec->data.eval_every_steps > 0 && spec->data.eval_batches > 0;
}

static gs_status open_data(gs_session *session) {
    const gs_session_options *options = &session->options;
    gs_data_loader_options loader = {.spec = options->spec,
                                     .split = GS_TRAIN,
                                     .data_root = options->data_root,
                                     .shards = session->shards,
                                     .consumed = options->state->position.consumed};
    GS_TRY(gs_data_loader_open(&session->train, &loader));
    if (!has_evaluation(options->spec)) return gs_ok();
    loader.split = GS_EVAL;
    loader.consumed = 0;
    return gs_data_loader_open(&session->evaluation, &loader);
}

gs_status gs_session_create(gs_session **out, const gs_session_options *options) {
    gs_session *session = calloc(1, sizeof *session);
    if (!session) return gs_error(GS_RESOURCE_EXHAUSTED, "session: out of memory");
    session->options = *options;
    session->options.plan = NULL;
    session->passes_per_shard = (int)gs_job_spec_passes_per_shard(options->spec);
    session->shards = (gs_logical_shards){.num_shards = options->num_shards,
                                          .world_size = options->world_size,
                                          .rank = options->rank,
                                          .exact = options->spec->exact};
    size_t arena_bytes = 0;
    gs_status status = gs_bucket_plan_check(options->plan, options->state->param_specs,
                                            options->state->num_params);
    if (!status.code) status = gs_bucket_plan_copy(&session->plan, options->plan);
    if (!status.code) {
        session->plan_digest = gs_digest_fold(gs_bucket_plan_digest(&session->plan));
        gs_reducer_options reducer = reducer_options(session);
        status = gs_reducer_arena_bytes(&arena_bytes, &reducer);
    }
    if (!status.code) status = gs_arena_create(&session->arena, arena_bytes);
    if (!status.code) status = open_data(session);
    if (status.code) {
        gs_session_destroy(session);
        return status;
    }
    *out = session;
    return gs_ok();
}

void gs_session_destroy(gs_session *session) {
    if (!session) return;
    atomic_store(&session->options.control->teardown_since_ns, gs_now_ns());
    gs_control_set_comm(session->options.control, NULL);
    gs_reducer_destroy(session->reducer);
    gs_comm_destroy(session->comm);
    gs_data_loader_close(session->train);
    gs_data_loader_close(session->evaluation);
    gs_arena_destroy(session->arena);
    gs_bucket_plan_release(&session->plan);
    atomic_store(&session->options.control->teardown_since_ns, 0);
    free(session);
}

static gs_status create_comm(gs_session *session, gs_deadline deadline) {
    static const char *const backends[] = {"auto", "self", "shm"};
    const gs_session_options *options = &session->options;
    gs_comm_options comm = {.backend = backends[options->spec->reducer.backend],
                            .rank = options->rank,
                            .world_size = options->world_size,
                            .generation = options->generation,
                            .exchange = options->control->ops->exchange,
                            .exchange_ctx = options->control->ctx,
                            .arena = session->arena,
                            .device = options->state->device};
    GS_TRY(gs_comm_create(&session->comm, &comm, deadline));
    gs_control_set_comm(options->control, session->comm);
    return gs_ok();
}

// Parameters lie in one block: one view. Equal checkpoints make equal ranks already; this makes sure.
static gs_status broadcast_state(gs_session *session, gs_deadline deadline) {
    const gs_trainer_state *state = session->options.state;
    gs_tensor_view *views = calloc(1 + state->num_buffers, sizeof *views);
    if (!views) return gs_error(GS_RESOURCE_EXHAUSTED, "session: out of memory");
    views[0] = (gs_tensor_view){state->memory, state->memory_bytes / sizeof(float), GS_FP32};
    for (size_t i = 0; i < state->num_buffers; i++) {
        views[1 + i] = (gs_tensor_view){gs_buffers_committed(state->buffers)[i],
                                        gs_param_spec_count(&state->buffer_specs[i]),
                                        state->buffer_specs[i].dtype};
    }
    gs_status status = gs_coalesced_broadcast(session->comm, views, 1 + state->num_buffers, 0, 0,
                                              deadline);
    free(views);
    return gs_status_prefix(status, "broadcast of the parameters");
}

gs_status gs_session_connect(gs_session *session, gs_deadline deadline) {
    int64_t begin_ns = gs_now_ns();
    GS_TRY(create_comm(session, deadline));
    GS_TRY(broadcast_state(session, deadline));
    gs_reducer_options options = reducer_options(session);
    GS_TRY(gs_reducer_create(&session->reducer, &options, session->comm, deadline));
    session->connect_seconds = seconds_since(begin_ns);
    return gs_ok();
}

const char *gs_session_backend(const gs_session *session) {
    return gs_comm_backend_name(session->comm);
}

const char *gs_session_backend_reason(const gs_session *session) {
    return gs_comm_backend_reason(session->comm);
}

const char *gs_session_algorithm(const gs_session *session) {
    uint64_t largest = 0;
    for (size_t i = 0; i < session->plan.num_buckets; i++) {
        if (session->plan.buckets[i].bytes > largest) largest = session->plan.buckets[i].bytes;
    }
    gs_collective collective = {.kind = GS_ALLREDUCE,
                                .send = gs_arena_data(session->arena),
                                .recv = gs_arena_data(session->arena),
                                .count = (size_t)largest / sizeof(float),
                                .dtype = GS_FP32,
                                .bucket = -1};
    return gs_comm_algorithm(session->comm, &collective);
}

double gs_session_connect_seconds(const gs_session *session) {
    return session->connect_seconds;
}

int gs_session_rank(const gs_session *session) {
    return session->options.rank;
}

int gs_session_world_size(const gs_session *session) {
    return session->options.world_size;
}

uint32_t gs_session_generation(const gs_session *session) {
    return session->options.generation;
}

static gs_status next_batch(gs_session *session, gs_data_loader *loader, gs_batch *batch) {
    gs_control_set_phase(session->options.control, GS_PHASE_DATA);
    return gs_data_loader_next(loader, batch, gs_deadline_in_seconds(DATA_TIMEOUT_SECONDS));
}

static gs_status run_model(gs_session *session, gs_model_pass *pass, gs_step_phases *phases) {
    const gs_model *model = &session->options.state->model;
    gs_control *control = session->options.control;
    int64_t begin_ns = gs_now_ns();
    gs_control_set_phase(control, GS_PHASE_FORWARD);
    GS_FAILPOINT("step.forward");
    GS_TRY(model->ops->forward(model->state, pass));
    phases->forward += seconds_since(begin_ns);

    begin_ns = gs_now_ns();
    gs_control_set_phase(control, GS_PHASE_BACKWARD);
    GS_FAILPOINT("step.backward");
    GS_TRY(model->ops->backward(model->state, pass));
    phases->backward += seconds_since(begin_ns);
    return gs_ok();
}

static gs_status run_pass(gs_session *session, int shard, int pass_of_shard, step_sums *sums,
                          gs_step_facts *facts) {
    gs_trainer_state *state = session->options.state;
    int64_t begin_ns = gs_now_ns();
    gs_batch batch;
    GS_TRY(next_batch(session, session->train, &batch));
    facts->phases.data += seconds_since(begin_ns);

    gs_reducer_pass reducing;
    GS_TRY(gs_reducer_begin_pass(session->reducer, &reducing));
    gs_model_pass pass = {.batch = &batch,
                          .training = true,
                          .step = state->position.step,
                          .shard = shard,
                          .params = state->params,
                          .grads = reducing.grads,
                          .accumulate = reducing.accumulate,
                          .grad_factor = 1,
                          .ready = gs_reducer_ready_callback,
                          .ready_ctx = session->reducer};
    gs_buffers_pass(state->buffers, shard, pass_of_shard == 0, &pass.buffers, &pass.next_buffers);
    GS_TRY(run_model(session, &pass, &facts->phases));
    gs_buffers_end_pass(state->buffers);
    sums->loss += pass.loss;
    sums->num_losses++;
    sums->samples += (int64_t)batch.rows;
    facts->positions = (int64_t)batch.positions;
    return gs_reducer_end_pass(session->reducer, (int64_t)batch.rows);
}

static gs_status run_passes(gs_session *session, step_sums *sums, gs_step_facts *facts) {
    int first = gs_logical_shards_first(&session->shards, session->shards.rank);
    int count = gs_logical_shards_count(&session->shards);
    for (int shard = first; shard < first + count; shard++) {
        for (int pass = 0; pass < session->passes_per_shard; pass++) {
            GS_TRY(run_pass(session, shard, pass, sums, facts));
        }
    }
    return gs_ok();
}

// A part of the parameters in every step, all of them every check_replicas_every_steps.
static uint64_t digest_params(const gs_session *session) {
    int64_t every = session->options.spec->reducer.check_replicas_every_steps;
    const gs_trainer_state *state = session->options.state;
    int64_t step = state->position.step;
    if (every == 0) return 0;
    if (step % every == 0) return gs_digest_fold(gs_trainer_state_params_digest(state, 0, 1));
    return gs_digest_fold(
        gs_trainer_state_params_digest(state, (int)(step % DIGEST_PARTS), DIGEST_PARTS));
}

static gs_status commit(gs_session *session, const step_sums *sums, const gs_step_votes *votes,
                        gs_step_facts *facts) {
    gs_control_set_phase(session->options.control, GS_PHASE_COMMIT);
    gs_commit_vote vote = {.step = facts->step,
                           .generation = session->options.generation,
                           .plan_digest = session->plan_digest,
                           .params_digest = digest_params(session),
                           .nonfinite = session->reduced.nonfinite,
                           .wants_drain = votes->drain,
                           .wants_checkpoint = votes->checkpoint,
                           .loss_sum = sums->loss,
                           .num_losses = sums->num_losses,
                           .samples = sums->samples};
    gs_commit_result result;
    GS_TRY(gs_commit_run(&result, session->comm, &vote, collective_deadline(session)));
    if (result.params_differ) {
        session->complete = false;
        facts->diverged = true;
        return gs_error(GS_INTERNAL, "replicas have diverged before step %lld",
                        (long long)facts->step);
    }
    facts->loss = result.loss;
    facts->samples = result.samples;
    facts->drain = result.drain_ranks > 0;
    facts->checkpoint = result.checkpoint_ranks > 0;
    return gs_ok();
}

static gs_status reduce(gs_session *session, gs_step_facts *facts) {
    gs_buffers *buffers = session->options.state->buffers;
    int64_t begin_ns = gs_now_ns();
    gs_control_set_phase(session->options.control, GS_PHASE_REDUCE);
    // What stuck to the stream (a target out of range) ends the step here, before anybody commits.
    GS_TRY(gs_stream_wait(gs_device_stream(session->options.state->device),
                          collective_deadline(session)));
    GS_TRY(gs_reducer_finish(session->reducer, &session->reduced, collective_deadline(session)));
    GS_TRY(gs_buffers_share(buffers, session->comm, collective_deadline(session)));
    session->complete = gs_reducer_complete(session->reducer);
    facts->phases.comm_exposed += seconds_since(begin_ns);
    facts->grad_norm = session->reduced.grad_norm;
    facts->nonfinite_ranks = session->reduced.nonfinite;
    facts->stats = gs_reducer_stats(session->reducer);
    return gs_ok();
}

gs_status gs_session_run_step(gs_session *session, gs_step_facts *facts,
                              const gs_step_votes *votes) {
    gs_trainer_state *state = session->options.state;
    step_sums sums = {0};
    *facts = (gs_step_facts){.step = state->position.step};
    session->complete = false;
    GS_FAILPOINT("step.begin");
    GS_TRY(gs_reducer_begin(session->reducer, facts->step));
    GS_TRY(gs_buffers_begin(state->buffers, session->comm, collective_deadline(session)));
    GS_TRY(run_passes(session, &sums, facts));
    GS_TRY(reduce(session, facts));
    GS_FAILPOINT("step.reduced");
    int64_t begin_ns = gs_now_ns();
    GS_TRY(commit(session, &sums, votes, facts));
    facts->phases.comm_exposed += seconds_since(begin_ns);
    GS_FAILPOINT("step.committed");
    return gs_ok();
}

bool gs_session_complete(const gs_session *session) {
    return session->complete;
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

static gs_status update_params(gs_session *session, gs_step_facts *facts) {
    gs_trainer_state *state = session->options.state;
    const gs_job_spec *spec = session->options.spec;
    const gs_reduce_result *reduced = &session->reduced;
    double clip = 1;
    if (spec->optimizer.grad_clip_norm > 0) {
        clip = fmin(1, spec->optimizer.grad_clip_norm / (reduced->grad_norm + 1e-6));
    }
    gs_buffers_adopt(state->buffers);
    GS_TRY(gs_optimizer_step(state->optimizer, state->params, gs_reducer_grads(session->reducer),
                             reduced->used, (float)facts->lr, (float)clip));
    return gs_stream_wait(gs_device_stream(state->device),
                          gs_deadline_in_seconds(spec->reducer.timeout_seconds));
}

gs_status gs_session_apply(gs_session *session, gs_step_facts *facts) {
    gs_position *position = &session->options.state->position;
    int64_t begin_ns = gs_now_ns();
    gs_control_set_phase(session->options.control, GS_PHASE_OPTIMIZER);
    facts->lr = learning_rate(session->options.spec, position->step);
    session->complete = false;
    if (!session->reduced.nonfinite) {
        GS_TRY(update_params(session, facts));
        position->skipped_in_a_row = 0;
    } else {
        position->skipped_steps++;
        position->skipped_in_a_row++;
    }
    position->step++;
    position->consumed += session->options.spec->data.global_batch;
    facts->phases.optimizer = seconds_since(begin_ns);
    GS_FAILPOINT("step.applied");
    return gs_ok();
}

bool gs_session_can_evaluate(const gs_session *session) {
    return session->evaluation != NULL;
}

enum { LOSS = 0, NOT_FINITE, BATCHES, ROWS, CORRECT, NUM_SUMS };

static gs_status evaluate_batch(gs_session *session, const gs_batch *batch,
                                int64_t sums[NUM_SUMS]) {
    const gs_trainer_state *state = session->options.state;
    gs_model_pass pass = {
        .batch = batch,
        .step = state->position.step,
        .params = state->params,
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
        gs_status status = next_batch(session, session->evaluation, &batch);
        if (status.code == GS_OUT_OF_RANGE) break;
        if (status.code) return gs_status_prefix(status, "evaluation");
        gs_control_set_phase(session->options.control, GS_PHASE_EVALUATE);
        GS_TRY(evaluate_batch(session, &batch, mine));
    }
    gs_collective collective = {.kind = GS_ALLREDUCE,
                                .send = mine,
                                .recv = all,
                                .count = NUM_SUMS,
                                .dtype = GS_I64,
                                .step = session->options.state->position.step,
                                .bucket = -1};
    GS_TRY(gs_comm_run(session->comm, &collective, collective_deadline(session)));
    double batches = (double)(all[BATCHES] ? all[BATCHES] : 1);
    *evaluation = (gs_evaluation){
        .step = session->options.state->position.step,
        .batches = all[BATCHES],
        .loss = all[NOT_FINITE] ? (double)NAN : (double)all[LOSS] / LOSS_UNIT / batches,
        .accuracy = all[ROWS] ? (double)all[CORRECT] / (double)all[ROWS] : 0,
        .has_accuracy = session->options.spec->model.kind == GS_MODEL_MLP,
    };
    return gs_ok();
}

void gs_session_abort(gs_session *session, const char *reason) {
    if (session->comm) gs_comm_abort(session->comm, reason);
}
