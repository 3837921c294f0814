// What a job does with gradients between the backward pass and the new parameters, and nothing
// else: the reducer's sum, norm and verdict, the one factor of clipping and unscaling, the
// optimizer that multiplies by it.
#ifndef TESTS_CONFORMANCE_JOB_STEP_H
#define TESTS_CONFORMANCE_JOB_STEP_H

#include <stdbool.h>
#include <stddef.h>

#include "gradsync/optim/grad_scaler.h"
#include "tests/support/ranks.h"

typedef struct job_step {
    const gs_rank_env *env;     // NULL: a world of one
    const float *const *grads;  // num_grads; NULL: another rank's, which this one does not use
    const size_t *counts;       // of all ranks' gradients
    size_t num_grads;
    const int *owners;  // of each gradient: state and gradients are sharded; NULL: they are not
    double max_norm;        // 0: no clipping
    gs_grad_scaler scaler;  // {0}: no loss scale
} job_step;

typedef struct job_step_result {
    double grad_norm;  // as the reducer tells it
    bool nonfinite;    // then the step is skipped, and `applied` is zero
    // What was taken off the parameters: an SGD step of rate 1 from zero, so the gradients as the
    // optimizer used them. Owned, one block, grads one after the other.
    float *applied;
} job_step_result;

GS_NODISCARD gs_status job_step_run(job_step_result *result, const job_step *step);
void job_step_release(job_step_result *result);

#endif
