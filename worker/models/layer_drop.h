// Stochastic depth (Huang et al. 2016) as LayerDrop does it (Fan et al. 2020): in training a whole
// layer is now and then left out, the residual stream goes around it, nothing is rescaled;
// evaluation has all layers. Drawn from counters for each (step, logical shard, layer): whatever
// the world size, after a resume, and in all passes of a shard.
#ifndef WORKER_MODELS_LAYER_DROP_H
#define WORKER_MODELS_LAYER_DROP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gs_layer_drop {
    double probability;  // [0, 1); 0: off
    uint64_t seed;       // of the job
} gs_layer_drop;

bool gs_layer_drop_skips(const gs_layer_drop *drop, int64_t step, int shard, int64_t layer);

#endif
