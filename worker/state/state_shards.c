#include "worker/state/state_shards.h"

#include <stdlib.h>

#include "rpc/schema/job_plan.h"

static gs_status find_places(gs_state_shards *shards, size_t num_params) {
    shards->places = calloc(num_params + 1, sizeof *shards->places);
    if (!shards->places) return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
    for (size_t i = 0; i < num_params; i++) shards->places[i] = shards->num_own;
    for (size_t i = 0; i < shards->num_own; i++) {
        size_t *place = &shards->places[shards->own[i].tensor];
        if (*place != shards->num_own)
            return gs_error(GS_INTERNAL, "shards: rank %d has two segments of parameter %zu",
                            shards->rank, shards->own[i].tensor);
        *place = i;
    }
    return gs_ok();
}

static gs_status make_partition(gs_shards **out, const gs_state_shards_options *options) {
    static const gs_partition partitions[] = {[GS_SHARD_FLAT] = GS_PARTITION_FLAT,
                                              [GS_SHARD_OSS] = GS_PARTITION_GREEDY,
                                              [GS_SHARD_ZERO] = GS_PARTITION_SORTED};
    gs_shards_options shards = {.partition = partitions[options->spec->reducer.partition],
                                .plan = options->plan,
                                .params = options->params,
                                .num_params = options->num_params,
                                .world_size = options->world_size,
                                .element_bytes = gs_dtype_bytes(options->params->dtype)};
    int *owners;
    GS_TRY(gs_job_plan_bucket_owners(&owners, options->spec, options->world_size, options->plan,
                                     options->params, options->num_params));
    shards.owners = owners;
    if (owners) shards.partition = GS_PARTITION_GIVEN;
    gs_status status = gs_shards_create(out, &shards);
    free(owners);
    return status;
}

gs_status gs_state_shards_create(gs_state_shards **out, const gs_state_shards_options *options) {
    gs_state_shards *shards = calloc(1, sizeof *shards);
    if (!shards) return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
    shards->rank = options->rank;
    shards->world_size = options->world_size;
    gs_status status = make_partition(&shards->partition, options);
    if (!status.code) {
        shards->own = gs_shards_of_rank(shards->partition, shards->rank, &shards->num_own);
        status = find_places(shards, options->num_params);
    }
    if (status.code) {
        gs_state_shards_destroy(shards);
        return status;
    }
    *out = shards;
    return gs_ok();
}

void gs_state_shards_destroy(gs_state_shards *shards) {
    if (!shards) return;
    gs_shards_destroy(shards->partition);
    free(shards->places);
    free(shards);
}

gs_segment gs_state_shards_of_param(const gs_state_shards *shards, size_t param) {
    size_t place = shards->places[param];
    return place < shards->num_own ? shards->own[place] : (gs_segment){.tensor = param};
}
