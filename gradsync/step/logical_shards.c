#include "gradsync/step/logical_shards.h"

#include <stdlib.h>

#include "core/subtrees.h"

int gs_logical_shards_first(const gs_logical_shards *shards, int rank) {
    return (int)((int64_t)rank * shards->num_shards / shards->world_size);
}

// The largest rank whose first shard is not above `shard`.
int gs_logical_shards_owner(const gs_logical_shards *shards, int shard) {
    int64_t world_size = shards->world_size;
    return (int)((((int64_t)shard + 1) * world_size - 1) / shards->num_shards);
}

int gs_logical_shards_count(const gs_logical_shards *shards) {
    return gs_logical_shards_first(shards, shards->rank + 1) -
           gs_logical_shards_first(shards, shards->rank);
}

// Complete subtrees lie in the slots from 0 on; a new shard goes above them.
void gs_logical_shards_step(const gs_logical_shards *shards, int index, int *slot, int *merges) {
    *slot = 0;
    *merges = 0;
    if (!shards->exact) return;
    int first = gs_logical_shards_first(shards, shards->rank), shard = first + index;
    *slot = gs_subtrees_count(shards->num_shards, first, shard);
    *merges = *slot + 1 - gs_subtrees_count(shards->num_shards, first, shard + 1);
}

int gs_logical_shards_num_slots(const gs_logical_shards *shards) {
    int most = 1;
    for (int rank = 0; rank < shards->world_size && shards->exact; rank++) {
        int first = gs_logical_shards_first(shards, rank);
        int end = gs_logical_shards_first(shards, rank + 1);
        int slots = gs_subtrees_most(shards->num_shards, first, end);
        if (slots > most) most = slots;
    }
    return most;
}

// The tree over what ranks own whole: the maximal subtrees of the node [low, high).
static int count_inputs(const gs_logical_shards *shards, int low, int high) {
    if (gs_logical_shards_owner(shards, low) == gs_logical_shards_owner(shards, high - 1)) return 1;
    int middle = low + gs_subtree_left(high - low);
    return count_inputs(shards, low, middle) + count_inputs(shards, middle, high);
}

// A rank with a power of two of shards owns one subtree.
static gs_status refuse_inputs(const gs_logical_shards *shards, int num_inputs) {
    if (shards->world_size > GS_REDUCE_MAX_INPUTS)
        return gs_error(GS_INVALID_ARGUMENT, "exact: a world of more than %d ranks, %d",
                        GS_REDUCE_MAX_INPUTS, shards->world_size);
    int fitting = shards->world_size;
    while (fitting * 2 <= shards->num_shards) fitting *= 2;
    return gs_error(GS_INVALID_ARGUMENT,
                    "exact: %d logical shards on %d ranks need %d partial sums, at most %d fit; %d "
                    "would do",
                    shards->num_shards, shards->world_size, num_inputs, GS_REDUCE_MAX_INPUTS,
                    fitting);
}

gs_status gs_logical_shards_check(const gs_logical_shards *shards) {
    if (shards->world_size < 1)
        return gs_error(GS_INVALID_ARGUMENT, "world size: %d", shards->world_size);
    if (shards->num_shards < shards->world_size || shards->num_shards > GS_MAX_LOGICAL_SHARDS)
        return gs_error(GS_INVALID_ARGUMENT, "logical shards: %d, must be %d to %d",
                        shards->num_shards, shards->world_size, GS_MAX_LOGICAL_SHARDS);
    if (!shards->exact) return gs_ok();
    int num_inputs = count_inputs(shards, 0, shards->num_shards);
    return num_inputs <= GS_REDUCE_MAX_INPUTS ? gs_ok() : refuse_inputs(shards, num_inputs);
}

typedef struct tree_arrays {
    int rank[GS_REDUCE_MAX_INPUTS], part[GS_REDUCE_MAX_INPUTS];
    uint8_t merges[GS_REDUCE_MAX_INPUTS];
    int num_inputs;
} tree_arrays;

// Writes the node [low, high) as a postfix program: what one rank owns whole is an input.
static void write_node(tree_arrays *arrays, const gs_logical_shards *shards, int low, int high) {
    int owner = gs_logical_shards_owner(shards, low);
    if (owner == gs_logical_shards_owner(shards, high - 1)) {
        int input = arrays->num_inputs++;
        arrays->rank[input] = owner;
        arrays->part[input] =
            input && arrays->rank[input - 1] == owner ? arrays->part[input - 1] + 1 : 0;
        return;
    }
    int middle = low + gs_subtree_left(high - low);
    write_node(arrays, shards, low, middle);
    write_node(arrays, shards, middle, high);
    arrays->merges[arrays->num_inputs - 1]++;
}

gs_status gs_shard_tree_init(gs_shard_tree *tree, const gs_logical_shards *shards) {
    *tree = (gs_shard_tree){0};
    GS_TRY(gs_logical_shards_check(shards));
    tree_arrays *arrays = calloc(1, sizeof *arrays);
    if (!arrays) return gs_error(GS_RESOURCE_EXHAUSTED, "shard tree: out of memory");
    write_node(arrays, shards, 0, shards->num_shards);
    tree->tree = (gs_reduce_tree){.num_inputs = arrays->num_inputs,
                                  .rank = arrays->rank,
                                  .part = arrays->part,
                                  .merges = arrays->merges};
    tree->memory = arrays;
    return gs_ok();
}

void gs_shard_tree_release(gs_shard_tree *tree) {
    if (!tree) return;
    free(tree->memory);
    *tree = (gs_shard_tree){0};
}
