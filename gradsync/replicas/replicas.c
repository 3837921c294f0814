#include "gradsync/replicas/replicas.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/options.h"
#include "core/thread.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/comm/same_words.h"
#include "gradsync/reducer/blame.h"
#include "gradsync/replicas/replica.h"
#include "gradsync/replicas/replica_group.h"

// While buckets may be in flight the owner moves them this often; the deadline is looked at, too.
#define PROGRESS_NS (GS_NS_PER_MS / 5)

// What a model's callbacks get.
typedef struct replica_ctx {
    gs_replicas *replicas;
    int replica;
} replica_ctx;

struct gs_replicas {
    gs_replica_group group;
    gs_reducer *reducer;
    gs_comm *comm;
    gs_replica_divisor divisor;
    replica_ctx *contexts;  // by replica
    // of the step
    int64_t samples;
    size_t num_posted;  // of the buckets that were summed
};

// The first error ends the step everywhere.
static gs_status keep_error(gs_replicas *replicas, gs_status status) {
    bool is_first;
    if (!status.code) return status;
    status = gs_replica_group_fail(&replicas->group, status, &is_first);
    if (is_first) gs_comm_abort(replicas->comm, status.message);
    return status;
}

void gs_replicas_fail(gs_replicas *replicas, int replica, gs_status why) {
    if (!why.code) return;
    gs_status kept =
        keep_error(replicas, gs_status_prefix(why, "rank %d, replica %d",
                                              replicas->group.whole.shards.rank, replica));
    (void)kept;
}

static gs_status misuse(const gs_replicas *replicas, const char *what) {
    const gs_replica_group *group = &replicas->group;
    return gs_blame_call((gs_blamed){group->whole.shards.rank, group->step, GS_NO_REPLICA}, what);
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
        return gs_error(
            GS_UNIMPLEMENTED,
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
    if (whole->windows.num_windows)
        return gs_error(GS_INVALID_ARGUMENT, "windows: replicas have gradients of their own");
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
static gs_status fit_reducer(gs_reducer_options *out, const gs_replicas_options *options) {
    GS_TRY(gs_status_prefix(check_options(options), "replicas"));
    *out = *options->reducer;
    if (out->shards.exact) return gs_ok();
    out->shards.num_shards = out->shards.world_size;
    out->passes_per_shard = 1;
    if (out->op == GS_MEAN) out->op = GS_SUM;
    return gs_ok();
}

// Both structs of a program: the replicas' options, and the reducer's that they point to.
typedef struct known_options {
    gs_replicas_options replicas;
    gs_reducer_options reducer;
} known_options;

static gs_status take_options(known_options *known, const gs_replicas_options *options,
                              size_t options_bytes, size_t reducer_bytes) {
    GS_TRY(gs_options_take(&known->replicas, sizeof known->replicas, options, options_bytes,
                           "gs_replicas_options"));
    GS_TRY(gs_options_take(&known->reducer, sizeof known->reducer, options->reducer, reducer_bytes,
                           "gs_reducer_options"));
    known->replicas.reducer = &known->reducer;
    return gs_ok();
}

gs_status gs_replicas_reducer_options_sized(gs_reducer_options *out,
                                            const gs_replicas_options *options,
                                            size_t options_bytes, size_t reducer_bytes) {
    known_options known;
    gs_reducer_options fitting;
    GS_TRY(take_options(&known, options, options_bytes, reducer_bytes));
    GS_TRY(fit_reducer(&fitting, &known.replicas));
    memset(out, 0, reducer_bytes);
    memcpy(out, &fitting, reducer_bytes < sizeof fitting ? reducer_bytes : sizeof fitting);
    return gs_ok();
}

// What a mean is over, for `num_active` ranks that have data; others would be `world_size`.
static double scale_of(const gs_replicas *replicas, int divide_by_ranks) {
    const gs_reducer_options *whole = &replicas->group.whole;
    if (replicas->group.exact || whole->op != GS_MEAN) return 1;
    double passes = (double)whole->shards.num_shards * whole->passes_per_shard;
    double part = (double)divide_by_ranks / whole->shards.world_size;
    double replica_factor =
        replicas->divisor == GS_DIVIDE_BY_PROCESSES ? replicas->group.num_replicas : 1;
    return replica_factor / (passes * part);
}

// The reducer's plan, and where it puts each gradient. What was in the memory loses its meaning.
static gs_status lay_out(gs_replicas *replicas) {
    gs_replica_group *group = &replicas->group;
    GS_TRY(gs_grad_layout_set_plan(&group->layout, gs_reducer_plan(replicas->reducer)));
    for (int r = 0; r < group->num_replicas; r++) gs_replica_place(&group->each[r]);
    return gs_ok();
}

static bool has_plan(const gs_replicas *replicas) {
    const gs_bucket_plan *plan = gs_reducer_plan(replicas->reducer);
    if (plan->num_buckets != replicas->group.layout.plan.num_buckets) return false;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        if (plan->buckets[b].num_params != replicas->group.layout.plan.buckets[b].num_params)
            return false;
    }
    return memcmp(plan->params, replicas->group.layout.plan.params,
                  plan->num_params * sizeof *plan->params) == 0;
}

// The sums go to one run for each bucket: the reducer lays its memory out alike.
static gs_status check_runs(const gs_replicas *replicas) {
    for (size_t b = 0; b < replicas->group.layout.plan.num_buckets; b++) {
        const gs_bucket *bucket = &replicas->group.layout.buckets[b];
        const char *run = (const char *)replicas->group.reducing.grads[bucket->params[0]];
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            if ((const char *)replicas->group.reducing.grads[param] !=
                run + replicas->group.layout.offset_bytes[param] - bucket->offset_bytes)
                return gs_error(GS_INTERNAL,
                                "replicas: parameter %zu lies elsewhere in the reducer", param);
        }
    }
    return gs_ok();
}

static gs_status begin_step(gs_replicas *replicas, int64_t step, const gs_join_round *round,
                            int64_t samples) {
    if (atomic_load(&replicas->group.failed)) return gs_replica_group_error(&replicas->group);
    if (atomic_load(&replicas->group.open)) return misuse(replicas, "a step is open, end it first");
    bool relaid = !has_plan(replicas);
    if (relaid) GS_TRY(lay_out(replicas));
    replicas->group.step = step;
    replicas->samples = samples;
    int divide_by_ranks = replicas->group.whole.shards.world_size;
    if (round) {
        if (round->divisor == GS_DIVIDE_BY_ACTIVE) divide_by_ranks = round->num_active;
        GS_TRY(gs_reducer_begin_uneven(replicas->reducer, step, round));
        if (!round->active) return gs_ok();
    } else {
        GS_TRY(gs_reducer_begin(replicas->reducer, step));
    }
    replicas->group.scale = scale_of(replicas, divide_by_ranks);
    if (!replicas->group.exact) {
        GS_TRY(gs_reducer_begin_pass(replicas->reducer, &replicas->group.reducing, samples));
        if (relaid) GS_TRY(check_runs(replicas));
    }
    for (int r = 0; r < replicas->group.num_replicas; r++)
        gs_replica_begin_step(&replicas->group.each[r]);
    for (size_t b = 0; b < replicas->group.layout.plan.num_buckets; b++)
        atomic_store_explicit(&replicas->group.num_incomplete[b], replicas->group.num_replicas,
                              memory_order_relaxed);
    replicas->group.num_ended = 0;
    replicas->num_posted = 0;
    atomic_store(&replicas->group.num_summed, 0);
    atomic_store(&replicas->group.open, true);
    return gs_ok();
}

gs_status gs_replicas_begin(gs_replicas *replicas, int64_t step, int64_t samples) {
    return keep_error(replicas, begin_step(replicas, step, NULL, samples));
}

gs_status gs_replicas_begin_uneven(gs_replicas *replicas, int64_t step, const gs_join_round *round,
                                   int64_t samples) {
    return keep_error(replicas, begin_step(replicas, step, round, samples));
}

static bool is_used(const gs_replicas *replicas, size_t param) {
    for (int r = 0; r < replicas->group.num_replicas; r++) {
        if (replicas->group.each[r].used[param]) return true;
    }
    return false;
}

// What has been summed goes to the reducer.
static gs_status post_sums(gs_replicas *replicas) {
    size_t num_summed = atomic_load_explicit(&replicas->group.num_summed, memory_order_acquire);
    while (replicas->num_posted < num_summed) {
        const gs_bucket *bucket =
            &replicas->group.layout.buckets[replicas->group.summed[replicas->num_posted++]];
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            GS_TRY(is_used(replicas, param) ? gs_reducer_mark_ready(replicas->reducer, param)
                                            : gs_reducer_mark_unused(replicas->reducer, param));
        }
    }
    return gs_ok();
}

// A replica's own work is done; replica 0's thread, the owner, also moves on what any of them has
// summed.
static gs_status go_on(gs_replicas *replicas, int replica, gs_status status) {
    if (!status.code && replica == 0) status = post_sums(replicas);
    if (status.code) status = keep_error(replicas, status);
    return status;
}

gs_status gs_replicas_begin_pass(gs_replicas *replicas, int replica, gs_reducer_pass *pass,
                                 int64_t samples) {
    return keep_error(replicas,
                      gs_replica_open_pass(&replicas->group.each[replica], pass, samples));
}

gs_status gs_replicas_mark_ready(gs_replicas *replicas, int replica, size_t param) {
    return go_on(replicas, replica, gs_replica_mark_ready(&replicas->group.each[replica], param));
}

gs_status gs_replicas_mark_unused(gs_replicas *replicas, int replica, size_t param) {
    return go_on(replicas, replica, gs_replica_mark_unused(&replicas->group.each[replica], param));
}

gs_status gs_replicas_end_pass(gs_replicas *replicas, int replica) {
    return go_on(replicas, replica, gs_replica_close_pass(&replicas->group.each[replica]));
}

void *gs_replicas_callback_ctx(gs_replicas *replicas, int replica) {
    return &replicas->contexts[replica];
}

void gs_replicas_ready_callback(void *ctx, size_t param) {
    const replica_ctx *self = ctx;
    gs_status sticks = gs_replicas_mark_ready(self->replicas, self->replica, param);
    (void)sticks;
}

void gs_replicas_unused_callback(void *ctx, size_t param) {
    const replica_ctx *self = ctx;
    gs_status sticks = gs_replicas_mark_unused(self->replicas, self->replica, param);
    (void)sticks;
}

static gs_status name_missing(const gs_replicas *replicas) {
    for (int r = 0; r < replicas->group.num_replicas; r++) {
        const gs_replica *self = &replicas->group.each[r];
        int begun = atomic_load(&self->passes_begun), ended = atomic_load(&self->passes_ended);
        if (ended == self->num_passes) continue;
        if (begun == ended)
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "rank %d, step %lld: replica %d began %d of %d passes",
                            replicas->group.whole.shards.rank, (long long)replicas->group.step, r,
                            begun, self->num_passes);
        uint32_t serial = atomic_load(&self->serial_seen);
        for (size_t i = 0; i < replicas->group.layout.plan.num_params; i++) {
            size_t param = replicas->group.layout.plan.params[i];
            if (atomic_load(&self->marks[param]) == serial) continue;
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "rank %d, step %lld: replica %d did not end pass %d of %d, "
                            "parameter %zu \"%.80s\" is not ready",
                            replicas->group.whole.shards.rank, (long long)replicas->group.step, r,
                            begun, self->num_passes, param,
                            replicas->group.layout.params[param].name);
        }
        return gs_error(GS_DEADLINE_EXCEEDED,
                        "rank %d, step %lld: replica %d marked everything and did not end pass %d",
                        replicas->group.whole.shards.rank, (long long)replicas->group.step, r,
                        begun);
    }
    return gs_error(GS_INTERNAL, "replicas: nobody is missing");
}

// Until all have ended, something was summed, the next look at the communicator is due, or an
// error.
static bool await_replicas(gs_replicas *replicas, gs_deadline deadline) {
    gs_deadline until = gs_deadline_min(gs_deadline_in_ns(PROGRESS_NS), deadline);
    pthread_mutex_lock(&replicas->group.lock);
    while (replicas->group.num_ended < replicas->group.num_replicas &&
           !atomic_load(&replicas->group.failed) &&
           atomic_load(&replicas->group.num_summed) == replicas->num_posted) {
        if (!gs_cond_wait(&replicas->group.moved, &replicas->group.lock, until)) break;
    }
    bool all_ended = replicas->group.num_ended == replicas->group.num_replicas;
    pthread_mutex_unlock(&replicas->group.lock);
    return all_ended;
}

// A shard's gradient into the reducer's memory, as if it had been written there.
static gs_status replay_shard(gs_replicas *replicas, gs_replica *self, int slot) {
    int per_shard = replicas->group.whole.passes_per_shard;
    size_t num_params = replicas->group.whole.num_params;
    const uint8_t *used = self->used + (size_t)slot * num_params;
    gs_reducer_pass pass;
    for (int p = 0; p < per_shard; p++) {
        GS_TRY(
            gs_reducer_begin_pass(replicas->reducer, &pass, self->samples[slot * per_shard + p]));
        if (p < per_shard - 1) GS_TRY(gs_reducer_end_pass(replicas->reducer));
    }
    for (size_t i = 0; i < num_params; i++) {
        size_t param = replicas->group.layout.plan.params[i];
        if (!used[param]) continue;
        size_t bytes =
            gs_param_spec_count(&replicas->group.layout.params[param]) *
            gs_dtype_bytes(gs_main_grad_dtype(replicas->group.layout.params[param].dtype));
        gs_device *device = replicas->group.each[0].device;
        gs_device_kernels(device)->copy(gs_device_stream(device), pass.grads[param],
                                        gs_replica_grad(self, slot, param), bytes);
        GS_TRY(gs_reducer_mark_ready(replicas->reducer, param));
    }
    return gs_reducer_end_pass(replicas->reducer);
}

static gs_status replay_shards(gs_replicas *replicas) {
    for (int r = 0; r < replicas->group.num_replicas; r++) {
        gs_replica *self = &replicas->group.each[r];
        for (int slot = 0; slot < self->num_shards; slot++)
            GS_TRY(replay_shard(replicas, self, slot));
    }
    return gs_ok();
}

static gs_status check_samples(const gs_replicas *replicas) {
    int64_t samples = 0;
    for (int r = 0; r < replicas->group.num_replicas; r++) {
        for (int p = 0; p < replicas->group.each[r].num_passes; p++)
            samples += replicas->group.each[r].samples[p];
    }
    if (samples == replicas->samples) return gs_ok();
    return gs_error(
        GS_FAILED_PRECONDITION,
        "rank %d, step %lld: passes of all replicas had %lld samples, the step was begun "
        "with %lld",
        replicas->group.whole.shards.rank, (long long)replicas->group.step, (long long)samples,
        (long long)replicas->samples);
}

static gs_status end_step(gs_replicas *replicas, gs_deadline deadline) {
    if (!atomic_load(&replicas->group.open)) return misuse(replicas, "no step is open");
    GS_FAILPOINT("replicas.end");
    for (bool all_ended = false; !all_ended;) {
        all_ended = await_replicas(replicas, deadline);
        if (atomic_load(&replicas->group.failed)) return gs_replica_group_error(&replicas->group);
        GS_TRY(post_sums(replicas));
        if (all_ended) break;
        if (gs_deadline_passed(deadline)) return name_missing(replicas);
        GS_TRY(gs_comm_progress(replicas->comm));
    }
    GS_TRY(check_samples(replicas));
    GS_TRY(replicas->group.exact ? replay_shards(replicas)
                                 : gs_reducer_end_pass(replicas->reducer));
    atomic_store(&replicas->group.open, false);
    return gs_ok();
}

gs_status gs_replicas_end(gs_replicas *replicas, gs_deadline deadline) {
    return keep_error(replicas, end_step(replicas, deadline));
}

const size_t *gs_replicas_ready_order(const gs_replicas *replicas, size_t *num_ready) {
    *num_ready = replicas->group.order.num_ready;
    return replicas->group.order.last;
}

// Everything that decides the scale, and who adds what.
static gs_status agree(gs_replicas *replicas, gs_deadline deadline) {
    const gs_reducer_options *whole = &replicas->group.whole;
    const gs_same_word words[] = {
        {"replicas", replicas->group.num_replicas, false},
        {"divisor", replicas->divisor, false},
        {"logical shards", whole->shards.num_shards, false},
        {"passes per shard", whole->passes_per_shard, false},
        {"operation", whole->op, false},
    };
    return gs_same_words_check(words, sizeof words / sizeof *words, replicas->comm, deadline);
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
    gs_replica_group *group = &replicas->group;
    GS_TRY(check_options(options));
    GS_TRY(check_devices(options));
    GS_TRY(gs_replica_group_init(group, options->reducer, options->num_replicas));
    replicas->contexts = calloc((size_t)options->num_replicas, sizeof *replicas->contexts);
    if (!replicas->contexts) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    for (int r = 0; r < options->num_replicas; r++) {
        const gs_logical_shards shards =
            gs_replicas_shards(&group->whole.shards, group->num_replicas, r);
        GS_TRY(gs_replica_init(&group->each[r], group, &shards, r, options->devices[r]));
        replicas->contexts[r] = (replica_ctx){replicas, r};
    }
    GS_TRY(gs_ready_order_init(&group->order, gs_reducer_plan(replicas->reducer)));
    return lay_out(replicas);
}

static gs_status create_replicas(gs_replicas **out, const gs_replicas_options *options,
                                 gs_reducer *reducer, gs_comm *comm, gs_deadline deadline) {
    *out = NULL;
    gs_replicas *replicas = calloc(1, sizeof *replicas);
    if (!replicas) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    replicas->reducer = reducer;
    replicas->comm = comm;
    replicas->divisor = options->divisor;
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

gs_status gs_replicas_create_sized(gs_replicas **out, const gs_replicas_options *options,
                                   size_t options_bytes, size_t reducer_bytes, gs_reducer *reducer,
                                   gs_comm *comm, gs_deadline deadline) {
    known_options known;
    gs_status status = take_options(&known, options, options_bytes, reducer_bytes);
    if (status.code) {
        *out = NULL;
        gs_comm_abort(comm, status.message);
        return status;
    }
    return create_replicas(out, &known.replicas, reducer, comm, deadline);
}

void gs_replicas_destroy(gs_replicas *replicas) {
    if (!replicas) return;
    gs_replica_group *group = &replicas->group;
    for (int r = 0; group->each && r < group->num_replicas; r++)
        gs_replica_release(&group->each[r]);
    gs_replica_group_release(group);
    free(replicas->contexts);
    free(replicas);
}
