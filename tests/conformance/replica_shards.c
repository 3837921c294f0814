#include "tests/conformance/replica_shards.h"

#include <stdlib.h>

#include "core/overlap_assignment.h"
#include "gradsync/sharded/shard_reduce.h"
#include "tests/conformance/conformance.h"

#define WAIT_SECONDS 60.0

static gs_status deal_buckets(int *owners, const gs_reducer_options *options, bool split_buckets) {
    const gs_bucket_plan *plan = options->plan;
    gs_overlap_assignment dealt = {0};
    size_t *counts = calloc(options->num_params + 1, sizeof *counts);
    if (!counts) return gs_error(GS_RESOURCE_EXHAUSTED, "owners: out of memory");
    for (size_t i = 0; i < options->num_params; i++)
        counts[i] = gs_param_spec_count(&options->params[i]);
    gs_status status =
        gs_overlap_assign(&dealt, plan, counts, options->shards.world_size, split_buckets);
    for (size_t r = 0; r < dealt.num_runs; r++) {
        const gs_overlap_run *run = &dealt.runs[r];
        const size_t *members = plan->params + plan->buckets[run->bucket].first + run->first;
        for (size_t i = 0; i < run->num_params; i++) owners[members[i]] = run->rank;
    }
    gs_overlap_assignment_release(&dealt);
    free(counts);
    return status;
}

static void update_bucket(void *ctx, size_t bucket) {
    replica_shards *self = ctx;
    const gs_bucket_plan *plan = gs_reducer_plan(self->reducer);
    const gs_plan_bucket *members = &plan->buckets[bucket];
    gs_early_step_bucket(self->early, plan->params + members->first, members->num_params,
                         self->own_grads, gs_reducer_used(self->reducer));
}

static gs_status make_shards(replica_shards *self, const gs_reducer_options *options,
                             const int *owners) {
    return gs_shards_create(
        &self->shards,
        &(gs_shards_options){.partition = owners ? GS_PARTITION_GIVEN : GS_PARTITION_FLAT,
                             .owners = owners,
                             .plan = options->plan,
                             .params = options->params,
                             .num_params = options->num_params,
                             .world_size = options->shards.world_size});
}

static gs_status open_overlapping(replica_shards *self, gs_reducer_options *options,
                                  const replica_shards_options *how) {
    int *owners = calloc(options->num_params + 1, sizeof *owners);
    if (!owners) return gs_error(GS_RESOURCE_EXHAUSTED, "owners: out of memory");
    gs_status status = deal_buckets(owners, options, how->split_buckets);
    if (!status.code) status = make_shards(self, options, owners);
    free(owners);
    self->overlap = how->overlap;
    options->bucket_finished = update_bucket;
    options->bucket_finished_ctx = self;
    return status;
}

gs_status replica_shards_open(replica_shards *self, gs_reducer_options *options,
                              const replica_shards_options *how) {
    self->rank = options->shards.rank;
    if (how->overlap) return open_overlapping(self, options, how);
    GS_TRY(make_shards(self, options, how->owners));
    self->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    options->hooks = &self->choice;
    options->num_hooks = 1;
    options->tally = GS_TALLY_APART;
    return gs_ok();
}

void replica_shards_close(replica_shards *self) {
    if (self->early) gs_early_step_undo(self->early);
    gs_early_step_destroy(self->early);
    gs_param_gather_destroy(self->gather);
    gs_shards_destroy(self->shards);
    free(self->own_params);
    free(self->own_grads);
    *self = (replica_shards){0};
}

size_t replica_shards_bytes(const replica_shards *self) {
    return self->shards ? gs_shards_param_bytes(self->shards) : 0;
}

void replica_shards_choose(const replica_shards *self, gs_optimizer_options *optimizer) {
    optimizer->segments = replica_shards_own(self, &optimizer->num_segments);
}

gs_status replica_shards_connect(replica_shards *self, void **params, void *memory,
                                 const gs_reducer *reducer, gs_comm *comm, gs_deadline deadline) {
    size_t num_segments;
    self->reducer = reducer;
    if (!self->shards) return gs_ok();
    GS_TRY(gs_param_gather_create(&self->gather,
                                  &(gs_param_gather_options){.shards = self->shards,
                                                             .comm = comm,
                                                             .params = memory,
                                                             .lane = REPLICA_SHARDS_LANES - 1},
                                  deadline));
    void *const *placed = gs_param_gather_params(self->gather);
    for (size_t i = 0; i < gs_shards_num_params(self->shards); i++) params[i] = placed[i];
    replica_shards_own(self, &num_segments);
    self->own_params = calloc(num_segments + 1, sizeof *self->own_params);
    self->own_grads = calloc(num_segments + 1, sizeof *self->own_grads);
    if (!self->own_params || !self->own_grads)
        return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
    gs_shards_point(self->own_params, self->shards, self->rank, placed, sizeof(float));
    gs_shards_point(self->own_grads, self->shards, self->rank, gs_reducer_grads(reducer),
                    sizeof(float));
    return gs_ok();
}

gs_status replica_shards_prepare(replica_shards *self, gs_optimizer *optimizer, gs_device *device) {
    if (!self->overlap) return gs_ok();
    return gs_early_step_create(&self->early, &(gs_early_step_options){.optimizer = optimizer,
                                                                       .params = self->own_params,
                                                                       .device = device,
                                                                       .waits_for_release = true});
}

void replica_shards_begin(replica_shards *self, float lr) {
    if (self->early) gs_early_step_begin(self->early, lr, 1);
}

gs_status replica_shards_reads(void *ctx, size_t param) {
    const replica_shards *self = ctx;
    if (!self->gather) return gs_ok();
    return gs_param_gather_wait(self->gather, param, conformance_deadline(WAIT_SECONDS));
}

void replica_shards_release(void *ctx, size_t param) {
    replica_shards *self = ctx;
    if (self->overlap == REPLICA_OVERLAP_INTERLEAVED) gs_early_step_release(self->early, param);
}

void replica_shards_end_passes(replica_shards *self) {
    if (self->early) gs_early_step_release_all(self->early);
}

gs_status replica_shards_await(const replica_shards *self, gs_deadline deadline) {
    return self->gather ? gs_param_gather_finish(self->gather, deadline) : gs_ok();
}

gs_status replica_shards_step(replica_shards *self, gs_optimizer *optimizer, const uint8_t *used,
                              int64_t step, float lr, float factor) {
    if (self->early)
        GS_TRY(gs_early_step_finish(self->early, self->own_grads, used));
    else
        GS_TRY(gs_optimizer_step(optimizer, self->own_params, self->own_grads, used, lr, factor));
    return gs_param_gather_start(self->gather, step);
}

const gs_segment *replica_shards_own(const replica_shards *self, size_t *num_segments) {
    *num_segments = 0;
    return self->shards ? gs_shards_of_rank(self->shards, self->rank, num_segments) : NULL;
}
