// Whether a reducer can be made from its options: what one rank sees without asking the others.
#ifndef GRADSYNC_REDUCER_OPTIONS_CHECK_H
#define GRADSYNC_REDUCER_OPTIONS_CHECK_H

#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/comm.h"
#include "gradsync/reducer/reducer_types.h"

// INVALID_ARGUMENT names the option, the parameter or the bucket.
GS_NODISCARD gs_status gs_reducer_options_check(const gs_reducer_options *options,
                                                const gs_comm *comm);
// Of any plan, also a later one: each parameter once, and sparse ones alone in their buckets.
GS_NODISCARD gs_status gs_reducer_plan_check(const gs_bucket_plan *plan,
                                             const gs_param_spec *params, size_t num_params);
// Of what the options ask for: checked, but for plan, arena and device.
GS_NODISCARD gs_status gs_reducer_layout_bytes(size_t *bytes, const gs_reducer_options *options);
gs_grad_layout_shape gs_reducer_layout_shape(const gs_reducer_options *options);

#endif
