// Parameters that their owners have changed, on their way to all ranks: bucket by bucket, beside
// whatever else happens.
//
// A step's update is local: behind it `start` posts a collective for each bucket (flat: an
// all-gather in place; whole tensors: a broadcast in place for each run), in a lane of its own, in
// the order in which the next forward pass needs them. `wait` is for one parameter: a layer
// computes while those behind it are still on their way. Until then a parameter's memory may be
// neither read nor written, but by its owner, and that only to read.
//
// Where a communicator has no helper thread, what is on its way moves in posts and waits;
// `progress` is for places between.
//
// Threads: the communicator's owner makes all calls.
#ifndef GRADSYNC_SHARDED_PARAM_GATHER_H
#define GRADSYNC_SHARDED_PARAM_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/sharded/shards.h"

GS_BEGIN_DECLS

typedef struct gs_param_gather gs_param_gather;

typedef struct gs_param_gather_options {
    const gs_shards *shards;  // borrowed until destroy, and the same until then
    gs_comm *comm;            // borrowed until destroy; of the shards' world
    void *params;  // gs_shards_param_bytes, in the communicator's arena if it is to move without
                   // copies; borrowed
    int lane;      // one that nothing else posts in
    // Buckets in the order in which they are wanted, each once, the same on all ranks; copied.
    // NULL: from the last to the first, for gradients come in the reverse order of parameters.
    const size_t *order;
    // `params` are in one memory for all ranks (common_params.h): a start only tells that what this rank owns is final,
    // and nothing is sent.
    bool are_common;
    char reserved_bytes[7];  // 0
    void *reserved;
} gs_param_gather_options;

// Collective: ranks compare shards and order. FAILED_PRECONDITION names the rank that differs. After any
// error the communicator is aborted, for the other ranks wait.
GS_NODISCARD gs_status gs_param_gather_create_sized(gs_param_gather **out,
                                                    const gs_param_gather_options *options,
                                                    size_t options_bytes, gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_param_gather_create(gs_param_gather **out,
                                                            const gs_param_gather_options *options,
                                                            gs_deadline deadline) {
    return gs_param_gather_create_sized(out, options, sizeof *options, deadline);
}
// Before its communicator, which it aborts when something is on its way.
void gs_param_gather_destroy(gs_param_gather *gather);

// All of them are to be sent; what this rank owns is final (on a GPU: behind the compute stream's
// point). `step` is for messages. FAILED_PRECONDITION when some were not waited for since the last
// one; aborted as above. All ranks alike.
GS_NODISCARD gs_status gs_param_gather_start(gs_param_gather *gather, int64_t step);
// This parameter is whole; at once, when it is known to be. DEADLINE_EXCEEDED names bucket, step
// and missing ranks. After an error the communicator has ended, or its ranks wait: nothing is known
// of parameters that were not waited for.
GS_NODISCARD gs_status gs_param_gather_wait(gs_param_gather *gather, size_t param,
                                            gs_deadline deadline);
// All are. OK without a start.
GS_NODISCARD gs_status gs_param_gather_finish(gs_param_gather *gather, gs_deadline deadline);
// Which parameters change from the next start on; a flag for each; NULL: all, as at first. Buckets of which none does
// are not sent. FAILED_PRECONDITION as start. All ranks alike.
GS_NODISCARD gs_status gs_param_gather_set_trainable(gs_param_gather *gather, const bool *trainable);
// Moves what can be moved now.
GS_NODISCARD gs_status gs_param_gather_progress(gs_param_gather *gather);

// Where parameters lie, by number: num_params of them, into the block.
void *const *gs_param_gather_params(const gs_param_gather *gather);

GS_END_DECLS

#endif
