#include "gradsync/reducer_options.h"

#include <limits.h>

#include "gradsync/grad_layout.h"

// All passes of one rank can be counted.
#define MAX_PASSES_PER_SHARD (INT_MAX / GS_MAX_LOGICAL_SHARDS)

static gs_status check_options(const gs_reducer_options *options) {
    const gs_logical_shards *shards = &options->shards;
    if (!options->num_params) return gs_error(GS_INVALID_ARGUMENT, "no parameters");
    GS_TRY(gs_param_specs_check(options->params, options->num_params));
    for (size_t i = 0; i < options->num_params; i++) {
        if (options->params[i].dtype != GS_FP32)
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%.100s\": is %s, must be fp32", i,
                            options->params[i].name, gs_dtype_name(options->params[i].dtype));
    }
    GS_TRY(gs_logical_shards_check(shards));
    if (shards->rank < 0 || shards->rank >= shards->world_size)
        return gs_error(GS_INVALID_ARGUMENT, "rank %d of %d", shards->rank, shards->world_size);
    if (options->passes_per_shard < 0 || options->passes_per_shard > MAX_PASSES_PER_SHARD)
        return gs_error(GS_INVALID_ARGUMENT, "passes per shard: %d, at most %d",
                        options->passes_per_shard, MAX_PASSES_PER_SHARD);
    return gs_ok();
}

gs_status gs_reducer_arena_bytes(size_t *bytes, const gs_reducer_options *options) {
    GS_TRY(check_options(options));
    return gs_grad_layout_bytes(bytes, options->params, options->num_params,
                                gs_logical_shards_num_slots(&options->shards));
}

gs_status gs_reducer_options_check(const gs_reducer_options *options, const gs_comm *comm) {
    size_t bytes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, options));
    if (!options->plan) return gs_error(GS_INVALID_ARGUMENT, "plan: none given");
    if (!options->device) return gs_error(GS_INVALID_ARGUMENT, "device: none given");
    if (!options->arena) return gs_error(GS_INVALID_ARGUMENT, "arena: none given");
    if (gs_arena_bytes(options->arena) < bytes)
        return gs_error(GS_INVALID_ARGUMENT, "arena: has %zu bytes, needs %zu",
                        gs_arena_bytes(options->arena), bytes);
    if (options->shards.rank != gs_comm_rank(comm) ||
        options->shards.world_size != gs_comm_world_size(comm))
        return gs_error(GS_INVALID_ARGUMENT, "shards: rank %d of %d, the communicator is %d of %d",
                        options->shards.rank, options->shards.world_size, gs_comm_rank(comm),
                        gs_comm_world_size(comm));
    return gs_bucket_plan_check(options->plan, options->params, options->num_params);
}
