// Which samples of a split a rank reads when a job deals its data to ranks (data.split by_rank).
//
// Files are dealt like cards, file f to rank f mod world, so that parts may differ in size; when
// that would leave a rank without a sample, and for data that has no files, each rank takes one run
// of neighbours, the first ranks one sample more. Every sample belongs to exactly one rank.
#ifndef WORKER_DATA_RANK_PART_H
#define WORKER_DATA_RANK_PART_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "worker/data/data_source.h"

typedef struct gs_rank_part {
    // Owned; num_runs of them: where a run of neighbours begins in the part and in the split.
    int64_t *begins, *samples;
    size_t num_runs;
    int64_t num_samples;
} gs_rank_part;  // {0} is empty

// How many samples rank `rank` has. INVALID_ARGUMENT when there are fewer samples than ranks.
GS_NODISCARD gs_status gs_rank_part_count(int64_t *num_samples, const gs_data_source *source,
                                          int rank, int world_size);
GS_NODISCARD gs_status gs_rank_part_init(gs_rank_part *part, const gs_data_source *source, int rank,
                                         int world_size);
void gs_rank_part_release(gs_rank_part *part);
// The split's sample that is number `index` of the part, [0, num_samples).
int64_t gs_rank_part_sample(const gs_rank_part *part, int64_t index);

#endif
