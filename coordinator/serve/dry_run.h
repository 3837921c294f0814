// What a specification would become, without a job: its full form, and the plan that it starts with where that can be
// foreseen.
#ifndef COORDINATOR_SERVE_DRY_RUN_H
#define COORDINATOR_SERVE_DRY_RUN_H

#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"

gs_json *gs_dry_run(const gs_job_spec *spec);

#endif
