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
