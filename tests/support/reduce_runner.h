// One rank of a reduce_case: takes its steps with the real reducer and compares what comes out with
// the serial reference.
#ifndef TESTS_SUPPORT_REDUCE_RUNNER_H
#define TESTS_SUPPORT_REDUCE_RUNNER_H

#include "tests/support/ranks.h"
#include "tests/support/reduce_case.h"

// All steps of the case on this rank. `digest`: of all results of all steps, equal on all ranks.
// INTERNAL names the case, step and parameter.
GS_NODISCARD gs_status reduce_runner_run(const reduce_case *self, const gs_rank_env *env,
                                         uint64_t *digest, gs_deadline deadline);

#endif
