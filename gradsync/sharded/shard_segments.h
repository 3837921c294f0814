// Segments of parameters by a key: those of a rank, of a rank's optimizer, of a bucket and a rank.
//
// Of shards.h, whose memory is borrowed while lists are made.
#ifndef GRADSYNC_SHARDED_SHARD_SEGMENTS_H
#define GRADSYNC_SHARDED_SHARD_SEGMENTS_H

#include <stddef.h>

#include "core/status.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/optim/param_segments.h"

// What is cut, and into whose pieces.
typedef struct gs_shard_cut {
    const gs_grad_layout *layout;
    const int *owners;  // of each parameter; NULL: even parts of each bucket
    int world_size;
    const int *optimizers;  // of each parameter; NULL: one
    int num_optimizers;
} gs_shard_cut;

// In order of parameters by rank, or by rank · optimizers + optimizer; in plan order by bucket · world + rank.
typedef enum gs_shard_key { GS_BY_RANK = 0, GS_BY_OPTIMIZER, GS_BY_BUCKET } gs_shard_key;

// Those of a key in the order in which they were put.
typedef struct gs_segment_lists {
    gs_segment *segments;
    size_t *first;  // of a key; behind the last one: their number
} gs_segment_lists;

// Release it after an error, too.
GS_NODISCARD gs_status gs_segment_lists_init(gs_segment_lists *lists, const gs_shard_cut *cut,
                                             gs_shard_key by);
void gs_segment_lists_release(gs_segment_lists *lists);
const gs_segment *gs_segment_lists_of(const gs_segment_lists *lists, size_t key,
                                      size_t *num_segments);

// Elements of its bucket before a parameter.
size_t gs_shard_first_in_bucket(const gs_grad_layout *layout, size_t param);

#endif
