#include "worker/plan_message.h"

#include <stdlib.h>
#include <string.h>

static gs_status decode_bucket(gs_bucket_plan *plan, size_t index, const gs_json *bucket) {
    gs_plan_bucket *out = &plan->buckets[index];
    int64_t limit_bytes, bytes, device, param;
    GS_TRY(gs_json_read_int(&limit_bytes, bucket, "limit_bytes", 0, INT64_MAX));
    GS_TRY(gs_json_read_int(&bytes, bucket, "bytes", 0, INT64_MAX));
    GS_TRY(gs_json_read_int(&device, bucket, "device", 0, INT32_MAX));
    const gs_json *params = gs_json_get(bucket, "params");
    *out = (gs_plan_bucket){.limit_bytes = (uint64_t)limit_bytes,
                            .bytes = (uint64_t)bytes,
                            .dtype = gs_dtype_from_name(gs_json_string_or(bucket, "dtype", "")),
                            .device = (int)device,
                            .first = plan->num_params,
                            .num_params = gs_json_count(params)};
    for (size_t i = 0; i < out->num_params; i++) {
        if (!gs_json_int(&param, gs_json_at(params, i)) || param < 0) {
            return gs_error(GS_INVALID_ARGUMENT, "member %zu is no parameter", i);
        }
        plan->params[plan->num_params++] = (size_t)param;
    }
    return gs_ok();
}

static gs_status decode_buckets(gs_bucket_plan *plan, const gs_json *buckets) {
    size_t num_params = 0;
    plan->num_buckets = gs_json_count(buckets);
    for (size_t i = 0; i < plan->num_buckets; i++) {
        num_params += gs_json_count(gs_json_get(gs_json_at(buckets, i), "params"));
    }
    plan->buckets = calloc(plan->num_buckets ? plan->num_buckets : 1, sizeof *plan->buckets);
    plan->params = calloc(num_params ? num_params : 1, sizeof *plan->params);
    if (!plan->buckets || !plan->params) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "plan: out of memory");
    }
    for (size_t i = 0; i < plan->num_buckets; i++) {
        GS_TRY(gs_status_prefix(decode_bucket(plan, i, gs_json_at(buckets, i)), "plan: bucket %zu",
                                i));
    }
    return gs_ok();
}

static gs_status check_hash(const gs_bucket_plan *plan, const char *wanted) {
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    if (strcmp(hash, wanted) == 0) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "plan: its hash is %s, the coordinator says %s", hash,
                    wanted);
}

gs_status gs_plan_message_decode(gs_bucket_plan *out, const gs_json *plan) {
    *out = (gs_bucket_plan){0};
    gs_status status = decode_buckets(out, gs_json_get(plan, "buckets"));
    if (!status.code) status = check_hash(out, gs_json_string_or(plan, "hash", ""));
    if (status.code) gs_bucket_plan_release(out);
    return status;
}
