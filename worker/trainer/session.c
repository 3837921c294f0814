#include "worker/trainer/session.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "rpc/schema/job_words.h"
#include "worker/exit_code.h"
#include "worker/state/state_transfer.h"
#include "worker/state/hook_tensors.h"
#include "worker/trainer/session_state.h"
#include "worker/trainer/step.h"
#include "worker/trainer/step_opening.h"

static gs_record_options record_options(const gs_job_spec *spec) {
    bool is_mlp = spec->model.kind == GS_MODEL_MLP;
    return (gs_record_options){
        .level = getenv("GRADSYNC_REDUCER_LOG") ? GS_RECORD_UNSET : GS_RECORD_INFO,
        .model = gs_model_words[spec->model.kind],
        .buffers = gs_buffer_words[spec->reducer.buffers],
        .batch_norm = is_mlp ? gs_batch_norm_words[spec->model.mlp.batch_norm] : NULL,
        .uneven_inputs = gs_uneven_words[spec->data.uneven_inputs],
        .num_replicas = (int)spec->world.replicas_per_process};
}

static void note_bucket(void *ctx, size_t bucket) {
    gs_session *session = ctx;
    if (!session->update) return;
    gs_session_end_digest(session);
    gs_backward_update_bucket(session->update, bucket);
}

static gs_reducer_options reducer_options(gs_session *session) {
    const gs_job_spec *spec = session->spec;
    const gs_trainer_state *state = session->state;
    return (gs_reducer_options){
        .params = state->param_specs,
        .num_params = state->num_params,
        .plan = &session->plans.plan,
        .shards = session->reducing,
        .passes_per_shard = session->passes_per_shard,
        .op = session->op,
        .unused_is_error = spec->reducer.unused_parameters == GS_UNUSED_ERROR,
        .static_graph = spec->reducer.static_graph,
        .wire_dtype = session->wire_dtype,
        .windows = session->sharding.windows,
        .measured_by = gs_sharding_measured_by(&session->sharding),
        .tally = gs_sharding_reduces_to_owners(&session->sharding) ? GS_TALLY_APART : GS_TALLY_IN_BUCKETS,
        .hooks = &session->hook.choice,
        .num_hooks = 1,
        .arena = session->arena,
        .device = state->device,
        .record = record_options(spec),
        .bucket_finished = spec->optimizer.in_backward || session->sharding.overlaps ? note_bucket : NULL,
        .bucket_finished_ctx = session,
    };
}

static gs_embedding_rows_options row_options(const gs_session *session) {
    return (gs_embedding_rows_options){
        .spec = session->spec,
        .shards = session->shards,
        .memory = session->arena ? (char *)gs_arena_data(session->arena) + session->reducer_bytes
                                 : NULL,
        .device = session->state->device};
}

static gs_status measure_arena(gs_session *session, size_t *bytes) {
    gs_reducer_options whole = reducer_options(session), reducer;
    GS_TRY(gs_pass_runners_reducer_options(&reducer, &whole, session->model_replicas, session->spec));
    gs_embedding_rows_options rows = row_options(session);
    GS_TRY(gs_reducer_arena_bytes(&session->reducer_bytes, &reducer));
    GS_TRY(gs_embedding_rows_bytes(&session->row_bytes, &rows));
    session->reducer_bytes = gs_round_up(session->reducer_bytes, 64);
    session->row_bytes = gs_round_up(session->row_bytes, GS_HOOK_PLACE_BYTES);
    *bytes = session->reducer_bytes + session->row_bytes + gs_sharding_bytes(&session->sharding);
    return gs_ok();
}

// From here on the state is this generation's: parameters of a sharded one lie in its arena.
static gs_status lay_out_state(gs_session *session) {
    gs_trainer_state *state = session->state;
    if (state->is_sharded) {
        char *memory = gs_arena_data(session->arena);
        GS_TRY(gs_sharding_lay_out(&session->sharding, session->spec,
                                         memory + session->reducer_bytes + session->row_bytes));
        session->state_is_broken = false;
        atomic_store(&session->progress->applied_step, state->position.step);
        atomic_store(&session->progress->plan_step, state->position.step);
    }
    session->state_digest = gs_trainer_state_digest(state);
    return gs_ok();
}

static bool has_evaluation(const gs_job_spec *spec) {
    return spec->data.eval_every_steps > 0 && spec->data.eval_batches > 0;
}

static gs_pass_runners_options pass_runners_options(gs_session *session) {
    return (gs_pass_runners_options){.models = session->model_replicas,
                                     .context = &session->passes,
                                     .spec = session->spec,
                                     .data_root = session->data_root,
                                     .shards = session->shards,
                                     .consumed = session->state->position.consumed,
                                     .first_loader = session->train};
}

static gs_status open_data(gs_session *session) {
    gs_data_loader_options loader = {
        .spec = session->spec,
        .split = GS_TRAIN,
        .data_root = session->data_root,
        .shards = gs_pass_runners_shards(session->model_replicas, &session->shards),
        .joins_shards = session->joins_shards,
        .consumed = session->state->position.consumed};
    GS_TRY(gs_data_loader_open(&session->train, &loader));
    gs_pass_runners_options replicas = pass_runners_options(session);
    GS_TRY(gs_pass_runners_create(&session->pass_runners, &replicas));
    if (!has_evaluation(session->spec)) return gs_ok();
    loader.split = GS_EVAL;
    loader.shards = session->shards;
    loader.consumed = 0;
    return gs_data_loader_open(&session->evaluation, &loader);
}

static gs_status check_world(const gs_session_options *options) {
    const gs_job_spec *spec = options->spec;
    if (spec->data.split != GS_SPLIT_BY_RANK || options->place.world_size == spec->world.max)
        return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "data.split by_rank: parts were dealt to %lld ranks, not to %d",
                    (long long)spec->world.max, options->place.world_size);
}

static gs_status prepare(gs_session *session, gs_grad_memory *memory, const gs_bucket_plan *plan) {
    gs_trainer_state *state = session->state;
    static const gs_dtype wire_dtypes[] = {GS_DTYPE_UNSET, GS_BF16, GS_FP16};
    size_t arena_bytes;
    session->wire_dtype = wire_dtypes[session->spec->reducer.wire_dtype];
    GS_TRY(gs_job_hook_choose(&session->hook, &session->spec->reducer.hook));
    GS_TRY(gs_bucket_plan_check(plan, state->param_specs, state->num_params));
    GS_TRY(gs_plan_switch_init(&session->plans, session->control, session->generation, plan,
                               state->position.step));
    GS_TRY(gs_sharding_init(&session->sharding, state,
                                  &(gs_state_shards_options){.spec = session->spec,
                                                             .plan = &session->plans.plan,
                                                             .params = state->param_specs,
                                                             .num_params = state->num_params,
                                                             .rank = session->shards.rank,
                                                             .world_size = session->shards.world_size}));
    gs_sharding_reduce(&session->sharding, &session->hook.choice, &session->wire_dtype);
    GS_TRY(measure_arena(session, &arena_bytes));
    GS_TRY(gs_grad_memory_reserve(memory, arena_bytes, state->device));
    session->arena = memory->arena;
    GS_TRY(lay_out_state(session));
    GS_TRY(gs_frozen_params_create(&session->frozen, session->spec, state->param_specs, state->num_params));
    GS_TRY(open_data(session));
    return gs_pass_device_init(&session->gpu, state, session->train, session->evaluation);
}

gs_status gs_session_create(gs_session **out, const gs_session_options *options) {
    GS_TRY(check_world(options));
    gs_session *session = calloc(1, sizeof *session);
    if (!session) return gs_error(GS_RESOURCE_EXHAUSTED, "session: out of memory");
    *session = (gs_session){
        .spec = options->spec,
        .state = options->state,
        .control = options->control,
        .progress = &options->control->progress,
        .data_root = options->data_root,
        .data_address = options->data_address,
        .sees_no_checkpoints = options->sees_no_checkpoints,
        .model_replicas = options->model_replicas,
        .generation = options->place.generation,
        .state_is_broken = options->state_is_broken || gs_trainer_state_is_apart(options->state),
        .plan_is_observed = options->plan_is_observed,
        .passes_per_shard = (int)gs_job_spec_passes_per_shard(options->spec),
        .shards = {.num_shards = options->num_shards,
                   .world_size = options->place.world_size,
                   .rank = options->place.rank,
                   .exact = options->spec->exact},
    };
    gs_mailbox_begin(&options->control->mailbox, session->generation);
    gs_session_deal_shards(session);
    gs_status status = prepare(session, options->memory, options->plan);
    if (status.code) {
        gs_session_destroy(session);
        return status;
    }
    *out = session;
    return gs_ok();
}

// What hooks carry outlives them.
static void rest_hooks(gs_session *session) {
    if (!session->reducer) return;
    gs_status status = gs_hook_tensors_detach(session->state);
    if (status.code)
        gs_log_warn("state of communication hooks is lost", "rank=%d reason=\"%s\"",
                    session->shards.rank, status.message);
}

void gs_session_destroy(gs_session *session) {
    if (!session) return;
    atomic_store(&session->progress->teardown_since_ns, gs_now_ns());
    gs_mailbox_set_comm(&session->control->mailbox, NULL);
    gs_sharding_release(&session->sharding);
    gs_replica_average_destroy(session->average);
    gs_embedding_rows_destroy(session->embedding_rows);
    gs_frozen_params_destroy(session->frozen);
    gs_backward_update_destroy(session->update);
    session->update = NULL;
    gs_update_ahead_destroy(session->ahead);
    gs_pass_runners_destroy(session->pass_runners);
    rest_hooks(session);
    gs_reducer_destroy(session->reducer);
    // Behind the end of what was in flight: a GPU frees nothing while a kernel waits for other ranks.
    gs_pass_device_release(&session->gpu, session->state->device);
    gs_session_release_inputs(session);
    gs_comm_destroy(session->comm);
    gs_data_loader_close(session->train);
    gs_data_loader_close(session->evaluation);
    gs_plan_switch_release(&session->plans);
    gs_order_reporter_release(&session->order);
    gs_link_watch_end(&session->link);
    gs_save_team_release(&session->save_team);
    atomic_store(&session->progress->teardown_since_ns, 0);
    free(session);
}

static gs_status check_mailbox(void *ctx) {
    return gs_mailbox_check(ctx);
}

// The agent starts a new trainer.
static void end_process(void *ctx, const char *reason) {
    (void)ctx;
    (void)reason;  // said in the log already
    _exit(GS_EXIT_ABORT_HUNG);
}

static gs_status create_comm(gs_session *session, const gs_reducer_options *reducer,
                             gs_deadline deadline) {
    static const char *const backends[] = {"auto", "self", "shm", "net", "nccl"};
    gs_comm_options comm = {.backend = backends[session->spec->reducer.backend],
                            .rank = session->shards.rank,
                            .world_size = session->shards.world_size,
                            .generation = session->generation,
                            .exchange = session->control->ops->exchange,
                            .exchange_ctx = session->control->ctx,
                            .check = check_mailbox,
                            .check_ctx = &session->control->mailbox,
                            .arena = session->arena,
                            .data_address = session->data_address,
                            .device = session->state->device,
                            .unreached = &session->unreached,
                            .abort_hung = end_process};
    GS_TRY(gs_reducer_lanes(&comm.num_lanes, reducer));
    session->plans.num_phases = comm.num_lanes;
    if (session->sharding.partition) comm.num_lanes++;
    GS_TRY(gs_comm_create(&session->comm, &comm, deadline));
    gs_mailbox_set_comm(&session->control->mailbox, session->comm);
    return gs_ok();
}

// The data were opened for the position that this rank came with.
static gs_status reopen_data(gs_session *session) {
    gs_pass_runners_destroy(session->pass_runners);
    session->pass_runners = NULL;
    gs_pass_device_release(&session->gpu, session->state->device);
    gs_data_loader_close(session->train);
    gs_data_loader_close(session->evaluation);
    session->train = session->evaluation = NULL;
    GS_TRY(open_data(session));
    return gs_pass_device_init(&session->gpu, session->state, session->train, session->evaluation);
}

static void log_transfer(const gs_session *session, const gs_state_sync_result *result) {
    const gs_position *position = &session->state->position;
    gs_log_info("state received", "rank=%d generation=%u source=%d step=%lld bytes=%zu",
                session->shards.rank, session->generation, result->source,
                (long long)position->step, result->bytes);
}

// Equal checkpoints make equal ranks already; this makes sure, and gives newcomers what they lack.
static gs_status share_state(gs_session *session, gs_deadline deadline) {
    gs_trainer_state *state = session->state;
    gs_state_sync_result result;
    int64_t consumed = state->position.consumed;
    bool was_broken = session->state_is_broken, has_state = !was_broken && state->position.step > 0;
    // Hooks that begin have tensors of zeros that the digest of before did not know.
    bool has_hooks = state->num_tensors > state->num_model_tensors;
    gs_digest digest = has_hooks ? (gs_digest){0} : session->state_digest;
    gs_status status =
        gs_state_transfer_run(&result, state, has_state, digest, session->comm, deadline);
    if (result.received) session->state_is_broken = status.code != GS_OK;
    GS_TRY(status);
    if (was_broken && !result.has_state) {
        session->state_is_broken = true;
        return gs_error(GS_INTERNAL, "the state here is broken, and no other rank has one");
    }
    if (!result.received) return gs_ok();
    log_transfer(session, &result);
    if (has_hooks) GS_TRY(gs_reducer_hook_state_loaded(session->reducer));
    session->state_digest = gs_trainer_state_digest(state);
    atomic_store(&session->progress->applied_step, state->position.step);
    atomic_store(&session->progress->plan_step, state->position.step);
    return state->position.consumed == consumed ? gs_ok() : reopen_data(session);
}

// What each rank carries of its own, from those that had it.
static gs_status deal_own_tensors(gs_session *session, gs_deadline deadline) {
    gs_trainer_state *state = session->state;
    gs_own_deal dealt;
    int64_t step = state->position.step;
    GS_TRY(gs_own_tensors_deal(&dealt, &state->own, state->copy, step, deadline));
    if (session->shards.rank != 0 || !state->own.num_tensors) return gs_ok();
    if (step > 0 && !dealt.from_world)
        gs_log_warn("no residuals were saved: they begin with zeros", "generation=%u step=%lld",
                    session->generation, (long long)step);
    if (dealt.from_world)
        gs_log_info("residuals dealt", "generation=%u step=%lld of_ranks=%d to_ranks=%d sent=%d",
                    session->generation, (long long)step, dealt.from_world, dealt.to_world,
                    dealt.num_received);
    return gs_ok();
}

static gs_status watch_order(gs_session *session) {
    if (session->shards.rank != 0) return gs_ok();
    return gs_order_reporter_init(&session->order, session->control, session->generation,
                                  &session->plans.plan, session->plan_is_observed,
                                  session->spec->reducer.rebuild_after_steps);
}

static gs_pass_context pass_context(gs_session *session) {
    int num_shards = gs_logical_shards_count(&session->shards);
    return (gs_pass_context){.position = &session->state->position,
                             .plan = &session->plans.plan,
                             .comm = session->comm,
                             .reducer = session->reducer,
                             .embedding_rows = session->embedding_rows,
                             .frozen = session->frozen,
                             .batch_sync = session->batch_sync,
                             .update = session->update,
                             .sharding = session->sharding.partition ? &session->sharding : NULL,
                             .progress = session->progress,
                             .losses_per_pass = session->joins_shards ? num_shards : 1,
                             .timeout_seconds = session->spec->reducer.timeout_seconds};
}

static gs_backward_update_options update_options(const gs_session *session) {
    return (gs_backward_update_options){.spec = session->spec,
                                        .state = session->state,
                                        .reducer = session->reducer,
                                        .own_grads = session->sharding.grads,
                                        .comm = session->comm,
                                        .adds_rows = session->embedding_rows};
}

static gs_update_ahead_options ahead_options(const gs_session *session) {
    return (gs_update_ahead_options){.spec = session->spec,
                                     .state = session->state,
                                     .reducer = session->reducer,
                                     .comm = session->comm,
                                     .times = session->gpu.times,
                                     .updates_in_backward = session->update != NULL};
}

static gs_status connect_sharding(gs_session *session, gs_deadline deadline) {
    const gs_backward_update_options update = update_options(session);
    return gs_sharding_connect(
        &session->sharding,
        &(gs_sharding_options){.reducer = session->reducer,
                               .comm = session->comm,
                               .lane = session->plans.num_phases,
                               .updates_early = gs_backward_update_is_early(&update)},
        deadline);
}

gs_status gs_session_connect(gs_session *session, gs_deadline deadline) {
    int64_t begin_ns = gs_now_ns();
    gs_reducer_options whole = reducer_options(session), options;
    GS_TRY(gs_pass_runners_reducer_options(&options, &whole, session->model_replicas, session->spec));
    GS_TRY(create_comm(session, &options, deadline));
    GS_TRY(gs_reducer_create(&session->reducer, &options, session->comm, deadline));
    GS_TRY(gs_hook_tensors_attach(session->state, session->reducer, session->comm));
    GS_TRY(share_state(session, deadline));
    GS_TRY(deal_own_tensors(session, deadline));
    GS_TRY(connect_sharding(session, deadline));
    GS_TRY(gs_replica_average_create(&session->average, &session->spec->reducer.hook,
                                     session->state, session->comm, deadline));
    GS_TRY(gs_pass_runners_connect(session->pass_runners, &whole, session->reducer, session->comm,
                                   deadline));
    gs_embedding_rows_options rows = row_options(session);
    GS_TRY(gs_embedding_rows_create(&session->embedding_rows, &rows, session->reducer,
                                    session->comm, deadline));
    gs_backward_update_options update = update_options(session);
    GS_TRY(gs_backward_update_create(&session->update, &update));
    const gs_update_ahead_options ahead = ahead_options(session);
    GS_TRY(gs_update_ahead_create(&session->ahead, &ahead));
    GS_TRY(gs_session_prepare_inputs(session));
    GS_TRY(watch_order(session));
    GS_TRY(gs_save_team_meet(&session->save_team, session->comm, session->sees_no_checkpoints,
                             session->spec->reducer.timeout_seconds, deadline));
    GS_TRY(gs_link_watch_begin(&session->link, session->comm, session->state->num_params,
                               session->spec->reducer.timeout_seconds));
    session->passes = pass_context(session);
    gs_plan_switch_show(&session->plans);
    session->connect_begin_ns = begin_ns;
    session->connect_seconds = gs_seconds_since(begin_ns);
    return gs_ok();
}

const gs_comm_failure *gs_session_unreached(const gs_session *session) {
    return &session->unreached;
}

gs_comm *gs_session_comm(const gs_session *session) {
    return session->comm;
}

const gs_save_team *gs_session_save_team(const gs_session *session) {
    return &session->save_team;
}

const char *gs_session_backend(const gs_session *session) {
    return gs_comm_backend_name(session->comm);
}

const char *gs_session_backend_reason(const gs_session *session) {
    return gs_comm_backend_reason(session->comm);
}

const char *gs_session_algorithm(const gs_session *session) {
    uint64_t largest = 0;
    for (size_t i = 0; i < session->plans.plan.num_buckets; i++) {
        if (session->plans.plan.buckets[i].bytes > largest) largest = session->plans.plan.buckets[i].bytes;
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

double gs_session_seconds_since_connecting(const gs_session *session) {
    return gs_seconds_since(session->connect_begin_ns);
}

gs_digest gs_session_state_digest(const gs_session *session) {
    return session->state_digest;
}

bool gs_session_state_is_broken(const gs_session *session) {
    return session->state_is_broken;
}

int gs_session_rank(const gs_session *session) {
    return session->shards.rank;
}

int gs_session_world_size(const gs_session *session) {
    return session->shards.world_size;
}

uint32_t gs_session_generation(const gs_session *session) {
    return session->generation;
}

gs_place gs_session_place(const gs_session *session) {
    return (gs_place){.generation = gs_session_generation(session),
                      .rank = gs_session_rank(session),
                      .world_size = gs_session_world_size(session)};
}

bool gs_session_writes_files(const gs_session *session) {
    return session->shards.rank == 0;
}

void gs_session_abort(gs_session *session, const char *reason) {
    if (session->comm) gs_comm_abort(session->comm, reason);
}

gs_status gs_session_wait_ended(gs_session *session, gs_deadline deadline) {
    return session->comm ? gs_comm_wait_ended(session->comm, deadline) : gs_ok();
}
