#include "core/owner_buckets.h"

#include <stdlib.h>

typedef struct taking {
    const int *owner;
    const size_t *counts;
} taking;

static int compare_places(const void *a, const void *b, void *ctx) {
    size_t left = ((const gs_owner_place *)a)->param, right = ((const gs_owner_place *)b)->param;
    const taking *by = ctx;
    if (by->counts[left] != by->counts[right]) return by->counts[left] < by->counts[right] ? -1 : 1;
    if (by->owner[left] != by->owner[right]) return by->owner[left] < by->owner[right] ? -1 : 1;
    return left < right ? -1 : left > right;
}

static gs_status check_list(size_t *total, const int *owner, const gs_owner_request *request) {
    *total = 0;
    if (request->world_size < 1)
        return gs_error(GS_INVALID_ARGUMENT, "owner buckets: %d ranks", request->world_size);
    for (size_t i = 0; i < request->num_params; i++) {
        if (owner[i] < 0 || owner[i] >= request->world_size)
            return gs_error(GS_INVALID_ARGUMENT, "owner buckets: parameter %zu is rank %d's of %d",
                            i, owner[i], request->world_size);
        if (__builtin_add_overflow(*total, request->counts[i], total))
            return gs_error(GS_INVALID_ARGUMENT,
                            "owner buckets: more elements than can be counted");
    }
    return gs_ok();
}

static size_t list_places(gs_owner_place *places, const gs_owner_request *request) {
    size_t num_places = 0;
    for (size_t i = 0; i < request->num_params; i++) {
        if (!request->trainable || request->trainable[i])
            places[num_places++] = (gs_owner_place){.param = i, .bucket = GS_NO_BUCKET};
    }
    return num_places;
}

// The bucket of an owner, new on first use. bucket_of: one more than its number.
static size_t bucket_for(gs_owner_buckets *plan, size_t *bucket_of, int owner) {
    if (!bucket_of[owner]) {
        plan->buckets[plan->num_buckets++] = (gs_owner_bucket){.owner = owner};
        bucket_of[owner] = plan->num_buckets;
    }
    return bucket_of[owner] - 1;
}

static void fill_buckets(gs_owner_buckets *plan, size_t *bucket_of, const taking *by) {
    for (size_t i = 0; i < plan->num_places && plan->capacity; i++) {
        gs_owner_place *place = &plan->places[i];
        size_t count = by->counts[place->param];
        size_t b = bucket_for(plan, bucket_of, by->owner[place->param]);
        gs_owner_bucket *bucket = &plan->buckets[b];
        if (count >= plan->capacity - bucket->count) continue;
        place->bucket = b;
        place->offset = bucket->count;
        bucket->count += count;
    }
}

gs_status gs_owner_buckets_plan(gs_owner_buckets *out, const int *owner,
                                const gs_owner_request *request, size_t capacity) {
    gs_owner_buckets plan = {0};
    taking by = {owner, request->counts};
    size_t total;
    GS_TRY(check_list(&total, owner, request));
    plan.capacity = request->world_size == 1 ? 0 : capacity < total ? capacity : total;
    plan.places = calloc(request->num_params + 1, sizeof *plan.places);
    plan.buckets = calloc((size_t)request->world_size, sizeof *plan.buckets);
    size_t *bucket_of = calloc((size_t)request->world_size, sizeof *bucket_of);
    if (!plan.places || !plan.buckets || !bucket_of) {
        free(bucket_of);
        gs_owner_buckets_release(&plan);
        return gs_error(GS_RESOURCE_EXHAUSTED, "owner buckets: out of memory");
    }
    plan.num_places = list_places(plan.places, request);
    qsort_r(plan.places, plan.num_places, sizeof *plan.places, compare_places, &by);
    fill_buckets(&plan, bucket_of, &by);
    free(bucket_of);
    *out = plan;
    return gs_ok();
}

void gs_owner_buckets_release(gs_owner_buckets *buckets) {
    if (!buckets) return;
    free(buckets->places);
    free(buckets->buckets);
    *buckets = (gs_owner_buckets){0};
}

// ---- as a plan

// What is reduced at once: places[first], and those of its bucket.
typedef struct group {
    size_t bucket;  // GS_NO_BUCKET: alone
    size_t place;   // its first
    size_t last;    // of its parameters the one whose gradient comes last
} group;

static int compare_groups(const void *a, const void *b) {
    size_t left = ((const group *)a)->last, right = ((const group *)b)->last;
    return left < right ? 1 : left > right ? -1 : 0;
}

static size_t list_groups(group *groups, size_t *group_of, const gs_owner_buckets *buckets) {
    size_t num_groups = 0;
    for (size_t i = 0; i < buckets->num_places; i++) {
        const gs_owner_place *place = &buckets->places[i];
        bool joins = place->bucket != GS_NO_BUCKET && group_of[place->bucket];
        if (!joins) groups[num_groups++] = (group){place->bucket, i, place->param};
        if (place->bucket == GS_NO_BUCKET) continue;
        if (!joins) group_of[place->bucket] = num_groups;
        group *of = &groups[group_of[place->bucket] - 1];
        if (place->param < of->last) of->last = place->param;
    }
    qsort(groups, num_groups, sizeof *groups, compare_groups);
    return num_groups;
}

static void add_group(gs_bucket_plan *plan, const group *of, const gs_owner_buckets *buckets,
                      const gs_param_spec *params) {
    gs_plan_bucket *bucket = &plan->buckets[plan->num_buckets++];
    *bucket = (gs_plan_bucket){.limit_bytes = buckets->capacity * sizeof(float),
                               .dtype = params[buckets->places[of->place].param].dtype,
                               .first = plan->num_params};
    for (size_t i = of->place; i < buckets->num_places; i++) {
        const gs_owner_place *place = &buckets->places[i];
        bool is_of = i == of->place || (of->bucket != GS_NO_BUCKET && place->bucket == of->bucket);
        if (!is_of) continue;
        plan->params[plan->num_params++] = place->param;
        bucket->num_params++;
        bucket->bytes += gs_param_spec_grad_bytes(&params[place->param]);
    }
}

gs_status gs_owner_buckets_to_plan(gs_bucket_plan *out, const gs_owner_buckets *buckets,
                                   const gs_param_spec *params, size_t num_params) {
    gs_bucket_plan plan = {.buckets = calloc(num_params + 1, sizeof *plan.buckets),
                           .params = calloc(num_params + 1, sizeof *plan.params)};
    group *groups = calloc(num_params + 1, sizeof *groups);
    size_t *group_of = calloc(buckets->num_buckets + 1, sizeof *group_of);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "owner buckets: out of memory");
    if (plan.buckets && plan.params && groups && group_of) {
        status =
            buckets->num_places == num_params
                ? gs_ok()
                : gs_error(GS_INVALID_ARGUMENT, "owner buckets: %zu of %zu parameters have a place",
                           buckets->num_places, num_params);
        size_t num_groups = status.code ? 0 : list_groups(groups, group_of, buckets);
        for (size_t i = 0; i < num_groups; i++) add_group(&plan, &groups[i], buckets, params);
        if (!status.code) status = gs_bucket_plan_check(&plan, params, num_params);
    }
    free(groups);
    free(group_of);
    if (status.code)
        gs_bucket_plan_release(&plan);
    else
        *out = plan;
    return status;
}
