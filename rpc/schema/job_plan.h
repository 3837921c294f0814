// The buckets of a job in a world: one function of specification, parameters and ready order for
// the coordinator that plans, dry runs, and tests that foresee.
//
// A job that deals whole parameters to its ranks (reducer.partition oss, zero) has buckets of one
// owner each, and one that freezes some (model.freeze) buckets that train or rest as a whole.
#ifndef RPC_SCHEMA_JOB_PLAN_H
#define RPC_SCHEMA_JOB_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/bucket_plan.h"
#include "core/link_plan.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"

// Where the ranks are, and what is known of what is between them.
typedef struct gs_plan_place {
    bool apart;                  // they do not share the memory of one host
    const gs_link_model *link;   // NULL: not measured
    const double *ready_seconds; // by parameter, with it
} gs_plan_place;

// reducer.plan auto follows the link between hosts.
bool gs_job_plan_follows_link(const gs_job_spec *spec);

// As below, of ranks that are somewhere; with a link and without an order nothing is known of it.
GS_NODISCARD gs_status gs_job_plan_make_at(gs_bucket_plan *out, const gs_job_spec *spec, const gs_plan_place *place,
                                           int world_size, const gs_param_spec *params, size_t num_params,
                                           const size_t *ready_order);
// What a link takes for a plan of the job, and the least that any could; both since the backward pass began.
GS_NODISCARD gs_status gs_job_plan_forecast(double *seconds, double *bound,
                                            const gs_plan_place *place, const gs_bucket_plan *plan,
                                            const gs_param_spec *params, size_t num_params);
// Of ranks of one host. ready_order NULL: nothing was observed yet.
GS_NODISCARD gs_status gs_job_plan_make(gs_bucket_plan *out, const gs_job_spec *spec,
                                        int world_size, const gs_param_spec *params,
                                        size_t num_params, const size_t *ready_order);
// Who owns each parameter; the list is the caller's (free()). NULL: parameters are nobody's alone,
// or each is cut.
GS_NODISCARD gs_status gs_job_plan_owners(int **out, const gs_job_spec *spec, int world_size,
                                          const gs_param_spec *params, size_t num_params);
// The same of a plan that is there, for a job that deals its buckets, or runs of their members
// (reducer.zero_overlap). NULL: it does not.
GS_NODISCARD gs_status gs_job_plan_bucket_owners(int **out, const gs_job_spec *spec, int world_size,
                                                 const gs_bucket_plan *plan,
                                                 const gs_param_spec *params, size_t num_params);
// Whether buckets are cut among ranks (reducer.partition flat).
bool gs_job_plan_is_cut(const gs_job_spec *spec);
// Of one that is, elements of each rank's part, padding included: the r-th part is rank r's.
size_t gs_job_plan_part_count(int world_size, const gs_bucket_plan *plan, size_t bucket,
                              const gs_param_spec *params);
// Where its members begin in a bucket, in elements, each on a line of 64 bytes; num_params of them.
void gs_job_plan_member_places(size_t *first, const gs_bucket_plan *plan, size_t bucket,
                               const gs_param_spec *params);
// Ranks hold parts that the plan cuts: it stays as long as they are together.
bool gs_job_plan_is_fixed(const gs_job_spec *spec);

#endif
