#include "rpc/plan/plan_message.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"

static gs_json *encode_members(const gs_bucket_plan *plan) {
    gs_json *members = gs_json_new_array();
    for (size_t i = 0; i < plan->num_params; i++)
        gs_json_push(members, gs_json_new_int((int64_t)plan->params[i]));
    return members;
}

// Most plans have one limit for nearly all of their buckets.
static gs_json *encode_limits(const gs_bucket_plan *plan) {
    gs_json *limits = gs_json_new_array();
    for (size_t i = 0, count; i < plan->num_buckets; i += count) {
        uint64_t limit_bytes = plan->buckets[i].limit_bytes;
        for (count = 1; i + count < plan->num_buckets; count++) {
            if (plan->buckets[i + count].limit_bytes != limit_bytes) break;
        }
        gs_json *run = gs_json_new_array();
        gs_json_push(run, gs_json_new_int((int64_t)limit_bytes));
        gs_json_push(run, gs_json_new_int((int64_t)count));
        gs_json_push(limits, run);
    }
    return limits;
}

// Runs of [hook, buckets]. NULL: all buckets have the default.
static gs_json *encode_hooks(const gs_bucket_plan *plan) {
    gs_json *hooks = gs_json_new_array();
    bool names_any = false;
    for (size_t i = 0, count; i < plan->num_buckets; i += count) {
        int hook = plan->buckets[i].hook;
        names_any |= hook != 0;
        for (count = 1; i + count < plan->num_buckets; count++) {
            if (plan->buckets[i + count].hook != hook) break;
        }
        gs_json *run = gs_json_new_array();
        gs_json_push(run, gs_json_new_int(hook));
        gs_json_push(run, gs_json_new_int((int64_t)count));
        gs_json_push(hooks, run);
    }
    if (names_any) return hooks;
    gs_json_release(hooks);
    return NULL;
}

gs_json *gs_plan_message_encode(const gs_bucket_plan *plan, const gs_plan_label *label) {
    gs_json *message = gs_json_new_object(), *sizes = gs_json_new_array();
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    gs_json_set_int(message, "revision", label->revision);
    gs_json_set_string(message, "reason", label->reason);
    gs_json_set_string(message, "hash", hash);
    gs_json_set_bool(message, "observed", label->is_observed);
    for (size_t i = 0; i < plan->num_buckets; i++)
        gs_json_push(sizes, gs_json_new_int((int64_t)plan->buckets[i].num_params));
    gs_json_set(message, "members", encode_members(plan));
    gs_json_set(message, "sizes", sizes);
    gs_json_set(message, "limits", encode_limits(plan));
    gs_json *hooks = encode_hooks(plan);
    if (hooks) gs_json_set(message, "hooks", hooks);
    return message;
}

static gs_status decode_members(gs_bucket_plan *plan, const gs_json *members, size_t num_params) {
    int64_t param;
    if (gs_json_count(members) != num_params)
        return gs_error(GS_INVALID_ARGUMENT, "members: %zu, the model has %zu parameters",
                        gs_json_count(members), num_params);
    for (size_t i = 0; i < num_params; i++) {
        bool known = gs_json_int(&param, gs_json_at(members, i)) && param >= 0 &&
                     param < (int64_t)num_params;
        if (!known) return gs_error(GS_INVALID_ARGUMENT, "members[%zu]: no parameter", i);
        plan->params[plan->num_params++] = (size_t)param;
    }
    return gs_ok();
}

static uint64_t sum_bytes(const gs_bucket_plan *plan, const gs_plan_bucket *bucket,
                          const gs_param_spec *params) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < bucket->num_params; i++)
        bytes += gs_param_spec_grad_bytes(&params[plan->params[bucket->first + i]]);
    return bytes;
}

static gs_status decode_buckets(gs_bucket_plan *plan, const gs_json *sizes,
                                const gs_param_spec *params) {
    size_t first = 0;
    for (; plan->num_buckets < gs_json_count(sizes); plan->num_buckets++) {
        gs_plan_bucket *bucket = &plan->buckets[plan->num_buckets];
        int64_t size = 0;
        bool fits = gs_json_int(&size, gs_json_at(sizes, plan->num_buckets)) && size > 0 &&
                    size <= (int64_t)(plan->num_params - first);
        if (!fits)
            return gs_error(GS_INVALID_ARGUMENT, "sizes[%zu]: %lld of %zu members that are left",
                            plan->num_buckets, (long long)size, plan->num_params - first);
        *bucket = (gs_plan_bucket){
            .dtype = params[plan->params[first]].dtype, .first = first, .num_params = (size_t)size};
        bucket->bytes = sum_bytes(plan, bucket, params);
        first += (size_t)size;
    }
    return gs_ok();
}

static gs_status decode_limits(gs_bucket_plan *plan, const gs_json *limits) {
    size_t next = 0;
    for (size_t i = 0; i < gs_json_count(limits); i++) {
        const gs_json *run = gs_json_at(limits, i);
        int64_t limit_bytes = -1, count = 0;
        bool known = gs_json_int(&limit_bytes, gs_json_at(run, 0)) && limit_bytes >= 0 &&
                     gs_json_int(&count, gs_json_at(run, 1)) && count > 0 &&
                     count <= (int64_t)(plan->num_buckets - next);
        if (!known)
            return gs_error(GS_INVALID_ARGUMENT, "limits[%zu]: must be [bytes, buckets]", i);
        for (int64_t k = 0; k < count; k++)
            plan->buckets[next++].limit_bytes = (uint64_t)limit_bytes;
    }
    if (next == plan->num_buckets) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "limits: of %zu buckets, there are %zu", next,
                    plan->num_buckets);
}

static gs_status decode_hooks(gs_bucket_plan *plan, const gs_json *hooks) {
    size_t next = 0;
    if (!hooks) return gs_ok();
    for (size_t i = 0; i < gs_json_count(hooks); i++) {
        const gs_json *run = gs_json_at(hooks, i);
        int64_t hook = -1, count = 0;
        bool known = gs_json_int(&hook, gs_json_at(run, 0)) && hook >= 0 && hook <= INT_MAX &&
                     gs_json_int(&count, gs_json_at(run, 1)) && count > 0 &&
                     count <= (int64_t)(plan->num_buckets - next);
        if (!known)
            return gs_error(GS_INVALID_ARGUMENT, "hooks[%zu]: must be [hook, buckets]", i);
        for (int64_t k = 0; k < count; k++) plan->buckets[next++].hook = (int)hook;
    }
    if (next == plan->num_buckets) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "hooks: of %zu buckets, there are %zu", next,
                    plan->num_buckets);
}

static gs_status check_hash(const gs_bucket_plan *plan, const char *wanted) {
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    if (strcmp(hash, wanted) == 0) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "its hash is %s, the coordinator says %s", hash,
                    wanted);
}

static gs_status decode_plan(gs_bucket_plan *plan, const gs_json *message,
                             const gs_param_spec *params, size_t num_params) {
    const gs_json *sizes = gs_json_get(message, "sizes");
    plan->buckets = calloc(gs_json_count(sizes) + 1, sizeof *plan->buckets);
    plan->params = calloc(num_params + 1, sizeof *plan->params);
    if (!plan->buckets || !plan->params) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    GS_TRY(decode_members(plan, gs_json_get(message, "members"), num_params));
    GS_TRY(decode_buckets(plan, sizes, params));
    GS_TRY(decode_limits(plan, gs_json_get(message, "limits")));
    GS_TRY(decode_hooks(plan, gs_json_get(message, "hooks")));
    GS_TRY(check_hash(plan, gs_json_string_or(message, "hash", "")));
    return gs_bucket_plan_check(plan, params, num_params);
}

gs_status gs_plan_message_decode(gs_bucket_plan *out, const gs_json *message,
                                 const gs_param_spec *params, size_t num_params) {
    *out = (gs_bucket_plan){0};
    gs_status status = decode_plan(out, message, params, num_params);
    if (status.code) gs_bucket_plan_release(out);
    return gs_status_prefix(status, "plan");
}
