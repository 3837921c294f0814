// Several replicas of a model in one process: they reduce among themselves first, then across
// processes.
//
// Each replica has a device, gradient memory laid out like the reducer's buckets, and a thread.
// When a bucket is complete on all replicas, whoever completed it adds the k runs in replica order
// into the reducer's bucket; the owner hands it on, so that buckets travel while replicas still
// compute. Results are the same bits whatever the timing.
//
// Threads: the owner is the thread of the communicator and of the reducer; it also computes replica 0, whose
// gradients lie in the reducer's buckets themselves (exact mode aside). Its marks and
// gs_replicas_end move finished buckets on. Every other function of a replica belongs to that
// replica's thread. The caller starts those threads after gs_replicas_begin, and they are idle
// again before the next one. Create and destroy are the owner's.
//
// Shards of the whole job are dealt to replicas as they would be to world · k processes. In exact
// mode each shard's gradient is kept apart until the reducer adds it along the tree: the same bits
// for every number of replicas, at the price of one gradient for each own shard and of no overlap.
//
// The reducer sees whole buckets: in its stats and record a parameter is ready when its bucket is,
// on all replicas. With GS_SAMPLE_MEAN and a wire dtype what travels is divided by ranks alone.
//
// An error of one replica ends the step on all replicas and ranks, with its words; it sticks, and
// the others notice at their next mark.
//
// Source: PyTorch's multi-device DDP of 2019 (torch/csrc/distributed/c10d/reducer.cpp).
#ifndef GRADSYNC_REPLICAS_REPLICAS_H
#define GRADSYNC_REPLICAS_REPLICAS_H

#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/step/logical_shards.h"

GS_BEGIN_DECLS

typedef struct gs_replicas gs_replicas;

typedef enum gs_replica_divisor {
    GS_DIVIDE_BY_REPLICAS =
        0,                  // a mean over all replicas of all processes: k times as many processes
    GS_DIVIDE_BY_PROCESSES  // over processes of sums over replicas: the loss is one of all k
                            // outputs
} gs_replica_divisor;

typedef struct gs_replicas_options {
    // As one reducer for each replica would have it: all shards of the job; rank and world of the
    // process. Not with `separate` gradients or sparse parameters.
    const gs_reducer_options *reducer;
    int num_replicas;           // 1 to GS_REDUCE_MAX_INPUTS
    gs_device *const *devices;  // one for each; copied, the devices borrowed until destroy
    gs_replica_divisor divisor;
    int reserved;  // 0
} gs_replicas_options;

// The options of the reducer that a process with replicas needs; asks nobody. Use them for
// gs_reducer_arena_bytes and gs_reducer_create.
GS_NODISCARD gs_status gs_replicas_reducer_options_sized(gs_reducer_options *out,
                                                         const gs_replicas_options *options,
                                                         size_t options_bytes,
                                                         size_t reducer_bytes);
GS_NODISCARD static inline gs_status
gs_replicas_reducer_options(gs_reducer_options *out, const gs_replicas_options *options) {
    return gs_replicas_reducer_options_sized(out, options, sizeof *options, sizeof *out);
}
// The shards of one replica, as if it were a process.
gs_logical_shards gs_replicas_shards(const gs_logical_shards *process, int num_replicas,
                                     int replica);

// Collective: all ranks must have as many replicas and the same divisor; a difference is
// FAILED_PRECONDITION naming the rank. Borrows reducer and communicator until destroy. Follows the
// reducer's plan when that changes.
GS_NODISCARD gs_status gs_replicas_create_sized(gs_replicas **out,
                                                const gs_replicas_options *options,
                                                size_t options_bytes, size_t reducer_bytes,
                                                gs_reducer *reducer, gs_comm *comm,
                                                gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_replicas_create(gs_replicas **out,
                                                        const gs_replicas_options *options,
                                                        gs_reducer *reducer, gs_comm *comm,
                                                        gs_deadline deadline) {
    return gs_replicas_create_sized(out, options, sizeof *options, sizeof *options->reducer,
                                    reducer, comm, deadline);
}
// Before its reducer, once no thread of a replica runs any more.
void gs_replicas_destroy(gs_replicas *replicas);

// Owner. Opens a step, here and in the reducer.
//   samples  of all passes of all replicas of this process
GS_NODISCARD gs_status gs_replicas_begin(gs_replicas *replicas, int64_t step, int64_t samples);
// The same for a round of uneven inputs (join.h). A process that is not active runs no pass: go on
// with gs_reducer_finish.
GS_NODISCARD gs_status gs_replicas_begin_uneven(gs_replicas *replicas, int64_t step,
                                                const gs_join_round *round, int64_t samples);

// The replica's next pass: its shards in order, passes_per_shard each.
GS_NODISCARD gs_status gs_replicas_begin_pass(gs_replicas *replicas, int replica,
                                              gs_reducer_pass *pass, int64_t samples);
// As gs_reducer_mark_ready and gs_reducer_mark_unused; errors name the replica, too.
GS_NODISCARD gs_status gs_replicas_mark_ready(gs_replicas *replicas, int replica, size_t param);
GS_NODISCARD gs_status gs_replicas_mark_unused(gs_replicas *replicas, int replica, size_t param);
GS_NODISCARD gs_status gs_replicas_end_pass(gs_replicas *replicas, int replica);
// For callbacks of a model; their ctx is gs_replicas_callback_ctx.
void *gs_replicas_callback_ctx(gs_replicas *replicas, int replica);
void gs_replicas_ready_callback(void *ctx, size_t param);
void gs_replicas_unused_callback(void *ctx, size_t param);

// Any thread: this replica cannot go on. The first error sticks and reaches all ranks.
void gs_replicas_fail(gs_replicas *replicas, int replica, gs_status why);

// Owner, after its own passes: waits until all replicas have ended theirs, hands on what they
// complete meanwhile, and ends the reducer's pass. Go on with gs_reducer_finish. DEADLINE_EXCEEDED
// names the replica that did not come and the parameter it was to mark next in plan order.
GS_NODISCARD gs_status gs_replicas_end(gs_replicas *replicas, gs_deadline deadline);

// Parameters in the order in which they became ready on replica 0 in the last step; num_params of
// them, of which the first *num_ready were used there. The reducer of a process with replicas sees
// whole buckets alone. Owner.
const size_t *gs_replicas_ready_order(const gs_replicas *replicas, size_t *num_ready);

GS_END_DECLS

#endif
