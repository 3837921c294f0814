// What options of sparse rows say: whether they make sense and are those of all ranks, and the
// memory that follows from them.
#ifndef GRADSYNC_SPARSE_ROWS_CHECK_H
#define GRADSYNC_SPARSE_ROWS_CHECK_H

#include <stddef.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/sparse/sparse_rows_options.h"

// Bytes of the parts of a rank's row memory.
typedef struct gs_rows_memory {
    size_t own, sums, arrived, total;
} gs_rows_memory;

GS_NODISCARD gs_status gs_rows_options_check(const gs_sparse_rows_options *options);
// Collective, with the same words on every rank; options have been checked.
GS_NODISCARD gs_status gs_rows_options_compare(const gs_sparse_rows_options *options, gs_comm *comm,
                                               gs_deadline deadline);
GS_NODISCARD gs_status gs_rows_memory_measure(gs_rows_memory *parts,
                                              const gs_sparse_rows_options *options,
                                              int world_size);
size_t gs_rows_columns(const gs_param_spec *param);          // elements of a row
size_t gs_rows_most(const gs_sparse_rows_options *options);  // distinct rows that any rank may have
size_t gs_rows_union_capacity(const gs_sparse_rows_options *options, int world_size);

#endif
