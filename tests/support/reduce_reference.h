// The results of a reduce_case, step by step, as the references of its hooks have them.
#ifndef TESTS_SUPPORT_REDUCE_REFERENCE_H
#define TESTS_SUPPORT_REDUCE_REFERENCE_H

#include "tests/support/reduce_case.h"

typedef struct reduce_reference reduce_reference;

reduce_reference *reduce_reference_create(const reduce_case *model);  // borrows it
void reduce_reference_destroy(reduce_reference *self);
// The next step.
void reduce_reference_run(reduce_reference *self, int64_t step);
// Of the last one: an element, and how far off it may be beside reduce_case_tolerance.
const double *reduce_reference_grads(const reduce_reference *self, size_t param);
const double *reduce_reference_slack(const reduce_reference *self, size_t param);

#endif
