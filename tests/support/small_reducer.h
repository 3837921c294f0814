// A reducer small enough to know every number of: four parameters of four elements, "fc0" to "fc3",
// in two buckets, [3 2] and [1 0]; in a world of one, or as a rank of several.
#ifndef TESTS_SUPPORT_SMALL_REDUCER_H
#define TESTS_SUPPORT_SMALL_REDUCER_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"

#define SMALL_PARAMS 4
#define SMALL_COUNT 4

typedef struct small_reducer {
    gs_param_spec params[SMALL_PARAMS];
    gs_bucket_plan plan;
    gs_device *device;  // of test_device.h; whoever needs it earlier opens it between prepare and open
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    int rank, world_size;
    // Set between prepare and open:
    size_t extra_bytes;  // of arena, more than it needs
    gs_helper_thread helper;
    int num_lanes;  // of its communicator; 0: as many as its hooks want
} small_reducer;

// The parameters' types and kinds may be changed between prepare and open.
void small_reducer_prepare(small_reducer *small);
// `options`: what is not parameters, plan, rank, world, arena and device; num_shards 0: one for
// each rank. `env` NULL: a world of one.
GS_NODISCARD gs_status small_reducer_open(small_reducer *small, const gs_reducer_options *options,
                                          const gs_rank_env *env);
void small_reducer_close(small_reducer *small);

// A communicator over the arena: the first `world_size` ranks of env's, generation by generation.
GS_NODISCARD gs_status small_reducer_connect(gs_comm **comm, small_reducer *small,
                                             const gs_rank_env *env, uint32_t generation);

// A pass in which parameter p gets the gradient values[p]·grad_factor in all elements and is
// marked, last parameter first; NAN: neither. fp64 parameters get doubles.
GS_NODISCARD gs_status small_reducer_run_pass(small_reducer *small, const double *values,
                                              int64_t samples);
// begin, one pass of one sample, finish.
GS_NODISCARD gs_status small_reducer_run_step(small_reducer *small, int64_t step,
                                              const double *values, gs_reduce_result *result);
// Writes (adds) a value as pass and parameter want it.
void small_reducer_write(const small_reducer *small, const gs_reducer_pass *pass, size_t param,
                         double value);
// Element `at` of the reduced gradient.
double small_reducer_grad(const small_reducer *small, size_t param, size_t at);

#endif
