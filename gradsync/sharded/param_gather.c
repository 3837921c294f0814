#include "gradsync/sharded/param_gather.h"

#include <stdlib.h>

#include "core/failpoint.h"
#include "core/options.h"
#include "gradsync/comm/same_words.h"

// A lane takes 1024; with fewer on their way the others keep their place in the caches.
#define MOST_IN_FLIGHT ((size_t)256)

struct gs_param_gather {
    gs_param_gather_options options;  // `order` is this one's
    size_t num_buckets;
    size_t *order;
    size_t *bucket_of;  // each parameter's
    void **params;
    gs_collective *posts;  // all of a start, in order
    size_t num_posts;
    size_t *end;     // of each bucket: its posts are before that one
    gs_work *works;  // of each post
    // Posts before `num_known` are known to be done; between starts that is all of them.
    size_t num_posted, num_known;
    gs_status late;  // of the last wait that failed: what others are told when it is given up
};

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "parameter gather: out of memory");
}

// What this rank alone gets wrong.
static gs_status name_rank(const gs_comm *comm, gs_status status) {
    return gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
}

// Whoever alone cannot go on must tell the ranks that wait for it.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    if (status.code) gs_comm_abort(comm, status.message);
    return status;
}

// ---- creation

static gs_status check_order(const gs_param_gather *gather) {
    uint8_t *seen = calloc(gather->num_buckets, 1);
    if (!seen) return out_of_memory();
    gs_status status = gs_ok();
    for (size_t i = 0; i < gather->num_buckets && !status.code; i++) {
        size_t bucket = gather->order[i];
        if (bucket >= gather->num_buckets || seen[bucket]++)
            status =
                gs_error(GS_INVALID_ARGUMENT,
                         "parameter gather: order: place %zu holds bucket %zu, of %zu each once", i,
                         bucket, gather->num_buckets);
    }
    free(seen);
    return status;
}

static gs_status alloc_lists(gs_param_gather *gather) {
    const gs_shards *shards = gather->options.shards;
    size_t num_buckets = gather->num_buckets, num_params = gs_shards_num_params(shards);
    for (size_t b = 0; b < num_buckets; b++) {
        size_t num_runs;
        gs_shards_runs(shards, b, &num_runs);
        gather->num_posts += num_runs;
    }
    gather->order = calloc(num_buckets, sizeof *gather->order);
    gather->end = calloc(num_buckets, sizeof *gather->end);
    gather->posts = calloc(gather->num_posts + 1, sizeof *gather->posts);
    gather->works = calloc(gather->num_posts + 1, sizeof *gather->works);
    gather->bucket_of = calloc(num_params, sizeof *gather->bucket_of);
    gather->params = calloc(num_params, sizeof *gather->params);
    if (gather->order && gather->end && gather->posts && gather->works && gather->bucket_of &&
        gather->params)
        return gs_ok();
    return out_of_memory();
}

static void fill_lists(gs_param_gather *gather) {
    const gs_shards *shards = gather->options.shards;
    const gs_bucket_plan *plan = gs_shards_plan(shards);
    const size_t *order = gather->options.order;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        gather->order[b] = order ? order[b] : plan->num_buckets - 1 - b;
        for (size_t i = 0; i < plan->buckets[b].num_params; i++)
            gather->bucket_of[plan->params[plan->buckets[b].first + i]] = b;
    }
    for (size_t i = 0; i < plan->num_params; i++)
        gather->params[i] = (char *)gather->options.params + gs_shards_param_offset(shards, i);
    gather->options.order = gather->order;
}

// Even parts: one collective of all ranks. Else one for each run.
static gs_collective *plan_bucket(gs_collective *next, const gs_param_gather *gather,
                                  size_t bucket) {
    const gs_shards *shards = gather->options.shards;
    size_t num_runs, element_bytes = gs_shards_element_bytes(shards, bucket);
    const gs_shard_run *runs = gs_shards_runs(shards, bucket, &num_runs);
    char *data = (char *)gather->options.params + gs_shards_bucket_offset(shards, bucket);
    bool is_even = !gs_shards_owners(shards);
    for (size_t i = 0; i < (is_even ? 1 : num_runs); i++) {
        const gs_shard_run *sent = is_even ? &runs[gs_comm_rank(gather->options.comm)] : &runs[i];
        char *from = data + sent->first * element_bytes;
        if (!sent->count) continue;
        *next++ = (gs_collective){.kind = is_even ? GS_ALLGATHER : GS_BROADCAST,
                                  .send = from,
                                  .recv = is_even ? data : from,
                                  .count = sent->count * element_bytes,
                                  .dtype = GS_U8,
                                  .root = is_even ? 0 : sent->owner,
                                  .bucket = (int32_t)bucket,
                                  .lane = gather->options.lane};
    }
    return next;
}

static bool changes(const gs_param_gather *gather, size_t bucket, const bool *trainable) {
    const gs_bucket_plan *plan = gs_shards_plan(gather->options.shards);
    const gs_plan_bucket *members = &plan->buckets[bucket];
    for (size_t i = 0; i < members->num_params; i++) {
        if (!trainable || trainable[plan->params[members->first + i]]) return true;
    }
    return false;
}

// What all ranks read in one memory is whole when every owner has come.
static gs_collective *plan_arrival(gs_collective *next, const gs_param_gather *gather) {
    if (next == gather->posts)
        *next++ = (gs_collective){.kind = GS_BARRIER, .bucket = -1, .lane = gather->options.lane};
    return next;
}

// What does not change is there before anything is sent.
static void plan_posts(gs_param_gather *gather, const bool *trainable) {
    gs_collective *next = gather->posts;
    for (size_t i = 0; i < gather->num_buckets; i++) {
        size_t bucket = gather->order[i];
        gather->end[bucket] = 0;
        if (!changes(gather, bucket, trainable)) continue;
        next = gather->options.are_common ? plan_arrival(next, gather)
                                          : plan_bucket(next, gather, bucket);
        gather->end[bucket] = (size_t)(next - gather->posts);
    }
    gather->num_posts = gather->num_posted = gather->num_known = (size_t)(next - gather->posts);
}

static gs_status agree(const gs_param_gather *gather, gs_deadline deadline) {
    gs_digest order = gs_digest_of(gather->order, gather->num_buckets * sizeof *gather->order);
    const gs_same_word words[] = {
        {"lane of the parameter gather", gather->options.lane, false},
        {"memory of the parameter gather", gather->options.are_common, false},
        {"partition of the parameter gather", gs_shards_partition(gather->options.shards), false},
        {"owner of some element of the parameter gather",
         (int64_t)gs_digest_fold(gs_shards_digest(gather->options.shards)), true},
        {"order of the parameter gather", (int64_t)gs_digest_fold(order), true}};
    return gs_same_words_check(words, sizeof words / sizeof *words, gather->options.comm, deadline);
}

static gs_status check(const gs_param_gather_options *options) {
    int world_size = gs_comm_world_size(options->comm);
    if (!options->shards || !options->params)
        return gs_error(GS_INVALID_ARGUMENT, "parameter gather: no %s",
                        options->shards ? "parameters" : "shards");
    if (options->lane < 0 || options->lane >= gs_comm_num_lanes(options->comm))
        return gs_error(GS_INVALID_ARGUMENT, "parameter gather: lane %d, the communicator has %d",
                        options->lane, gs_comm_num_lanes(options->comm));
    if (gs_shards_world_size(options->shards) != world_size)
        return gs_error(GS_INVALID_ARGUMENT,
                        "parameter gather: shards of %d ranks, the communicator has %d",
                        gs_shards_world_size(options->shards), world_size);
    return gs_ok();
}

static gs_status build(gs_param_gather *gather) {
    GS_TRY(check(&gather->options));
    gather->num_buckets = gs_shards_plan(gather->options.shards)->num_buckets;
    GS_TRY(alloc_lists(gather));
    fill_lists(gather);
    GS_TRY(check_order(gather));
    plan_posts(gather, NULL);
    return gs_ok();
}

gs_status gs_param_gather_create_sized(gs_param_gather **out,
                                       const gs_param_gather_options *options, size_t options_bytes,
                                       gs_deadline deadline) {
    gs_param_gather_options known;
    *out = NULL;
    gs_status status =
        gs_options_take(&known, sizeof known, options, options_bytes, "gs_param_gather_options");
    if (!known.comm)
        return status.code ? status
                           : gs_error(GS_INVALID_ARGUMENT, "parameter gather: no communicator");
    gs_param_gather *gather = status.code ? NULL : calloc(1, sizeof *gather);
    if (!status.code && !gather) status = out_of_memory();
    if (!status.code) {
        gather->options = known;
        status = build(gather);
    }
    status = name_rank(known.comm, status);
    if (!status.code) status = agree(gather, deadline);
    status = tell_others(known.comm, status);
    if (status.code)
        gs_param_gather_destroy(gather);
    else
        *out = gather;
    return status;
}

static bool is_under_way(const gs_param_gather *gather) {
    return gather->num_known < gather->num_posts;
}

static gs_status check_idle(const gs_param_gather *gather) {
    if (!is_under_way(gather)) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "parameters of step %lld are still on their way",
                    (long long)gather->posts[0].step);
}

void gs_param_gather_destroy(gs_param_gather *gather) {
    if (!gather) return;
    if (is_under_way(gather))
        gs_comm_let_go(gather->options.comm,
                       gather->late.code ? gather->late.message
                                         : "parameters were on their way when their gather ended");
    free(gather->order);
    free(gather->end);
    free(gather->posts);
    free(gather->works);
    free(gather->bucket_of);
    free(gather->params);
    free(gather);
}

void *const *gs_param_gather_params(const gs_param_gather *gather) {
    return gather->params;
}

// As many as may be on their way.
static gs_status post_more(gs_param_gather *gather) {
    gs_comm *comm = gather->options.comm;
    while (gather->num_known < gather->num_posted &&
           gs_comm_done(comm, gather->works[gather->num_known]))
        gather->num_known++;
    while (gather->num_posted < gather->num_posts &&
           gather->num_posted - gather->num_known < MOST_IN_FLIGHT) {
        GS_FAILPOINT("sharded.gather");
        GS_TRY(gs_comm_post(comm, &gather->works[gather->num_posted],
                            &gather->posts[gather->num_posted]));
        gather->num_posted++;
    }
    return gs_ok();
}

// Until the posts before `end` are done. Of one lane: all before one that is done are.
static gs_status await(gs_param_gather *gather, size_t end, gs_deadline deadline) {
    while (gather->num_known < end) {
        size_t target = end < gather->num_posted ? end : gather->num_posted;
        gs_status status = gs_comm_wait(gather->options.comm, gather->works[target - 1], deadline);
        if (status.code) {
            gather->late = gs_status_prefix(status, "parameters");
            return gather->late;
        }
        gather->num_known = target;
        GS_TRY(post_more(gather));
    }
    return gs_ok();
}

static gs_status start(gs_param_gather *gather, int64_t step) {
    GS_TRY(name_rank(gather->options.comm,
                     gs_status_prefix(check_idle(gather), "step %lld", (long long)step)));
    for (size_t i = 0; i < gather->num_posts; i++) gather->posts[i].step = step;
    gather->num_posted = gather->num_known = 0;
    return post_more(gather);
}

gs_status gs_param_gather_start(gs_param_gather *gather, int64_t step) {
    return tell_others(gather->options.comm, start(gather, step));
}

gs_status gs_param_gather_set_trainable(gs_param_gather *gather, const bool *trainable) {
    gs_comm *comm = gather->options.comm;
    GS_TRY(tell_others(comm, name_rank(comm, check_idle(gather))));
    plan_posts(gather, trainable);
    return gs_ok();
}

gs_status gs_param_gather_wait(gs_param_gather *gather, size_t param, gs_deadline deadline) {
    if (param >= gs_shards_num_params(gather->options.shards))
        return gs_error(GS_INVALID_ARGUMENT, "parameter gather: there is no parameter %zu", param);
    return await(gather, gather->end[gather->bucket_of[param]], deadline);
}

gs_status gs_param_gather_finish(gs_param_gather *gather, gs_deadline deadline) {
    return await(gather, gather->num_posts, deadline);
}

gs_status gs_param_gather_progress(gs_param_gather *gather) {
    if (!is_under_way(gather)) return gs_ok();
    GS_TRY(gs_comm_progress(gather->options.comm));
    return post_more(gather);
}
