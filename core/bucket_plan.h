// Parameters → buckets: pure functions, the same on every rank and in the coordinator.
//
// Parity mode is the size-based assignment of PyTorch's reducer: per key (dtype, device) an open
// bucket takes tensors in order and is emitted when its bytes reach the limit in force (tested after
// adding, with >=); limits are used one after the other per key and the last one repeats; leftovers
// follow in the order in which their first tensor appeared. Without an explicit order the buckets are
// sorted by their smallest index. A tensor is never split.
#ifndef CORE_BUCKET_PLAN_H
#define CORE_BUCKET_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/digest.h"
#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/status.h"

GS_BEGIN_DECLS

#define GS_FIRST_BUCKET_BYTES UINT64_C(1048576)
#define GS_BUCKET_CAP_BYTES UINT64_C(26214400)
// One host, shared memory: half of a typical L2, so that a bucket is reduced while in cache.
#define GS_HOST_BUCKET_CAP_BYTES UINT64_C(393216)
// Its exposed last bucket: what one rank reduces in some ten microseconds.
#define GS_HOST_LAST_BUCKET_BYTES UINT64_C(65536)

typedef struct gs_plan_tensor {
    uint64_t count;  // elements, up to 2^53 and beyond
    gs_dtype dtype;
    int device;   // any number; equal numbers are the same device
    bool sparse;  // its gradient will be sparse: gets a bucket of its own, limit 0
    bool sparse_storage;  // the tensor itself is stored sparsely: refused
    size_t element_bytes;  // in its bucket; 0: those of dtype
} gs_plan_tensor;

typedef struct gs_plan_request {
    const gs_plan_tensor *tensors;
    size_t num_tensors;
    const uint64_t *limits_bytes;  // at least one
    size_t num_limits;
    const size_t *order;  // num_tensors parameter indices in the order wanted; NULL: as they are
    bool reverse;         // turn the list of buckets around (members keep their order)
    // Packs the order from its end (NULL: the reversed order of the tensors), so that the first limits fall
    // to the last buckets; buckets and members come out in the order given.
    bool from_end;
} gs_plan_request;

typedef struct gs_plan_bucket {
    uint64_t limit_bytes;  // the limit in force; 0: none (sparse)
    uint64_t bytes;        // saturates at UINT64_MAX
    gs_dtype dtype;
    int device;
    size_t first, num_params;  // its members: params[first .. first + num_params)
    int hook;                  // which of the reducer's communication hooks has it; 0: the default
} gs_plan_bucket;

typedef struct gs_bucket_plan {
    size_t num_buckets, num_params;
    gs_plan_bucket *buckets;  // owned
    size_t *params;           // owned; parameter indices, bucket after bucket
} gs_bucket_plan;             // {0} is empty

// The size-based assignment. INVALID_ARGUMENT without limits, for a tensor with sparse storage, and
// when `order` is not a permutation.
// An empty tensor list gives an empty plan.
GS_NODISCARD gs_status gs_bucket_plan_assign(gs_bucket_plan *out, const gs_plan_request *request);

// The assignment of parameters: tensors of `layout` are not looked at. Bytes are what buckets hold of
// them: a parameter of 16 bits has an fp32 gradient. A sparse parameter gets a bucket of its own.
GS_NODISCARD gs_status gs_bucket_plan_of_params(gs_bucket_plan *out, const gs_plan_request *layout,
                                                const gs_param_spec *params, size_t num_params);

// The same for parameters that have owners, whole: those of a bucket have one, and each owner has an open
// bucket and a place in the limits of its own. owners[p] is any number; NULL: one owns all.
GS_NODISCARD gs_status gs_bucket_plan_of_owned(gs_bucket_plan *out, const gs_plan_request *layout,
                                               const int *owners, const gs_param_spec *params,
                                               size_t num_params);

// PyTorch's parity, limits {first, cap}: before any order is known along reversed registration order;
// `ready_order` non-NULL: the rebuilt plan along it. plan_policy.h has all that a job may ask for.
GS_NODISCARD gs_status gs_bucket_plan_parity(gs_bucket_plan *out, const gs_param_spec *params,
                                             size_t num_params, uint64_t first_bytes,
                                             uint64_t cap_bytes, const size_t *ready_order);

// The plan of one host: buckets of about GS_HOST_BUCKET_CAP_BYTES along the ready order (without one:
// reversed registration order, also inside the buckets), the last bucket small since it is exposed.
GS_NODISCARD gs_status gs_bucket_plan_one_host(gs_bucket_plan *out, const gs_param_spec *params,
                                               size_t num_params, const size_t *ready_order);

// Serialised canonically and digested: limits, dtypes, devices, order.
gs_digest gs_bucket_plan_digest(const gs_bucket_plan *plan);
GS_NODISCARD gs_status gs_bucket_plan_copy(gs_bucket_plan *out, const gs_bucket_plan *plan);
// INVALID_ARGUMENT unless each of num_params parameters is in exactly one bucket, of its dtype.
GS_NODISCARD gs_status gs_bucket_plan_check(const gs_bucket_plan *plan, const gs_param_spec *params,
                                            size_t num_params);
void gs_bucket_plan_release(gs_bucket_plan *plan);

// The chunking of coalesced collectives: never above `limit_bytes` unless a single tensor is; tested
// before adding. *chunk_of[i] is the number of tensor i's chunk; chunks are numbered as they close.
//   per_type  one running chunk for each dtype (today's rule); false: one for all (the first rule)
GS_NODISCARD gs_status gs_take_tensors(size_t *chunk_of, size_t *num_chunks,
                                       const gs_plan_tensor *tensors, size_t num_tensors,
                                       uint64_t limit_bytes, bool per_type);

GS_END_DECLS

#endif
