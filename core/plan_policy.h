// How a job's parameters become buckets: limits, where the small one applies, how many buckets at
// most.
//
// One function of policy, parameters and ready order: what the coordinator plans, what a dry run
// foresees and what tests expect cannot differ. The assignment itself is bucket_plan.h's.
#ifndef CORE_PLAN_POLICY_H
#define CORE_PLAN_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/status.h"

GS_BEGIN_DECLS

#define GS_PLAN_MAX_CAPS 16

typedef struct gs_plan_policy {
    // Buckets for shared memory of one host (collectives of what is in cache); limits below are not
    // looked at.
    bool one_host;
    uint64_t first_bytes;                   // the small first limit; 0: none, the caps alone
    uint64_t caps_bytes[GS_PLAN_MAX_CAPS];  // used one after the other, the last repeats
    size_t num_caps;                        // 0: GS_BUCKET_CAP_BYTES
    // A plan along an observed order has its first limits at the end, where time is exposed, and
    // not at the begin, where reduction starts early. (Without an order they are at the end
    // anyway.)
    bool small_last;
    // Limits are doubled until there are no more buckets than that; 0: any number.
    size_t max_buckets;
} gs_plan_policy;

// `ready_order` NULL: nothing was observed yet; the list of buckets in registration order is
// reversed then. INVALID_ARGUMENT when max_buckets cannot be: types, devices and sparse parameters
// alone need more.
GS_NODISCARD gs_status gs_plan_policy_apply(gs_bucket_plan *out, const gs_plan_policy *policy,
                                            const gs_param_spec *params, size_t num_params,
                                            const size_t *ready_order);
// The same with buckets of one owner each, where whole parameters have owners: owners[p], as
// owner_rules.h deals them. NULL: one owns all.
GS_NODISCARD gs_status gs_plan_policy_apply_owned(gs_bucket_plan *out, const gs_plan_policy *policy,
                                                  const int *owners, const gs_param_spec *params,
                                                  size_t num_params, const size_t *ready_order);

GS_END_DECLS

#endif
