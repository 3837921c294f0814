#include "worker/data/sampler.h"

#include "core/random.h"

// "order" in ASCII: keeps these draws apart from every other use of the seed.
#define ORDER_STREAM UINT64_C(0x6f72646572)

int64_t gs_sampler_index(const gs_sampler *sampler, int64_t consumed, int shard, int pass,
                         int64_t row) {
    int64_t shard_rows = sampler->global_batch / sampler->num_shards;
    int64_t pass_rows = shard_rows / sampler->passes_per_shard;
    int64_t position = consumed + shard * shard_rows + pass * pass_rows + row;

    int64_t epoch = position / sampler->num_samples;
    int64_t index = position % sampler->num_samples;
    if (!sampler->shuffle) return index;
    gs_random_key key = {.seed = sampler->seed,
                         .stream = gs_random_stream(ORDER_STREAM, (uint64_t)epoch, 0)};
    return (int64_t)gs_random_permute(key, (uint64_t)sampler->num_samples, (uint64_t)index);
}
