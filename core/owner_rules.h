// Which rank owns which parameter, whole tensors: the rules of OSS (fairscale) and of torch's
// ZeroRedundancyOptimizer. Pure: every rank and the coordinator come to the same.
//
// Both walk a list and give each tensor to the rank with the smallest load, the lowest rank on
// ties, and carry loads from group to group. The largest load is at most the mean and (1 - 1/world)
// of the largest tensor above it.
//
//   greedy   registration order; a trainable tensor weighs its elements, a frozen one weighs 1, so
//   that
//            frozen tensors are dealt out by count. What comes later moves nothing that was dealt.
//   sorted   each group's largest first; every tensor weighs its elements, frozen or not
#ifndef CORE_OWNER_RULES_H
#define CORE_OWNER_RULES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"

GS_BEGIN_DECLS

typedef struct gs_owner_request {
    const size_t *counts;   // elements of each parameter
    const bool *trainable;  // of each parameter; NULL: all are
    size_t num_params;
    const size_t
        *group_params;  // parameters of each group, groups one behind the other; NULL: one group
    size_t num_groups;
    // The first parameters that stay where `owner` says they are, with what they weigh now:
    // parameters may be frozen and others added behind them, and nothing moves away from its
    // optimizer state.
    size_t num_kept;
    int world_size;
} gs_owner_request;

// owner[p] = rank. INVALID_ARGUMENT without ranks, when groups do not hold every parameter once,
// for a kept owner that is no rank, and when the elements of all are more than a size_t counts.
GS_NODISCARD gs_status gs_owners_greedy(int *owner, const gs_owner_request *request);
// order  parameters as they were dealt, num_params; a rank's own list is in that order. NULL: not
// wanted.
GS_NODISCARD gs_status gs_owners_sorted(int *owner, size_t *order, const gs_owner_request *request);

// By ascending elements, equal ones as they are registered: the order inside OSS's flat buffers.
void gs_owners_ascending(size_t *order, const size_t *counts, size_t num_params);

// Where each parameter begins in its owner's flat buffer: trainable ones alone, ascending, without
// padding. GS_NOT_FLAT: it is frozen and has no place.
//   order     gs_owners_ascending's
//   flat_counts  elements of each rank's buffer; world_size of them
#define GS_NOT_FLAT SIZE_MAX
void gs_owners_flat(size_t *offsets, size_t *flat_counts, const int *owner, const size_t *order,
                    const gs_owner_request *request);

GS_END_DECLS

#endif
