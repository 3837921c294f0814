// A rank that takes steps with one communication hook over gradients that are drawn from (step,
// shard, parameter, element), and the sums that must come out of any hook that loses nothing.
//
// Parameters of odd sizes, fp32 and fp64, matrices that low-rank compression takes and others that
// it leaves; two plans: a bucket for each, and few buckets.
#ifndef TESTS_SUPPORT_HOOK_TRIAL_H
#define TESTS_SUPPORT_HOOK_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/ranks.h"

#define HOOK_TRIAL_PARAMS 8

typedef struct hook_trial {
    const gs_rank_env *env;
    const char *isa;  // of this rank's CPU; NULL: the best
    int world_size, num_shards;
    uint32_t generation;
    gs_param_spec params[HOOK_TRIAL_PARAMS];
    gs_bucket_plan plans[2];
    gs_reducer_options options;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    // One element of a shard's gradient; NULL: small drawn numbers.
    double (*value)(const struct hook_trial *trial, int64_t step, int shard, size_t param,
                    size_t index);
    gs_digest_stream *digest;         // of all results so far
    double *sums[HOOK_TRIAL_PARAMS];  // of all means so far, minus all results
} hook_trial;

// The rank of env in a world as large as env's, a shard for each rank. `choice` is borrowed. Close
// it after an error, too.
GS_NODISCARD gs_status hook_trial_open(hook_trial *trial, const gs_rank_env *env,
                                       const gs_hook_choice *choice, const char *isa);
void hook_trial_close(hook_trial *trial);

// A step without its commit: *result may be not finite.
GS_NODISCARD gs_status hook_trial_reduce(hook_trial *trial, int64_t step, gs_reduce_result *result);
// Commits the step that was reduced; its results go to digest and sums. An element that is not
// finite is an error.
GS_NODISCARD gs_status hook_trial_take(hook_trial *trial, int64_t step);
// Both.
GS_NODISCARD gs_status hook_trial_step(hook_trial *trial, int64_t step);
// Goes on with the first `world_size` ranks in a new communicator.
GS_NODISCARD gs_status hook_trial_reset(hook_trial *trial, int world_size);

double hook_trial_drawn(const hook_trial *trial, int64_t step, int shard, size_t param,
                        size_t index);

// Of results and of the hook's state that is equal on all ranks, the bits.
uint64_t hook_trial_digest(hook_trial *trial);
// INTERNAL unless what the ranks' own tensors hold is what the results lack, and their digests are
// the same.
GS_NODISCARD gs_status hook_trial_check(hook_trial *trial, double tolerance);
// ‖own tensors of this rank‖
double hook_trial_owed(const hook_trial *trial);

#endif
