// What is known of the link between a job's hosts, as people are shown it beside the plan.
#ifndef COORDINATOR_OBSERVE_VIEWS_LINK_VIEW_H
#define COORDINATOR_OBSERVE_VIEWS_LINK_VIEW_H

#include "coordinator/model/run.h"
#include "rpc/json/json.h"
#include "rpc/plan/link_message.h"

// `plan`, which the run is to be shown with, forecast by it; params NULL: without that. NULL: nothing is known.
gs_json *gs_link_to_view(const gs_run *run, const gs_link_report *link, const gs_bucket_plan *plan,
                         const gs_param_spec *params, size_t num_params);

#endif
