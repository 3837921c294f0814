// What a reducer is made from, and what its passes and steps take and give. What is done with it:
// reducer.h.
//
// Threads: as reducer.h says; what is told to the caller comes on the thread of the call that it belongs to.
#ifndef GRADSYNC_REDUCER_REDUCER_TYPES_H
#define GRADSYNC_REDUCER_REDUCER_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/bucket/separate_grad.h"
#include "gradsync/bucket/tally_carrier.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/reducer/record_options.h"
#include "gradsync/step/logical_shards.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_reducer gs_reducer;

typedef enum gs_reducer_op {
    GS_MEAN = 0,  // Σ gradients / (num_shards · passes_per_shard)
    GS_SUM,       // Σ gradients
    // Σ samples · gradient / Σ samples: ranks and passes may differ in samples. The caller
    // multiplies by pass.grad_factor; a pass has at most 2^24 samples. A step of no samples at all
    // is an error.
    GS_SAMPLE_MEAN
} gs_reducer_op;

// Gradients in recycled places (ZeRO-2): buckets take turns in a few windows, each as large as its
// largest bucket, and of a reduced one this rank's even part alone stays. For a hook that cuts
// buckets into even parts (gs_hook_needs.even_parts), GS_TALLY_APART, and gradients that are views.
// Of several passes of a step each is reduced, and what stays adds up: all ranks have as many, and
// a pass overwrites (gs_reducer_pass.accumulate). The result is the sum of the passes' results, in
// their order, and may differ in its last bits from the sum over ranks of what each has added up.
//
// A gradient may be written when its bucket has its window: gs_reducer_open_grad says that it will
// be, and waits until the bucket before it there is reduced. So gradients are to be final about in
// plan order: a bucket is complete before one that is num_windows further on is opened. Parameters
// that a pass leaves out are to be named early (gs_reducer_mark_unused), or are among the last. On
// a GPU the host waits until the collective has ended there, and what is written next is enqueued
// behind what moves its result away.
typedef struct gs_window_options {
    int num_windows;  // 0: each bucket has a place of its own
    // How long a gradient waits for its window, which is for other ranks to reduce what was in it.
    // 0: 30
    double wait_seconds;
    // Of each parameter whether its gradient is open long before its turn, as that of a tied
    // embedding, or marked several times (static_graph): its bucket, and with it all members, has a
    // place of its own. Copied; NULL: none.
    const bool *opens_early;
} gs_window_options;

typedef struct gs_reducer_options {
    // Registration order; copied. Buckets hold main gradients: fp64 of fp64 parameters, fp32 of all
    // others.
    const gs_param_spec *params;
    size_t num_params;
    const gs_bucket_plan *plan;  // copied; the same on all ranks
    gs_logical_shards shards;    // rank and world must be the communicator's
    int passes_per_shard;        // accumulation inside a shard; 0: 1
    gs_reducer_op op;
    bool unused_is_error;  // a parameter that nobody used fails the step with its name
    // The promise that every step marks the same parameters equally often. The first step counts: a
    // parameter may be marked several times in a pass, buckets start at its end. Later a parameter
    // is ready at its last mark, unused ones at the first mark of the pass, and buckets that nobody
    // used do not travel. A step that breaks the promise fails and names the parameter.
    bool static_graph;
    // NULL: gradients are views into the buckets. Else num_params tensors (the list is copied),
    // borrowed until destroy: copied into the bucket, and cast, when marked in the pass that makes
    // them final (the last one of the step; in exact mode of each shard), and out of it by finish.
    // What a tensor holds when it is marked is what counts, so a caller may have accumulated in it
    // before, with no reducer about. A tensor that only earlier passes of the step marked counts as
    // well; one that the step did not mark counts as zero, whatever it holds. Afterwards it holds
    // the result when any rank used the parameter; else, and after an error, it is not touched. Its
    // dtype, and whether it is separate, may differ between ranks. On a GPU its memory, copied when
    // the bucket is full, and holding the result for work that is launched after finish.
    const gs_separate_grad *separate;
    // Of gradients on their way: GS_FP16 or GS_BF16; unset: as in the bucket. Not in exact mode.
    // With GS_SAMPLE_MEAN what travels is divided by shards and passes, but still multiplied by a
    // pass's samples.
    gs_dtype wire_dtype;
    // Communication hooks with their options; borrowed until destroy. A bucket of the plan says which one
    // it has (gs_plan_bucket.hook); 0 is the default. None: all-reduce; with a wire dtype "fp16" or "bf16". The
    // communicator has as many lanes as any of them has phases (gs_reducer_lanes).
    const gs_hook_choice *hooks;
    size_t num_hooks;
    gs_arena *arena;           // borrows until destroy; at least gs_reducer_arena_bytes
    gs_device *device;         // borrows until destroy
    gs_record_options record;  // what is said about its steps, and how often
    // How ranks tell each other what they used, and how large gradients are. A hook that leaves ranks
    // with a part of the result (gs_hook_result) needs GS_TALLY_APART; the results are the same.
    gs_tally_carrier tally;
    char reserved[4];  // 0
    // Told on the owner's thread, inside one of its calls, when a bucket (by its number in the
    // plan) holds its result on this rank: for an optimizer that does not wait for the last one.
    // Norm, samples and whether all is finite are known at finish alone. Must not call the
    // reducer, but may ask gs_reducer_plan, gs_reducer_grads and gs_reducer_used (gradsync/optim/early_step.h).
    // Not with GS_SAMPLE_MEAN, which divides behind the last bucket. On a GPU: behind the compute
    // stream's point. NULL: nobody is told.
    void (*bucket_finished)(void *ctx, size_t bucket);
    void *bucket_finished_ctx;
    // Told when another plan, or a reset, has moved gradients: pointers and offsets are to be asked
    // anew.
    void (*grads_moved)(void *ctx);
    void *grads_moved_ctx;
    gs_window_options windows;
    // Of each parameter whether it trains (gs_reducer_set_trainable); copied. NULL: all do.
    const bool *trainable;
    bool tells_trainable;  // a change of it is logged, as a warning
    char more_reserved[7];  // 0
    // Of each parameter the rank that takes the squares of its reduced gradient, the same on all ranks;
    // copied; modulo the ranks that there are, also after a reset. One small all-reduce behind the
    // last bucket tells all of them: the same norm, for a part of the passes over memory. NULL: every
    // rank takes all. With GS_TALLY_IN_BUCKETS and results that all ranks have alike; a GPU takes all
    // in any case.
    const int *measured_by;
} gs_reducer_options;

typedef struct gs_reducer_pass {
    // Where each parameter's gradient of this pass goes: doubles for fp64 parameters, floats for
    // all others. NULL for a sparse parameter. Separate gradients: the caller's tensors, of their
    // types.
    void *const *grads;
    bool accumulate;    // add to it (separate gradients: gs_reducer_pass_adds); false: overwrite
    float grad_factor;  // multiplies the gradient of the mean loss: 1, or samples (GS_SAMPLE_MEAN)
    int shard;          // logical shard of this pass
    int pass;           // [0, passes_per_shard)
    bool reduces;  // the last pass of the step: buckets start during its backward; with windows of
                   // each
} gs_reducer_pass;

// Work of others that finish waits for in this step, behind all buckets and before norms are taken:
// rows of a sparse gradient that are added to a dense one, a reduction of parameters that the
// reducer does not know. What it waits for is posted in `finish`; or before, between the last
// end_pass and finish, when gs_reducer_posts_all: then all buckets have been posted, on every rank, and
// lane 0 takes 64 collectives of tails.
typedef struct gs_reducer_tail {
    gs_status (*finish)(void *ctx, void *const *grads, gs_deadline deadline);
    void *ctx;
    const size_t
        *params;  // whose gradients it changes: their norms are taken anew; borrowed until finish
    size_t num_params;
} gs_reducer_tail;
#define GS_MAX_TAILS 8  // of a step

typedef struct gs_reduce_result {
    int64_t samples;      // over all ranks
    int active_ranks;     // that had data
    bool nonfinite;       // a reduced gradient is infinite or NaN: the step must not be applied
    size_t num_unused;    // parameters that no rank used
    const uint8_t *used;  // num_params flags; valid until the next begin
    double grad_norm;     // L2 norm over all gradients, fixed order; NaN when not finite
} gs_reduce_result;

GS_END_DECLS

#endif
