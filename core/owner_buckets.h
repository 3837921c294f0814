// The gradient buckets of fairscale's ShardedDataParallel: small tensors of one owner travel
// together, large ones alone. Pure: every rank comes to the same. One device.
//
// Trainable parameters are taken by ascending elements, equal ones by owner and as they are
// registered. Each goes into its owner's bucket while that stays below the capacity, strictly; else
// it is reduced directly. So what is bucketed of an owner are its smallest tensors.
#ifndef CORE_OWNER_BUCKETS_H
#define CORE_OWNER_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/owner_rules.h"
#include "core/param_spec.h"
#include "core/status.h"

GS_BEGIN_DECLS

#define GS_NO_BUCKET SIZE_MAX

typedef struct gs_owner_place {
    size_t param;
    size_t bucket;  // GS_NO_BUCKET: reduced directly
    size_t offset;  // elements from the bucket's start
} gs_owner_place;

typedef struct gs_owner_bucket {
    int owner;
    size_t count;  // elements; 0: nothing of its owner was small enough, and nothing is to be sent
} gs_owner_bucket;

typedef struct gs_owner_buckets {
    size_t capacity;  // elements of a bucket at most; 0: there are no buckets
    size_t num_places, num_buckets;
    gs_owner_place *places;    // owned; trainable parameters in the order in which they are taken
    gs_owner_bucket *buckets;  // owned; as they are first wanted
} gs_owner_buckets;            // {0} is empty

// capacity  wanted, elements: at most those of all parameters, frozen ones too, and 0 for one rank
// INVALID_ARGUMENT for an owner that is no rank, and when the elements are more than a size_t
// counts.
GS_NODISCARD gs_status gs_owner_buckets_plan(gs_owner_buckets *out, const int *owner,
                                             const gs_owner_request *request, size_t capacity);
void gs_owner_buckets_release(gs_owner_buckets *buckets);
// They as a plan, of dense parameters that are all trainable: each bucket that has something, and
// what is reduced directly each in one of its own; in the order in which they are complete,
// gradients coming in reversed registration order. Limits are the capacity.
GS_NODISCARD gs_status gs_owner_buckets_to_plan(gs_bucket_plan *out,
                                                const gs_owner_buckets *buckets,
                                                const gs_param_spec *params, size_t num_params);

GS_END_DECLS

#endif
