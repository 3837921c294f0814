#include "rpc/schema/job_plan.h"

#include <stdlib.h>

#include "core/overlap_assignment.h"
#include "core/owner_buckets.h"
#include "core/owner_rules.h"
#include "core/plan_policy.h"
#include "rpc/schema/job_freeze.h"
#include "rpc/schema/job_hook.h"

#define LINE_BYTES ((size_t)64)

bool gs_job_plan_is_fixed(const gs_job_spec *spec) {
    return spec->reducer.sharding != GS_SHARDING_NONE;
}

static gs_status out_of_memory(void) {
    return gs_error(GS_RESOURCE_EXHAUSTED, "plan: out of memory");
}

static size_t *count_elements(const gs_param_spec *params, size_t num_params) {
    size_t *counts = calloc(num_params + 1, sizeof *counts);
    for (size_t i = 0; counts && i < num_params; i++) counts[i] = gs_param_spec_count(&params[i]);
    return counts;
}

static gs_status deal(int *owners, const gs_job_spec *spec, int world_size,
                      const gs_param_spec *params, size_t num_params) {
    size_t *counts = count_elements(params, num_params);
    bool *trainable = calloc(num_params + 1, sizeof *trainable);
    const gs_owner_request request = {.counts = counts,
                                      .trainable = trainable,
                                      .num_params = num_params,
                                      .world_size = world_size};
    // What trains at some step has a state all the time.
    for (size_t i = 0; trainable && i < num_params; i++)
        trainable[i] = gs_job_freeze_ever_trains(spec, &params[i]);
    gs_status status = !counts || !trainable                          ? out_of_memory()
                       : spec->reducer.partition == GS_SHARD_OSS ? gs_owners_greedy(owners, &request)
                                                                  : gs_owners_sorted(owners, NULL, &request);
    free(counts);
    free(trainable);
    return status;
}

gs_status gs_job_plan_owners(int **out, const gs_job_spec *spec, int world_size,
                             const gs_param_spec *params, size_t num_params) {
    *out = NULL;
    bool cut = spec->reducer.partition == GS_SHARD_FLAT;
    if (cut || spec->reducer.sharding == GS_SHARDING_NONE) return gs_ok();
    int *owners = calloc(num_params + 1, sizeof *owners);
    if (!owners) return out_of_memory();
    gs_status status = deal(owners, spec, world_size, params, num_params);
    if (status.code)
        free(owners);
    else
        *out = owners;
    return status;
}

static gs_status deal_buckets(int *owners, const gs_job_spec *spec, int world_size,
                              const gs_bucket_plan *plan, const gs_param_spec *params,
                              size_t num_params) {
    size_t *counts = count_elements(params, num_params);
    gs_overlap_assignment dealt = {0};
    if (!counts) return out_of_memory();
    gs_status status =
        gs_overlap_assign(&dealt, plan, counts, world_size, spec->reducer.zero_split_buckets);
    free(counts);
    GS_TRY(status);
    for (size_t r = 0; r < dealt.num_runs; r++) {
        const gs_overlap_run *run = &dealt.runs[r];
        const size_t *members = plan->params + plan->buckets[run->bucket].first + run->first;
        for (size_t i = 0; i < run->num_params; i++) owners[members[i]] = run->rank;
    }
    gs_overlap_assignment_release(&dealt);
    return gs_ok();
}

gs_status gs_job_plan_bucket_owners(int **out, const gs_job_spec *spec, int world_size,
                                    const gs_bucket_plan *plan, const gs_param_spec *params,
                                    size_t num_params) {
    *out = NULL;
    bool overlaps = spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF;
    if (!overlaps || spec->reducer.sharding == GS_SHARDING_NONE) return gs_ok();
    int *owners = calloc(num_params + 1, sizeof *owners);
    if (!owners) return out_of_memory();
    gs_status status = deal_buckets(owners, spec, world_size, plan, params, num_params);
    if (status.code)
        free(owners);
    else
        *out = owners;
    return status;
}

// In elements of main gradients: fp32, and fp64 of fp64 parameters.
static size_t line_count(const gs_plan_bucket *bucket) {
    return LINE_BYTES / (bucket->dtype == GS_FP64 ? sizeof(double) : sizeof(float));
}

static size_t room_of(const gs_param_spec *param, size_t line) {
    return param->sparse ? 0 : (gs_param_spec_count(param) + line - 1) / line * line;
}

void gs_job_plan_member_places(size_t *first, const gs_bucket_plan *plan, size_t bucket,
                               const gs_param_spec *params) {
    const gs_plan_bucket *members = &plan->buckets[bucket];
    size_t at = 0;
    for (size_t i = 0; i < members->num_params; i++) {
        first[i] = at;
        at += room_of(&params[plan->params[members->first + i]], line_count(members));
    }
}

bool gs_job_plan_is_cut(const gs_job_spec *spec) {
    return spec->reducer.sharding != GS_SHARDING_NONE && spec->reducer.partition == GS_SHARD_FLAT &&
           spec->reducer.zero_overlap == GS_ZERO_OVERLAP_OFF;
}

size_t gs_job_plan_part_count(int world_size, const gs_bucket_plan *plan, size_t bucket,
                              const gs_param_spec *params) {
    const gs_plan_bucket *members = &plan->buckets[bucket];
    size_t line = line_count(members), count = 0;
    for (size_t i = 0; i < members->num_params; i++)
        count += room_of(&params[plan->params[members->first + i]], line);
    size_t lines_of_all = line * (size_t)world_size;
    return (count + lines_of_all - 1) / lines_of_all * line;
}

// Parameters of one key may share a bucket: those of one owner that are always frozen together. NULL: all may.
static gs_status find_keys(int **out, const gs_job_spec *spec, const int *owners,
                           const gs_param_spec *params, size_t num_params) {
    *out = NULL;
    if (!owners && !spec->model.num_freezes) return gs_ok();
    int *keys = calloc(num_params + 1, sizeof *keys);
    if (!keys) return out_of_memory();
    for (size_t i = 0; i < num_params; i++)
        keys[i] = ((owners ? owners[i] : 0) << GS_SPEC_MAX_FREEZES) |
                  (int)gs_job_freeze_rules_of(spec, &params[i]);
    *out = keys;
    return gs_ok();
}

// As fairscale's ShardedDataParallel has them; its capacity is in elements.
static gs_status make_owner_plan(gs_bucket_plan *out, const gs_job_spec *spec, const int *owners,
                                 int world_size, const gs_param_spec *params, size_t num_params) {
    gs_owner_buckets buckets;
    size_t capacity = spec->reducer.num_bucket_caps ? (size_t)spec->reducer.bucket_cap_bytes[0]
                                                    : GS_BUCKET_CAP_BYTES;
    size_t *counts = count_elements(params, num_params);
    if (!counts) return out_of_memory();
    gs_status status = gs_owner_buckets_plan(
        &buckets, owners,
        &(gs_owner_request){.counts = counts, .num_params = num_params, .world_size = world_size},
        capacity / sizeof(float));
    free(counts);
    GS_TRY(status);
    status = gs_owner_buckets_to_plan(out, &buckets, params, num_params);
    gs_owner_buckets_release(&buckets);
    return status;
}

bool gs_job_plan_follows_link(const gs_job_spec *spec) {
    return spec->reducer.plan == GS_PLAN_AUTO && !gs_job_plan_is_fixed(spec) &&
           gs_job_hook_is_by_element(&spec->reducer.hook);
}

static bool knows_link(const gs_plan_place *place) {
    return place->link && place->ready_seconds && gs_link_model_is_known(place->link);
}

static gs_status make_plan(gs_bucket_plan *out, const gs_job_spec *spec, const gs_plan_place *place,
                           const int *owners, const int *keys, int world_size, const gs_param_spec *params,
                           size_t num_params, const size_t *ready_order) {
    gs_plan_policy policy = gs_job_spec_plan_policy(spec);
    if (spec->reducer.plan == GS_PLAN_OWNER && owners)
        return make_owner_plan(out, spec, owners, world_size, params, num_params);
    if (ready_order && gs_job_plan_follows_link(spec) && knows_link(place))
        return gs_link_plan_make(out,
                                 &(gs_link_request){.params = params,
                                                    .num_params = num_params,
                                                    .order = ready_order,
                                                    .ready_seconds = place->ready_seconds,
                                                    .keys = keys,
                                                    .max_buckets = policy.max_buckets},
                                 place->link);
    // Parts are cut along it, and where ranks are may turn out differently while they hold them.
    if (place->apart && !gs_job_plan_is_fixed(spec)) policy.one_host = false;
    return gs_plan_policy_apply_owned(out, &policy, keys, params, num_params, ready_order);
}

gs_status gs_job_plan_make_at(gs_bucket_plan *out, const gs_job_spec *spec, const gs_plan_place *place,
                              int world_size, const gs_param_spec *params, size_t num_params,
                              const size_t *ready_order) {
    int *owners;
    GS_TRY(gs_job_plan_owners(&owners, spec, world_size, params, num_params));
    int *keys;
    gs_status status = find_keys(&keys, spec, owners, params, num_params);
    if (!status.code)
        status = make_plan(out, spec, place, owners, keys, world_size, params, num_params, ready_order);
    free(owners);
    free(keys);
    return status;
}

gs_status gs_job_plan_make(gs_bucket_plan *out, const gs_job_spec *spec, int world_size,
                           const gs_param_spec *params, size_t num_params,
                           const size_t *ready_order) {
    return gs_job_plan_make_at(out, spec, &(gs_plan_place){.apart = gs_job_spec_needs_gpu(spec)}, world_size, params,
                               num_params, ready_order);
}

gs_status gs_job_plan_forecast(double *seconds, double *bound, const gs_plan_place *place,
                               const gs_bucket_plan *plan, const gs_param_spec *params, size_t num_params) {
    if (!knows_link(place)) return gs_error(GS_FAILED_PRECONDITION, "the link is not measured");
    gs_link_request request = {.params = params, .num_params = num_params, .ready_seconds = place->ready_seconds};
    const gs_link_model *link = place->link;
    GS_TRY(gs_link_plan_forecast(seconds, plan, &request, &link->cost, link->wire_ratio));
    return gs_link_plan_bound(bound, &request, &link->cost, link->wire_ratio);
}
