// Row-sparse gradients of one parameter: only the rows that this step touched, reduced across
// ranks.
//
// A rank adds rows with their indices, in any order, with duplicates: those of one row are summed
// in order of occurrence. The indices travel in one all-gather of fixed size, as early as they are
// known; then the rows travel, one of two ways:
//
//   gather  every rank gets every rank's rows and adds them itself; the volume grows with the ranks
//   owner   rows are put in their places in the union of all indices, and the union is reduced:
//           the owner of a row adds it, and hands it to all, or keeps it. At most the dense volume.
//
// Both add in rank order and give the same bits (but for the sign of a zero) on every rank. A job
// in which all ranks know the sorted indices beforehand gives them once, and none travel after
// that.
//
// A step is: begin; touch and add as often as wanted; post_indices (optional, early); post; finish.
// Calls that post collectives come at the same place among those of the communicator on every rank.
// With a reducer: post_indices before the backward of the reducing pass, post after its end_pass,
// finish in a tail (gs_reducer_add_tail). On a GPU values, rows and what they are added to are its
// memory, indices the host's; adding enqueues, finish waits. Nothing allocates between create and
// destroy.
//
// Threads: one at a time, as the communicator's (comm.h); create and destroy are such calls too.
#ifndef GRADSYNC_SPARSE_SPARSE_ROWS_H
#define GRADSYNC_SPARSE_SPARSE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/sparse/sparse_rows_options.h"

GS_BEGIN_DECLS

typedef struct gs_sparse_rows gs_sparse_rows;

const char *gs_rows_mode_name(gs_rows_mode mode);

// A bound for `memory`. INVALID_ARGUMENT for options that make no sense.
GS_NODISCARD gs_status gs_sparse_rows_bytes_sized(size_t *bytes,
                                                  const gs_sparse_rows_options *options,
                                                  size_t options_bytes, int world_size);
GS_NODISCARD static inline gs_status
gs_sparse_rows_bytes(size_t *bytes, const gs_sparse_rows_options *options, int world_size) {
    return gs_sparse_rows_bytes_sized(bytes, options, sizeof *options, world_size);
}
// Whether rows can be expected to take well less than the dense gradient; the same on every rank.
bool gs_sparse_rows_pays(size_t rows, size_t most_rows, int world_size);

// Collective over `comm` (borrowed until destroy): shape, way and limits are compared, a difference
// is FAILED_PRECONDITION naming the rank.
GS_NODISCARD gs_status gs_sparse_rows_create_sized(gs_sparse_rows **out,
                                                   const gs_sparse_rows_options *options,
                                                   size_t options_bytes, gs_comm *comm,
                                                   gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_sparse_rows_create(gs_sparse_rows **out,
                                                           const gs_sparse_rows_options *options,
                                                           gs_comm *comm, gs_deadline deadline) {
    return gs_sparse_rows_create_sized(out, options, sizeof *options, comm, deadline);
}
// Before its communicator. Aborts it when rows are in flight.
void gs_sparse_rows_destroy(gs_sparse_rows *rows);

// Errors from here on stick, and abort the communicator with words that name rank, step, parameter.
GS_NODISCARD gs_status gs_sparse_rows_begin(gs_sparse_rows *rows, int64_t step);
// Says which rows will be added. `indices`: num of them, GS_I32 or GS_I64. INVALID_ARGUMENT names
// the place of an index outside the parameter; RESOURCE_EXHAUSTED when there are more rows than
// max_rows.
GS_NODISCARD gs_status gs_sparse_rows_touch(gs_sparse_rows *rows, const void *indices,
                                            gs_dtype index_dtype, size_t num);
// Adds values (num, columns) to the rows `indices`. Rows not touched yet are, unless indices were
// posted.
GS_NODISCARD gs_status gs_sparse_rows_add(gs_sparse_rows *rows, const void *indices,
                                          gs_dtype index_dtype, const float *values, size_t num);
// All touched: posts the indices. Never waits. `samples` of this rank in the step; a sample mean
// cannot do without this call.
GS_NODISCARD gs_status gs_sparse_rows_post_indices(gs_sparse_rows *rows, int64_t samples);
// All added: waits for the indices of all ranks and posts the rows.
GS_NODISCARD gs_status gs_sparse_rows_post(gs_sparse_rows *rows, gs_deadline deadline);

typedef struct gs_sparse_rows_result {
    const int32_t *indices;  // sorted, distinct; valid until the next begin, like rows
    const float *rows;       // (num_rows, columns)
    size_t num_rows, columns;
    bool nonfinite;
    double squares;     // Σ of squares of the rows
    int64_t samples;    // of all ranks
    gs_rows_mode mode;  // the way taken
    size_t num_own;     // distinct rows that this rank added
    // What this rank took from others: an all-reduce of S bytes counts 2·S·(N-1)/N.
    uint64_t index_bytes, row_bytes;
    uint64_t wire_bytes;  // what this rank handed in
} gs_sparse_rows_result;

GS_NODISCARD gs_status gs_sparse_rows_finish(gs_sparse_rows *rows, gs_sparse_rows_result *result,
                                             gs_deadline deadline);
// dense (rows, columns) += the result of the last finish.
GS_NODISCARD gs_status gs_sparse_rows_add_to(gs_sparse_rows *rows, float *dense);

GS_END_DECLS

#endif
