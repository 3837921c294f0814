#include "gradsync/optim/param_segments.h"

#include <stdlib.h>
#include <string.h>

static void fill(gs_segment *out, size_t num_out, const gs_segment_tensor *tensors,
                 const gs_segment *segments) {
    for (size_t i = 0; i < num_out; i++)
        out[i] = segments ? segments[i] : (gs_segment){i, 0, tensors[i].count};
}

gs_status gs_param_segments_copy(gs_segment **out, size_t *num_out, const gs_param_spec *params,
                                 size_t num_params, const gs_segment *segments,
                                 size_t num_segments) {
    *num_out = segments ? num_segments : num_params;
    *out = calloc(*num_out + 1, sizeof **out);
    gs_segment_tensor *tensors = calloc(num_params + 1, sizeof *tensors);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "segments: out of memory");
    if (*out && tensors) {
        for (size_t i = 0; i < num_params; i++)
            tensors[i] =
                (gs_segment_tensor){params[i].name, gs_param_spec_count(&params[i]), sizeof(float)};
        fill(*out, *num_out, tensors, segments);
        status = gs_segments_check_apart(*out, *num_out, tensors, num_params);
    }
    free(tensors);
    if (!status.code) return status;
    free(*out);
    *out = NULL;
    *num_out = 0;
    return status;
}

void gs_param_segments_index(size_t *first, size_t num_params, const gs_segment *segments,
                             size_t num_segments) {
    for (size_t param = 0, next = 0; param <= num_params; param++) {
        while (next < num_segments && segments[next].tensor < param) next++;
        first[param] = next;
    }
}
