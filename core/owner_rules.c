#include "core/owner_rules.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// What a parameter weighs when it is dealt out.
typedef size_t weigh(const gs_owner_request *request, size_t param);

static bool is_trainable(const gs_owner_request *request, size_t param) {
    return !request->trainable || request->trainable[param];
}

static size_t weigh_elements(const gs_owner_request *request, size_t param) {
    return request->counts[param];
}

static size_t weigh_trainable(const gs_owner_request *request, size_t param) {
    return is_trainable(request, param) ? request->counts[param] : 1;
}

// Loads are sums of some of these weights: with a total that fits none of them overflows.
static gs_status check_total(const gs_owner_request *request) {
    size_t total = request->num_params;
    for (size_t i = 0; i < request->num_params; i++) {
        if (__builtin_add_overflow(total, request->counts[i], &total))
            return gs_error(GS_INVALID_ARGUMENT,
                            "owners: parameters up to %zu have more elements than can be counted",
                            i);
    }
    return gs_ok();
}

static gs_status check_request(const int *owner, const gs_owner_request *request) {
    if (request->world_size < 1)
        return gs_error(GS_INVALID_ARGUMENT, "owners: %d ranks", request->world_size);
    size_t num_grouped = request->group_params ? 0 : request->num_params;
    for (size_t g = 0; request->group_params && g < request->num_groups; g++) {
        if (request->group_params[g] > request->num_params - num_grouped)
            return gs_error(GS_INVALID_ARGUMENT, "owners: group %zu goes beyond %zu parameters", g,
                            request->num_params);
        num_grouped += request->group_params[g];
    }
    if (num_grouped != request->num_params)
        return gs_error(GS_INVALID_ARGUMENT, "owners: groups have %zu of %zu parameters",
                        num_grouped, request->num_params);
    if (request->num_kept > request->num_params)
        return gs_error(GS_INVALID_ARGUMENT, "owners: %zu of %zu parameters are kept",
                        request->num_kept, request->num_params);
    for (size_t i = 0; i < request->num_kept; i++) {
        if (owner[i] < 0 || owner[i] >= request->world_size)
            return gs_error(GS_INVALID_ARGUMENT, "owners: parameter %zu is kept by rank %d of %d",
                            i, owner[i], request->world_size);
    }
    return check_total(request);
}

static int least_loaded(const size_t *loads, int world_size) {
    int least = 0;
    for (int r = 1; r < world_size; r++) {
        if (loads[r] < loads[least]) least = r;
    }
    return least;
}

// Along `order`.
static gs_status deal_out(int *owner, const size_t *order, const gs_owner_request *request,
                          weigh *weigh_param) {
    size_t *loads = calloc((size_t)request->world_size, sizeof *loads);
    if (!loads) return gs_error(GS_RESOURCE_EXHAUSTED, "owners: out of memory");
    for (size_t i = 0; i < request->num_kept; i++) loads[owner[i]] += weigh_param(request, i);
    for (size_t i = 0; i < request->num_params; i++) {
        size_t param = order ? order[i] : i;
        if (param < request->num_kept) continue;
        owner[param] = least_loaded(loads, request->world_size);
        loads[owner[param]] += weigh_param(request, param);
    }
    free(loads);
    return gs_ok();
}

gs_status gs_owners_greedy(int *owner, const gs_owner_request *request) {
    GS_TRY(check_request(owner, request));
    return deal_out(owner, NULL, request, weigh_trainable);
}

static int compare_ascending(const void *a, const void *b, void *counts) {
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    const size_t *elements = counts;
    if (elements[left] != elements[right]) return elements[left] < elements[right] ? -1 : 1;
    return left < right ? -1 : left > right;
}

static int compare_descending(const void *a, const void *b, void *counts) {
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    const size_t *elements = counts;
    if (elements[left] != elements[right]) return elements[left] > elements[right] ? -1 : 1;
    return left < right ? -1 : left > right;
}

static void sort_groups(size_t *order, const gs_owner_request *request) {
    for (size_t i = 0; i < request->num_params; i++) order[i] = i;
    size_t num_groups = request->group_params ? request->num_groups : 1;
    for (size_t g = 0, first = 0; g < num_groups; g++) {
        size_t count = request->group_params ? request->group_params[g] : request->num_params;
        qsort_r(order + first, count, sizeof *order, compare_descending, (void *)request->counts);
        first += count;
    }
}

gs_status gs_owners_sorted(int *owner, size_t *order, const gs_owner_request *request) {
    GS_TRY(check_request(owner, request));
    size_t *sorted = calloc(request->num_params + 1, sizeof *sorted);
    if (!sorted) return gs_error(GS_RESOURCE_EXHAUSTED, "owners: out of memory");
    sort_groups(sorted, request);
    gs_status status = deal_out(owner, sorted, request, weigh_elements);
    if (!status.code && order) memcpy(order, sorted, request->num_params * sizeof *order);
    free(sorted);
    return status;
}

void gs_owners_ascending(size_t *order, const size_t *counts, size_t num_params) {
    for (size_t i = 0; i < num_params; i++) order[i] = i;
    qsort_r(order, num_params, sizeof *order, compare_ascending, (void *)counts);
}

void gs_owners_flat(size_t *offsets, size_t *flat_counts, const int *owner, const size_t *order,
                    const gs_owner_request *request) {
    memset(flat_counts, 0, (size_t)request->world_size * sizeof *flat_counts);
    for (size_t i = 0; i < request->num_params; i++) {
        size_t param = order[i], *flat_count = &flat_counts[owner[param]];
        offsets[param] = GS_NOT_FLAT;
        if (!is_trainable(request, param)) continue;
        offsets[param] = *flat_count;
        *flat_count += request->counts[param];
    }
}
