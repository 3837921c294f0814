#include "gradsync/sharded/shard_segments.h"

#include <stdlib.h>

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "shards: out of memory");
}

size_t gs_shard_first_in_bucket(const gs_grad_layout *layout, size_t param) {
    const gs_bucket *bucket = &layout->buckets[layout->bucket_of[param]];
    return (layout->offset_bytes[param] - bucket->offset_bytes) / bucket->element_bytes;
}

// The pieces of a parameter, one for each owner, in order of their elements.
static size_t cut_param(gs_segment *pieces, int *owners, const gs_shard_cut *cut, size_t param) {
    const gs_grad_layout *layout = cut->layout;
    size_t count = layout->counts[param], num_pieces = 0;
    if (!count) return 0;
    if (cut->owners) {
        pieces[0] = (gs_segment){param, 0, count};
        owners[0] = cut->owners[param];
        return 1;
    }
    const gs_bucket *bucket = &layout->buckets[layout->bucket_of[param]];
    size_t first = gs_shard_first_in_bucket(layout, param), end = first + count;
    size_t each = bucket->grad_count / (size_t)cut->world_size;
    for (size_t at = first; at < end; num_pieces++) {
        size_t rank = at / each, until = (rank + 1) * each < end ? (rank + 1) * each : end;
        pieces[num_pieces] = (gs_segment){param, at - first, until - at};
        owners[num_pieces] = (int)rank;
        at = until;
    }
    return num_pieces;
}

typedef struct listing {
    const gs_shard_cut *cut;
    gs_shard_key by;
    gs_segment *pieces;  // room for those of one parameter
    int *owners;
} listing;

static size_t count_keys(const gs_shard_cut *cut, gs_shard_key by) {
    size_t world_size = (size_t)cut->world_size;
    if (by == GS_BY_RANK) return world_size;
    if (by == GS_BY_OPTIMIZER) return world_size * (size_t)cut->num_optimizers;
    return world_size * cut->layout->plan.num_buckets;
}

static size_t key_of(const listing *how, size_t param, int owner) {
    const gs_shard_cut *cut = how->cut;
    if (how->by == GS_BY_RANK) return (size_t)owner;
    if (how->by == GS_BY_OPTIMIZER)
        return (size_t)owner * (size_t)cut->num_optimizers + (size_t)cut->optimizers[param];
    return cut->layout->bucket_of[param] * (size_t)cut->world_size + (size_t)owner;
}

// Counts the pieces of each key, or puts them where the keys' lists begin: `next`, by key.
static void visit_pieces(const listing *how, size_t *next, gs_segment *out) {
    const gs_grad_layout *layout = how->cut->layout;
    for (size_t i = 0; i < layout->num_params; i++) {
        size_t param = how->by == GS_BY_BUCKET ? layout->plan.params[i] : i;
        size_t num = cut_param(how->pieces, how->owners, how->cut, param);
        for (size_t k = 0; k < num; k++) {
            size_t *at = &next[key_of(how, param, how->owners[k])];
            if (out) out[*at] = how->pieces[k];
            ++*at;
        }
    }
}

// Counts stand one place ahead of their key, so that they become beginnings, and, when all is put,
// ends: of the key before, that is, beginnings again.
static gs_status list_segments(gs_segment_lists *lists, const listing *how) {
    size_t num_keys = count_keys(how->cut, how->by);
    lists->first = calloc(num_keys + 2, sizeof *lists->first);
    if (!lists->first) return out_of_memory();
    visit_pieces(how, lists->first + 2, NULL);
    for (size_t key = 0; key < num_keys; key++) lists->first[key + 2] += lists->first[key + 1];
    lists->segments = calloc(lists->first[num_keys + 1] + 1, sizeof *lists->segments);
    if (!lists->segments) return out_of_memory();
    visit_pieces(how, lists->first + 1, lists->segments);
    return gs_ok();
}

gs_status gs_segment_lists_init(gs_segment_lists *lists, const gs_shard_cut *cut, gs_shard_key by) {
    size_t world_size = (size_t)cut->world_size;
    listing how = {.cut = cut,
                   .by = by,
                   .pieces = calloc(world_size, sizeof *how.pieces),
                   .owners = calloc(world_size, sizeof *how.owners)};
    *lists = (gs_segment_lists){0};
    gs_status status = how.pieces && how.owners ? list_segments(lists, &how) : out_of_memory();
    free(how.pieces);
    free(how.owners);
    return status;
}

void gs_segment_lists_release(gs_segment_lists *lists) {
    free(lists->segments);
    free(lists->first);
    *lists = (gs_segment_lists){0};
}

const gs_segment *gs_segment_lists_of(const gs_segment_lists *lists, size_t key,
                                      size_t *num_segments) {
    *num_segments = lists->first[key + 1] - lists->first[key];
    return lists->segments + lists->first[key];
}
