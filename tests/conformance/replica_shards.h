// What a rank adds whose optimizer state is sharded: the partition, gradients to their owners, the
// update of what it owns, and parameters from theirs. The same parts as worker/state/sharding.h and
// worker/pass/backward_update.h put together.
#ifndef TESTS_CONFORMANCE_REPLICA_SHARDS_H
#define TESTS_CONFORMANCE_REPLICA_SHARDS_H

#include "gradsync/optim/early_step.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/param_gather.h"
#include "gradsync/sharded/shards.h"

// Of the communicator: reductions have the first.
#define REPLICA_SHARDS_LANES 2

// Owners update while other buckets are on their way: behind the passes, or as backward reads a
// parameter no more.
typedef enum replica_overlap {
    REPLICA_OVERLAP_OFF = 0,
    REPLICA_OVERLAP_STEP,
    REPLICA_OVERLAP_INTERLEAVED
} replica_overlap;

typedef struct replica_shards_options {
    const int *owners;        // of each parameter; NULL: each bucket is cut into even parts
    replica_overlap overlap;  // owners are those of gs_overlap_assign, and gradients stay whole
    bool split_buckets;       // then
} replica_shards_options;

typedef struct replica_shards {
    gs_shards *shards;  // NULL: the rank has everything
    gs_param_gather *gather;
    gs_hook_choice choice;
    void **own_params, **own_grads;  // of each own segment
    int rank;
    replica_overlap overlap;
    gs_early_step *early;  // NULL: all is updated behind the step
    const gs_reducer *reducer;
} replica_shards;  // {0} is empty; all functions but open do nothing then

// `options` is of the reducer that will be made: its plan is the partition's.
GS_NODISCARD gs_status replica_shards_open(replica_shards *self, gs_reducer_options *options,
                                           const replica_shards_options *how);
void replica_shards_close(replica_shards *self);  // before the communicator's destroy

size_t replica_shards_bytes(const replica_shards *self);  // of the arena, for parameters
void replica_shards_choose(const replica_shards *self, gs_optimizer_options *optimizer);
// Collective. params[i] is where parameter i lies, in `memory`.
GS_NODISCARD gs_status replica_shards_connect(replica_shards *self, void **params, void *memory,
                                              const gs_reducer *reducer, gs_comm *comm,
                                              gs_deadline deadline);
// Behind connect.
GS_NODISCARD gs_status replica_shards_prepare(replica_shards *self, gs_optimizer *optimizer,
                                              gs_device *device);

// Before the reducer's begin.
void replica_shards_begin(replica_shards *self, float lr);
// gs_model_pass.reads and .released, of a replica_shards.
GS_NODISCARD gs_status replica_shards_reads(void *self, size_t param);
void replica_shards_release(void *self, size_t param);
void replica_shards_end_passes(replica_shards *self);
// All parameters are whole.
GS_NODISCARD gs_status replica_shards_await(const replica_shards *self, gs_deadline deadline);
// The update of what this rank owns, or the rest of it, on its way to the others when it returns.
GS_NODISCARD gs_status replica_shards_step(replica_shards *self, gs_optimizer *optimizer,
                                           const uint8_t *used, int64_t step, float lr,
                                           float factor);
// Own elements alone: without an overlap those of others have no gradient here.
const gs_segment *replica_shards_own(const replica_shards *self, size_t *num_segments);

#endif
