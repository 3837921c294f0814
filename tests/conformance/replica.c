#include "tests/conformance/replica.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/bucket/grad_norm.h"
#include "gradsync/comm/coalesce.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/tensor/device_digest.h"
#include "tests/conformance/conformance.h"
#include "tests/support/shared_gpu.h"
#include "tests/support/test_device.h"

#define STEP_SECONDS 60.0

static gs_status make_memory(replica *self, const replica_options *options) {
    const gs_model_param *list = self->model.ops->params(self->model.state, &self->num_params);
    self->buffer_specs = self->model.ops->buffers(self->model.state, &self->num_buffers);
    if (self->num_params > REPLICA_MAX_PARAMS || self->num_buffers > REPLICA_MAX_PARAMS)
        return gs_error(GS_INVALID_ARGUMENT, "too many parameters");
    for (size_t i = 0; i < self->num_params; i++) {
        self->specs[i] = list[i].spec;
        if (options->sharded) continue;  // they lie in the arena
        GS_TRY(gs_device_alloc(self->device, &self->params[i], gs_param_spec_bytes(&list[i].spec)));
    }
    return gs_buffers_create(&self->buffers, self->buffer_specs, self->num_buffers,
                             GS_BUFFERS_BROADCAST, false, self->device);
}

static gs_status make_optimizer(replica *self, const replica_options *options) {
    size_t num_params;
    const gs_model_param *list = self->model.ops->params(self->model.state, &num_params);
    gs_optimizer_options optimizer = options->optimizer;
    bool decays[REPLICA_MAX_PARAMS];
    for (size_t i = 0; i < num_params; i++) decays[i] = options->decay_all || list[i].decays;
    replica_shards_choose(&self->shards, &optimizer);
    GS_TRY(gs_optimizer_create(&self->optimizer, &optimizer, self->specs, decays, num_params,
                               self->device));
    return replica_shards_prepare(&self->shards, self->optimizer, self->device);
}

static gs_status make_plan(gs_bucket_plan *plan, const replica *self,
                           const replica_options *options) {
    const uint64_t limits_bytes[] = {options->first_bucket_bytes, options->bucket_cap_bytes};
    if (options->plan) return gs_bucket_plan_copy(plan, options->plan);
    return gs_bucket_plan_of_owned(
        plan,
        &(gs_plan_request){.limits_bytes = limits_bytes, .num_limits = 2, .reverse = true},
        options->sharded ? options->sharded->owners : NULL, self->specs, self->num_params);
}

static gs_status make_reducer(replica *self, const replica_options *options) {
    gs_bucket_plan plan;
    GS_TRY(make_plan(&plan, self, options));
    gs_reducer_options reducer = {
        .params = self->specs,
        .num_params = self->num_params,
        .plan = &plan,
        .shards = {.num_shards = self->world_size,
                   .world_size = self->world_size,
                   .rank = self->rank},
        .passes_per_shard = self->passes_per_shard,
        .device = self->device,
    };
    size_t bytes = 0;
    gs_status status = gs_ok();
    if (options->sharded) status = replica_shards_open(&self->shards, &reducer, options->sharded);
    if (!status.code) status = gs_reducer_arena_bytes(&bytes, &reducer);
    if (!status.code)
        status = gs_arena_create_on(&self->arena, bytes + replica_shards_bytes(&self->shards),
                                    self->device);
    gs_comm_options comm = {
        .backend = conformance_backend(),
        .rank = self->rank,
        .world_size = self->world_size,
        .generation = 1,
        .exchange = gs_rank_exchange,
        .exchange_ctx = options->env->exchange,
        .arena = self->arena,
        .device = self->device,
        .num_lanes = options->sharded ? REPLICA_SHARDS_LANES : 1,
    };
    gs_deadline deadline = conformance_deadline(STEP_SECONDS);
    if (!status.code) status = gs_comm_create(&self->comm, &comm, deadline);
    reducer.arena = self->arena;
    if (!status.code) status = gs_reducer_create(&self->reducer, &reducer, self->comm, deadline);
    if (!status.code)
        status = replica_shards_connect(&self->shards, self->params,
                                        (char *)gs_arena_data(self->arena) + bytes, self->reducer,
                                        self->comm, deadline);
    gs_join_options join = {.divisor = options->divisor};
    if (!status.code && options->uneven) status = gs_join_create(&self->join, &join, self->comm);
    gs_bucket_plan_release(&plan);
    return status;
}

gs_status replica_open(replica *self, const replica_options *options,
                       gs_status (*make_model)(void *ctx, gs_model *model, gs_device *device),
                       void *ctx) {
    *self = (replica){.rank = options->env->rank,
                      .world_size = options->env->world_size,
                      .passes_per_shard = options->passes_per_shard,
                      .zero_grads = options->zero_grads};
    gs_share_gpu(self->rank);
    gs_status status = gs_device_open(&self->device, gs_test_device_name(), NULL);
    if (!status.code) status = make_model(ctx, &self->model, self->device);
    if (!status.code) status = make_memory(self, options);
    if (!status.code) status = make_reducer(self, options);
    if (!status.code) status = make_optimizer(self, options);
    if (status.code) replica_close(self);
    return status;
}

gs_status replica_write(replica *self, void *tensor, const void *host, size_t bytes) {
    return gs_device_upload(self->device, tensor, host, bytes);
}

gs_status replica_read(const replica *self, void *host, const void *tensor, size_t bytes) {
    return gs_device_download(self->device, host, tensor, bytes);
}

// One piece of a batch; *at grows by what it takes.
static gs_status stage_piece(replica *self, const void **piece, size_t *at, size_t bytes) {
    if (!*piece) return gs_ok();
    void *to = (char *)self->stage + *at;
    GS_TRY(replica_write(self, to, *piece, bytes));
    *piece = to;
    *at += (bytes + 63) / 64 * 64;
    return gs_ok();
}

gs_status replica_stage(replica *self, gs_batch *staged, const gs_batch *batch) {
    const size_t ids = batch->rows * batch->positions * sizeof(int32_t);
    const size_t features = batch->rows * batch->row_features * sizeof(float);
    const size_t needed = 2 * ids + features + 256;
    *staged = *batch;
    if (gs_device_is_host(self->device)) return gs_ok();
    if (self->stage_bytes < needed) {
        if (self->stage) gs_device_free(self->device, self->stage);
        self->stage = NULL;
        self->stage_bytes = 0;
        GS_TRY(gs_device_alloc(self->device, &self->stage, needed));
        self->stage_bytes = needed;
    }
    size_t at = 0;
    const void *pieces[] = {batch->tokens, batch->targets, batch->features};
    GS_TRY(stage_piece(self, &pieces[0], &at, ids));
    GS_TRY(stage_piece(self, &pieces[1], &at, ids));
    GS_TRY(stage_piece(self, &pieces[2], &at, features));
    staged->tokens = pieces[0];
    staged->targets = pieces[1];
    staged->features = pieces[2];
    return gs_ok();
}

gs_status replica_share(replica *self) {
    gs_tensor_view views[2 * REPLICA_MAX_PARAMS];
    void *const *buffers = gs_buffers_committed(self->buffers);
    size_t count = 0;
    for (size_t i = 0; i < self->num_params; i++)
        views[count++] =
            (gs_tensor_view){self->params[i], gs_param_spec_count(&self->specs[i]), GS_FP32};
    for (size_t i = 0; i < self->num_buffers; i++)
        views[count++] = (gs_tensor_view){buffers[i], gs_param_spec_count(&self->buffer_specs[i]),
                                          self->buffer_specs[i].dtype};
    return gs_coalesced_broadcast(self->comm, views, count, 0, 0,
                                  conformance_deadline(STEP_SECONDS));
}

static gs_status run_pass(replica *self, const gs_batch *batch, int index) {
    gs_batch staged;
    gs_reducer_pass reduced;
    GS_TRY(replica_stage(self, &staged, batch));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &reduced, (int64_t)batch->rows));
    const void *const *read;
    void *const *write;
    gs_buffers_pass(self->buffers, reduced.shard, reduced.pass == 0, &read, &write);
    gs_model_pass pass = {
        .batch = &staged,
        .training = true,
        .step = self->step,
        .shard = reduced.shard,
        .params = self->params,
        .buffers = read,
        .next_buffers = write,
        .reads = replica_shards_reads,
        .reads_ctx = &self->shards,
        .released = replica_shards_release,
        .released_ctx = &self->shards,
        .grads = reduced.grads,
        .accumulate = reduced.accumulate,
        .grad_factor = reduced.grad_factor,
        .ready = gs_reducer_ready_callback,
        .ready_ctx = self->reducer,
    };
    GS_TRY(self->model.ops->forward(self->model.state, &pass));
    // An owner may change from now on what others sent for this pass.
    GS_TRY(replica_await(self));
    GS_TRY(self->model.ops->backward(self->model.state, &pass));
    self->losses[index] = pass.loss;
    gs_buffers_end_pass(self->buffers);
    return gs_reducer_end_pass(self->reducer);
}

// Of the parameters before this step and of what will be done to them, where every rank knows it.
static gs_status digest_params(const replica *self, uint64_t *folded) {
    void *const *grads = gs_reducer_grads(self->reducer);
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = gs_ok();
    bool is_updated = self->shards.overlap != REPLICA_OVERLAP_OFF;  // where it is owned
    for (size_t i = 0; i < self->num_params && !status.code; i++) {
        const size_t bytes = gs_param_spec_bytes(&self->specs[i]);
        if (!is_updated)
            status = gs_device_digest_add(stream, self->device, self->params[i], bytes);
        if (!status.code && (!self->shards.shards || is_updated))
            status = gs_device_digest_add(stream, self->device, grads[i], bytes);
    }
    gs_digest_stream_add(stream, self->has_grad, sizeof self->has_grad);
    *folded = gs_digest_fold(gs_digest_stream_value(stream));
    gs_digest_stream_destroy(stream);
    return status;
}

static gs_status commit(replica *self, const gs_reduce_result *reduced, bool active,
                        gs_deadline deadline) {
    int num_losses = active ? self->passes_per_shard : 0;
    gs_commit_vote vote = {
        .step = self->step,
        .generation = 1,
        .plan_digest = gs_digest_fold(gs_bucket_plan_digest(gs_reducer_plan(self->reducer))),
        .nonfinite = reduced->nonfinite,
        .num_losses = num_losses,
    };
    GS_TRY(digest_params(self, &vote.params_digest));
    for (int i = 0; i < num_losses; i++) vote.loss_sum += self->losses[i];
    gs_commit_result result;
    GS_TRY(gs_commit_run(&result, self->comm, &vote, deadline));
    self->commit_loss = result.loss;
    if (result.params_differ) return gs_error(GS_INTERNAL, "parameters differ between ranks");
    if (result.nonfinite_ranks) return gs_error(GS_INTERNAL, "gradients are not finite");
    return gs_ok();
}

static gs_status begin_step(replica *self, bool active, gs_deadline deadline) {
    gs_join_round round;
    if (!self->join) {
        GS_TRY(gs_buffers_begin(self->buffers, self->comm, deadline));
        return gs_reducer_begin(self->reducer, self->step);
    }
    GS_TRY(gs_join_open(self->join, &round, active, self->step, deadline));
    GS_TRY(gs_buffers_begin_uneven(self->buffers, &round, self->comm, deadline));
    GS_TRY(gs_reducer_begin_uneven(self->reducer, self->step, &round));
    return active ? gs_ok() : gs_join_shadow(self->join, deadline);
}

// A gradient that was once there stays, as zero, when gradients are zeroed; else it is gone.
static void note_gradients(replica *self, const gs_reduce_result *reduced) {
    const int64_t *num_updates = gs_optimizer_num_updates(self->optimizer);
    for (size_t i = 0; i < self->num_params; i++)
        self->has_grad[i] = reduced->used[i] || (self->zero_grads && num_updates[i] > 0);
}

gs_status replica_step(replica *self, const gs_batch *batches, float lr, double grad_clip,
                       replica_check check, void *ctx) {
    gs_deadline deadline = conformance_deadline(STEP_SECONDS);
    replica_shards_begin(&self->shards, lr);
    GS_TRY(begin_step(self, batches != NULL, deadline));
    for (int i = 0; i < self->passes_per_shard; i++) {
        self->losses[i] = 0.0;
        if (batches) GS_TRY(run_pass(self, &batches[i], i));
    }
    replica_shards_end_passes(&self->shards);
    gs_reduce_result reduced;
    GS_TRY(gs_reducer_finish(self->reducer, &reduced, deadline));
    self->grad_norm = reduced.grad_norm;
    note_gradients(self, &reduced);
    GS_TRY(replica_await(self));
    GS_TRY(commit(self, &reduced, batches != NULL, deadline));
    if (check) GS_TRY(check(ctx, self));
    float factor = gs_grad_clip_factor(reduced.grad_norm, grad_clip);
    if (self->shards.shards)
        GS_TRY(replica_shards_step(&self->shards, self->optimizer, self->has_grad, self->step, lr,
                                   factor));
    else
        GS_TRY(gs_optimizer_step(self->optimizer, self->params, gs_reducer_grads(self->reducer),
                                 self->has_grad, lr, factor));
    gs_buffers_adopt(self->buffers);
    self->step++;
    return gs_ok();
}

gs_status replica_await(const replica *self) {
    return replica_shards_await(&self->shards, conformance_deadline(STEP_SECONDS));
}

gs_status replica_finish(replica *self) {
    gs_tensor_view params[REPLICA_MAX_PARAMS], buffers[REPLICA_MAX_PARAMS];
    void *const *committed = gs_buffers_committed(self->buffers);
    gs_deadline deadline = conformance_deadline(STEP_SECONDS);
    gs_join_round round;
    GS_TRY(gs_join_open(self->join, &round, false, self->step, deadline));
    if (round.num_active)
        return gs_error(GS_FAILED_PRECONDITION, "rank %d still has batches", round.source);
    for (size_t i = 0; i < self->num_params; i++)
        params[i] =
            (gs_tensor_view){self->params[i], gs_param_spec_count(&self->specs[i]), GS_FP32};
    for (size_t i = 0; i < self->num_buffers; i++)
        buffers[i] = (gs_tensor_view){committed[i], gs_param_spec_count(&self->buffer_specs[i]),
                                      self->buffer_specs[i].dtype};
    return gs_join_finish(self->join,
                          &(gs_join_state){params, buffers, self->num_params, self->num_buffers},
                          deadline);
}

void replica_close(replica *self) {
    bool in_arena = self->shards.shards != NULL;
    gs_join_destroy(self->join);
    gs_reducer_destroy(self->reducer);
    replica_shards_close(&self->shards);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_optimizer_destroy(self->optimizer);
    gs_buffers_destroy(self->buffers);
    for (size_t i = 0; i < REPLICA_MAX_PARAMS && !in_arena; i++)
        if (self->params[i]) gs_device_free(self->device, self->params[i]);
    if (self->stage) gs_device_free(self->device, self->stage);
    gs_model_destroy(&self->model);
    gs_device_close(self->device);
    *self = (replica){0};
}

gs_status vector_floats(float **values, size_t *count, const gs_safetensors *file,
                        const char *format, ...) {
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const gs_safetensor *tensor = gs_safetensors_find(file, name);
    if (!tensor) return gs_error(GS_NOT_FOUND, "no tensor \"%s\"", name);
    *count = tensor->bytes / sizeof(float);
    *values = malloc(tensor->bytes + 1);
    if (!*values) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    // I32 and I64 tensors are copied as they are: the caller knows what it asked for.
    memcpy(*values, tensor->data, tensor->bytes);
    return gs_ok();
}

gs_status vector_slice(void *to, size_t bytes, const gs_safetensors *file, const char *prefix,
                       const char *name, size_t at) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const gs_safetensor *tensor = gs_safetensors_find(file, full);
    if (!tensor || tensor->bytes < (at + 1) * bytes)
        return gs_error(GS_NOT_FOUND, "no slice %zu of \"%s\"", at, full);
    memcpy(to, (const char *)tensor->data + at * bytes, bytes);
    return gs_ok();
}

gs_optimizer_options vector_optimizer(const gs_safetensors *file) {
    return (gs_optimizer_options){
        .kind = gs_safetensors_metadata(file, "optimizer"),
        .beta1 = (float)vector_number(file, "beta1"),
        .beta2 = (float)vector_number(file, "beta2"),
        .eps = (float)vector_number(file, "eps"),
        .weight_decay = (float)vector_number(file, "weight_decay"),
        .momentum = (float)vector_number(file, "momentum"),
        .nesterov = vector_number(file, "nesterov") != 0.0,
    };
}

double vector_number(const gs_safetensors *file, const char *key) {
    const char *text = gs_safetensors_metadata(file, key);
    return text ? strtod(text, NULL) : 0.0;
}

gs_status compare_floats(const char *what, const float *got, const float *wanted, size_t count,
                         tolerance allowed) {
    double largest = allowed.floor, distance = 0.0;
    size_t worst = 0;
    for (size_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)wanted[i]));
        double apart = fabs((double)got[i] - (double)wanted[i]);
        // A NaN, once found, is the worst there is: nothing compares as larger.
        if (apart > distance || (isnan(apart) && !isnan(distance))) {
            distance = apart;
            worst = i;
        }
    }
    double most = allowed.absolute + allowed.relative * largest;
    if (isfinite(distance) && distance <= most) return gs_ok();
    return gs_error(GS_DATA_LOSS,
                    "%s: element %zu is %.9g, wanted %.9g (off by %.3g, allowed %.3g)", what, worst,
                    (double)got[worst], (double)wanted[worst], distance, most);
}
