// The hook of sharded training: each element of a bucket is summed for its owner alone.
//
// Flat: one reduce-scatter in place for each bucket, whose even parts it asks the layout for. Whole
// tensors: a rooted reduce in place for each run of members of one owner. What a rank does not own
// keeps no meaning: results are partial (gs_hook_result), and the reducer has GS_TALLY_APART. With
// a wire dtype all travels in 16 bits.
//
// Sums are those of "allreduce", in the same order, so the owner has the bits that every rank had
// there.
//
// gs_hook_choice.user is a const gs_shards * of the reducer's plan and world, borrowed until the
// reducer's destroy. Before gs_reducer_reset to another world, or gs_reducer_set_plan:
// gs_shards_redo. All hooks of a reducer are this one: it has all buckets.
#ifndef GRADSYNC_SHARDED_SHARD_REDUCE_H
#define GRADSYNC_SHARDED_SHARD_REDUCE_H

#include "core/abi.h"
#include "gradsync/hooks/comm_hook.h"

GS_BEGIN_DECLS

// "shard_reduce": for who has no symbol of a struct at hand.
const gs_comm_hook *gs_shard_reduce_hook(void);

GS_END_DECLS

extern const gs_comm_hook gs_hook_shard_reduce;

#endif
