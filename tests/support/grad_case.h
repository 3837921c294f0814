// A random model with known gradients, the reducer that is to average them, and the sums done
// serially.
//
// Everything follows from the seed: shapes, plan, ready orders, which pass of which shard uses
// which parameter, and each gradient. So ranks agree without talking, and the referee needs no
// ranks.
#ifndef TESTS_SUPPORT_GRAD_CASE_H
#define TESTS_SUPPORT_GRAD_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/comm_backend.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"

#define GRAD_CASE_MAX_PARAMS 40

typedef struct grad_case {
    uint64_t seed;
    size_t num_params;
    gs_param_spec params[GRAD_CASE_MAX_PARAMS];
    gs_bucket_plan plan;  // owned
    int num_shards, passes_per_shard;
    bool exact, unused_is_error, static_graph;
    gs_dtype wire_dtype;       // unset: as in the bucket
    gs_hook_choice hook;  // {0}: all-reduce
    const gs_separate_grad *separate;  // NULL: views
    gs_reducer_op op;
    gs_tally_carrier tally;
    int unused_percent;  // of (parameter, shard, pass)
    gs_helper_thread helper;
    const gs_comm_backend *own_backend;  // NULL: one of the library's
} grad_case;

// A model of up to 40 small and middle tensors; one bucket or many.
void grad_case_init(grad_case *model, uint64_t seed, int num_shards);
void grad_case_release(grad_case *model);

bool grad_case_uses(const grad_case *model, size_t param, int64_t step, int shard, int pass);
// Adds the gradient to `grad`, or overwrites it.
void grad_case_write(const grad_case *model, float *grad, size_t param, int64_t step, int shard,
                     int pass, bool accumulate);
// A random order of all parameters.
void grad_case_order(const grad_case *model, size_t *order, int64_t step, uint64_t which);
// The reduced gradient of one parameter, and whether any shard used it.
bool grad_case_reference(const grad_case *model, float *grad, size_t param, int64_t step,
                         int world_size);

// One rank's trainer: device, arena, communicator, reducer.
typedef struct grad_rank {
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    const grad_case *model;
    int rank, world_size;
} grad_rank;

// `env` NULL: a world of one. `plan` NULL: the model's.
GS_NODISCARD gs_status grad_rank_open(grad_rank *rank, const grad_case *model,
                                      const gs_rank_env *env, const gs_bucket_plan *plan,
                                      gs_deadline deadline);
void grad_rank_close(grad_rank *rank);
// All passes of a step: gradients written, marked ready in a random order. Not finished.
GS_NODISCARD gs_status grad_rank_run_passes(grad_rank *rank, int64_t step);
// Compares what finish left with the referee; INTERNAL names the parameter.
GS_NODISCARD gs_status grad_rank_check(const grad_rank *rank, int64_t step,
                                       const gs_reduce_result *result);
// begin, passes, finish, check.
GS_NODISCARD gs_status grad_rank_run_step(grad_rank *rank, int64_t step, gs_reduce_result *result,
                                          gs_deadline deadline);
uint64_t grad_rank_digest(const grad_rank *rank);  // of the reduced gradients

#endif
