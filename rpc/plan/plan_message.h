// A bucket plan as the coordinator sends it to ranks: members bucket after bucket, sizes, limits, and
// hooks where a bucket has another than the default.
//
// Types and bytes are not in it: the receiver knows the parameters, and the hash that comes along
// says that both mean the same plan. So 20,000 buckets of one parameter each fit a message.
#ifndef RPC_PLAN_PLAN_MESSAGE_H
#define RPC_PLAN_PLAN_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/json/json.h"

typedef struct gs_plan_label {
    int revision;
    const char *reason;
    bool is_observed;  // it follows an order that was observed
} gs_plan_label;

gs_json *gs_plan_message_encode(const gs_bucket_plan *plan, const gs_plan_label *label);

// INVALID_ARGUMENT names the member; FAILED_PRECONDITION when the hash is not the plan's.
GS_NODISCARD gs_status gs_plan_message_decode(gs_bucket_plan *out, const gs_json *message,
                                              const gs_param_spec *params, size_t num_params);

#endif
