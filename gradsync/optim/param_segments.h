// The segments of parameters that an optimizer and its masters are made for: the caller's, or all.
#ifndef GRADSYNC_OPTIM_PARAM_SEGMENTS_H
#define GRADSYNC_OPTIM_PARAM_SEGMENTS_H

#include <stddef.h>

#include "core/abi.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"

GS_BEGIN_DECLS

// A copy of `segments` (NULL: one for each parameter, all of it) that is in order, apart and inside
// the parameters; INVALID_ARGUMENT names parameter and element. *out is the caller's: free().
GS_NODISCARD gs_status gs_param_segments_copy(gs_segment **out, size_t *num_out,
                                              const gs_param_spec *params, size_t num_params,
                                              const gs_segment *segments, size_t num_segments);
// first[i] becomes where the segments of parameter i begin among those, which are in order;
// first[num_params]: their number.
void gs_param_segments_index(size_t *first, size_t num_params, const gs_segment *segments,
                             size_t num_segments);

GS_END_DECLS

#endif
