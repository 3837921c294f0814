// The model `branches` of the traces with unused parameters: h = relu(fc1 x), z = fs h + (fa h if
// used) + (fb h if used), y = fc relu(z), softmax cross-entropy. A referee's model and nothing
// else: which branches a pass uses comes from a file, not from a job.
#ifndef TESTS_CONFORMANCE_BRANCHES_H
#define TESTS_CONFORMANCE_BRANCHES_H

#include "gradsync/step/model.h"

typedef struct branches_options {
    int64_t dims[4];  // inputs, hidden 1, hidden 2, classes
    size_t max_rows;
    const int32_t *used;  // fa, fb: of the next pass; borrowed
} branches_options;

GS_NODISCARD gs_status branches_create(gs_model *out, const branches_options *options,
                                       gs_device *device);

#endif
