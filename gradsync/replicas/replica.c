#include "gradsync/replicas/replica.h"

#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/main_grad.h"
#include "gradsync/reducer/blame.h"

// Elements that one compute thread sums at a time.
#define SUM_ITEM_COUNT ((size_t)64 << 10)

gs_status gs_replica_init(gs_replica *self, gs_replica_group *group,
                          const gs_logical_shards *shards, int index, gs_device *device) {
    const gs_reducer_options *whole = &group->whole;
    *self = (gs_replica){.group = group, .index = index, .device = device};
    self->first_shard = gs_logical_shards_first(shards, shards->rank);
    self->num_shards = gs_logical_shards_count(shards);
    self->num_slots = group->exact ? self->num_shards : 1;
    self->num_passes = self->num_shards * whole->passes_per_shard;
    size_t num_slots = (size_t)self->num_slots;
    self->num_pending = calloc(whole->num_params, sizeof *self->num_pending);
    self->used = calloc(whole->num_params * num_slots, sizeof *self->used);
    self->marks = calloc(whole->num_params, sizeof *self->marks);
    self->samples = calloc((size_t)self->num_passes, sizeof *self->samples);
    self->grads = calloc(whole->num_params * num_slots, sizeof *self->grads);
    if (!self->num_pending || !self->used || !self->marks || !self->samples || !self->grads)
        return gs_error(GS_RESOURCE_EXHAUSTED, "replica %d: out of memory", index);
    if (index == 0 && !group->exact) return gs_ok();
    void *memory = NULL;
    GS_TRY(gs_device_alloc(device, &memory, group->layout.slot_bytes * num_slots));
    self->memory = memory;
    return gs_ok();
}

void gs_replica_release(gs_replica *self) {
    if (self->device) gs_device_free(self->device, self->memory);
    free(self->grads);
    free(self->num_pending);
    free(self->used);
    free(self->marks);
    free(self->samples);
}

void gs_replica_place(gs_replica *self) {
    const gs_grad_layout *layout = &self->group->layout;
    size_t num_params = layout->num_params;
    if (!self->memory) return;
    // Padding travels with its bucket and must be zero.
    memset(self->memory, 0, layout->slot_bytes * (size_t)self->num_slots);
    for (size_t i = 0; i < num_params * (size_t)self->num_slots; i++)
        self->grads[i] = (float *)(self->memory + i / num_params * layout->slot_bytes +
                                   layout->offset_bytes[i % num_params]);
}

void gs_replica_begin_step(gs_replica *self) {
    self->in_pass = false;
    atomic_store_explicit(&self->passes_begun, 0, memory_order_relaxed);
    atomic_store_explicit(&self->passes_ended, 0, memory_order_relaxed);
    memset(self->used, 0, self->group->whole.num_params * (size_t)self->num_slots);
}

static gs_blamed who(const gs_replica *self) {
    return (gs_blamed){self->group->whole.shards.rank, self->group->step, self->index};
}

static gs_status misuse(const gs_replica *self, const char *what) {
    return gs_blame_call(who(self), what);
}

static gs_status blame(const gs_replica *self, size_t param, const char *what) {
    return gs_blame_param(who(self), param, self->group->layout.params[param].name, what);
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
    const gs_replica_group *group = self->group;
    const gs_bucket *bucket = &group->layout.buckets[index];
    size_t first = bucket->params[0], last = bucket->params[bucket->num_params - 1];
    bucket_sum sum = {.kernels = gs_device_kernels(self->device),
                      .stream = gs_device_stream(self->device),
                      .out = (char *)group->reducing.grads[first],
                      .num_inputs = group->num_replicas,
                      .dtype = gs_main_grad_dtype(group->layout.params[first].dtype),
                      .scale = group->scale};
    if (sum.num_inputs == 1 && sum.scale == 1.0) return;
    for (int r = 0; r < sum.num_inputs; r++)
        sum.in[r] = (const char *)gs_replica_grad(&group->each[r], 0, first);
    sum.element_bytes = gs_dtype_bytes(sum.dtype);
    sum.count =
        (group->layout.offset_bytes[last] - group->layout.offset_bytes[first]) / sum.element_bytes +
        gs_param_spec_count(&group->layout.params[last]);
    gs_stream_for_each(sum.stream, (sum.count + SUM_ITEM_COUNT - 1) / SUM_ITEM_COUNT, sum_item,
                       &sum);
}

// All members are final on this replica. The last replica to say so adds them all.
static void complete_bucket(gs_replica *self, size_t index) {
    gs_replica_group *group = self->group;
    if (atomic_fetch_sub_explicit(&group->num_incomplete[index], 1, memory_order_acq_rel) != 1)
        return;
    sum_bucket(self, index);
    pthread_mutex_lock(&group->lock);
    size_t num_summed = atomic_load_explicit(&group->num_summed, memory_order_relaxed);
    group->summed[num_summed] = index;
    atomic_store_explicit(&group->num_summed, num_summed + 1, memory_order_release);
    pthread_cond_signal(&group->moved);
    pthread_mutex_unlock(&group->lock);
}

gs_status gs_replica_open_pass(gs_replica *self, gs_reducer_pass *pass, int64_t samples) {
    gs_replica_group *group = self->group;
    if (atomic_load(&group->failed)) return gs_replica_group_error(group);
    // Before `open`: the owner may have ended the step meanwhile.
    int run = atomic_load_explicit(&self->passes_ended, memory_order_relaxed);
    if (run == self->num_passes) return misuse(self, "all passes of the step have been run");
    if (!atomic_load(&group->open)) return misuse(self, "a pass needs an open step");
    if (self->in_pass) return misuse(self, "a pass is open, end it first");
    if (samples < 0) return misuse(self, "a pass has less than 0 samples");
    GS_FAILPOINT("replica.begin_pass");

    int per_shard = group->whole.passes_per_shard, own_shard = run / per_shard;
    size_t slot = self->num_slots > 1 ? (size_t)own_shard : 0;
    self->pass =
        (gs_reducer_pass){.grads = self->memory ? self->grads + slot * group->whole.num_params
                                                : group->reducing.grads,
                          .accumulate = group->exact ? run % per_shard > 0 : run > 0,
                          .grad_factor = group->whole.op == GS_SAMPLE_MEAN ? (float)samples : 1,
                          .shard = self->first_shard + own_shard,
                          .pass = run % per_shard,
                          .reduces = run == self->num_passes - 1};
    self->samples[run] = samples;
    self->in_pass = true;
    self->num_marked = 0;
    if (++self->serial == 0) self->serial = 1;
    if (self->pass.reduces && !group->exact) {
        for (size_t b = 0; b < group->layout.plan.num_buckets; b++)
            self->num_pending[b] = group->layout.buckets[b].num_params;
    }
    if (self->pass.reduces && self->index == 0) gs_ready_order_begin(&group->order);
    atomic_store_explicit(&self->serial_seen, self->serial, memory_order_relaxed);
    atomic_store_explicit(&self->passes_begun, run + 1, memory_order_relaxed);
    *pass = self->pass;
    return gs_ok();
}

static gs_status check_mark(gs_replica *self, size_t param) {
    if (atomic_load_explicit(&self->group->failed, memory_order_relaxed))
        return gs_replica_group_error(self->group);
    GS_FAILPOINT("replica.mark_ready");
    if (param >= self->group->whole.num_params)
        return gs_error(
            GS_FAILED_PRECONDITION, "rank %d, step %lld, replica %d: there is no parameter %zu",
            self->group->whole.shards.rank, (long long)self->group->step, self->index, param);
    if (!self->in_pass) return blame(self, param, "marked ready outside a pass");
    if (atomic_load_explicit(&self->marks[param], memory_order_relaxed) == self->serial)
        return blame(self, param, "marked ready twice in one pass");
    return gs_ok();
}

// A parameter is settled in this pass, used or not.
static void settle_param(gs_replica *self, size_t param) {
    gs_replica_group *group = self->group;
    atomic_store_explicit(&self->marks[param], self->serial, memory_order_relaxed);
    self->num_marked++;
    if (self->pass.reduces && !group->exact) {
        size_t bucket = group->layout.bucket_of[param];
        if (--self->num_pending[bucket] == 0) complete_bucket(self, bucket);
    }
}

gs_status gs_replica_mark_ready(gs_replica *self, size_t param) {
    gs_replica_group *group = self->group;
    GS_TRY(check_mark(self, param));
    self->used[(size_t)slot_of_pass(self) * group->whole.num_params + param] = 1;
    if (self->index == 0 && self->pass.reduces) {
        group->order_marks[param] = self->serial;
        gs_ready_order_add(&group->order, param);
    }
    settle_param(self, param);
    return gs_ok();
}

// What a pass that was to overwrite left alone is zero.
static void zero_param(gs_replica *self, size_t param) {
    if (self->pass.accumulate) return;
    const gs_param_spec *spec = &self->group->layout.params[param];
    size_t main_bytes = gs_dtype_bytes(gs_main_grad_dtype(spec->dtype));
    gs_device_kernels(self->device)
        ->fill(gs_device_stream(self->device), gs_replica_grad(self, slot_of_pass(self), param), 0,
               gs_param_spec_count(spec) * main_bytes / sizeof(float));
}

gs_status gs_replica_mark_unused(gs_replica *self, size_t param) {
    GS_TRY(check_mark(self, param));
    zero_param(self, param);
    settle_param(self, param);
    return gs_ok();
}

static void settle_rest(gs_replica *self) {
    const gs_replica_group *group = self->group;
    for (size_t b = 0; b < group->layout.plan.num_buckets; b++) {
        const gs_bucket *bucket = &group->layout.buckets[b];
        for (size_t i = 0; i < bucket->num_params; i++) {
            size_t param = bucket->params[i];
            if (atomic_load_explicit(&self->marks[param], memory_order_relaxed) == self->serial)
                continue;
            zero_param(self, param);
            settle_param(self, param);
        }
    }
}

gs_status gs_replica_close_pass(gs_replica *self) {
    gs_replica_group *group = self->group;
    if (atomic_load(&group->failed)) return gs_replica_group_error(group);
    if (!self->in_pass) return misuse(self, "no pass is open");
    GS_FAILPOINT("replica.end_pass");
    if (self->num_marked < group->whole.num_params) settle_rest(self);
    if (self->pass.reduces && self->index == 0)
        gs_ready_order_finish(&group->order, &group->layout.plan, group->order_marks, self->serial);
    self->in_pass = false;
    int ended = atomic_load_explicit(&self->passes_ended, memory_order_relaxed) + 1;
    atomic_store_explicit(&self->passes_ended, ended, memory_order_relaxed);
    if (ended < self->num_passes) return gs_ok();
    pthread_mutex_lock(&group->lock);
    group->num_ended++;
    pthread_cond_signal(&group->moved);
    pthread_mutex_unlock(&group->lock);
    return gs_ok();
}
