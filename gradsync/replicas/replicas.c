// The owner's side: life, layout, the step, and the way of finished buckets into the reducer.
#include "gradsync/replicas/replicas.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/thread.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/replicas/replicas_state.h"

// While buckets may be in flight the owner moves them this often; the deadline is looked at, too.
#define PROGRESS_NS (GS_NS_PER_MS / 5)

gs_status gs_replicas_first_error(gs_replicas *replicas) {
    pthread_mutex_lock(&replicas->lock);
    gs_status status = replicas->error;
    pthread_mutex_unlock(&replicas->lock);
    return status;
}

gs_status gs_replicas_keep_error(gs_replicas *replicas, gs_status status) {
    if (!status.code) return status;
    pthread_mutex_lock(&replicas->lock);
    bool is_first = !replicas->error.code;
    if (is_first) replicas->error = status;
    status = replicas->error;
    atomic_store(&replicas->failed, true);
    pthread_cond_broadcast(&replicas->moved);
    pthread_mutex_unlock(&replicas->lock);
    if (is_first) gs_comm_abort(replicas->comm, status.message);
    return status;
}

void gs_replicas_fail(gs_replicas *replicas, int replica, gs_status why) {
    if (!why.code) return;
    gs_status kept =
        gs_replicas_keep_error(replicas, gs_status_prefix(why, "rank %d, replica %d",
                                                          replicas->whole.shards.rank, replica));
    (void)kept;
}

static gs_status misuse(const gs_replicas *replicas, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: %s", replicas->whole.shards.rank,
                    (long long)replicas->step, what);
}

static int count_passes(const gs_reducer_options *whole) {
    return whole->passes_per_shard ? whole->passes_per_shard : 1;
}

gs_logical_shards gs_replicas_shards(const gs_logical_shards *process, int num_replicas,
                                     int replica) {
    gs_logical_shards shards = *process;
    shards.world_size = process->world_size * num_replicas;
    shards.rank = process->rank * num_replicas + replica;
    return shards;
}

static gs_status check_options(const gs_replicas_options *options) {
    const gs_reducer_options *whole = options->reducer;
    int num_replicas = options->num_replicas;
    if (whole->device && !gs_device_is_host(whole->device))
        return gs_error(GS_UNIMPLEMENTED,
                        "replicas of one process add in the host's memory, which %s does not share: "
                        "give each GPU a process of its own",
                        gs_device_name(whole->device));
    if (num_replicas < 1 || num_replicas > GS_REDUCE_MAX_INPUTS)
        return gs_error(GS_INVALID_ARGUMENT, "num_replicas %d is not in [1, %d]", num_replicas,
                        GS_REDUCE_MAX_INPUTS);
    const gs_logical_shards *shards = &whole->shards;
    if (shards->num_shards < (int64_t)shards->world_size * num_replicas)
        return gs_error(GS_INVALID_ARGUMENT, "%d shards for %d ranks of %d replicas",
                        shards->num_shards, shards->world_size, num_replicas);
    if (whole->separate)
        return gs_error(GS_INVALID_ARGUMENT, "separate gradients have no place beside replicas");
    if (options->divisor == GS_DIVIDE_BY_PROCESSES && whole->op == GS_SAMPLE_MEAN)
        return gs_error(GS_INVALID_ARGUMENT, "a mean over samples is not divided by processes");
    if (options->divisor == GS_DIVIDE_BY_PROCESSES && shards->exact)
        return gs_error(GS_INVALID_ARGUMENT, "exact mode divides by shards, not by processes");
    for (size_t i = 0; i < whole->num_params; i++) {
        if (whole->params[i].sparse)
            return gs_error(GS_INVALID_ARGUMENT,
                            "parameter %zu \"%.100s\": rows are not added across replicas", i,
                            whole->params[i].name);
    }
    return gs_ok();
}

// One pass for each step, which brings sums that are scaled already. In exact mode the reducer runs
// the passes of all own shards itself, one after the other.
gs_status gs_replicas_reducer_options(gs_reducer_options *out, const gs_replicas_options *options) {
    GS_TRY(gs_status_prefix(check_options(options), "replicas"));
    *out = *options->reducer;
    if (out->shards.exact) return gs_ok();
    out->shards.num_shards = out->shards.world_size;
    out->passes_per_shard = 1;
    if (out->op == GS_MEAN) out->op = GS_SUM;
    return gs_ok();
}

// What a mean is over, for `num_active` ranks that have data; others would be `world_size`.
static double scale_of(const gs_replicas *replicas, int divide_by_ranks) {
    const gs_reducer_options *whole = &replicas->whole;
    if (replicas->exact || whole->op != GS_MEAN) return 1;
    double passes = (double)whole->shards.num_shards * whole->passes_per_shard;
    double part = (double)divide_by_ranks / whole->shards.world_size;
    double replica_factor =
        replicas->divisor == GS_DIVIDE_BY_PROCESSES ? replicas->num_replicas : 1;
    return replica_factor / (passes * part);
}

// The reducer's plan, and where it puts each gradient. What was in the memory loses its meaning.
static gs_status lay_out(gs_replicas *replicas) {
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_copy(&plan, gs_reducer_plan(replicas->reducer)));
    gs_bucket_plan_release(&replicas->plan);
    replicas->plan = plan;
    gs_bucket_layout(replicas->buckets, replicas->offset_bytes, &replicas->plan, replicas->params);
    for (size_t b = 0; b < plan.num_buckets; b++) {
        const gs_bucket *bucket = &replicas->buckets[b];
        for (size_t i = 0; i < bucket->num_params; i++) replicas->bucket_of[bucket->params[i]] = b;
    }
    size_t num_params = replicas->whole.num_params;
    for (int r = 0; r < replicas->num_replicas; r++) {
        gs_replica *self = &replicas->each[r];
        if (!self->memory) continue;
        // Padding travels with its bucket and must be zero.
        memset(self->memory, 0, replicas->slot_bytes * (size_t)self->num_slots);
        for (size_t i = 0; i < num_params * (size_t)self->num_slots; i++)
            self->grads[i] = (float *)(self->memory + i / num_params * replicas->slot_bytes +
                                       replicas->offset_bytes[i % num_params]);
    }
    return gs_ok();
}

static bool has_plan(const gs_replicas *replicas) {
    const gs_bucket_plan *plan = gs_reducer_plan(replicas->reducer);
    if (plan->num_buckets != replicas->plan.num_buckets) return false;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        if (plan->buckets[b].num_params != replicas->plan.buckets[b].num_params) return false;
    }
    return memcmp(plan->params, replicas->plan.params, plan->num_params * sizeof *plan->params) ==
           0;
}

// The sums go to one run for each bucket: the reducer lays its memory out alike.
static gs_status check_runs(const gs_replicas *replicas) {
    for (size_t b = 0; b < replicas->plan.num_buckets; b++) {
        const gs_bucket *bucket = &replicas->buckets[b];
        const char *run = (const char *)replicas->reducing.grads[bucket->params[0]];
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            if ((const char *)replicas->reducing.grads[param] !=
                run + replicas->offset_bytes[param] - bucket->offset_bytes)
                return gs_error(GS_INTERNAL,
                                "replicas: parameter %zu lies elsewhere in the reducer", param);
        }
    }
    return gs_ok();
}

static void reset_replica(gs_replica *self) {
    const gs_replicas *replicas = self->replicas;
    self->in_pass = false;
    atomic_store_explicit(&self->passes_begun, 0, memory_order_relaxed);
    atomic_store_explicit(&self->passes_ended, 0, memory_order_relaxed);
    memset(self->used, 0, replicas->whole.num_params * (size_t)self->num_slots);
}

static gs_status begin_step(gs_replicas *replicas, int64_t step, const gs_join_round *round,
                            int64_t samples) {
    if (atomic_load(&replicas->failed)) return gs_replicas_first_error(replicas);
    if (atomic_load(&replicas->open)) return misuse(replicas, "a step is open, end it first");
    bool relaid = !has_plan(replicas);
    if (relaid) GS_TRY(lay_out(replicas));
    replicas->step = step;
    replicas->samples = samples;
    int divide_by_ranks = replicas->whole.shards.world_size;
    if (round) {
        if (round->divisor == GS_DIVIDE_BY_ACTIVE) divide_by_ranks = round->num_active;
        GS_TRY(gs_reducer_begin_uneven(replicas->reducer, step, round));
        if (!round->active) return gs_ok();
    } else {
        GS_TRY(gs_reducer_begin(replicas->reducer, step));
    }
    replicas->scale = scale_of(replicas, divide_by_ranks);
    if (!replicas->exact) {
        GS_TRY(gs_reducer_begin_pass(replicas->reducer, &replicas->reducing, samples));
        if (relaid) GS_TRY(check_runs(replicas));
    }
    for (int r = 0; r < replicas->num_replicas; r++) reset_replica(&replicas->each[r]);
    for (size_t b = 0; b < replicas->plan.num_buckets; b++)
        atomic_store_explicit(&replicas->num_incomplete[b], replicas->num_replicas,
                              memory_order_relaxed);
    replicas->num_ended = 0;
    replicas->num_posted = 0;
    atomic_store(&replicas->num_summed, 0);
    atomic_store(&replicas->open, true);
    return gs_ok();
}

gs_status gs_replicas_begin(gs_replicas *replicas, int64_t step, int64_t samples) {
    return gs_replicas_keep_error(replicas, begin_step(replicas, step, NULL, samples));
}

gs_status gs_replicas_begin_uneven(gs_replicas *replicas, int64_t step, const gs_join_round *round,
                                   int64_t samples) {
    return gs_replicas_keep_error(replicas, begin_step(replicas, step, round, samples));
}

static bool is_used(const gs_replicas *replicas, size_t param) {
    for (int r = 0; r < replicas->num_replicas; r++) {
        if (replicas->each[r].used[param]) return true;
    }
    return false;
}

gs_status gs_replicas_post(gs_replicas *replicas) {
    size_t num_summed = atomic_load_explicit(&replicas->num_summed, memory_order_acquire);
    while (replicas->num_posted < num_summed) {
        const gs_bucket *bucket = &replicas->buckets[replicas->summed[replicas->num_posted++]];
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            GS_TRY(is_used(replicas, param) ? gs_reducer_mark_ready(replicas->reducer, param)
                                            : gs_reducer_mark_unused(replicas->reducer, param));
        }
    }
    return gs_ok();
}

static gs_status name_missing(const gs_replicas *replicas) {
    for (int r = 0; r < replicas->num_replicas; r++) {
        const gs_replica *self = &replicas->each[r];
        int begun = atomic_load(&self->passes_begun), ended = atomic_load(&self->passes_ended);
        if (ended == self->num_passes) continue;
        if (begun == ended)
            return gs_error(
                GS_DEADLINE_EXCEEDED, "rank %d, step %lld: replica %d began %d of %d passes",
                replicas->whole.shards.rank, (long long)replicas->step, r, begun, self->num_passes);
        uint32_t serial = atomic_load(&self->serial_seen);
        for (size_t i = 0; i < replicas->plan.num_params; i++) {
            size_t param = replicas->plan.params[i];
            if (atomic_load(&self->marks[param]) == serial) continue;
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "rank %d, step %lld: replica %d did not end pass %d of %d, "
                            "parameter %zu \"%.80s\" is not ready",
                            replicas->whole.shards.rank, (long long)replicas->step, r, begun,
                            self->num_passes, param, replicas->params[param].name);
        }
        return gs_error(GS_DEADLINE_EXCEEDED,
                        "rank %d, step %lld: replica %d marked everything and did not end pass %d",
                        replicas->whole.shards.rank, (long long)replicas->step, r, begun);
    }
    return gs_error(GS_INTERNAL, "replicas: nobody is missing");
}

// Until all have ended, something was summed, the next look at the communicator is due, or an
// error.
static bool await_replicas(gs_replicas *replicas, gs_deadline deadline) {
    gs_deadline until = gs_deadline_min(gs_deadline_in_ns(PROGRESS_NS), deadline);
    pthread_mutex_lock(&replicas->lock);
    while (replicas->num_ended < replicas->num_replicas && !atomic_load(&replicas->failed) &&
           atomic_load(&replicas->num_summed) == replicas->num_posted) {
        if (!gs_cond_wait(&replicas->moved, &replicas->lock, until)) break;
    }
    bool all_ended = replicas->num_ended == replicas->num_replicas;
    pthread_mutex_unlock(&replicas->lock);
    return all_ended;
}

// A shard's gradient into the reducer's memory, as if it had been written there.
static gs_status replay_shard(gs_replicas *replicas, gs_replica *self, int slot) {
    int per_shard = replicas->whole.passes_per_shard;
    size_t num_params = replicas->whole.num_params;
    const uint8_t *used = self->used + (size_t)slot * num_params;
    gs_reducer_pass pass;
    for (int p = 0; p < per_shard; p++) {
        GS_TRY(
            gs_reducer_begin_pass(replicas->reducer, &pass, self->samples[slot * per_shard + p]));
        if (p < per_shard - 1) GS_TRY(gs_reducer_end_pass(replicas->reducer));
    }
    for (size_t i = 0; i < num_params; i++) {
        size_t param = replicas->plan.params[i];
        if (!used[param]) continue;
        size_t bytes = gs_param_spec_count(&replicas->params[param]) *
                       gs_dtype_bytes(gs_main_grad_dtype(replicas->params[param].dtype));
        gs_device *device = replicas->each[0].device;
        gs_device_kernels(device)->copy(gs_device_stream(device), pass.grads[param],
                                        gs_replica_grad(self, slot, param), bytes);
        GS_TRY(gs_reducer_mark_ready(replicas->reducer, param));
    }
    return gs_reducer_end_pass(replicas->reducer);
}

static gs_status replay_shards(gs_replicas *replicas) {
    for (int r = 0; r < replicas->num_replicas; r++) {
        gs_replica *self = &replicas->each[r];
        for (int slot = 0; slot < self->num_shards; slot++)
            GS_TRY(replay_shard(replicas, self, slot));
    }
    return gs_ok();
}

static gs_status check_samples(const gs_replicas *replicas) {
    int64_t samples = 0;
    for (int r = 0; r < replicas->num_replicas; r++) {
        for (int p = 0; p < replicas->each[r].num_passes; p++)
            samples += replicas->each[r].samples[p];
    }
    if (samples == replicas->samples) return gs_ok();
    return gs_error(
        GS_FAILED_PRECONDITION,
        "rank %d, step %lld: passes of all replicas had %lld samples, the step was begun "
        "with %lld",
        replicas->whole.shards.rank, (long long)replicas->step, (long long)samples,
        (long long)replicas->samples);
}

static gs_status end_step(gs_replicas *replicas, gs_deadline deadline) {
    if (!atomic_load(&replicas->open)) return misuse(replicas, "no step is open");
    GS_FAILPOINT("replicas.end");
    for (bool all_ended = false; !all_ended;) {
        all_ended = await_replicas(replicas, deadline);
        if (atomic_load(&replicas->failed)) return gs_replicas_first_error(replicas);
        GS_TRY(gs_replicas_post(replicas));
        if (all_ended) break;
        if (gs_deadline_passed(deadline)) return name_missing(replicas);
        GS_TRY(gs_comm_progress(replicas->comm));
    }
    GS_TRY(check_samples(replicas));
    GS_TRY(replicas->exact ? replay_shards(replicas) : gs_reducer_end_pass(replicas->reducer));
    atomic_store(&replicas->open, false);
    return gs_ok();
}

gs_status gs_replicas_end(gs_replicas *replicas, gs_deadline deadline) {
    return gs_replicas_keep_error(replicas, end_step(replicas, deadline));
}

const size_t *gs_replicas_ready_order(const gs_replicas *replicas, size_t *num_ready) {
    *num_ready = replicas->order.num_ready;
    return replicas->order.last;
}

// What ranks compare: everything that decides the scale and who adds what.
enum { TOLD_REPLICAS, TOLD_DIVISOR, TOLD_SHARDS, TOLD_PASSES, TOLD_OP, NUM_TOLD };

static gs_status agree(gs_replicas *replicas, gs_deadline deadline) {
    static const char *const names[NUM_TOLD] = {"replicas", "divisor", "logical shards",
                                                "passes per shard", "operation"};
    int world_size = gs_comm_world_size(replicas->comm);
    int64_t mine[NUM_TOLD] = {replicas->num_replicas, replicas->divisor,
                              replicas->whole.shards.num_shards, replicas->whole.passes_per_shard,
                              replicas->whole.op};
    int64_t *all = calloc((size_t)world_size * NUM_TOLD, sizeof *all);
    if (!all) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    gs_status status = gs_comm_run(replicas->comm,
                                   &(gs_collective){.kind = GS_ALLGATHER,
                                                    .send = mine,
                                                    .recv = all,
                                                    .count = NUM_TOLD,
                                                    .dtype = GS_I64,
                                                    .step = -1,
                                                    .bucket = -1},
                                   deadline);
    for (int i = 0; i < world_size * NUM_TOLD && !status.code; i++) {
        if (all[i] == all[i % NUM_TOLD]) continue;
        status = gs_error(GS_FAILED_PRECONDITION, "rank %d against rank 0: %s %lld against %lld",
                          i / NUM_TOLD, names[i % NUM_TOLD], (long long)all[i],
                          (long long)all[i % NUM_TOLD]);
    }
    free(all);
    return status;
}

static gs_status init_replica(gs_replicas *replicas, int index, gs_device *device) {
    gs_replica *self = &replicas->each[index];
    const gs_reducer_options *whole = &replicas->whole;
    gs_logical_shards shards = gs_replicas_shards(&whole->shards, replicas->num_replicas, index);
    *self = (gs_replica){.replicas = replicas, .index = index, .device = device};
    self->first_shard = gs_logical_shards_first(&shards, shards.rank);
    self->num_shards = gs_logical_shards_count(&shards);
    self->num_slots = replicas->exact ? self->num_shards : 1;
    self->num_passes = self->num_shards * whole->passes_per_shard;
    size_t num_slots = (size_t)self->num_slots;
    self->num_pending = calloc(whole->num_params, sizeof *self->num_pending);
    self->used = calloc(whole->num_params * num_slots, sizeof *self->used);
    self->marks = calloc(whole->num_params, sizeof *self->marks);
    self->samples = calloc((size_t)self->num_passes, sizeof *self->samples);
    self->grads = calloc(whole->num_params * num_slots, sizeof *self->grads);
    if (!self->num_pending || !self->used || !self->marks || !self->samples || !self->grads)
        return gs_error(GS_RESOURCE_EXHAUSTED, "replica %d: out of memory", index);
    if (index == 0 && !replicas->exact) return gs_ok();
    void *memory = NULL;
    GS_TRY(gs_device_alloc(device, &memory, replicas->slot_bytes * num_slots));
    self->memory = memory;
    return gs_ok();
}

static gs_status check_devices(const gs_replicas_options *options) {
    for (int r = 0; r < options->num_replicas; r++) {
        gs_device *device = options->devices[r];
        if (!device) return gs_error(GS_INVALID_ARGUMENT, "replica %d has no device", r);
        for (int other = 0; other < r; other++) {
            if (options->devices[other] == device)
                return gs_error(GS_INVALID_ARGUMENT, "replicas %d and %d have one device", other,
                                r);
        }
        if (strcmp(gs_device_name(device), "cpu") != 0)
            return gs_error(GS_UNIMPLEMENTED, "replica %d: device %s cannot add in others' memory",
                            r, gs_device_name(device));
    }
    return gs_ok();
}

static gs_status build(gs_replicas *replicas, const gs_replicas_options *options) {
    const gs_reducer_options *whole = &replicas->whole;
    size_t num_params = whole->num_params;
    GS_TRY(check_options(options));
    GS_TRY(check_devices(options));
    GS_TRY(gs_bucket_max_layout_bytes(&replicas->slot_bytes, whole->params, num_params));
    replicas->params = calloc(num_params, sizeof *replicas->params);
    replicas->buckets = calloc(num_params, sizeof *replicas->buckets);
    replicas->offset_bytes = calloc(num_params, sizeof *replicas->offset_bytes);
    replicas->bucket_of = calloc(num_params, sizeof *replicas->bucket_of);
    replicas->order_marks = calloc(num_params, sizeof *replicas->order_marks);
    replicas->num_incomplete = calloc(num_params, sizeof *replicas->num_incomplete);
    replicas->summed = calloc(num_params, sizeof *replicas->summed);
    replicas->each = calloc((size_t)replicas->num_replicas, sizeof *replicas->each);
    if (!replicas->params || !replicas->buckets || !replicas->offset_bytes ||
        !replicas->bucket_of || !replicas->order_marks || !replicas->num_incomplete ||
        !replicas->summed || !replicas->each)
        return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    memcpy(replicas->params, whole->params, num_params * sizeof *replicas->params);
    replicas->whole.params = replicas->params;
    for (int r = 0; r < replicas->num_replicas; r++)
        GS_TRY(init_replica(replicas, r, options->devices[r]));
    GS_TRY(gs_ready_order_init(&replicas->order, gs_reducer_plan(replicas->reducer)));
    return lay_out(replicas);
}

gs_status gs_replicas_create(gs_replicas **out, const gs_replicas_options *options,
                             gs_reducer *reducer, gs_comm *comm, gs_deadline deadline) {
    *out = NULL;
    gs_replicas *replicas = calloc(1, sizeof *replicas);
    if (!replicas) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    pthread_mutex_init(&replicas->lock, NULL);
    gs_cond_init(&replicas->moved);
    replicas->whole = *options->reducer;
    replicas->whole.passes_per_shard = count_passes(options->reducer);
    replicas->exact = replicas->whole.shards.exact;
    replicas->reducer = reducer;
    replicas->comm = comm;
    replicas->divisor = options->divisor;
    replicas->num_replicas = options->num_replicas;
    gs_status status = build(replicas, options);
    if (!status.code) status = agree(replicas, deadline);
    if (status.code) {
        // Whoever alone cannot go on must tell the ranks that wait for it.
        gs_comm_abort(comm, status.message);
        gs_replicas_destroy(replicas);
        return gs_status_prefix(status, "replicas");
    }
    *out = replicas;
    return gs_ok();
}

void gs_replicas_destroy(gs_replicas *replicas) {
    if (!replicas) return;
    for (int r = 0; replicas->each && r < replicas->num_replicas; r++) {
        gs_replica *self = &replicas->each[r];
        if (self->device) gs_device_free(self->device, self->memory);
        free(self->grads);
        free(self->num_pending);
        free(self->used);
        free(self->marks);
        free(self->samples);
    }
    gs_ready_order_release(&replicas->order);
    gs_bucket_plan_release(&replicas->plan);
    free(replicas->params);
    free(replicas->buckets);
    free(replicas->offset_bytes);
    free(replicas->bucket_of);
    free(replicas->order_marks);
    free(replicas->num_incomplete);
    free(replicas->summed);
    free(replicas->each);
    pthread_cond_destroy(&replicas->moved);
    pthread_mutex_destroy(&replicas->lock);
    free(replicas);
}
