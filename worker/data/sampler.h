// Which samples a logical shard takes: a pure function of (seed, position). The position of a run is one
// integer, the global samples consumed, valid for every world size.
//
// Global batch k is samples k·G … (k+1)·G − 1 of an endless sequence of epochs, each a keyed permutation
// of all samples; logical shard v takes the v-th of its V parts, pass a the a-th part of that.
#ifndef WORKER_DATA_SAMPLER_H
#define WORKER_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gs_sampler {
    uint64_t seed;
    int64_t num_samples;   // of the data set
    int64_t global_batch;  // G = num_shards · passes_per_shard · micro_batch
    int num_shards;
    int passes_per_shard;
    bool shuffle;
} gs_sampler;

// The data-set index of row `row` of micro-batch (`shard`, `pass`) of the step that starts at
// `consumed` global samples.
int64_t gs_sampler_index(const gs_sampler *sampler, int64_t consumed, int shard, int pass,
                         int64_t row);

#endif
