// Which parameters of a job train at which step (model.freeze): a function of specification, names
// and step, the same for the coordinator that plans and for every rank, whenever it begins.
//
// Rules name parameters by a pattern, and the steps in which these are frozen. Buckets hold
// parameters of equal rules alone, so that at any step a bucket trains or rests as a whole: plan,
// partition and what ranks own stay as they are when trainability changes.
#ifndef RPC_SCHEMA_JOB_FREEZE_H
#define RPC_SCHEMA_JOB_FREEZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/param_spec.h"
#include "rpc/schema/fields.h"
#include "rpc/schema/job_spec.h"

extern const gs_field gs_job_freeze_fields[];  // of one rule, a gs_job_freeze

bool gs_job_freeze_matches(const gs_job_freeze *rule, const char *name);
// Which rules a parameter has, one bit each; 0: it always trains.
uint32_t gs_job_freeze_rules_of(const gs_job_spec *spec, const gs_param_spec *param);
// Whether it trains at `step`, at any step of the job.
bool gs_job_freeze_trains(const gs_job_spec *spec, const gs_param_spec *param, int64_t step);
bool gs_job_freeze_ever_trains(const gs_job_spec *spec, const gs_param_spec *param);
// The first step behind `step` at which some rule begins or ends; INT64_MAX: there is none.
int64_t gs_job_freeze_next_change(const gs_job_spec *spec, int64_t step);

#endif
