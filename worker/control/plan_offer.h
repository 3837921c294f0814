// A plan that is to replace the one in use, as a `replan` item brings it.
#ifndef WORKER_CONTROL_PLAN_OFFER_H
#define WORKER_CONTROL_PLAN_OFFER_H

#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/json/json.h"

typedef struct gs_plan_offer {
    uint32_t generation;  // it is meant for
    int revision;
    uint64_t digest;      // folded, of the plan; 0: there is no offer
    gs_bucket_plan plan;  // owned
} gs_plan_offer;          // {0} is empty

GS_NODISCARD gs_status gs_plan_offer_decode(gs_plan_offer *out, const gs_json *item,
                                            const gs_param_spec *params, size_t num_params);
void gs_plan_offer_release(gs_plan_offer *offer);

#endif
