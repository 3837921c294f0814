// The embedding half of a tied embedding's gradient, travelling apart from the dense half: rows of
// the step's distinct tokens (reducer.sparse_embedding). The dense half is ready first of all and
// hides behind the backward pass; the rows follow the last bucket and are added to it before norms
// are taken.
//
// A step is: begin, after the reducer's; open_pass for each pass; post, after the last end_pass;
// the reducer's finish does the rest. Compute thread.
#ifndef WORKER_PASS_EMBEDDING_ROWS_H
#define WORKER_PASS_EMBEDDING_ROWS_H

#include <stdbool.h>
#include <stddef.h>

#include "gradsync/reducer/reducer.h"
#include "gradsync/sparse/sparse_rows.h"
#include "gradsync/step/logical_shards.h"
#include "gradsync/step/model.h"
#include "rpc/schema/job_spec.h"

typedef struct gs_embedding_rows gs_embedding_rows;

typedef struct gs_embedding_rows_options {
    const gs_job_spec *spec;
    gs_logical_shards shards;
    gs_device *device;  // borrowed until destroy
    void *memory;       // gs_embedding_rows_bytes on 64 bytes, borrowed until destroy
} gs_embedding_rows_options;

// 0 when gradients are dense: by the job, or with `auto` when the tokens of a step could touch more
// than half of the vocabulary. The same on every rank.
GS_NODISCARD gs_status gs_embedding_rows_bytes(size_t *bytes,
                                               const gs_embedding_rows_options *options);

// Collective; the reducer (borrowed until destroy) has the model's parameters. *out is NULL when
// gradients are dense; every function below takes NULL and does nothing.
GS_NODISCARD gs_status gs_embedding_rows_create(gs_embedding_rows **out,
                                                const gs_embedding_rows_options *options,
                                                gs_reducer *reducer, gs_comm *comm,
                                                gs_deadline deadline);
void gs_embedding_rows_destroy(gs_embedding_rows *rows);

GS_NODISCARD gs_status gs_embedding_rows_begin(gs_embedding_rows *rows, int64_t step);
// Puts the sink into a pass. The sink lives as long as `rows`.
//   host_tokens  the batch's, where the host reads them; borrowed until the pass ends
void gs_embedding_rows_open_pass(gs_embedding_rows *rows, gs_model_pass *pass,
                                 const gs_reducer_pass *reducing, const int32_t *host_tokens);
// Instead of that, for a pass without samples.
GS_NODISCARD gs_status gs_embedding_rows_empty_pass(gs_embedding_rows *rows,
                                                    const gs_reducer_pass *reducing);
GS_NODISCARD gs_status gs_embedding_rows_post(gs_embedding_rows *rows, gs_deadline deadline);

// Of the last finished step; NULL when gradients are dense.
const gs_sparse_rows_result *gs_embedding_rows_result(const gs_embedding_rows *rows);

#endif
