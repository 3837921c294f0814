// Logical shards: V fixed slices of every global batch, dealt to ranks.
//
// V is part of the job and never changes; the world may. Rank r of N takes the contiguous shards
// [floor(r·V/N), floor((r+1)·V/N)). In exact mode shard gradients are added along one fixed binary tree
// over shard numbers (the left child of a range is its largest power of two below the size), so that
// the same bits come out for every world size: a rank sends the partial sums of the subtrees it owns.
#ifndef GRADSYNC_STEP_LOGICAL_SHARDS_H
#define GRADSYNC_STEP_LOGICAL_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

#define GS_MAX_LOGICAL_SHARDS 4096

typedef struct gs_logical_shards {
    int num_shards;  // V ≥ world_size
    int world_size, rank;
    bool exact;
} gs_logical_shards;

// INVALID_ARGUMENT unless 1 ≤ world_size ≤ V ≤ GS_MAX_LOGICAL_SHARDS and, in exact mode, what the ranks
// send fits one reduction: at most GS_REDUCE_MAX_INPUTS partial sums. V ≤ 64 always fits, and V =
// world_size · 2^k for worlds up to 64; the message names such a V. The rank is not looked at.
GS_NODISCARD gs_status gs_logical_shards_check(const gs_logical_shards *shards);

int gs_logical_shards_first(const gs_logical_shards *shards, int rank);  // rank may be world_size
int gs_logical_shards_owner(const gs_logical_shards *shards, int shard);
int gs_logical_shards_count(const gs_logical_shards *shards);  // of this rank

// How many partial-sum slots a rank needs: 1 unless exact; else the most that are ever alive at once
// on any rank of this world, the one being written included.
int gs_logical_shards_num_slots(const gs_logical_shards *shards);

// What to do when own shard number `index` (0 is the rank's first) is complete: its gradient lies in
// slot *slot; then slots (*slot - 1, *slot) are merged into the lower one *merges times.
void gs_logical_shards_step(const gs_logical_shards *shards, int index, int *slot, int *merges);

// The tree over what the ranks hold in the end, for shards that passed the check. Arrays owned by the
// result; release with the pair.
typedef struct gs_shard_tree {
    gs_reduce_tree tree;
    void *memory;
} gs_shard_tree;
GS_NODISCARD gs_status gs_shard_tree_init(gs_shard_tree *tree, const gs_logical_shards *shards);
void gs_shard_tree_release(gs_shard_tree *tree);

GS_END_DECLS

#endif
