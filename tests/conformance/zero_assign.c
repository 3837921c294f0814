// zero-assign: which rank updates which part of which bucket when updates overlap with reductions.
// Where the original runs out of ranks, every parameter is to have one rank all the same.
#include <stdbool.h>
#include <stdlib.h>

#include <json-c/json.h>

#include "core/overlap_assignment.h"
#include "tests/conformance/conformance.h"

// Buckets of a case as a plan; elements of each parameter.
typedef struct overlap_case {
    gs_bucket_plan plan;
    size_t *counts;
    int world_size;
    bool split;
} overlap_case;

static struct json_object *member(struct json_object *item, const char *key) {
    return json_object_object_get(item, key);
}

static struct json_object *at(struct json_object *list, size_t index) {
    return json_object_array_get_idx(list, index);
}

static size_t number_at(struct json_object *list, size_t index) {
    return json_object_get_uint64(at(list, index));
}

// `buckets` lists the parameters of each; without it they are numbered as they come.
static gs_status read_case(overlap_case *made, struct json_object *item) {
    struct json_object *elements = member(item, "bucket_numel"), *buckets = member(item, "buckets");
    size_t num_buckets = json_object_array_length(elements), num_params = 0;
    for (size_t b = 0; b < num_buckets; b++)
        num_params += json_object_array_length(at(elements, b));
    *made = (overlap_case){.plan = {.num_buckets = num_buckets,
                                    .num_params = num_params,
                                    .buckets = calloc(num_buckets + 1, sizeof *made->plan.buckets),
                                    .params = calloc(num_params + 1, sizeof *made->plan.params)},
                           .counts = calloc(num_params + 1, sizeof *made->counts),
                           .world_size = json_object_get_int(member(item, "world")),
                           .split = json_object_get_int(member(item, "shard_buckets")) != 0};
    if (!made->plan.buckets || !made->plan.params || !made->counts)
        return gs_error(GS_RESOURCE_EXHAUSTED, "buckets: out of memory");
    for (size_t b = 0, place = 0; b < num_buckets; b++) {
        gs_plan_bucket *bucket = &made->plan.buckets[b];
        bucket->first = place;
        bucket->num_params = json_object_array_length(at(elements, b));
        for (size_t i = 0; i < bucket->num_params; i++, place++) {
            size_t param = buckets ? number_at(at(buckets, b), i) : place;
            if (param >= num_params)
                return gs_error(GS_INVALID_ARGUMENT, "there is no parameter %zu", param);
            made->plan.params[place] = param;
            made->counts[param] = number_at(at(elements, b), i);
        }
    }
    return gs_ok();
}

static int compare_ranks(const void *a, const void *b) {
    const gs_overlap_run *left = a, *right = b;
    if (left->bucket != right->bucket) return left->bucket < right->bucket ? -1 : 1;
    return left->rank < right->rank ? -1 : left->rank > right->rank;
}

static gs_status compare_runs(const gs_overlap_assignment *ours, struct json_object *item) {
    struct json_object *wanted = member(item, "assignments"),
                       *offsets = member(item, "offset_in_rank");
    if (ours->num_runs != json_object_array_length(wanted))
        return gs_error(GS_DATA_LOSS, "%zu runs, expected %zu", ours->num_runs,
                        json_object_array_length(wanted));
    qsort(ours->runs, ours->num_runs, sizeof *ours->runs, compare_ranks);
    for (size_t i = 0; i < ours->num_runs; i++) {
        const gs_overlap_run *run = &ours->runs[i];
        struct json_object *row = at(wanted, i);
        if (run->bucket != number_at(row, 0) || (size_t)run->rank != number_at(row, 1) ||
            run->first != number_at(row, 2) || run->num_params != number_at(row, 3))
            return gs_error(GS_DATA_LOSS, "run %zu: [%zu,%d,%zu,%zu], expected %s", i, run->bucket,
                            run->rank, run->first, run->num_params,
                            json_object_to_json_string(row));
        size_t offset = number_at(at(offsets, (size_t)run->rank), run->bucket);
        if (run->rank_first != offset)
            return gs_error(GS_DATA_LOSS, "bucket %zu begins at %zu of rank %d, expected %zu",
                            run->bucket, run->rank_first, run->rank, offset);
    }
    return gs_ok();
}

// Each rank's own list, where the case has it.
static gs_status compare_lists(const gs_overlap_assignment *ours, const overlap_case *made,
                               struct json_object *lists) {
    for (size_t i = 0; i < ours->num_runs; i++) {
        const gs_overlap_run *run = &ours->runs[i];
        struct json_object *list = at(lists, (size_t)run->rank);
        for (size_t m = 0; m < run->num_params; m++) {
            size_t param =
                made->plan.params[made->plan.buckets[run->bucket].first + run->first + m];
            if (number_at(list, run->rank_first + m) != param)
                return gs_error(GS_DATA_LOSS, "parameter %zu is at %zu of rank %d, expected %zu",
                                param, run->rank_first + m, run->rank,
                                number_at(list, run->rank_first + m));
        }
    }
    return gs_ok();
}

// Runs of a bucket follow each other and cover it, each a rank's.
static gs_status check_valid(const gs_overlap_assignment *ours, const overlap_case *made) {
    size_t next = 0;
    for (size_t b = 0; b < made->plan.num_buckets; b++) {
        size_t covered = 0;
        for (; next < ours->num_runs && ours->runs[next].bucket == b; next++) {
            const gs_overlap_run *run = &ours->runs[next];
            if (run->first != covered || run->rank < 0 || run->rank >= made->world_size)
                return gs_error(GS_DATA_LOSS, "bucket %zu: rank %d from parameter %zu on", b,
                                run->rank, run->first);
            covered += run->num_params;
        }
        if (covered != made->plan.buckets[b].num_params)
            return gs_error(GS_DATA_LOSS, "bucket %zu: %zu parameters have a rank", b, covered);
    }
    return gs_ok();
}

static gs_status check_case(struct json_object *item) {
    overlap_case made;
    gs_overlap_assignment ours = {0};
    gs_status status = read_case(&made, item);
    if (!status.code)
        status = gs_overlap_assign(&ours, &made.plan, made.counts, made.world_size, made.split);
    if (!status.code) status = check_valid(&ours, &made);
    if (!status.code && !member(item, "error")) {
        status = compare_runs(&ours, item);
        struct json_object *lists = member(item, "params_of_rank");
        if (!status.code && lists) status = compare_lists(&ours, &made, lists);
    }
    gs_overlap_assignment_release(&ours);
    gs_bucket_plan_release(&made.plan);
    free(made.counts);
    return status;
}

gs_status conformance_zero_assign(conformance *run, char **args, int num_args) {
    static const char *const sections[] = {"trained", "assignments_only"};
    for (int f = 0; f < num_args; f++) {
        struct json_object *file;
        GS_TRY(conformance_read_json(&file, args[f]));
        for (size_t s = 0; s < 2; s++) {
            struct json_object *cases = member(file, sections[s]);
            for (size_t i = 0; cases && i < json_object_array_length(cases); i++) {
                struct json_object *item = at(cases, i);
                conformance_case(run, json_object_get_string(member(item, "name")),
                                 check_case(item));
            }
        }
        json_object_put(file);
    }
    return gs_ok();
}
