#include "tests/conformance/replica_shards.h"

#include <stdlib.h>

#include "gradsync/sharded/shard_reduce.h"

#define WAIT_SECONDS 60.0

gs_status replica_shards_open(replica_shards *self, gs_reducer_options *options,
                              const int *owners) {
    self->rank = options->shards.rank;
    GS_TRY(gs_shards_create(
        &self->shards,
        &(gs_shards_options){.partition = owners ? GS_PARTITION_GIVEN : GS_PARTITION_FLAT,
                             .owners = owners,
                             .plan = options->plan,
                             .params = options->params,
                             .num_params = options->num_params,
                             .world_size = options->shards.world_size}));
    self->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    options->hooks = &self->choice;
    options->num_hooks = 1;
    options->tally = GS_TALLY_APART;
    return gs_ok();
}

void replica_shards_close(replica_shards *self) {
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

gs_status replica_shards_reads(void *ctx, size_t param) {
    const replica_shards *self = ctx;
    if (!self->gather) return gs_ok();
    return gs_param_gather_wait(self->gather, param, gs_deadline_in_seconds(WAIT_SECONDS));
}

gs_status replica_shards_await(const replica_shards *self, gs_deadline deadline) {
    return self->gather ? gs_param_gather_finish(self->gather, deadline) : gs_ok();
}

gs_status replica_shards_step(replica_shards *self, gs_optimizer *optimizer, const uint8_t *used,
                              int64_t step, float lr, float factor) {
    GS_TRY(gs_optimizer_step(optimizer, self->own_params, self->own_grads, used, lr, factor));
    return gs_param_gather_start(self->gather, step);
}

const gs_segment *replica_shards_own(const replica_shards *self, size_t *num_segments) {
    *num_segments = 0;
    return self->shards ? gs_shards_of_rank(self->shards, self->rank, num_segments) : NULL;
}
