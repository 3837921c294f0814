// Buckets for a link between hosts: what a collective takes there is known, and when gradients are ready.
//
// A collective of S bytes takes start + S · byte; buckets travel one after the other, along the order in which
// gradients become ready, and one may start when its last gradient is ready. For such costs some best plan has
// buckets of neighbours in that order, and it is found exactly in O(n). An estimate is never exact, though, and the
// best plan for a wrong one can be worse than caps of 25 MiB. So plans are made for many costs about the estimate, caps
// come in beside them, and what is kept is the plan that loses least on average over what the link may really be, of
// those that nowhere there take over a hundredth longer than parity's caps.
//
// Of more than GS_LINK_FINE_PARAMS parameters neighbours go together before that, so that who plans is not held up: 512 runs
// of equal bytes at most, and one for each sparse parameter. Where that leaves over four times as many groups (types, keys,
// sparse ones) the caps alone are weighed.
#ifndef CORE_LINK_PLAN_H
#define CORE_LINK_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/link_request.h"
#include "core/status.h"

GS_BEGIN_DECLS

// As the widest of the caps that stand beside. Beyond that a start more is nothing, and memory is not: a sum in place is
// kept beside its input until that is no longer needed.
#define GS_LINK_BUCKET_BYTES (4 * GS_BUCKET_CAP_BYTES)

#define GS_LINK_FINE_PARAMS 512

typedef struct gs_link_cost {
    double start_seconds, byte_seconds;  // byte_seconds 0: not known
} gs_link_cost;

// What has been measured of the collectives of a job: the estimate, and within what nine of ten lie.
typedef struct gs_link_model {
    gs_link_cost cost, low, high;
    double wire_ratio;    // bytes on the wire for each byte of gradients
    double step_seconds;  // a whole step
    int64_t num_samples;  // collectives that it was made from; 0: none
} gs_link_model;

// False: nothing that a plan could be made from.
bool gs_link_model_is_known(const gs_link_model *model);

// INVALID_ARGUMENT: `order` is not a permutation, or max_buckets cannot be.
GS_NODISCARD gs_status gs_link_plan_make(gs_bucket_plan *out, const gs_link_request *request,
                                         const gs_link_model *model);
// The best plan for a cost that is known, of those that go along the order (no keys: what may not share a bucket is
// split behind that). max_buckets is not looked at.
GS_NODISCARD gs_status gs_link_plan_best(gs_bucket_plan *out, const gs_link_request *request,
                                         const gs_link_cost *cost);
// When the last bucket of any plan is done, in seconds since the backward pass began.
GS_NODISCARD gs_status gs_link_plan_forecast(double *seconds, const gs_bucket_plan *plan,
                                             const gs_link_request *request, const gs_link_cost *cost,
                                             double wire_ratio);
// No plan is done before that: a closed form.
GS_NODISCARD gs_status gs_link_plan_bound(double *seconds, const gs_link_request *request,
                                          const gs_link_cost *cost, double wire_ratio);

GS_END_DECLS

#endif
