#include "worker/trainer/session.h"

#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/comm/coalesce.h"
#include "rpc/schema/job_words.h"
#include "worker/trainer/plan_switch.h"
#include "worker/trainer/session_state.h"

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

static gs_reducer_options reducer_options(const gs_session *session) {
    const gs_job_spec *spec = session->options.spec;
    const gs_trainer_state *state = session->options.state;
    static const gs_dtype wire_dtypes[] = {GS_DTYPE_UNSET, GS_BF16, GS_FP16};
    return (gs_reducer_options){
        .params = state->param_specs,
        .num_params = state->num_params,
        .plan = &session->plan,
        .shards = session->reducing,
        .passes_per_shard = session->passes_per_shard,
        .op = session->op,
        .unused_is_error = spec->reducer.unused_parameters == GS_UNUSED_ERROR,
        .static_graph = spec->reducer.static_graph,
        .wire_dtype = wire_dtypes[spec->reducer.wire_dtype],
        .arena = session->arena,
        .device = state->device,
        .record = record_options(spec),
    };
}

static gs_embedding_rows_options row_options(const gs_session *session) {
    return (gs_embedding_rows_options){
        .spec = session->options.spec,
        .shards = session->shards,
        .memory = session->arena ? (char *)gs_arena_data(session->arena) + session->reducer_bytes
                                 : NULL,
        .device = session->options.state->device};
}

static gs_status measure_arena(gs_session *session, size_t *bytes) {
    gs_reducer_options whole = reducer_options(session), reducer;
    GS_TRY(gs_replica_step_reducer_options(&reducer, &whole, session));
    gs_embedding_rows_options rows = row_options(session);
    size_t row_bytes;
    GS_TRY(gs_reducer_arena_bytes(&session->reducer_bytes, &reducer));
    GS_TRY(gs_embedding_rows_bytes(&row_bytes, &rows));
    session->reducer_bytes = gs_round_up(session->reducer_bytes, 64);
    *bytes = session->reducer_bytes + row_bytes;
    return gs_ok();
}

static bool has_evaluation(const gs_job_spec *spec) {
    return spec->data.eval_every_steps > 0 && spec->data.eval_batches > 0;
}

static gs_status open_data(gs_session *session) {
    const gs_session_options *options = &session->options;
    gs_data_loader_options loader = {.spec = options->spec,
                                     .split = GS_TRAIN,
                                     .data_root = options->data_root,
                                     .shards = gs_replica_step_shards(session),
                                     .joins_shards = session->joins_shards,
                                     .consumed = options->state->position.consumed};
    GS_TRY(gs_data_loader_open(&session->train, &loader));
    GS_TRY(gs_replica_step_create(&session->replica_step, session));
    if (!has_evaluation(options->spec)) return gs_ok();
    loader.split = GS_EVAL;
    loader.shards = session->shards;
    loader.consumed = 0;
    return gs_data_loader_open(&session->evaluation, &loader);
}

gs_status gs_session_create(gs_session **out, const gs_session_options *options) {
    gs_session *session = calloc(1, sizeof *session);
    if (!session) return gs_error(GS_RESOURCE_EXHAUSTED, "session: out of memory");
    session->options = *options;
    session->options.plan = NULL;
    if (options->spec->data.split == GS_SPLIT_BY_RANK &&
        options->world_size != options->spec->world.max) {
        gs_session_destroy(session);
        return gs_error(GS_FAILED_PRECONDITION,
                        "data.split by_rank: parts were dealt to %lld ranks, not to %d",
                        (long long)options->spec->world.max, options->world_size);
    }
    session->passes_per_shard = (int)gs_job_spec_passes_per_shard(options->spec);
    session->shards = (gs_logical_shards){.num_shards = options->num_shards,
                                          .world_size = options->world_size,
                                          .rank = options->rank,
                                          .exact = options->spec->exact};
    gs_session_deal_shards(session);
    size_t arena_bytes = 0;
    gs_status status = gs_bucket_plan_check(options->plan, options->state->param_specs,
                                            options->state->num_params);
    if (!status.code) status = gs_bucket_plan_copy(&session->plan, options->plan);
    if (!status.code) {
        session->plan_digest = gs_digest_fold(gs_bucket_plan_digest(&session->plan));
        atomic_store(&options->control->plan_digest, session->plan_digest);
        atomic_store(&options->control->plan_step, options->state->position.step);
        atomic_store(&options->control->next_plan_digest, 0);
        status = measure_arena(session, &arena_bytes);
    }
    gs_trainer_state *state = options->state;
    if (!status.code)
        status = gs_arena_create_on(&session->arena, arena_bytes, state->device);
    if (!status.code) status = open_data(session);
    if (!status.code)
        status = gs_pass_device_init(&session->gpu, state, session->train, session->evaluation);
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
    gs_embedding_rows_destroy(session->embedding_rows);
    gs_replica_step_destroy(session->replica_step);
    gs_reducer_destroy(session->reducer);
    // Behind the end of what was in flight: a GPU frees nothing while a kernel waits for other ranks.
    gs_pass_device_release(&session->gpu, session->options.state->device);
    gs_session_release_inputs(session);
    gs_comm_destroy(session->comm);
    gs_data_loader_close(session->train);
    gs_data_loader_close(session->evaluation);
    gs_arena_destroy(session->arena);
    gs_bucket_plan_release(&session->plan);
    gs_plan_offer_release(&session->next_plan);
    gs_order_watch_release(&session->watch);
    atomic_store(&session->options.control->teardown_since_ns, 0);
    free(session);
}

static gs_status check_control(void *ctx) {
    return gs_control_check(ctx);
}

static gs_status create_comm(gs_session *session, gs_deadline deadline) {
    static const char *const backends[] = {"auto", "self", "shm", "nccl"};
    const gs_session_options *options = &session->options;
    gs_comm_options comm = {.backend = backends[options->spec->reducer.backend],
                            .rank = options->rank,
                            .world_size = options->world_size,
                            .generation = options->generation,
                            .exchange = options->control->ops->exchange,
                            .exchange_ctx = options->control->ctx,
                            .check = check_control,
                            .check_ctx = options->control,
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
    gs_trainer_state_refresh(session->options.state);
    return gs_status_prefix(status, "broadcast of the parameters");
}

gs_status gs_session_connect(gs_session *session, gs_deadline deadline) {
    int64_t begin_ns = gs_now_ns();
    GS_TRY(create_comm(session, deadline));
    GS_TRY(broadcast_state(session, deadline));
    gs_reducer_options whole = reducer_options(session), options;
    GS_TRY(gs_replica_step_reducer_options(&options, &whole, session));
    GS_TRY(gs_reducer_create(&session->reducer, &options, session->comm, deadline));
    GS_TRY(gs_replica_step_connect(session->replica_step, &whole, deadline));
    gs_embedding_rows_options rows = row_options(session);
    GS_TRY(gs_embedding_rows_create(&session->embedding_rows, &rows, session->reducer,
                                    session->comm, deadline));
    GS_TRY(gs_session_prepare_inputs(session));
    GS_TRY(gs_session_watch_order(session));
    gs_session_prepare_timeline(session, 0);
    session->connect_seconds = gs_seconds_since(begin_ns);
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

bool gs_session_writes_files(const gs_session *session) {
    return session->options.rank == 0;
}

void gs_session_abort(gs_session *session, const char *reason) {
    if (session->comm) gs_comm_abort(session->comm, reason);
}
