// Which rank owns what: the parameters of a plan cut among ranks, laid out.
//
// Each element of each parameter has one owner, which keeps its optimizer state, gets its reduced
// gradient, and sends it to all others when it has changed. A partition is a pure function of plan,
// parameters, world and kind: equal options give equal shards on every rank.
//
//   flat    the data of each bucket, padding included, in as many equal parts of whole lines as
//           there are ranks: part r is rank r's. Tensors straddle; no rank has more than another
//           but by padding
//   greedy  whole tensors, in registration order to the rank that has least (fairscale's OSS)
//   sorted  whole tensors, largest first to the rank that has least (torch's ZeRO optimizer)
//   given   whole tensors, as the caller says
//
// Parameters lie in a block of memory as gradients do in their slot: bucket behind bucket, with the
// same padding between the same elements. So what moves of a bucket is the same run of elements in
// both, in place.
//
//   bucket: │ member 0 · pad │ member 1 · pad │ … │ pad to even parts (flat) │
//   runs:   │ rank 0        │ rank 1         │ …      rank 2               │
//
// Several optimizers may share the parameters, each with its own: then owners of whole tensors are
// dealt for each optimizer by itself, from nothing, and each takes its own segments of a rank. What
// is reduced and gathered knows nothing of it: tensors of one owner travel together, whoever steps
// them.
//
// Whole tensors want a plan whose buckets have one owner each: a bucket of several takes a
// collective for each run.
//
// Threads: one at a time for what changes it; any for what does not.
#ifndef GRADSYNC_SHARDED_SHARDS_H
#define GRADSYNC_SHARDED_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/digest.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"

GS_BEGIN_DECLS

typedef struct gs_shards gs_shards;

typedef enum gs_partition {
    GS_PARTITION_FLAT = 0,
    GS_PARTITION_GREEDY,
    GS_PARTITION_SORTED,
    GS_PARTITION_GIVEN
} gs_partition;

typedef struct gs_shards_options {
    gs_partition partition;
    const int *owners;  // GS_PARTITION_GIVEN: of each parameter; else NULL
    const bool
        *trainable;  // greedy: of each parameter; a frozen one counts as one element. NULL: all
    const gs_bucket_plan *plan;
    const gs_param_spec *params;  // none of them sparse
    size_t num_params;
    int world_size;
    size_t element_bytes;  // of a parameter where parameters lie; 0: those of its dtype
    // Of each parameter: which optimizer steps it, from 0, none without any. NULL: there is one.
    const int *optimizers;
    void *reserved;
} gs_shards_options;  // all is copied

// Elements [first, first + count) of a bucket's data, padding between them included: one rank's.
typedef struct gs_shard_run {
    int owner;
    size_t first, count;
} gs_shard_run;

// INVALID_ARGUMENT names the parameter or the bucket.
GS_NODISCARD gs_status gs_shards_create_sized(gs_shards **out, const gs_shards_options *options,
                                              size_t options_bytes);
GS_NODISCARD static inline gs_status gs_shards_create(gs_shards **out,
                                                      const gs_shards_options *options) {
    return gs_shards_create_sized(out, options, sizeof *options);
}
void gs_shards_destroy(gs_shards *shards);

// The same parameters in another world, or by another plan (NULL: the same), in place: whoever
// borrows the shards sees the new ones. `owners`: of given ones; else NULL. After an error nothing
// has changed.
GS_NODISCARD gs_status gs_shards_redo(gs_shards *shards, int world_size, const gs_bucket_plan *plan,
                                      const int *owners);

int gs_shards_world_size(const gs_shards *shards);
size_t gs_shards_num_params(const gs_shards *shards);
const gs_bucket_plan *gs_shards_plan(const gs_shards *shards);
gs_partition gs_shards_partition(const gs_shards *shards);
const char *gs_partition_name(gs_partition partition);  // "flat"
// Of whole tensors: who owns each parameter. NULL: tensors are cut.
const int *gs_shards_owners(const gs_shards *shards);

// What `rank` owns, in order of parameter and element: what an optimizer, masters and a part of a
// checkpoint take.
const gs_segment *gs_shards_of_rank(const gs_shards *shards, int rank, size_t *num_segments);
// The same of one of several optimizers.
int gs_shards_num_optimizers(const gs_shards *shards);
const gs_segment *gs_shards_of_optimizer(const gs_shards *shards, int rank, int optimizer,
                                         size_t *num_segments);
// What it owns of a bucket, in the bucket's order.
const gs_segment *gs_shards_of_bucket(const gs_shards *shards, size_t bucket, int rank,
                                      size_t *num_segments);
// Where each segment of a rank begins: the lists that an optimizer steps. `tensors` by number, as
// gs_reducer_grads and gs_param_gather_params are, of elements of so many bytes; one of `out` for
// each segment.
void gs_shards_point(void **out, const gs_shards *shards, int rank, void *const *tensors,
                     size_t element_bytes);
void gs_shards_point_optimizer(void **out, const gs_shards *shards, int rank, int optimizer,
                               void *const *tensors, size_t element_bytes);
size_t gs_shards_elements(const gs_shards *shards, int rank);  // without padding
size_t gs_shards_most_elements(const gs_shards *shards);       // of any rank

// The runs of a bucket in order: flat: one for each rank, all of one size. Else one for each change
// of owner, none empty.
const gs_shard_run *gs_shards_runs(const gs_shards *shards, size_t bucket, size_t *num_runs);
size_t gs_shards_most_runs(const gs_shards *shards);  // of any bucket

// Where parameters lie, from the block's start. The block is a multiple of 256 bytes, and wants to
// begin on 256.
size_t gs_shards_param_bytes(const gs_shards *shards);  // all of it
size_t gs_shards_param_offset(const gs_shards *shards, size_t param);
size_t gs_shards_bucket_offset(const gs_shards *shards, size_t bucket);
size_t gs_shards_bucket_count(const gs_shards *shards,
                              size_t bucket);  // elements, padding included
size_t gs_shards_element_bytes(const gs_shards *shards, size_t bucket);

// Of all that follows from the options: equal for equal shards.
gs_digest gs_shards_digest(const gs_shards *shards);

GS_END_DECLS

#endif
