#include "gradsync/sharded/shard_reduce.h"

#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/comm/same_words.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/sharded/shards.h"

typedef struct shard_reduce {
    const gs_shards *shards;  // the caller's
    bool is_flat;
    int rank, world_size;
    gs_dtype wire_dtype;
    bool sends_copy;
    void **wires;  // of each bucket of the plan: room for its gradients in the wire dtype, or NULL
} shard_reduce;

// A GPU's library sends the 16 bits, and needs memory for them; the host rounds while it reduces.
static bool sends_copy(const gs_hook_setup *setup) {
    return setup->wire_dtype && (!setup->device || !gs_device_is_host(setup->device));
}

static bool is_flat(const gs_shards *shards) {
    return !gs_shards_owners(shards);
}

// As gs_hook_most_bytes, of buckets that are padded to even parts.
static size_t most_wire_bytes(const gs_hook_setup *setup, size_t num_parts) {
    size_t total = 0, element_bytes = gs_dtype_bytes(setup->wire_dtype);
    for (size_t i = 0; i < setup->num_params; i++) {
        const gs_hook_param *param = &setup->params[i];
        size_t even =
            gs_round_up(param->room, num_parts * GS_LINE_BYTES / gs_dtype_bytes(param->dtype));
        if (param->room > SIZE_MAX / 16 ||
            __builtin_add_overflow(total, gs_round_up(even * element_bytes, GS_HOOK_PLACE_BYTES),
                                   &total))
            return SIZE_MAX;
    }
    return total;
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    const gs_shards *shards = setup->choice->user;
    if (!shards)
        return gs_error(GS_INVALID_ARGUMENT,
                        "has no shards: gs_hook_choice.user says who owns what");
    if (gs_shards_num_params(shards) != setup->num_params)
        return gs_error(GS_INVALID_ARGUMENT, "has shards of %zu parameters, there are %zu",
                        gs_shards_num_params(shards), setup->num_params);
    if (gs_shards_most_runs(shards) > GS_HOOK_MAX_POSTS && !is_flat(shards))
        return gs_error(GS_INVALID_ARGUMENT,
                        "a bucket changes its owner %zu times, at most %d: plan with one owner for "
                        "each bucket",
                        gs_shards_most_runs(shards), GS_HOOK_MAX_POSTS);
    *needs = (gs_hook_needs){.num_phases = 1,
                             .most_posts = is_flat(shards) ? 1 : (int)gs_shards_most_runs(shards),
                             .narrows = setup->wire_dtype != GS_DTYPE_UNSET,
                             .even_parts = is_flat(shards)};
    if (sends_copy(setup))
        needs->bucket_bytes =
            most_wire_bytes(setup, is_flat(shards) ? (size_t)setup->world_size : 1);
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    shard_reduce *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->shards = setup->choice->user;
    self->wire_dtype = setup->wire_dtype;
    self->sends_copy = sends_copy(setup);
    *state = self;
    return gs_ok();
}

// The shards are of this plan: its members lie where those think that they do.
static gs_status check_plan(const gs_shards *shards, const gs_hook_plan *plan) {
    const gs_bucket_plan *ours = gs_shards_plan(shards);
    int world_size = gs_comm_world_size(plan->comm);
    if (gs_shards_world_size(shards) != world_size)
        return gs_error(GS_FAILED_PRECONDITION,
                        "its shards are of %d ranks, the communicator has %d: gs_shards_redo goes "
                        "before",
                        gs_shards_world_size(shards), world_size);
    bool same = ours->num_buckets == plan->num_buckets;
    for (size_t b = 0; b < plan->num_buckets && same; b++) {
        const gs_hook_layout *bucket = &plan->buckets[b];
        same = bucket->num_params == ours->buckets[b].num_params &&
               bucket->count == gs_shards_bucket_count(shards, b);
        for (size_t i = 0; i < bucket->num_params && same; i++)
            same = bucket->params[i].index == ours->params[ours->buckets[b].first + i];
    }
    if (same) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION,
                    "its shards are of another plan: gs_shards_redo goes before");
}

static gs_status place_wires(shard_reduce *self, const gs_hook_plan *plan) {
    void **wires = calloc(plan->num_buckets, sizeof *wires);
    if (!wires) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    free(self->wires);
    self->wires = wires;
    for (size_t b = 0; b < plan->num_buckets && self->sends_copy; b++) {
        const gs_hook_layout *bucket = &plan->buckets[b];
        if (bucket->hook == plan->hook)
            GS_TRY(
                gs_hook_place(&wires[b], plan, bucket->count * gs_dtype_bytes(self->wire_dtype)));
    }
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    shard_reduce *self = state;
    GS_TRY(check_plan(self->shards, plan));
    self->is_flat = is_flat(self->shards);
    self->rank = gs_comm_rank(plan->comm);
    self->world_size = gs_comm_world_size(plan->comm);
    gs_digest digest = gs_shards_digest(self->shards);
    const gs_same_word words[] = {{"partition", gs_shards_partition(self->shards), false},
                                  {"owner of some element", (int64_t)gs_digest_fold(digest), true}};
    GS_TRY(gs_same_words_check(words, 2, plan->comm, plan->deadline));
    return place_wires(self, plan);
}

// Elements from `first` on, `count` of them for each rank, or for `root`.
static gs_status post(const shard_reduce *self, const gs_hook_bucket *bucket, gs_hook_work *work,
                      gs_collective *collective, size_t first) {
    char *data = (char *)bucket->data + first * gs_dtype_bytes(bucket->dtype);
    collective->send = data;
    collective->dtype = bucket->dtype;
    collective->op = GS_OP_SUM;
    collective->tree = bucket->tree;
    collective->part_stride_bytes = bucket->part_stride_bytes;
    collective->wire_dtype = self->wire_dtype;
    if (self->wire_dtype)
        collective->wire_scale = (float)bucket->scale;
    else
        collective->scale = bucket->scale;
    char *wire = self->wires[bucket->index];
    if (wire) collective->wire = wire + first * gs_dtype_bytes(self->wire_dtype);
    return gs_hook_post(work, bucket, collective);
}

static gs_status reduce_even(const shard_reduce *self, const gs_hook_bucket *bucket,
                             gs_hook_work *work) {
    size_t each = bucket->count / (size_t)self->world_size;
    char *own = (char *)bucket->data + (size_t)self->rank * each * gs_dtype_bytes(bucket->dtype);
    gs_collective part = {.kind = GS_REDUCE_SCATTER, .recv = own, .count = each};
    return each ? post(self, bucket, work, &part, 0) : gs_ok();
}

static gs_status reduce_runs(const shard_reduce *self, const gs_hook_bucket *bucket,
                             gs_hook_work *work) {
    size_t num_runs;
    const gs_shard_run *runs = gs_shards_runs(self->shards, (size_t)bucket->index, &num_runs);
    for (size_t i = 0; i < num_runs; i++) {
        char *data = (char *)bucket->data + runs[i].first * gs_dtype_bytes(bucket->dtype);
        gs_collective run = {
            .kind = GS_REDUCE, .recv = data, .count = runs[i].count, .root = runs[i].owner};
        GS_TRY(post(self, bucket, work, &run, runs[i].first));
    }
    return gs_ok();
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const shard_reduce *self = state;
    return self->is_flat ? reduce_even(self, bucket, work) : reduce_runs(self, bucket, work);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)deadline;
    const shard_reduce *self = state;
    result->is_partial = true;
    result->segments =
        gs_shards_of_bucket(self->shards, (size_t)bucket->index, self->rank, &result->num_segments);
    return gs_ok();
}

static void destroy(void *state) {
    shard_reduce *self = state;
    if (self) free(self->wires);
    free(self);
}

const gs_comm_hook gs_hook_shard_reduce = {.name = "shard_reduce",
                                           .measure = measure,
                                           .create = create,
                                           .on_plan = on_plan,
                                           .run = run,
                                           .finish = finish,
                                           .commit = gs_hook_decide_nothing,
                                           .rollback = gs_hook_decide_nothing,
                                           .tensor = gs_hook_no_tensor,
                                           .loaded = gs_hook_load_nothing,
                                           .destroy = destroy};

const gs_comm_hook *gs_shard_reduce_hook(void) {
    return &gs_hook_shard_reduce;
}
