// Uneven inputs: ranks that ran out of data shadow the others, step by step, until nobody has any.
//
// Each step opens with one small collective, the announcement, after which every rank knows who is
// active. A rank without data then takes part in all collectives of the step with neutral
// contributions: the reducer's by gs_reducer_begin_uneven, buffers' by their round, everything else
// by the shadow functions of further joinables, in their order. When nobody has data, finish makes
// the end state: parameters are equal already, which is checked, and buffers are those of the last
// rank that had data. Not here: who has data, and what a step is.
//
// Threads: one at a time, as the communicator's (comm.h); create and destroy are such calls too.
//
// Source: PyTorch's Join context (distributed/algorithms/join.py), with its end state.
#ifndef GRADSYNC_STEP_JOIN_H
#define GRADSYNC_STEP_JOIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/coalesce.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

typedef enum gs_join_divisor {
    GS_DIVIDE_BY_INITIAL = 0,  // a mean is over all ranks, whether they had data or not
    GS_DIVIDE_BY_ACTIVE        // over those that had
} gs_join_divisor;

// Who has data for a step; the same on all ranks.
typedef struct gs_join_round {
    int num_active;  // 0: nobody, the join is over
    int source;      // highest active rank: buffers come from it; -1: none
    bool active;     // this rank
    gs_join_divisor divisor;
} gs_join_round;

// Collective; opens step `step`. FAILED_PRECONDITION names a rank that announces another step,
// DEADLINE_EXCEEDED the ranks that did not come.
GS_NODISCARD gs_status gs_join_announce(gs_join_round *round, gs_comm *comm, bool active,
                                        gs_join_divisor divisor, int64_t step,
                                        gs_deadline deadline);

// What else has collectives in a step: an optimizer whose state is sharded, a metric that is
// gathered.
typedef struct gs_joinable {
    const char *name;
    // The step's collectives with neutral contributions, on a rank without data.
    gs_status (*shadow)(void *ctx, const gs_join_round *round, int64_t step, gs_deadline deadline);
    void *ctx;
} gs_joinable;

typedef struct gs_join_options {
    gs_join_divisor divisor;
    bool stops;  // the first rank without data ends the run on all ranks, nobody shadows
    const gs_joinable *joinables;  // copied; the same list on all ranks
    int num_joinables;
    int64_t warn_after_steps;  // shadowed by this rank, said once; 0: 1000
} gs_join_options;

// One run with uneven inputs.
typedef struct gs_join gs_join;

// Borrows comm until destroy.
GS_NODISCARD gs_status gs_join_create_sized(gs_join **out, const gs_join_options *options,
                                            size_t options_bytes, gs_comm *comm);
GS_NODISCARD static inline gs_status gs_join_create(gs_join **out, const gs_join_options *options,
                                                    gs_comm *comm) {
    return gs_join_create_sized(out, options, sizeof *options, comm);
}
void gs_join_destroy(gs_join *join);

// The announcement, counted. With `stops`: OUT_OF_RANGE on every rank, naming the first one
// without data; nothing of the step has begun then.
GS_NODISCARD gs_status gs_join_open(gs_join *join, gs_join_round *round, bool active, int64_t step,
                                    gs_deadline deadline);
// After open, on a rank without data: the joinables' shadow functions in order.
// FAILED_PRECONDITION when this rank has data, or nobody has.
GS_NODISCARD gs_status gs_join_shadow(gs_join *join, gs_deadline deadline);
int64_t gs_join_shadowed_steps(const gs_join *join);

// Collective, when the inputs are at their end: `params` are compared (FAILED_PRECONDITION names
// the rank that differs), `buffers` become those of the highest rank that was active in the last
// step, all of them or, on an error, none. Memory of the communicator's device; the same lists on
// all ranks. Without a step: rank 0's.
typedef struct gs_join_state {
    const gs_tensor_view *params, *buffers;
    size_t num_params, num_buffers;
} gs_join_state;
GS_NODISCARD gs_status gs_join_finish(gs_join *join, const gs_join_state *state,
                                      gs_deadline deadline);

GS_END_DECLS

#endif
