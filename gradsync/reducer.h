// The reducer: makes N ranks hold the same mean gradient, as fast as one would compute it.
//
// A step is: begin; for each own micro-batch begin_pass, gradients marked ready as they become final,
// end_pass; finish. Gradients live in their buckets, inside the arena, in readiness order: a gradient is
// a view. Buckets start strictly in plan order, the same on every rank, as soon as they are complete in
// the last pass; earlier passes add up. What decides the update is read from the reduced buckets: used
// counts and samples travel in reserved elements behind the gradients, summed like them, and a value
// that is not finite survives every sum.
//
// One thread (compute) calls everything here.
//
// Source: PyTorch DDP (Li et al., VLDB 2020, section 3.2), with the defects it documents made errors.
#ifndef GRADSYNC_REDUCER_H
#define GRADSYNC_REDUCER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "gradsync/arena.h"
#include "gradsync/comm.h"
#include "gradsync/comm_hook.h"
#include "gradsync/logical_shards.h"
#include "gradsync/reduce_stats.h"

typedef struct gs_reducer gs_reducer;

typedef enum gs_reducer_op { GS_MEAN = 0, GS_SUM } gs_reducer_op;

typedef struct gs_reducer_options {
    const gs_param_spec *params;  // registration order; fp32; copied
    size_t num_params;
    const gs_bucket_plan *plan;  // copied; the same on all ranks
    gs_logical_shards shards;    // rank and world must be the communicator's
    int passes_per_shard;        // accumulation inside a shard; 0: 1
    gs_reducer_op op;            // GS_MEAN divides by num_shards · passes_per_shard
    bool unused_is_error;        // a parameter that nobody used fails the step with its name
    const gs_comm_hook *hook;    // NULL: all-reduce
    gs_arena *arena;             // borrows until destroy; at least gs_reducer_arena_bytes
    gs_device *device;           // borrows until destroy
} gs_reducer_options;

// How much arena a reducer with these options needs, whatever the plan (plan, arena and device are not
// looked at). In exact mode it depends on the world: who expects others takes the largest.
GS_NODISCARD gs_status gs_reducer_arena_bytes(size_t *bytes, const gs_reducer_options *options);

// Collective over `comm` (borrowed until destroy): all ranks' parameter lists and plans are
// compared; a difference is FAILED_PRECONDITION naming rank and parameter, on every rank.
GS_NODISCARD gs_status gs_reducer_create(gs_reducer **out, const gs_reducer_options *options,
                                         gs_comm *comm, gs_deadline deadline);
// Before its communicator and its arena. Aborts the communicator when buckets are in flight.
void gs_reducer_destroy(gs_reducer *reducer);

// Another plan, between steps; same parameters, same arena. All ranks alike.
GS_NODISCARD gs_status gs_reducer_set_plan(gs_reducer *reducer, const gs_bucket_plan *plan,
                                           gs_deadline deadline);
const gs_bucket_plan *gs_reducer_plan(const gs_reducer *reducer);

// Opens a step. `step` counts from 0 and must be the same on all ranks.
GS_NODISCARD gs_status gs_reducer_begin(gs_reducer *reducer, int64_t step);

typedef struct gs_reducer_pass {
    float *const *grads;  // where each parameter's gradient of this pass goes
    bool accumulate;      // add to it; false: overwrite
    int shard;            // logical shard of this pass
    int pass;             // [0, passes_per_shard)
    bool reduces;         // the last pass of the step: buckets start during its backward
} gs_reducer_pass;

// Opens the next pass of the step; own shards in order, passes_per_shard each.
// FAILED_PRECONDITION when all have been run.
GS_NODISCARD gs_status gs_reducer_begin_pass(gs_reducer *reducer, gs_reducer_pass *pass);

// Marks a parameter's gradient as final for this pass; the last one of a bucket starts its reduction in
// the reducing pass. Never blocks for other ranks. FAILED_PRECONDITION, naming the parameter, if marked
// twice or outside a pass; the error also sticks and comes out of finish, on every rank.
GS_NODISCARD gs_status gs_reducer_mark_ready(gs_reducer *reducer, size_t param);
// For callbacks that cannot return a status (gs_model_pass.ready): errors stick. ctx is the reducer.
void gs_reducer_ready_callback(void *reducer, size_t param);

// Closes a pass. Parameters not marked were not used in it: their gradient of this pass is zero.
//   samples  in this pass's micro-batch; of all ranks and passes at most 2^32
GS_NODISCARD gs_status gs_reducer_end_pass(gs_reducer *reducer, int64_t samples);

typedef struct gs_reduce_result {
    int64_t samples;           // over all ranks
    bool nonfinite;            // a reduced gradient is infinite or NaN: the step must not be applied
    size_t num_unused;         // parameters that no rank used
    const uint8_t *used;       // num_params flags; valid until the next begin
    double grad_norm;          // L2 norm over all gradients, fixed order; NaN when not finite
} gs_reduce_result;

// Waits for all buckets. Afterwards gs_reducer_grads are the mean (or sum) on every rank, the same bits.
// DEADLINE_EXCEEDED names bucket and missing ranks; ABORTED carries the reason.
GS_NODISCARD gs_status gs_reducer_finish(gs_reducer *reducer, gs_reduce_result *result,
                                         gs_deadline deadline);
// The reduced gradients: views into the buckets, num_params of them; valid until the next begin.
float *const *gs_reducer_grads(const gs_reducer *reducer);
// All buckets of the current step are complete here: the step may be applied after an abort (rule F2).
bool gs_reducer_complete(const gs_reducer *reducer);

const gs_reduce_stats *gs_reducer_stats(const gs_reducer *reducer);  // of the last finished step
// Parameters in the order in which gradients became ready in the last reducing pass; num_params of them.
const size_t *gs_reducer_ready_order(const gs_reducer *reducer);

#endif
