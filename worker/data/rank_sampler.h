// Which samples a rank takes of its own part, step after step (data.split by_rank): a pure function
// of (seed, rank, position), like gs_sampler for data that all ranks share.
//
// The position is counted as everywhere, in global samples: a step moves it by a whole global
// batch, whether all ranks had one or not. It is valid for one world size. An epoch has the same
// number of steps on all ranks:
//   even   as many as the smallest part has whole batches: what other parts have beyond is left out
//   join   as many as the largest part has batches, the last one of a part may be short: ranks that
//   have
//          none left shadow the others; the union of an epoch is all samples, each once
//   stop   one epoch, which ends with the first rank that has no batch left
// In each epoch a rank goes through its part in another order. A last pass with fewer rows than the
// model can train on is left out (`least_rows`).
#ifndef WORKER_DATA_RANK_SAMPLER_H
#define WORKER_DATA_RANK_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/step/logical_shards.h"
#include "rpc/schema/job_spec.h"
#include "worker/data/rank_part.h"

typedef struct gs_rank_sampler {
    gs_rank_part part;  // owned
    uint64_t seed;
    int rank;
    int uneven_inputs;        // GS_UNEVEN_…
    int64_t global_batch;     // by which a step moves the position
    int64_t rank_batch;       // samples of this rank's step
    int64_t pass_rows;        // of a whole pass
    int64_t num_usable;       // samples of the part that an epoch takes
    int64_t steps_per_epoch;  // the same on all ranks
} gs_rank_sampler;            // {0} is empty

// INVALID_ARGUMENT names a rank whose part is too small.
GS_NODISCARD gs_status gs_rank_sampler_init(gs_rank_sampler *sampler, const gs_data_source *source,
                                            const gs_job_spec *spec,
                                            const gs_logical_shards *shards);
void gs_rank_sampler_release(gs_rank_sampler *sampler);

// Whether this rank has samples for the step that starts at `consumed`; and where the next one
// starts that it has some for: -1 when there is none.
bool gs_rank_sampler_has_batch(const gs_rank_sampler *sampler, int64_t consumed);
int64_t gs_rank_sampler_next_batch(const gs_rank_sampler *sampler, int64_t consumed);
// Rows of pass `pass` of this rank's step, counted over its shards: pass_rows or fewer, 0 behind
// the end.
int64_t gs_rank_sampler_rows(const gs_rank_sampler *sampler, int64_t consumed, int64_t pass);
// The split's sample in row `row` of that pass.
int64_t gs_rank_sampler_index(const gs_rank_sampler *sampler, int64_t consumed, int64_t pass,
                              int64_t row);

#endif
