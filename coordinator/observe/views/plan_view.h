// A plan as people are shown it, with why each bucket is what it is.
#ifndef COORDINATOR_OBSERVE_VIEWS_PLAN_VIEW_H
#define COORDINATOR_OBSERVE_VIEWS_PLAN_VIEW_H

#include <stdint.h>

#include "coordinator/model/job.h"
#include "core/bucket_plan.h"
#include "core/hook_volume.h"
#include "core/param_spec.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_hook.h"

typedef struct gs_plan_header {
    int revision;
    const char *reason, *hash;
    int world_size;
    int64_t since_step;
    const gs_hook_rule *hook;  // how buckets travel
    const int *owners;         // of each parameter, where buckets have one each; NULL: they have none
    const int *tensor_owners;  // of each parameter, where a bucket may have several; NULL: none has
    const gs_job_hook *asked;  // its specification; NULL: its averages of parameters are not shown
    int cut_among;             // ranks that own even parts of each bucket; 0: buckets are not cut
} gs_plan_header;

int64_t gs_plan_total_bytes(const gs_bucket_plan *plan);
// What a rank sends of it in a step.
int64_t gs_plan_total_wire_bytes(const gs_bucket_plan *plan, const gs_param_spec *params,
                                 const gs_hook_rule *hook);
// `order`: that the plan follows, each parameter once; NULL: none was observed.
gs_json *gs_plan_to_view(const gs_bucket_plan *plan, const gs_plan_header *header,
                         const gs_param_spec *params, const gs_param_order *order);
// Of one that was read: tensors of its buckets become text, and their number is beside it. The view is written and asked for far
// more often than it is made, and of a model with many parameters they are nearly all of it.
void gs_plan_view_seal(gs_json *view);

#endif
