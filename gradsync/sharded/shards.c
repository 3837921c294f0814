#include "gradsync/sharded/shards.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/options.h"
#include "core/owner_rules.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/sharded/shard_segments.h"

#define BLOCK_BYTES ((size_t)256)

struct gs_shards {
    gs_partition partition;
    int world_size;
    size_t element_bytes;  // as in the options
    bool *trainable;       // NULL: all
    int *optimizers;       // NULL: one
    int num_optimizers;
    int *owners;            // NULL: flat
    gs_grad_layout layout;  // without memory: plan, parameters, and where gradients lie
    size_t *bucket_offset;  // in the block of parameters
    size_t param_bytes;
    gs_shard_run *runs;
    size_t *first_run;  // of a bucket; behind the last one: their number
    size_t most_runs;
    gs_segment_lists of_buckets;  // by bucket · world + rank
    gs_segment_lists of_ranks;
    gs_segment_lists of_optimizers;  // by rank · optimizers + optimizer; empty with one
    size_t *elements;                // of each rank
};

const char *gs_partition_name(gs_partition partition) {
    static const char *const names[] = {"flat", "greedy", "sorted", "given"};
    return (size_t)partition < sizeof names / sizeof *names ? names[partition] : "unknown";
}

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
}

static void release(gs_shards *shards) {
    gs_grad_layout_release(&shards->layout);
    free(shards->trainable);
    free(shards->optimizers);
    free(shards->owners);
    free(shards->bucket_offset);
    free(shards->runs);
    free(shards->first_run);
    gs_segment_lists_release(&shards->of_buckets);
    gs_segment_lists_release(&shards->of_ranks);
    gs_segment_lists_release(&shards->of_optimizers);
    free(shards->elements);
    *shards = (gs_shards){0};
}

// None is without parameters.
static gs_status check_optimizers(const gs_shards_options *options) {
    int most = -1;
    for (size_t i = 0; options->optimizers && i < options->num_params; i++) {
        int optimizer = options->optimizers[i];
        if (optimizer < 0 || (size_t)optimizer >= options->num_params)
            return gs_error(GS_INVALID_ARGUMENT, "shards: parameter %zu \"%.100s\": optimizer %d",
                            i, options->params[i].name, optimizer);
        if (optimizer > most) most = optimizer;
    }
    for (int k = 0; k < most; k++) {
        size_t i = 0;
        while (i < options->num_params && options->optimizers[i] != k) i++;
        if (i == options->num_params)
            return gs_error(GS_INVALID_ARGUMENT, "shards: optimizer %d has no parameters", k);
    }
    return gs_ok();
}

static gs_status check(const gs_shards_options *options) {
    if (options->partition < GS_PARTITION_FLAT || options->partition > GS_PARTITION_GIVEN)
        return gs_error(GS_INVALID_ARGUMENT, "shards: partition %d is none",
                        (int)options->partition);
    if (options->world_size < 1)
        return gs_error(GS_INVALID_ARGUMENT, "shards: %d ranks", options->world_size);
    if (!options->num_params) return gs_error(GS_INVALID_ARGUMENT, "shards: no parameters");
    if (!options->plan) return gs_error(GS_INVALID_ARGUMENT, "shards: no plan");
    if ((options->partition == GS_PARTITION_GIVEN) != (options->owners != NULL))
        return gs_error(GS_INVALID_ARGUMENT, "shards: owners are for the partition \"given\"");
    GS_TRY(gs_param_specs_check(options->params, options->num_params));
    for (size_t i = 0; i < options->num_params; i++) {
        const gs_param_spec *param = &options->params[i];
        if (param->sparse)
            return gs_error(
                GS_INVALID_ARGUMENT,
                "shards: parameter %zu \"%.100s\": is sparse, its gradient has no owner", i,
                param->name);
        if (options->owners &&
            (options->owners[i] < 0 || options->owners[i] >= options->world_size))
            return gs_error(GS_INVALID_ARGUMENT,
                            "shards: parameter %zu \"%.100s\": its owner is %d of %d ranks", i,
                            param->name, options->owners[i], options->world_size);
    }
    GS_TRY(check_optimizers(options));
    return gs_bucket_plan_check(options->plan, options->params, options->num_params);
}

// ---- whole tensors: who owns them

static void *copy_list(const void *list, size_t count, size_t element_bytes) {
    void *copy = calloc(count, element_bytes);
    if (copy && list) memcpy(copy, list, count * element_bytes);
    return copy;
}

static gs_status apply_rule(int *owners, gs_partition partition, const gs_owner_request *request) {
    return partition == GS_PARTITION_GREEDY ? gs_owners_greedy(owners, request)
                                            : gs_owners_sorted(owners, NULL, request);
}

// Those of one optimizer, as if there were no others: lists as long as all are suffice.
static gs_status deal_optimizer(gs_shards *shards, int optimizer, size_t *counts, bool *trainable,
                                int *owners) {
    size_t num = 0, num_params = shards->layout.num_params;
    for (size_t i = 0; i < num_params; i++) {
        if (shards->optimizers && shards->optimizers[i] != optimizer) continue;
        trainable[num] = !shards->trainable || shards->trainable[i];
        counts[num++] = shards->layout.counts[i];
    }
    GS_TRY(apply_rule(owners, shards->partition,
                      &(gs_owner_request){.counts = counts,
                                          .trainable = trainable,
                                          .num_params = num,
                                          .world_size = shards->world_size}));
    num = 0;
    for (size_t i = 0; i < num_params; i++)
        if (!shards->optimizers || shards->optimizers[i] == optimizer)
            shards->owners[i] = owners[num++];
    return gs_ok();
}

static gs_status choose_owners(gs_shards *shards, const int *given) {
    size_t num_params = shards->layout.num_params;
    if (shards->partition == GS_PARTITION_FLAT) return gs_ok();
    shards->owners = copy_list(given, num_params, sizeof *given);
    if (!shards->owners) return out_of_memory();
    if (shards->partition == GS_PARTITION_GIVEN) return gs_ok();
    size_t *counts = calloc(num_params, sizeof *counts);
    bool *trainable = calloc(num_params, sizeof *trainable);
    int *owners = calloc(num_params, sizeof *owners);
    gs_status status = counts && trainable && owners ? gs_ok() : out_of_memory();
    for (int k = 0; k < shards->num_optimizers && !status.code; k++)
        status = deal_optimizer(shards, k, counts, trainable, owners);
    free(counts);
    free(trainable);
    free(owners);
    return status;
}

// ---- runs of a bucket

static gs_shard_run *list_even_runs(gs_shard_run *next, const gs_shards *shards,
                                    const gs_bucket *bucket) {
    size_t each = bucket->grad_count / (size_t)shards->world_size;
    for (int rank = 0; rank < shards->world_size; rank++)
        *next++ = (gs_shard_run){.owner = rank, .first = (size_t)rank * each, .count = each};
    return next;
}

static gs_shard_run *list_owner_runs(gs_shard_run *next, const gs_shards *shards,
                                     const gs_bucket *bucket) {
    const gs_shard_run *begin = next;
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i], count = shards->layout.counts[param];
        size_t first = gs_shard_first_in_bucket(&shards->layout, param);
        if (!count) continue;
        if (next > begin && next[-1].owner == shards->owners[param])
            next[-1].count = first + count - next[-1].first;
        else
            *next++ = (gs_shard_run){shards->owners[param], first, count};
    }
    return next;
}

static gs_status list_runs(gs_shards *shards) {
    const gs_grad_layout *layout = &shards->layout;
    size_t num_buckets = layout->plan.num_buckets, most = layout->num_params;
    if (!shards->owners) most = num_buckets * (size_t)shards->world_size;
    shards->runs = calloc(most, sizeof *shards->runs);
    shards->first_run = calloc(num_buckets + 1, sizeof *shards->first_run);
    if (!shards->runs || !shards->first_run) return out_of_memory();
    gs_shard_run *next = shards->runs;
    for (size_t b = 0; b < num_buckets; b++) {
        gs_shard_run *begin = next;
        next = shards->owners ? list_owner_runs(next, shards, &layout->buckets[b])
                              : list_even_runs(next, shards, &layout->buckets[b]);
        shards->first_run[b + 1] = (size_t)(next - shards->runs);
        if ((size_t)(next - begin) > shards->most_runs) shards->most_runs = (size_t)(next - begin);
    }
    return gs_ok();
}

// ---- segments of ranks

static gs_status list_segments(gs_shards *shards) {
    const gs_shard_cut cut = {.layout = &shards->layout,
                              .owners = shards->owners,
                              .world_size = shards->world_size,
                              .optimizers = shards->optimizers,
                              .num_optimizers = shards->num_optimizers};
    GS_TRY(gs_segment_lists_init(&shards->of_ranks, &cut, GS_BY_RANK));
    GS_TRY(gs_segment_lists_init(&shards->of_buckets, &cut, GS_BY_BUCKET));
    return shards->optimizers ? gs_segment_lists_init(&shards->of_optimizers, &cut, GS_BY_OPTIMIZER)
                              : gs_ok();
}

static gs_status count_elements(gs_shards *shards) {
    shards->elements = calloc((size_t)shards->world_size, sizeof *shards->elements);
    if (!shards->elements) return out_of_memory();
    for (int rank = 0; rank < shards->world_size; rank++) {
        size_t num_segments;
        const gs_segment *segments = gs_shards_of_rank(shards, rank, &num_segments);
        for (size_t i = 0; i < num_segments; i++) shards->elements[rank] += segments[i].count;
    }
    return gs_ok();
}

// ---- where parameters lie

static gs_status place_params(gs_shards *shards) {
    size_t num_buckets = shards->layout.plan.num_buckets;
    shards->bucket_offset = calloc(num_buckets, sizeof *shards->bucket_offset);
    if (!shards->bucket_offset) return out_of_memory();
    for (size_t b = 0; b < num_buckets; b++) {
        size_t bytes;
        shards->bucket_offset[b] = shards->param_bytes;
        if (!gs_bytes_of(&bytes, gs_shards_bucket_count(shards, b),
                         gs_shards_element_bytes(shards, b)) ||
            bytes > SIZE_MAX / 2 ||
            __builtin_add_overflow(shards->param_bytes, gs_round_up(bytes, BLOCK_BYTES),
                                   &shards->param_bytes))
            return gs_error(GS_RESOURCE_EXHAUSTED, "shards: parameters do not fit into memory");
    }
    return gs_ok();
}

// Release after an error, too.
static gs_status build(gs_shards *shards, const gs_shards_options *options) {
    bool is_flat = options->partition == GS_PARTITION_FLAT;
    const gs_grad_layout_shape shape = {.params = options->params,
                                        .num_params = options->num_params,
                                        .num_parts = is_flat ? (size_t)options->world_size : 1};
    *shards = (gs_shards){.partition = options->partition,
                          .world_size = options->world_size,
                          .element_bytes = options->element_bytes,
                          .num_optimizers = 1};
    if (options->optimizers) {
        shards->optimizers =
            copy_list(options->optimizers, options->num_params, sizeof *options->optimizers);
        if (!shards->optimizers) return out_of_memory();
        for (size_t i = 0; i < options->num_params; i++)
            if (options->optimizers[i] >= shards->num_optimizers)
                shards->num_optimizers = options->optimizers[i] + 1;
    }
    if (options->trainable) {
        shards->trainable =
            copy_list(options->trainable, options->num_params, sizeof *options->trainable);
        if (!shards->trainable) return out_of_memory();
    }
    GS_TRY(gs_grad_layout_init(&shards->layout, &shape, NULL));
    GS_TRY(gs_grad_layout_set_plan(&shards->layout, options->plan));
    GS_TRY(choose_owners(shards, options->owners));
    GS_TRY(list_runs(shards));
    GS_TRY(list_segments(shards));
    GS_TRY(count_elements(shards));
    return place_params(shards);
}

gs_status gs_shards_create_sized(gs_shards **out, const gs_shards_options *options,
                                 size_t options_bytes) {
    gs_shards_options known;
    *out = NULL;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_shards_options"));
    GS_TRY(check(&known));
    gs_shards *shards = calloc(1, sizeof *shards);
    if (!shards) return out_of_memory();
    gs_status status = build(shards, &known);
    if (status.code)
        gs_shards_destroy(shards);
    else
        *out = shards;
    return status;
}

void gs_shards_destroy(gs_shards *shards) {
    if (!shards) return;
    release(shards);
    free(shards);
}

gs_status gs_shards_redo(gs_shards *shards, int world_size, const gs_bucket_plan *plan,
                         const int *owners) {
    const gs_shards_options options = {.partition = shards->partition,
                                       .owners = owners,
                                       .trainable = shards->trainable,
                                       .plan = plan ? plan : &shards->layout.plan,
                                       .params = shards->layout.params,
                                       .num_params = shards->layout.num_params,
                                       .world_size = world_size,
                                       .element_bytes = shards->element_bytes,
                                       .optimizers = shards->optimizers};
    gs_shards next = {0};
    GS_TRY(check(&options));
    gs_status status = build(&next, &options);
    if (status.code) {
        release(&next);
        return status;
    }
    release(shards);
    *shards = next;
    return gs_ok();
}

// ---- what it says

int gs_shards_world_size(const gs_shards *shards) {
    return shards->world_size;
}

size_t gs_shards_num_params(const gs_shards *shards) {
    return shards->layout.num_params;
}

const gs_bucket_plan *gs_shards_plan(const gs_shards *shards) {
    return &shards->layout.plan;
}

gs_partition gs_shards_partition(const gs_shards *shards) {
    return shards->partition;
}

const int *gs_shards_owners(const gs_shards *shards) {
    return shards->owners;
}

const gs_segment *gs_shards_of_rank(const gs_shards *shards, int rank, size_t *num_segments) {
    return gs_segment_lists_of(&shards->of_ranks, (size_t)rank, num_segments);
}

const gs_segment *gs_shards_of_bucket(const gs_shards *shards, size_t bucket, int rank,
                                      size_t *num_segments) {
    return gs_segment_lists_of(&shards->of_buckets,
                               bucket * (size_t)shards->world_size + (size_t)rank, num_segments);
}

int gs_shards_num_optimizers(const gs_shards *shards) {
    return shards->num_optimizers;
}

const gs_segment *gs_shards_of_optimizer(const gs_shards *shards, int rank, int optimizer,
                                         size_t *num_segments) {
    if (!shards->optimizers) return gs_shards_of_rank(shards, rank, num_segments);
    size_t key = (size_t)rank * (size_t)shards->num_optimizers + (size_t)optimizer;
    return gs_segment_lists_of(&shards->of_optimizers, key, num_segments);
}

static void point(void **out, const gs_segment *segments, size_t num_segments, void *const *tensors,
                  size_t element_bytes) {
    for (size_t i = 0; i < num_segments; i++)
        out[i] = (char *)tensors[segments[i].tensor] + segments[i].first * element_bytes;
}

void gs_shards_point(void **out, const gs_shards *shards, int rank, void *const *tensors,
                     size_t element_bytes) {
    size_t num_segments;
    const gs_segment *segments = gs_shards_of_rank(shards, rank, &num_segments);
    point(out, segments, num_segments, tensors, element_bytes);
}

void gs_shards_point_optimizer(void **out, const gs_shards *shards, int rank, int optimizer,
                               void *const *tensors, size_t element_bytes) {
    size_t num_segments;
    const gs_segment *segments = gs_shards_of_optimizer(shards, rank, optimizer, &num_segments);
    point(out, segments, num_segments, tensors, element_bytes);
}

size_t gs_shards_elements(const gs_shards *shards, int rank) {
    return shards->elements[rank];
}

size_t gs_shards_most_elements(const gs_shards *shards) {
    size_t most = 0;
    for (int rank = 0; rank < shards->world_size; rank++)
        if (shards->elements[rank] > most) most = shards->elements[rank];
    return most;
}

const gs_shard_run *gs_shards_runs(const gs_shards *shards, size_t bucket, size_t *num_runs) {
    *num_runs = shards->first_run[bucket + 1] - shards->first_run[bucket];
    return shards->runs + shards->first_run[bucket];
}

size_t gs_shards_most_runs(const gs_shards *shards) {
    return shards->most_runs;
}

size_t gs_shards_param_bytes(const gs_shards *shards) {
    return shards->param_bytes;
}

size_t gs_shards_param_offset(const gs_shards *shards, size_t param) {
    size_t bucket = shards->layout.bucket_of[param];
    return shards->bucket_offset[bucket] + gs_shard_first_in_bucket(&shards->layout, param) *
                                               gs_shards_element_bytes(shards, bucket);
}

size_t gs_shards_bucket_offset(const gs_shards *shards, size_t bucket) {
    return shards->bucket_offset[bucket];
}

size_t gs_shards_bucket_count(const gs_shards *shards, size_t bucket) {
    return shards->layout.buckets[bucket].grad_count;
}

size_t gs_shards_element_bytes(const gs_shards *shards, size_t bucket) {
    if (shards->element_bytes) return shards->element_bytes;
    return gs_dtype_bytes(shards->layout.plan.buckets[bucket].dtype);
}

gs_digest gs_shards_digest(const gs_shards *shards) {
    const gs_grad_layout *layout = &shards->layout;
    size_t num_segments = shards->of_ranks.first[shards->world_size];
    gs_digest params = gs_param_specs_digest(layout->params, layout->num_params);
    gs_digest plan = gs_bucket_plan_digest(&layout->plan);
    gs_digest segments = gs_segments_digest(shards->of_ranks.segments, num_segments);
    gs_digest cuts =
        gs_digest_of(shards->of_ranks.first, (size_t)shards->world_size * sizeof(size_t));
    gs_digest optimizers = {0};
    if (shards->optimizers)
        optimizers =
            gs_digest_of(shards->optimizers, layout->num_params * sizeof *shards->optimizers);
    const uint64_t words[] = {(uint64_t)shards->partition,
                              (uint64_t)shards->world_size,
                              shards->element_bytes,
                              params.high,
                              params.low,
                              plan.high,
                              plan.low,
                              segments.high,
                              segments.low,
                              cuts.high,
                              cuts.low,
                              optimizers.high,
                              optimizers.low};
    return gs_digest_of(words, sizeof words);
}
