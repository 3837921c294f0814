// Who owns what of a sharded job's state (reducer.sharding), in one generation: the partition of
// the library, and of it this rank's part. A value that follows from rank, world and plan; it holds
// no state.
#ifndef WORKER_STATE_STATE_SHARDS_H
#define WORKER_STATE_STATE_SHARDS_H

#include <stddef.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"
#include "gradsync/sharded/shards.h"
#include "rpc/schema/job_spec.h"

// Fields are for reading.
typedef struct gs_state_shards {
    gs_shards *partition;  // owned
    int rank, world_size;
    const gs_segment *own;  // this rank's, in order of parameter; at most one of each
    size_t num_own;
    size_t *places;  // owned; of each parameter, which of `own`; num_own: nothing of it is
} gs_state_shards;

typedef struct gs_state_shards_options {
    const gs_job_spec *spec;
    const gs_bucket_plan *plan;
    const gs_param_spec *params;
    size_t num_params;
    int rank, world_size;
} gs_state_shards_options;  // for the call

GS_NODISCARD gs_status gs_state_shards_create(gs_state_shards **out,
                                              const gs_state_shards_options *options);
void gs_state_shards_destroy(gs_state_shards *shards);

// What this rank owns of a parameter; of count 0: nothing.
gs_segment gs_state_shards_of_param(const gs_state_shards *shards, size_t param);

#endif
