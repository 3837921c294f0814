// The parameters that all trainers build, and the specification of their jobs.
#ifndef TESTS_SIMULATION_MODEL_H
#define TESTS_SIMULATION_MODEL_H

#include "rpc/schema/job_spec.h"
#include "rpc/plan/param_page.h"

const char *model_params_digest(void);
size_t model_num_params(void);
void model_params_page(gs_param_page *page);  // owned by who asks
const gs_job_spec *model_spec(void);
void model_release(void);

#endif
