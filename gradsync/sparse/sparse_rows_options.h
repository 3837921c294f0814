// What a row-sparse gradient is, and how its rows travel (sparse_rows.h).
#ifndef GRADSYNC_SPARSE_SPARSE_ROWS_OPTIONS_H
#define GRADSYNC_SPARSE_SPARSE_ROWS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/param_spec.h"
#include "gradsync/reducer/reducer_types.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef enum gs_rows_mode {
    GS_ROWS_AUTO = 0,  // per step, by bytes: what the indices of all ranks say
    GS_ROWS_GATHER,
    GS_ROWS_OWNER
} gs_rows_mode;

typedef struct gs_sparse_rows_options {
    const gs_param_spec *param;  // rows are its first dimension, at most 2^31 - 1; not fp64; copied
    size_t max_rows;             // distinct rows of this rank in a step; at most 2^31 - 1
    size_t most_rows;            // the largest max_rows of all ranks; 0: they are equal
    gs_rows_mode mode;
    // By the owner: each rank gets the sums of its range of rows alone, [rows·r/N, rows·(r+1)/N).
    bool stay_with_owner;
    // Sorted, no duplicates, the same on all ranks; copied. NULL: indices travel in each step.
    const int64_t *indices;
    size_t num_indices;
    gs_reducer_op op;  // as in the reducer; GS_SAMPLE_MEAN divides by the samples of all ranks
    double divisor;    // of GS_MEAN; 0: the number of ranks
    // gs_sparse_rows_bytes of it on 64 bytes, borrowed until destroy; in the communicator's arena
    // rows travel without staging. NULL: its own.
    void *memory;
    gs_device *device;  // borrowed until destroy
} gs_sparse_rows_options;

GS_END_DECLS

#endif
