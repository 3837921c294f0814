#include "worker/models/layer_drop.h"

#include <string.h>

#include "core/digest.h"
#include "core/random.h"

bool gs_layer_drop_skips(const gs_layer_drop *drop, int64_t step, int shard, int64_t layer) {
    static const char purpose[] = "layer_drop";
    if (drop->probability <= 0) return false;
    gs_random_key key = {drop->seed ^ gs_hash64(purpose, sizeof purpose - 1, 0),
                         gs_random_stream((uint64_t)step, (uint64_t)shard, (uint64_t)layer)};
    return gs_random_uniform(key, 0) < drop->probability;
}
