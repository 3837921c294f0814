// Parameters and plans, of ffi.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/owner_rules.h"
#include "core/plan_policy.h"
#include "gradsync/ffi/object.h"

gs_ffi_params *gs_ffi_params_new(void) {
    return calloc(1, sizeof(gs_ffi_params));
}

static gs_status make_room(gs_ffi_params *params) {
    if (params->count < params->room) return gs_ok();
    size_t room = params->room ? 2 * params->room : 16;
    gs_param_spec *specs = realloc(params->specs, room * sizeof *specs);
    if (!specs) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    params->specs = specs;
    params->room = room;
    return gs_ok();
}

static gs_status add_param(gs_ffi_params *params, const char *name, int dtype, int num_dims,
                           const int64_t *shape) {
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_given(name, "parameter's name"));
    if (num_dims > 0) GS_TRY(gs_ffi_given(shape, "parameter's shape"));
    gs_param_spec spec = {.dtype = (gs_dtype)dtype, .num_dims = num_dims};
    if (snprintf(spec.name, sizeof spec.name, "%s", name) >= (int)sizeof spec.name)
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu: its name has more than %d bytes",
                        params->count, GS_PARAM_NAME_LEN - 1);
    if (num_dims < 0 || num_dims > GS_MAX_DIMS)
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%.100s\": %d dimensions, at most %d",
                        params->count, name, num_dims, GS_MAX_DIMS);
    for (int i = 0; i < num_dims; i++) spec.shape[i] = shape[i];
    GS_TRY(gs_param_specs_check(&spec, 1));
    GS_TRY(make_room(params));
    params->specs[params->count++] = spec;
    return gs_ok();
}

int gs_ffi_params_add(gs_ffi_params *params, const char *name, int dtype, int num_dims,
                      const int64_t *shape) {
    return gs_ffi_keep(params, add_param(params, name, dtype, num_dims, shape));
}

static gs_status deal_params(const gs_ffi_params *params, const char *rule, int world_size,
                             int *owners) {
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_given(rule, "rule"));
    GS_TRY(gs_ffi_given(owners, "room for owners"));
    bool is_greedy = strcmp(rule, "greedy") == 0;
    if (!is_greedy && strcmp(rule, "sorted") != 0)
        return gs_error(GS_INVALID_ARGUMENT,
                        "parameters are dealt \"greedy\" or \"sorted\", not \"%.60s\"", rule);
    size_t *counts = calloc(params->count + 1, sizeof *counts);
    if (!counts) return gs_error(GS_RESOURCE_EXHAUSTED, "parameters: out of memory");
    for (size_t i = 0; i < params->count; i++) counts[i] = gs_param_spec_count(&params->specs[i]);
    const gs_owner_request request = {
        .counts = counts, .num_params = params->count, .world_size = world_size};
    gs_status status =
        is_greedy ? gs_owners_greedy(owners, &request) : gs_owners_sorted(owners, NULL, &request);
    free(counts);
    return status;
}

int gs_ffi_params_deal(gs_ffi_params *params, const char *rule, int world_size, int *owners) {
    return gs_ffi_keep(params, deal_params(params, rule, world_size, owners));
}

void gs_ffi_params_free(gs_ffi_params *params) {
    if (!params) return;
    free(params->specs);
    free(params);
}

gs_status gs_ffi_flags_copy(bool **out, const unsigned char *flags, size_t count) {
    *out = NULL;
    if (!flags) return gs_ok();
    bool *copy = calloc(count + 1, sizeof *copy);
    if (!copy) return gs_error(GS_RESOURCE_EXHAUSTED, "flags: out of memory");
    for (size_t i = 0; i < count; i++) copy[i] = flags[i] != 0;
    *out = copy;
    return gs_ok();
}

gs_ffi_plan *gs_ffi_plan_new(void) {
    return calloc(1, sizeof(gs_ffi_plan));
}

static gs_status set_owners(gs_ffi_plan *plan, const int *owners, size_t num_params) {
    GS_TRY(gs_ffi_given(plan, "plan"));
    GS_TRY(gs_ffi_expect(!plan->plan.buckets, "the plan is open"));
    return gs_ffi_numbers_copy(&plan->owners, owners, num_params);
}

int gs_ffi_plan_set_owners(gs_ffi_plan *plan, const int *owners, size_t num_params) {
    return gs_ffi_keep(plan, set_owners(plan, owners, num_params));
}

static gs_status open_plan(gs_ffi_plan *plan, const gs_ffi_params *params,
                           const gs_plan_policy *policy, const size_t *ready_order) {
    GS_TRY(gs_ffi_given(plan, "plan"));
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_expect(!plan->plan.buckets, "the plan is open"));
    GS_TRY(gs_ffi_numbers_check(&plan->owners, params->count, "owners"));
    return gs_plan_policy_apply_owned(&plan->plan, policy, plan->owners.list, params->specs,
                                      params->count, ready_order);
}

int gs_ffi_plan_open(gs_ffi_plan *plan, const gs_ffi_params *params, uint64_t first_bytes,
                     uint64_t cap_bytes, const size_t *ready_order) {
    const gs_plan_policy policy = {.one_host = !first_bytes && !cap_bytes,
                                   .first_bytes = first_bytes,
                                   .caps_bytes = {cap_bytes},
                                   .num_caps = cap_bytes ? 1 : 0};
    return gs_ffi_keep(plan, open_plan(plan, params, &policy, ready_order));
}

size_t gs_ffi_plan_num_buckets(const gs_ffi_plan *plan) {
    return plan ? plan->plan.num_buckets : 0;
}

size_t gs_ffi_plan_bucket(const gs_ffi_plan *plan, size_t bucket, size_t *params, size_t most) {
    if (bucket >= gs_ffi_plan_num_buckets(plan)) return 0;
    const gs_plan_bucket *one = &plan->plan.buckets[bucket];
    for (size_t i = 0; params && i < one->num_params && i < most; i++)
        params[i] = plan->plan.params[one->first + i];
    return one->num_params;
}

void gs_ffi_plan_free(gs_ffi_plan *plan) {
    if (!plan) return;
    gs_bucket_plan_release(&plan->plan);
    free(plan->owners.list);
    free(plan);
}
