// Variables that a job sets for its ranks: values, which everybody sees who sees the job, and references to secrets, whose values
// their worker alone knows (worker/agent/rank_environment.h).
//
// A variable can make a program run other code, or write elsewhere: names that do are refused, by the coordinator and again by
// the worker.
#ifndef RPC_SCHEMA_JOB_ENVIRONMENT_H
#define RPC_SCHEMA_JOB_ENVIRONMENT_H

#include <stdbool.h>

#include "rpc/schema/fields.h"
#include "rpc/schema/job_spec.h"

extern const gs_field gs_job_variable_fields[];  // of one, a gs_job_variable

// [A-Za-z_][A-Za-z0-9_]*, and none of those that are refused.
bool gs_job_variable_may_be(const char *name);
// [A-Za-z0-9_-][A-Za-z0-9._-]*: the name of a file, and no path.
bool gs_job_secret_may_be(const char *name);

#endif
