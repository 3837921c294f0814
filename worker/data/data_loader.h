// Batches ahead of their use: one prefetch thread, a ring of micro-batches, in the order in which the
// rank's passes will ask for them.
#ifndef WORKER_DATA_DATA_LOADER_H
#define WORKER_DATA_DATA_LOADER_H

#include "core/clock.h"
#include "core/digest.h"
#include "core/status.h"
#include "gradsync/step/logical_shards.h"
#include "gradsync/step/model.h"
#include "rpc/schema/job_spec.h"
#include "worker/data/data_source.h"

typedef struct gs_data_loader gs_data_loader;

typedef struct gs_data_loader_options {
    const gs_job_spec *spec;  // copied where needed
    gs_data_split split;
    const char *data_root;
    gs_logical_shards shards;
    int64_t consumed;  // global samples before the first batch (training)
    // A pass is one batch of all own shards' rows of that pass, which then runs as if for one shard.
    bool joins_shards;
    int ring_batches;  // 0: 4
} gs_data_loader_options;

// Opens and validates the files and starts the thread.
GS_NODISCARD gs_status gs_data_loader_open(gs_data_loader **out,
                                           const gs_data_loader_options *options);
void gs_data_loader_close(gs_data_loader *loader);

// The next micro-batch of this rank; valid until the next call. Training: shard after shard, pass
// after pass, step after step, for ever. With data.split by_rank: of the steps that this rank has
// data for; the last pass of its part may have fewer rows, those behind it none. Evaluation: the
// first eval_batches · global_batch samples in order, dealt like a training batch; then
// OUT_OF_RANGE, and the call after that starts again. Fewer whole batches when there are not so
// many samples, but at least one, in which samples may come twice.
GS_NODISCARD gs_status gs_data_loader_next(gs_data_loader *loader, gs_batch *batch,
                                           gs_deadline deadline);
// Whether this rank has data for the step that starts at `consumed` global samples, and whether an
// epoch of all ranks' parts ends before it: a question with data.split by_rank alone.
bool gs_data_loader_has_batch(const gs_data_loader *loader, int64_t consumed);
bool gs_data_loader_begins_epoch(const gs_data_loader *loader, int64_t consumed);

int64_t gs_data_loader_positions(const gs_data_loader *loader);  // of a sample
gs_batch gs_data_loader_largest(const gs_data_loader *loader);   // batch; without memory
gs_digest gs_data_loader_digest(const gs_data_loader *loader);

#endif
