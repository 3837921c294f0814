// The parameters of the built-in models as a job specification alone tells them: names, dtypes and
// shapes in the order in which the models register them. So a plan is known before any rank runs.
#ifndef RPC_SCHEMA_MODEL_PARAMS_H
#define RPC_SCHEMA_MODEL_PARAMS_H

#include <stddef.h>

#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"

// `spec` is a decoded one. The list is the caller's (free()). INVALID_ARGUMENT for an unknown model
// kind and for sizes that no list can have.
GS_NODISCARD gs_status gs_model_params_of_spec(gs_param_spec **params, size_t *num_params,
                                               const gs_job_spec *spec);

#endif
