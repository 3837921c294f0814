// Passes of a step: which gradients are final when, and the buckets that they complete. Errors are
// returned; that they stick is reducer.c's business.
#ifndef GRADSYNC_REDUCER_REDUCER_PASS_H
#define GRADSYNC_REDUCER_REDUCER_PASS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/reducer/reducer_state.h"

GS_NODISCARD gs_status gs_pass_open(gs_reducer *reducer, gs_reducer_pass *pass, int64_t samples);
// The gradient will be written: waits for its window, where there are some.
GS_NODISCARD gs_status gs_pass_open_grad(gs_reducer *reducer, size_t param);
GS_NODISCARD gs_status gs_pass_mark_ready(gs_reducer *reducer, size_t param);
// `data` (of `dtype`; NULL: unused) times the pass's factor becomes the gradient, or is added to
// it.
GS_NODISCARD gs_status gs_pass_mark_from(gs_reducer *reducer, size_t param, const void *data,
                                         gs_dtype dtype);
GS_NODISCARD gs_status gs_pass_mark_unused(gs_reducer *reducer, size_t param);
GS_NODISCARD gs_status gs_pass_close(gs_reducer *reducer);
// All passes of a rank without data: zeros on their way, as its reducing passes would send gradients.
GS_NODISCARD gs_status gs_pass_shadow(gs_reducer *reducer);

// The open pass has marked the parameter, ready or unused.
static inline bool gs_pass_saw(const gs_reducer *reducer, size_t param) {
    return reducer->marks[param] == reducer->serial ||
           reducer->unused_marks[param] == reducer->serial;
}

#endif
