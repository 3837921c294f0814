// What ranks must agree on before a reducer runs: parameter lists, plan, settings, hooks with their
// options. Compared by
// small collectives; the verdict and its words are the same on every rank. Where a rank keeps its
// gradients, views or tensors of its own, and of which type, is its own business.
#ifndef GRADSYNC_REDUCER_AGREEMENT_H
#define GRADSYNC_REDUCER_AGREEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "gradsync/comm/comm.h"
#include "gradsync/hooks/hook_set.h"

typedef struct gs_agreement {
    const gs_param_spec *params;
    size_t num_params;
    const gs_bucket_plan *plan;
    const bool *trainable;  // of each parameter; NULL: all
    int64_t num_shards, passes_per_shard;
    int64_t exact, op, unused_is_error, static_graph, wire_dtype, tally;
    const gs_hook_set *hooks;
} gs_agreement;

// FAILED_PRECONDITION names the first rank that differs from rank 0, and in what: `rank 2 against
// rank 0: parameter 17 "fc3.weight": shape [10,64] against [64,10]`.
GS_NODISCARD gs_status gs_agreement_check(const gs_agreement *agreement, gs_comm *comm,
                                          gs_deadline deadline);

#endif
