// The samples of one split of a job: which data set, which part of it.
#ifndef WORKER_DATA_DATA_SOURCE_H
#define WORKER_DATA_DATA_SOURCE_H

#include <stdint.h>

#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/data/dataset.h"

typedef struct gs_data_source {
    const gs_dataset_ops *ops;
    void *dataset; // owned
    gs_dataset_shape shape;
    int64_t first_sample; // of this split in the data set
    int64_t num_samples;  // of this split
} gs_data_source;         // {0} is closed

typedef enum gs_data_split { GS_TRAIN = 0, GS_EVAL } gs_data_split;

GS_NODISCARD gs_status gs_data_source_open(gs_data_source *source, const gs_job_spec *spec,
                                           gs_data_split split, const char *data_root);
void gs_data_source_close(gs_data_source *source);
// Sample `index` of the split, [0, num_samples).
GS_NODISCARD gs_status gs_data_source_fill(const gs_data_source *source, int64_t index,
                                           int32_t *tokens, float *features, int32_t *targets);

#endif
