// Neighbours along the order of a link plan, put together: a request of some hundred groups in the place of one of any
// number of parameters. What a plan of groups takes is exactly what it takes with their parameters in it.
#ifndef CORE_LINK_GROUPS_H
#define CORE_LINK_GROUPS_H

#include <stddef.h>

#include "core/bucket_plan.h"
#include "core/link_request.h"
#include "core/status.h"

// The bytes of all are cut into that many runs; a type or key more in a run is a group more.
#define GS_LINK_GROUP_RUNS 512
#define GS_LINK_MOST_GROUPS (4 * (size_t)GS_LINK_GROUP_RUNS)

typedef struct gs_link_groups {
    gs_link_request request;  // of the groups; its lists are ours
    size_t *first;            // num_params of the request + 1; where the members of a group begin
    size_t *members;          // parameters, group after group, each along the order
} gs_link_groups;

// The request's order is a permutation.
GS_NODISCARD gs_status gs_link_groups_make(gs_link_groups *out, const gs_link_request *request);
void gs_link_groups_release(gs_link_groups *groups);  // {0} is fine
GS_NODISCARD gs_status gs_link_groups_expand(gs_bucket_plan *out, const gs_link_groups *groups, const gs_bucket_plan *of_groups);

#endif
