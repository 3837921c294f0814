// Which rank updates which part of which bucket while others are still reduced: the assignment of
// torch's ZeroRedundancyOptimizer with overlap_with_ddp. Pure: every rank comes to the same.
//
//   whole   bucket b is rank (b mod world)'s
//   split   buckets by ascending elements; a bucket's members are walked, and a run is closed before
//           the member with which it would have threshold = all elements / world or more. A run
//           goes to the least loaded rank that has none of this bucket yet, the lowest one on ties
//
// A bucket may need more runs than there are ranks, where the original gives up: then the least
// loaded of all ranks takes another one.
#ifndef CORE_OVERLAP_ASSIGNMENT_H
#define CORE_OVERLAP_ASSIGNMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/status.h"

GS_BEGIN_DECLS

typedef struct gs_overlap_run {
    size_t bucket;
    size_t first, num_params;  // members of the bucket: plan->params[bucket.first + first …]
    int rank;
    size_t rank_first;  // where they begin in the rank's own list of parameters
} gs_overlap_run;

typedef struct gs_overlap_assignment {
    size_t num_runs;
    gs_overlap_run *runs;  // owned; by bucket and member: each member of each bucket is in one
} gs_overlap_assignment;   // {0} is empty

// counts[p]: elements of parameter p. INVALID_ARGUMENT without ranks, and when the elements of all
// are more than a size_t counts.
GS_NODISCARD gs_status gs_overlap_assign(gs_overlap_assignment *out, const gs_bucket_plan *plan,
                                         const size_t *counts, int world_size, bool split_buckets);
void gs_overlap_assignment_release(gs_overlap_assignment *assignment);

GS_END_DECLS

#endif
