// Shares of what each rank has of its own, at rest: of all ranks that had them, or of some. A checkpoint that is
// open, or what a generation left in memory. Compute thread.
#ifndef WORKER_STATE_SHARE_SOURCE_H
#define WORKER_STATE_SHARE_SOURCE_H

#include <stddef.h>

#include "core/dtype.h"
#include "core/status.h"
#include "worker/state/share_deal.h"

typedef struct gs_share_source {
    gs_share_claim claim;  // origin 0: there is none
    size_t num_tensors;    // of each share
    void *ctx;             // owned
    // Tensor `name` of the share of `rank`, one that the claim holds: `count` elements. INVALID_ARGUMENT: there is
    // no such tensor.
    gs_status (*read)(void *ctx, const char *name, int rank, gs_dtype dtype, size_t count,
                      void *to);
    void (*release)(void *ctx);
} gs_share_source;

static inline void gs_share_source_release(gs_share_source *source) {
    if (source->release) source->release(source->ctx);
    *source = (gs_share_source){0};
}

#endif
