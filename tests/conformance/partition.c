// partition: which rank owns which whole tensor, and buckets of one owner. What a case has says
// what is asked: `reduce_buffer_size` for gradient buckets, `trainable` for OSS's greedy rule, else
// the sorted one. Everything is compared, and equal.
#include <stdbool.h>
#include <stdlib.h>

#include <json-c/json.h>

#include "core/owner_buckets.h"
#include "core/owner_rules.h"
#include "tests/conformance/conformance.h"

// A case's list of parameters and what the rules make of it.
typedef struct partition_case {
    size_t *counts, *group_params, *order;
    bool *trainable;
    int *owner;
    gs_owner_request request;
} partition_case;

static size_t length(struct json_object *list) {
    return list ? json_object_array_length(list) : 0;
}

static struct json_object *at(struct json_object *list, size_t index) {
    return json_object_array_get_idx(list, index);
}

static void append(struct json_object *list, size_t value) {
    json_object_array_add(list, json_object_new_uint64(value));
}

// Takes `ours`.
static gs_status expect(struct json_object *item, const char *key, struct json_object *ours) {
    struct json_object *wanted = json_object_object_get(item, key);
    gs_status status = gs_ok();
    if (!wanted)
        status = gs_error(GS_INVALID_ARGUMENT, "%s is missing", key);
    else if (!json_object_equal(ours, wanted))
        status = gs_error(GS_DATA_LOSS, "%s: %.80s, expected %.80s", key,
                          json_object_to_json_string_ext(ours, JSON_C_TO_STRING_PLAIN),
                          json_object_to_json_string_ext(wanted, JSON_C_TO_STRING_PLAIN));
    json_object_put(ours);
    return status;
}

static void release_case(partition_case *list) {
    free(list->counts);
    free(list->group_params);
    free(list->order);
    free(list->trainable);
    free(list->owner);
}

static gs_status read_case(partition_case *list, struct json_object *item) {
    struct json_object *groups = json_object_object_get(item, "groups");
    struct json_object *trainable = json_object_object_get(item, "trainable");
    size_t num_groups = length(groups), num_params = 0;
    for (size_t g = 0; g < num_groups; g++) num_params += length(at(groups, g));
    *list = (partition_case){.counts = calloc(num_params + 1, sizeof *list->counts),
                             .group_params = calloc(num_groups + 1, sizeof *list->group_params),
                             .order = calloc(num_params + 1, sizeof *list->order),
                             .trainable = calloc(num_params + 1, sizeof *list->trainable),
                             .owner = calloc(num_params + 1, sizeof *list->owner)};
    if (!list->counts || !list->group_params || !list->order || !list->trainable || !list->owner)
        return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t g = 0, p = 0; g < num_groups; g++) {
        list->group_params[g] = length(at(groups, g));
        for (size_t i = 0; i < list->group_params[g]; i++, p++) {
            list->counts[p] = json_object_get_uint64(at(at(groups, g), i));
            list->trainable[p] = !trainable || json_object_get_int(at(at(trainable, g), i)) != 0;
        }
    }
    list->request = (gs_owner_request){
        .counts = list->counts,
        .trainable = list->trainable,
        .num_params = num_params,
        .group_params = list->group_params,
        .num_groups = num_groups,
        .world_size = json_object_get_int(json_object_object_get(item, "world_size"))};
    return gs_ok();
}

// A list of one number for each rank: the sum over what it owns.
static struct json_object *sums_of_ranks(const partition_case *list, bool frozen_weigh_one) {
    struct json_object *sums = json_object_new_array();
    for (int r = 0; r < list->request.world_size; r++) {
        size_t sum = 0;
        for (size_t p = 0; p < list->request.num_params; p++) {
            if (list->owner[p] == r)
                sum += frozen_weigh_one && !list->trainable[p] ? 1 : list->counts[p];
        }
        append(sums, sum);
    }
    return sums;
}

static struct json_object *owners(const partition_case *list) {
    struct json_object *all = json_object_new_array();
    for (size_t p = 0; p < list->request.num_params; p++) append(all, (size_t)list->owner[p]);
    return all;
}

// What rank `rank` has of `count` parameters of list->order, `first` and those behind it.
static struct json_object *owned_along_order(const partition_case *list, int rank, size_t first,
                                             size_t count) {
    struct json_object *owned = json_object_new_array();
    for (size_t i = first; i < first + count; i++) {
        if (list->owner[list->order[i]] == rank) append(owned, list->order[i]);
    }
    return owned;
}

// A list for each rank and group. list->order does not mix groups.
static struct json_object *lists_of_ranks(const partition_case *list) {
    struct json_object *ranks = json_object_new_array();
    for (int r = 0; r < list->request.world_size; r++) {
        struct json_object *groups = json_object_new_array();
        for (size_t g = 0, first = 0; g < list->request.num_groups; g++) {
            json_object_array_add(groups, owned_along_order(list, r, first, list->group_params[g]));
            first += list->group_params[g];
        }
        json_object_array_add(ranks, groups);
    }
    return ranks;
}

static struct json_object *place(size_t param, size_t offset) {
    struct json_object *pair = json_object_new_array();
    append(pair, param);
    append(pair, offset);
    return pair;
}

static gs_status compare_flat_buffers(const partition_case *list, struct json_object *item) {
    size_t num_params = list->request.num_params;
    size_t *offsets = calloc(num_params + (size_t)list->request.world_size + 1, sizeof *offsets);
    if (!offsets) return gs_error(GS_RESOURCE_EXHAUSTED, "offsets: out of memory");
    gs_owners_flat(offsets, offsets + num_params, list->owner, list->order, &list->request);
    struct json_object *order = json_object_new_array(), *flat = json_object_new_array();
    for (int r = 0; r < list->request.world_size; r++) {
        struct json_object *places = json_object_new_array();
        for (size_t i = 0; i < num_params; i++) {
            size_t param = list->order[i];
            if (list->owner[param] == r && offsets[param] != GS_NOT_FLAT)
                json_object_array_add(places, place(param, offsets[param]));
        }
        json_object_array_add(flat, places);
        json_object_array_add(order, owned_along_order(list, r, 0, num_params));
    }
    free(offsets);
    gs_status status = expect(item, "order", order), flat_status = expect(item, "flat", flat);
    return status.code ? status : flat_status;
}

static gs_status check_greedy(partition_case *list, struct json_object *item) {
    GS_TRY(gs_owners_greedy(list->owner, &list->request));
    for (size_t p = 0; p < list->request.num_params; p++) list->order[p] = p;
    GS_TRY(expect(item, "owner", owners(list)));
    GS_TRY(expect(item, "per_rank", lists_of_ranks(list)));
    GS_TRY(expect(item, "weight", sums_of_ranks(list, true)));
    GS_TRY(expect(item, "numel", sums_of_ranks(list, false)));
    gs_owners_ascending(list->order, list->counts, list->request.num_params);
    return compare_flat_buffers(list, item);
}

static gs_status check_sorted(partition_case *list, struct json_object *item) {
    GS_TRY(gs_owners_sorted(list->owner, list->order, &list->request));
    GS_TRY(expect(item, "owner", owners(list)));
    GS_TRY(expect(item, "per_rank", lists_of_ranks(list)));
    return expect(item, "numel", sums_of_ranks(list, false));
}

static struct json_object *list_buckets(const gs_owner_buckets *plan) {
    struct json_object *buckets = json_object_new_array();
    for (size_t b = 0; b < plan->num_buckets; b++) {
        struct json_object *bucket = json_object_new_object(), *params = json_object_new_array();
        for (size_t i = 0; i < plan->num_places; i++) {
            if (plan->places[i].bucket == b)
                json_object_array_add(params, place(plan->places[i].param, plan->places[i].offset));
        }
        json_object_object_add(bucket, "rank", json_object_new_int(plan->buckets[b].owner));
        json_object_object_add(bucket, "numel", json_object_new_uint64(plan->buckets[b].count));
        json_object_object_add(bucket, "params", params);
        json_object_array_add(buckets, bucket);
    }
    return buckets;
}

static gs_status compare_buckets(const gs_owner_buckets *plan, const partition_case *list,
                                 struct json_object *item) {
    struct json_object *order = json_object_new_array(), *owner = json_object_new_array();
    struct json_object *bucketed = json_object_new_array();
    for (size_t i = 0; i < plan->num_places; i++) {
        append(order, plan->places[i].param);
        append(owner, (size_t)list->owner[plan->places[i].param]);
        append(bucketed, plan->places[i].bucket != GS_NO_BUCKET);
    }
    const gs_status statuses[] = {
        expect(item, "trainable_order", order),
        expect(item, "owner", owner),
        expect(item, "bucketed", bucketed),
        expect(item, "buckets", list_buckets(plan)),
        expect(item, "buffer_max", json_object_new_uint64(plan->capacity)),
        expect(item, "use_buckets", json_object_new_boolean(plan->capacity != 0)),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        if (statuses[i].code) return statuses[i];
    }
    return gs_ok();
}

static gs_status check_buckets(partition_case *list, struct json_object *item) {
    struct json_object *wanted = json_object_object_get(item, "reduce_buffer_size");
    gs_owner_buckets plan;
    GS_TRY(gs_owners_greedy(list->owner, &list->request));
    GS_TRY(
        gs_owner_buckets_plan(&plan, list->owner, &list->request, json_object_get_uint64(wanted)));
    gs_status status = compare_buckets(&plan, list, item);
    gs_owner_buckets_release(&plan);
    return status;
}

static gs_status check_case(struct json_object *item) {
    partition_case list;
    gs_status status = read_case(&list, item);
    if (!status.code) {
        bool buckets = json_object_object_get(item, "reduce_buffer_size") != NULL;
        bool greedy = json_object_object_get(item, "trainable") != NULL;
        status = buckets  ? check_buckets(&list, item)
                 : greedy ? check_greedy(&list, item)
                          : check_sorted(&list, item);
    }
    release_case(&list);
    return status;
}

gs_status conformance_partition(conformance *run, char **args, int num_args) {
    for (int f = 0; f < num_args; f++) {
        struct json_object *file;
        GS_TRY(conformance_read_json(&file, args[f]));
        struct json_object *cases = json_object_object_get(file, "cases");
        for (size_t i = 0; i < length(cases); i++) {
            struct json_object *item = at(cases, i);
            conformance_case(run, json_object_get_string(json_object_object_get(item, "id")),
                             check_case(item));
        }
        json_object_put(file);
    }
    return gs_ok();
}
