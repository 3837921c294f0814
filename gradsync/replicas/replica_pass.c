// A replica's side of gradsync/replicas/replicas.h: its passes, its marks, and the sum of what it completes.
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/replicas/replicas_state.h"

// Elements that one compute thread sums at a time.
#define SUM_ITEM_COUNT ((size_t)64 << 10)

static gs_status misuse(const gs_replica *self, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld, replica %d: %s",
                    self->replicas->whole.shards.rank, (long long)self->replicas->step, self->index,
                    what);
}

static gs_status blame(const gs_replica *self, size_t param, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION,
                    "rank %d, step %lld, replica %d: parameter %zu \"%.100s\" %s",
                    self->replicas->whole.shards.rank, (long long)self->replicas->step, self->index,
                    param, self->replicas->params[param].name, what);
}

static int slot_of_pass(const gs_replica *self) {
    return self->num_slots > 1 ? self->pass.shard - self->first_shard : 0;
}

// A bucket's sum, cut into items.
typedef struct bucket_sum {
    const gs_kernels *kernels;
    gs_stream *stream;
    char *out;
    const char *in[GS_REDUCE_MAX_INPUTS];
    int num_inputs;
    gs_dtype dtype;
    size_t count, element_bytes;
    double scale;
} bucket_sum;

static void sum_item(void *ctx, size_t item) {
    const bucket_sum *sum = ctx;
    size_t first = item * SUM_ITEM_COUNT, count = sum->count - first;
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    for (int i = 0; i < sum->num_inputs; i++) inputs[i] = sum->in[i] + first * sum->element_bytes;
    void *output = sum->out + first * sum->element_bytes;
    sum->kernels->reduce(sum->stream,
                         &(gs_reduction){.outputs = &output,
                                         .inputs = inputs,
                                         .num_outputs = 1,
                                         .num_inputs = sum->num_inputs,
                                         .dtype = sum->dtype,
                                         .op = GS_OP_SUM,
                                         .scale = sum->scale,
                                         .count = count < SUM_ITEM_COUNT ? count : SUM_ITEM_COUNT});
}

// Members lie behind each other, padding between them is zero everywhere: one run.
static void sum_bucket(gs_replica *self, size_t index) {
    const gs_replicas *replicas = self->replicas;
    const gs_bucket *bucket = &replicas->buckets[index];
    size_t first = bucket->params[0], last = bucket->params[bucket->num_params - 1];
    bucket_sum sum = {.kernels = gs_device_kernels(self->device),
                      .stream = gs_device_stream(self->device),
                      .out = (char *)replicas->reducing.grads[first],
                      .num_inputs = replicas->num_replicas,
                      .dtype = gs_main_grad_dtype(replicas->params[first].dtype),
                      .scale = replicas->scale};
    if (sum.num_inputs == 1 && sum.scale == 1.0) return;
    for (int r = 0; r < sum.num_inputs; r++)
        sum.in[r] = (const char *)gs_replica_grad(&replicas->each[r], 0, first);
    sum.element_bytes = gs_dtype_bytes(sum.dtype);
    sum.count = (replicas->offset_bytes[last] - replicas->offset_bytes[first]) / sum.element_bytes +
                gs_param_spec_count(&replicas->params[last]);
    gs_stream_for_each(sum.stream, (sum.count + SUM_ITEM_COUNT - 1) / SUM_ITEM_COUNT, sum_item,
                       &sum);
}

// All members are final on this replica. The last replica to say so adds them all.
static void complete_bucket(gs_replica *self, size_t index) {
    gs_replicas *replicas = self->replicas;
    if (atomic_fetch_sub_explicit(&replicas->num_incomplete[index], 1, memory_order_acq_rel) != 1)
        return;
    sum_bucket(self, index);
    pthread_mutex_lock(&replicas->lock);
    size_t num_summed = atomic_load_explicit(&replicas->num_summed, memory_order_relaxed);
    replicas->summed[num_summed] = index;
    atomic_store_explicit(&replicas->num_summed, num_summed + 1, memory_order_release);
    pthread_cond_signal(&replicas->moved);
    pthread_mutex_unlock(&replicas->lock);
}

static gs_status open_pass(gs_replica *self, gs_reducer_pass *pass, int64_t samples) {
    gs_replicas *replicas = self->replicas;
    if (atomic_load(&replicas->failed)) return gs_replicas_first_error(replicas);
    // Before `open`: the owner may have ended the step meanwhile.
    int run = atomic_load_explicit(&self->passes_ended, memory_order_relaxed);
    if (run == self->num_passes) return misuse(self, "all passes of the step have been run");
    if (!atomic_load(&replicas->open)) return misuse(self, "a pass needs an open step");
    if (self->in_pass) return misuse(self, "a pass is open, end it first");
    if (samples < 0) return misuse(self, "a pass has less than 0 samples");
    GS_FAILPOINT("replica.begin_pass");

    int per_shard = replicas->whole.passes_per_shard, own_shard = run / per_shard;
    size_t slot = self->num_slots > 1 ? (size_t)own_shard : 0;
    self->pass =
        (gs_reducer_pass){.grads = self->memory ? self->grads + slot * replicas->whole.num_params
                                                : replicas->reducing.grads,
                          .accumulate = replicas->exact ? run % per_shard > 0 : run > 0,
                          .grad_factor = replicas->whole.op == GS_SAMPLE_MEAN ? (float)samples : 1,
                          .shard = self->first_shard + own_shard,
                          .pass = run % per_shard,
                          .reduces = run == self->num_passes - 1};
    self->samples[run] = samples;
    self->in_pass = true;
    self->num_marked = 0;
    if (++self->serial == 0) self->serial = 1;
    if (self->pass.reduces && !replicas->exact) {
        for (size_t b = 0; b < replicas->plan.num_buckets; b++)
            self->num_pending[b] = replicas->buckets[b].num_params;
    }
    if (self->pass.reduces && self->index == 0) gs_ready_order_begin(&replicas->order);
    atomic_store_explicit(&self->serial_seen, self->serial, memory_order_relaxed);
    atomic_store_explicit(&self->passes_begun, run + 1, memory_order_relaxed);
    *pass = self->pass;
    return gs_ok();
}

gs_status gs_replicas_begin_pass(gs_replicas *replicas, int replica, gs_reducer_pass *pass,
                                 int64_t samples) {
    return gs_replicas_keep_error(replicas, open_pass(&replicas->each[replica], pass, samples));
}

static gs_status check_mark(gs_replica *self, size_t param) {
    if (atomic_load_explicit(&self->replicas->failed, memory_order_relaxed))
        return gs_replicas_first_error(self->replicas);
    GS_FAILPOINT("replica.mark_ready");
    if (param >= self->replicas->whole.num_params)
        return gs_error(
            GS_FAILED_PRECONDITION, "rank %d, step %lld, replica %d: there is no parameter %zu",
            self->replicas->whole.shards.rank, (long long)self->replicas->step, self->index, param);
    if (!self->in_pass) return blame(self, param, "marked ready outside a pass");
    if (atomic_load_explicit(&self->marks[param], memory_order_relaxed) == self->serial)
        return blame(self, param, "marked ready twice in one pass");
    return gs_ok();
}

// A parameter is settled in this pass, used or not.
static gs_status settle_param(gs_replica *self, size_t param) {
    gs_replicas *replicas = self->replicas;
    atomic_store_explicit(&self->marks[param], self->serial, memory_order_relaxed);
    self->num_marked++;
    if (self->pass.reduces && !replicas->exact) {
        size_t bucket = replicas->bucket_of[param];
        if (--self->num_pending[bucket] == 0) complete_bucket(self, bucket);
    }
    if (self->index != 0) return gs_ok();
    return gs_replicas_post(replicas);
}

static gs_status mark_ready(gs_replica *self, size_t param) {
    gs_replicas *replicas = self->replicas;
    GS_TRY(check_mark(self, param));
    self->used[(size_t)slot_of_pass(self) * replicas->whole.num_params + param] = 1;
    if (self->index == 0 && self->pass.reduces) {
        replicas->order_marks[param] = self->serial;
        gs_ready_order_add(&replicas->order, param);
    }
    return settle_param(self, param);
}

gs_status gs_replicas_mark_ready(gs_replicas *replicas, int replica, size_t param) {
    gs_status status = mark_ready(&replicas->each[replica], param);
    return status.code ? gs_replicas_keep_error(replicas, status) : status;
}

// What a pass that was to overwrite left alone is zero.
static void zero_param(gs_replica *self, size_t param) {
    if (self->pass.accumulate) return;
    const gs_param_spec *spec = &self->replicas->params[param];
    size_t main_bytes = gs_dtype_bytes(gs_main_grad_dtype(spec->dtype));
    gs_device_kernels(self->device)
        ->fill(gs_device_stream(self->device), gs_replica_grad(self, slot_of_pass(self), param), 0,
               gs_param_spec_count(spec) * main_bytes / sizeof(float));
}

static gs_status mark_unused(gs_replica *self, size_t param) {
    GS_TRY(check_mark(self, param));
    zero_param(self, param);
    return settle_param(self, param);
}

gs_status gs_replicas_mark_unused(gs_replicas *replicas, int replica, size_t param) {
    return gs_replicas_keep_error(replicas, mark_unused(&replicas->each[replica], param));
}

void *gs_replicas_callback_ctx(gs_replicas *replicas, int replica) {
    return &replicas->each[replica];
}

void gs_replicas_ready_callback(void *ctx, size_t param) {
    const gs_replica *self = ctx;
    gs_status sticks = gs_replicas_mark_ready(self->replicas, self->index, param);
    (void)sticks;
}

void gs_replicas_unused_callback(void *ctx, size_t param) {
    const gs_replica *self = ctx;
    gs_status sticks = gs_replicas_mark_unused(self->replicas, self->index, param);
    (void)sticks;
}

static gs_status settle_rest(gs_replica *self) {
    const gs_replicas *replicas = self->replicas;
    for (size_t b = 0; b < replicas->plan.num_buckets; b++) {
        const gs_bucket *bucket = &replicas->buckets[b];
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            if (atomic_load_explicit(&self->marks[param], memory_order_relaxed) == self->serial)
                continue;
            zero_param(self, param);
            GS_TRY(settle_param(self, param));
        }
    }
    return gs_ok();
}

static gs_status close_pass(gs_replica *self) {
    gs_replicas *replicas = self->replicas;
    if (atomic_load(&replicas->failed)) return gs_replicas_first_error(replicas);
    if (!self->in_pass) return misuse(self, "no pass is open");
    GS_FAILPOINT("replica.end_pass");
    if (self->num_marked < replicas->whole.num_params) GS_TRY(settle_rest(self));
    if (self->pass.reduces && self->index == 0)
        gs_ready_order_finish(&replicas->order, &replicas->plan, replicas->order_marks,
                              self->serial);
    self->in_pass = false;
    int ended = atomic_load_explicit(&self->passes_ended, memory_order_relaxed) + 1;
    atomic_store_explicit(&self->passes_ended, ended, memory_order_relaxed);
    if (ended < self->num_passes) return gs_ok();
    pthread_mutex_lock(&replicas->lock);
    replicas->num_ended++;
    pthread_cond_signal(&replicas->moved);
    pthread_mutex_unlock(&replicas->lock);
    return gs_ok();
}

gs_status gs_replicas_end_pass(gs_replicas *replicas, int replica) {
    return gs_replicas_keep_error(replicas, close_pass(&replicas->each[replica]));
}
