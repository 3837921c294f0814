// A gradient of the caller's own, beside the reducer's buckets (gs_reducer_options.separate).
#ifndef GRADSYNC_BUCKET_SEPARATE_GRAD_H
#define GRADSYNC_BUCKET_SEPARATE_GRAD_H

#include "core/abi.h"
#include "core/dtype.h"

GS_BEGIN_DECLS

// Of the parameter's shape; fp32, fp64, fp16 or bf16, whatever the parameter is.
typedef struct gs_separate_grad {
    void *data;
    gs_dtype dtype;
} gs_separate_grad;

GS_END_DECLS

#endif
