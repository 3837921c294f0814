#include "core/plan_policy.h"

#define MAX_LIMITS (GS_PLAN_MAX_CAPS + 1)

static size_t list_limits(uint64_t limits_bytes[MAX_LIMITS], const gs_plan_policy *policy) {
    size_t count = 0;
    if (policy->one_host) {
        limits_bytes[count++] = GS_HOST_LAST_BUCKET_BYTES;
        limits_bytes[count++] = GS_HOST_BUCKET_CAP_BYTES;
        return count;
    }
    if (policy->first_bytes) limits_bytes[count++] = policy->first_bytes;
    for (size_t i = 0; i < policy->num_caps; i++) limits_bytes[count++] = policy->caps_bytes[i];
    if (!policy->num_caps) limits_bytes[count++] = GS_BUCKET_CAP_BYTES;
    return count;
}

// False: they cannot grow any more.
static bool double_limits(uint64_t *limits_bytes, size_t num_limits) {
    bool grown = false;
    for (size_t i = 0; i < num_limits; i++) {
        uint64_t before = limits_bytes[i];
        limits_bytes[i] = before == 0 ? 1 : before > UINT64_MAX / 2 ? UINT64_MAX : 2 * before;
        grown |= limits_bytes[i] != before;
    }
    return grown;
}

gs_status gs_plan_policy_apply_owned(gs_bucket_plan *out, const gs_plan_policy *policy,
                                     const int *owners, const gs_param_spec *params,
                                     size_t num_params, const size_t *ready_order) {
    uint64_t limits_bytes[MAX_LIMITS];
    if (policy->num_caps > GS_PLAN_MAX_CAPS)
        return gs_error(GS_INVALID_ARGUMENT, "caps: %zu of them, at most %d", policy->num_caps,
                        GS_PLAN_MAX_CAPS);
    bool from_end = policy->one_host || (policy->small_last && ready_order);
    gs_plan_request layout = {.limits_bytes = limits_bytes,
                              .num_limits = list_limits(limits_bytes, policy),
                              .order = ready_order,
                              .from_end = from_end,
                              .reverse = !ready_order && !from_end};
    for (;;) {
        GS_TRY(gs_bucket_plan_of_owned(out, &layout, owners, params, num_params));
        if (!policy->max_buckets || out->num_buckets <= policy->max_buckets) return gs_ok();
        size_t num_buckets = out->num_buckets;
        gs_bucket_plan_release(out);
        if (!double_limits(limits_bytes, layout.num_limits))
            return gs_error(
                GS_INVALID_ARGUMENT, "max_buckets: %zu; types, %ssparse parameters need %zu",
                policy->max_buckets, owners ? "owners and " : "devices and ", num_buckets);
    }
}

gs_status gs_plan_policy_apply(gs_bucket_plan *out, const gs_plan_policy *policy,
                               const gs_param_spec *params, size_t num_params,
                               const size_t *ready_order) {
    return gs_plan_policy_apply_owned(out, policy, NULL, params, num_params, ready_order);
}
