#include "gradsync/logical_shards.h"

#include <stdlib.h>

static int left_child_size(int size) {
    int left = 1;
    while (left * 2 < size) left *= 2;
    return left;
}

// How few subtrees of the node [low, high) make up what it shares with the shards [first, end).
static int count_subtrees(int low, int high, int first, int end) {
    if (first >= end || high <= first || end <= low) return 0;
    if (first <= low && high <= end) return 1;
    int middle = low + left_child_size(high - low);
    return count_subtrees(low, middle, first, end) + count_subtrees(middle, high, first, end);
}

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
    *slot = count_subtrees(0, shards->num_shards, first, shard);
    *merges = *slot + 1 - count_subtrees(0, shards->num_shards, first, shard + 1);
}

int gs_logical_shards_num_slots(const gs_logical_shards *shards) {
    int most = 1;
    gs_logical_shards of_rank = *shards;
    for (of_rank.rank = 0; of_rank.rank < shards->world_size && shards->exact; of_rank.rank++) {
        for (int i = 0; i < gs_logical_shards_count(&of_rank); i++) {
            int slot, merges;
            gs_logical_shards_step(&of_rank, i, &slot, &merges);
            if (slot + 1 > most) most = slot + 1;
        }
    }
    return most;
}

typedef struct tree_arrays {
    int rank[GS_REDUCE_MAX_INPUTS], part[GS_REDUCE_MAX_INPUTS];
    uint8_t merges[GS_REDUCE_MAX_INPUTS];
    int num_inputs;  // counts on when the arrays are full
} tree_arrays;

// Writes the node [low, high) as a postfix program: what one rank owns whole is an input.
static void write_node(tree_arrays *arrays, const gs_logical_shards *shards, int low, int high) {
    int owner = gs_logical_shards_owner(shards, low);
    if (owner == gs_logical_shards_owner(shards, high - 1)) {
        int input = arrays->num_inputs++;
        if (input >= GS_REDUCE_MAX_INPUTS) return;
        arrays->rank[input] = owner;
        arrays->part[input] =
            input && arrays->rank[input - 1] == owner ? arrays->part[input - 1] + 1 : 0;
        return;
    }
    int middle = low + left_child_size(high - low);
    write_node(arrays, shards, low, middle);
    write_node(arrays, shards, middle, high);
    if (arrays->num_inputs <= GS_REDUCE_MAX_INPUTS) arrays->merges[arrays->num_inputs - 1]++;
}

gs_status gs_shard_tree_init(gs_shard_tree *tree, const gs_logical_shards *shards) {
    *tree = (gs_shard_tree){0};
    tree_arrays *arrays = calloc(1, sizeof *arrays);
    if (!arrays) return gs_error(GS_RESOURCE_EXHAUSTED, "shard tree: out of memory");
    write_node(arrays, shards, 0, shards->num_shards);
    if (arrays->num_inputs > GS_REDUCE_MAX_INPUTS) {
        gs_status status = gs_error(GS_INVALID_ARGUMENT,
                                    "exact: %d logical shards on %d ranks need %d partial sums, at "
                                    "most %d",
                                    shards->num_shards, shards->world_size, arrays->num_inputs,
                                    GS_REDUCE_MAX_INPUTS);
        free(arrays);
        return status;
    }
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
