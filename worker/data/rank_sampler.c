#include "worker/data/rank_sampler.h"

#include "core/random.h"

// "part" in ASCII: keeps these draws apart from every other use of the seed.
#define PART_STREAM UINT64_C(0x70617274)

static int64_t batch_of_rank(const gs_job_spec *spec, const gs_logical_shards *shards, int rank) {
    gs_logical_shards theirs = *shards;
    theirs.rank = rank;
    return gs_logical_shards_count(&theirs) * gs_job_spec_passes_per_shard(spec) *
           spec->data.micro_batch;
}

// Without a last pass that is too short to train on: a variance needs two rows.
static int64_t usable_samples(const gs_job_spec *spec, int64_t num_samples, int64_t rank_batch) {
    bool has_norm = spec->model.kind == GS_MODEL_MLP && spec->model.mlp.num_dims > 2 &&
                    spec->model.mlp.batch_norm == GS_BATCH_NORM_LOCAL;
    if (spec->data.uneven_inputs == GS_UNEVEN_EVEN) return num_samples / rank_batch * rank_batch;
    bool lonely = has_norm && num_samples % spec->data.micro_batch == 1;
    return lonely ? num_samples - 1 : num_samples;
}

static gs_status count_steps(int64_t *steps, int64_t *usable, const gs_data_source *source,
                             const gs_job_spec *spec, const gs_logical_shards *shards, int rank) {
    int64_t num_samples, batch = batch_of_rank(spec, shards, rank);
    GS_TRY(gs_rank_part_count(&num_samples, source, rank, shards->world_size));
    *usable = usable_samples(spec, num_samples, batch);
    *steps = (*usable + batch - 1) / batch;
    if (*steps > 0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "data.split by_rank: rank %d has %lld samples, fewer than a step takes", rank,
                    (long long)num_samples);
}

gs_status gs_rank_sampler_init(gs_rank_sampler *sampler, const gs_data_source *source,
                               const gs_job_spec *spec, const gs_logical_shards *shards) {
    *sampler = (gs_rank_sampler){.seed = (uint64_t)spec->data.shuffle_seed,
                                 .rank = shards->rank,
                                 .uneven_inputs = spec->data.uneven_inputs,
                                 .global_batch = spec->data.global_batch,
                                 .rank_batch = batch_of_rank(spec, shards, shards->rank),
                                 .pass_rows = spec->data.micro_batch};
    for (int rank = 0; rank < shards->world_size; rank++) {
        int64_t steps, usable;
        GS_TRY(count_steps(&steps, &usable, source, spec, shards, rank));
        if (rank == shards->rank) sampler->num_usable = usable;
        bool wider = sampler->uneven_inputs == GS_UNEVEN_JOIN && steps > sampler->steps_per_epoch;
        bool narrower =
            sampler->uneven_inputs != GS_UNEVEN_JOIN && steps < sampler->steps_per_epoch;
        if (rank == 0 || wider || narrower) sampler->steps_per_epoch = steps;
    }
    return gs_rank_part_init(&sampler->part, source, shards->rank, shards->world_size);
}

void gs_rank_sampler_release(gs_rank_sampler *sampler) {
    gs_rank_part_release(&sampler->part);
    *sampler = (gs_rank_sampler){0};
}

// Where the step that starts at `consumed` lies in the part; `epoch` may be NULL.
static int64_t first_of_step(const gs_rank_sampler *sampler, int64_t consumed, int64_t *epoch) {
    int64_t step = consumed / sampler->global_batch;
    bool repeats = sampler->uneven_inputs != GS_UNEVEN_STOP;
    if (epoch) *epoch = repeats ? step / sampler->steps_per_epoch : 0;
    return (repeats ? step % sampler->steps_per_epoch : step) * sampler->rank_batch;
}

bool gs_rank_sampler_has_batch(const gs_rank_sampler *sampler, int64_t consumed) {
    return first_of_step(sampler, consumed, NULL) < sampler->num_usable;
}

int64_t gs_rank_sampler_next_batch(const gs_rank_sampler *sampler, int64_t consumed) {
    if (gs_rank_sampler_has_batch(sampler, consumed)) return consumed;
    if (sampler->uneven_inputs == GS_UNEVEN_STOP) return -1;
    int64_t step = consumed / sampler->global_batch;
    int64_t next = (step / sampler->steps_per_epoch + 1) * sampler->steps_per_epoch;
    return next * sampler->global_batch;
}

int64_t gs_rank_sampler_rows(const gs_rank_sampler *sampler, int64_t consumed, int64_t pass) {
    int64_t first = first_of_step(sampler, consumed, NULL) + pass * sampler->pass_rows;
    int64_t left = sampler->num_usable - first;
    return left < 0 ? 0 : left < sampler->pass_rows ? left : sampler->pass_rows;
}

int64_t gs_rank_sampler_index(const gs_rank_sampler *sampler, int64_t consumed, int64_t pass,
                              int64_t row) {
    int64_t epoch, first = first_of_step(sampler, consumed, &epoch);
    gs_random_key key = {
        .seed = sampler->seed,
        .stream = gs_random_stream(PART_STREAM, (uint64_t)epoch, (uint64_t)sampler->rank)};
    uint64_t place = (uint64_t)(first + pass * sampler->pass_rows + row);
    int64_t index = (int64_t)gs_random_permute(key, (uint64_t)sampler->part.num_samples, place);
    return gs_rank_part_sample(&sampler->part, index);
}
