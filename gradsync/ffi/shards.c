// Shards and what is reduced for them, of ffi.h.
#include "gradsync/sharded/shards.h"

#include <stdlib.h>
#include <string.h>

#include "gradsync/ffi/object.h"
#include "gradsync/sharded/shard_reduce.h"

gs_ffi_shards *gs_ffi_shards_new(void) {
    return calloc(1, sizeof(gs_ffi_shards));
}

static gs_status check_closed(const gs_ffi_shards *shards) {
    GS_TRY(gs_ffi_given(shards, "shards"));
    return gs_ffi_expect(!shards->shards, "the shards are open");
}

static gs_status set_list(const gs_ffi_shards *shards, gs_ffi_numbers *list, const int *numbers,
                          size_t count) {
    GS_TRY(check_closed(shards));
    return gs_ffi_numbers_copy(list, numbers, count);
}

int gs_ffi_shards_set_owners(gs_ffi_shards *shards, const int *owners, size_t num_params) {
    return gs_ffi_keep(shards,
                       set_list(shards, shards ? &shards->owners : NULL, owners, num_params));
}

int gs_ffi_shards_set_optimizers(gs_ffi_shards *shards, const int *optimizers, size_t num_params) {
    return gs_ffi_keep(
        shards, set_list(shards, shards ? &shards->optimizers : NULL, optimizers, num_params));
}

static gs_status open_shards(gs_ffi_shards *shards, const gs_ffi_params *params,
                             const gs_ffi_plan *plan, int world_size) {
    GS_TRY(check_closed(shards));
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_given(plan, "plan"));
    GS_TRY(gs_ffi_expect(plan->plan.buckets, "the plan of the shards is not open"));
    GS_TRY(gs_ffi_numbers_check(&shards->owners, params->count, "owners"));
    GS_TRY(gs_ffi_numbers_check(&shards->optimizers, params->count, "optimizers"));
    return gs_shards_create(
        &shards->shards, &(gs_shards_options){.partition = shards->owners.list ? GS_PARTITION_GIVEN
                                                                               : GS_PARTITION_FLAT,
                                              .owners = shards->owners.list,
                                              .optimizers = shards->optimizers.list,
                                              .plan = &plan->plan,
                                              .params = params->specs,
                                              .num_params = params->count,
                                              .world_size = world_size});
}

int gs_ffi_shards_open(gs_ffi_shards *shards, const gs_ffi_params *params, const gs_ffi_plan *plan,
                       int world_size) {
    return gs_ffi_keep(shards, open_shards(shards, params, plan, world_size));
}

static gs_status redo(gs_ffi_shards *shards, int world_size, const gs_ffi_plan *plan,
                      const int *owners) {
    GS_TRY(gs_ffi_given(shards, "shards"));
    GS_TRY(gs_ffi_expect(shards->shards, "the shards are not open"));
    if (plan) GS_TRY(gs_ffi_expect(plan->plan.buckets, "the plan of the shards is not open"));
    return gs_shards_redo(shards->shards, world_size, plan ? &plan->plan : NULL, owners);
}

int gs_ffi_shards_redo(gs_ffi_shards *shards, int world_size, const gs_ffi_plan *plan,
                       const int *owners) {
    return gs_ffi_keep(shards, redo(shards, world_size, plan, owners));
}

size_t gs_ffi_shards_elements(const gs_ffi_shards *shards, int rank) {
    bool is_rank =
        shards && shards->shards && rank >= 0 && rank < gs_shards_world_size(shards->shards);
    return is_rank ? gs_shards_elements(shards->shards, rank) : 0;
}

size_t gs_ffi_shards_param_bytes(const gs_ffi_shards *shards) {
    return shards && shards->shards ? gs_shards_param_bytes(shards->shards) : SIZE_MAX;
}

size_t gs_ffi_shards_param_offset(const gs_ffi_shards *shards, size_t param) {
    bool has = shards && shards->shards && param < gs_shards_num_params(shards->shards);
    return has ? gs_shards_param_offset(shards->shards, param) : SIZE_MAX;
}

void gs_ffi_shards_free(gs_ffi_shards *shards) {
    if (!shards) return;
    gs_shards_destroy(shards->shards);
    free(shards->owners.list);
    free(shards->optimizers.list);
    free(shards);
}

static gs_status check_reducer(const gs_ffi_reducer *reducer, const gs_ffi_shards *shards) {
    GS_TRY(gs_ffi_given(reducer, "reducer"));
    GS_TRY(gs_ffi_given(shards, "shards"));
    GS_TRY(gs_ffi_expect(!reducer->reducer, "the reducer is open"));
    return gs_ffi_expect(shards->shards, "the reducer's shards are not open");
}

int gs_ffi_reducer_set_shards(gs_ffi_reducer *reducer, const gs_ffi_shards *shards) {
    int code = gs_ffi_keep(reducer, check_reducer(reducer, shards));
    if (code) return code;
    reducer->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = shards->shards};
    reducer->options.hooks = &reducer->choice;
    reducer->options.num_hooks = 1;
    reducer->options.tally = GS_TALLY_APART;
    return 0;
}
