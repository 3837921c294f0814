#include "gradsync/bucket/bucket.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/bucket/main_grad.h"

// The low bits of 4096 ranks sum below 2^22, as what is read back exactly must.
#define SAMPLES_LOW_BITS 10

enum { RESERVED_SAMPLES_LOW, RESERVED_SAMPLES_HIGH, RESERVED_RANKS, RESERVED_ACTIVE, NUM_RESERVED };

static size_t main_bytes(const gs_param_spec *param) {
    return gs_dtype_bytes(gs_main_grad_dtype(param->dtype));
}

// What the members of a bucket take: nothing when the gradient comes as rows.
static size_t dense_bytes(const gs_param_spec *param) {
    return param->sparse ? 0 : gs_param_spec_count(param) * main_bytes(param);
}

static size_t padded_bytes(const gs_param_spec *param) {
    return gs_round_up(dense_bytes(param), GS_LINE_BYTES);
}

size_t gs_bucket_room(const gs_param_spec *param) {
    return padded_bytes(param) / main_bytes(param);
}

static size_t reserved_bytes(size_t num_members, size_t element_bytes) {
    return gs_round_up((num_members + NUM_RESERVED) * element_bytes, GS_LINE_BYTES);
}

static void layout_bucket(gs_bucket *bucket, size_t *param_offset_bytes,
                          const gs_param_spec *params, size_t num_parts) {
    size_t offset = bucket->offset_bytes;
    for (size_t i = 0; i < bucket->num_params; i++) {
        param_offset_bytes[bucket->params[i]] = offset;
        offset += padded_bytes(&params[bucket->params[i]]);
    }
    bucket->grad_count =
        gs_round_up(offset - bucket->offset_bytes, num_parts * GS_LINE_BYTES) / bucket->element_bytes;
    bucket->reserved_count =
        reserved_bytes(bucket->num_params, bucket->element_bytes) / bucket->element_bytes;
}

void gs_bucket_layout(gs_bucket *buckets, size_t *param_offset_bytes, const gs_bucket_plan *plan,
                      const gs_param_spec *params, size_t num_parts) {
    size_t offset = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *planned = &plan->buckets[b];
        gs_bucket *bucket = &buckets[b];
        *bucket = (gs_bucket){.dtype = gs_main_grad_dtype(planned->dtype),
                              .travels = true,
                              .is_last = b == plan->num_buckets - 1,
                              .params = plan->params + planned->first,
                              .num_params = planned->num_params,
                              .offset_bytes = offset,
                              .before = GS_NO_BUCKET,
                              .hook = planned->hook};
        bucket->element_bytes = gs_dtype_bytes(bucket->dtype);
        layout_bucket(bucket, param_offset_bytes, params, num_parts);
        offset += (bucket->grad_count + bucket->reserved_count) * bucket->element_bytes;
        offset = gs_round_up(offset, GS_BUCKET_BYTES);
    }
}

// A bucket of each parameter alone is the worst: rounding up a sum never passes the sum of the
// parts rounded up.
gs_status gs_bucket_max_layout_bytes(size_t *bytes, const gs_param_spec *params,
                                     size_t num_params, size_t num_parts) {
    *bytes = 0;
    for (size_t i = 0; i < num_params; i++) {
        size_t even = gs_round_up(padded_bytes(&params[i]), num_parts * GS_LINE_BYTES);
        if (gs_param_spec_count(&params[i]) > SIZE_MAX / 64 ||
            __builtin_add_overflow(
                *bytes,
                gs_round_up(even + reserved_bytes(1, main_bytes(&params[i])), GS_BUCKET_BYTES),
                bytes))
            return gs_error(GS_RESOURCE_EXHAUSTED,
                            "parameter %zu \"%s\": gradients do not fit into memory", i,
                            params[i].name);
    }
    return gs_ok();
}

void gs_bucket_clear_padding(const gs_bucket *bucket, void *slot, const gs_param_spec *params) {
    char *at = (char *)slot + bucket->offset_bytes, *reserved = gs_bucket_reserved_at(bucket, slot);
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_param_spec *param = &params[bucket->params[i]];
        size_t bytes = dense_bytes(param), padded = padded_bytes(param);
        memset(at + bytes, 0, padded - bytes);
        at += padded;
    }
    memset(at, 0, (size_t)(reserved - at) + bucket->reserved_count * bucket->element_bytes);
}

void gs_bucket_reset(gs_bucket *bucket) {
    bucket->state = bucket->rests ? GS_BUCKET_READY : GS_BUCKET_FILLING;
    bucket->num_pending = bucket->rests ? 0 : bucket->num_params;
    bucket->is_open = bucket->rests || !bucket->in_window;
    bucket->phases_run = 0;
    bucket->is_elsewhere = bucket->was_elsewhere = false;
    bucket->work = (gs_work){0};
    bucket->most_sent = 0;
    bucket->times = (gs_bucket_times){.bytes = bucket->grad_count * bucket->element_bytes};
}

static void put(const gs_bucket *bucket, void *reserved, size_t index, int64_t count) {
    if (bucket->dtype == GS_FP64)
        ((double *)reserved)[index] = (double)count;
    else
        ((float *)reserved)[index] = (float)count;
}

void gs_bucket_write_reserved(const gs_bucket *bucket, void *reserved,
                              const gs_bucket_share *share) {
    for (size_t i = 0; i < bucket->num_params; i++)
        put(bucket, reserved, i, share->used[bucket->params[i]] ? 1 : 0);
    size_t behind = bucket->num_params;
    put(bucket, reserved, behind + RESERVED_SAMPLES_LOW,
        share->samples & ((1 << SAMPLES_LOW_BITS) - 1));
    put(bucket, reserved, behind + RESERVED_SAMPLES_HIGH, share->samples >> SAMPLES_LOW_BITS);
    put(bucket, reserved, behind + RESERVED_RANKS, 1);
    put(bucket, reserved, behind + RESERVED_ACTIVE, share->active ? 1 : 0);
}

// A count that was summed and scaled; -1 when it can be none.
static int64_t get(const gs_bucket *bucket, const void *reserved, size_t index, double scale) {
    double value = bucket->dtype == GS_FP64 ? ((const double *)reserved)[index]
                                            : (double)((const float *)reserved)[index];
    double sum = value / scale;
    return sum > -0.5 && sum < 0x1p40 ? llrint(sum) : -1;
}

void gs_bucket_read_reserved(gs_bucket_reserved *sums, uint8_t *used, const gs_bucket *bucket,
                             const void *reserved, double scale) {
    for (size_t i = 0; i < bucket->num_params; i++)
        used[bucket->params[i]] = get(bucket, reserved, i, scale) > 0;
    size_t behind = bucket->num_params;
    int64_t high = get(bucket, reserved, behind + RESERVED_SAMPLES_HIGH, scale);
    int64_t low = get(bucket, reserved, behind + RESERVED_SAMPLES_LOW, scale);
    sums->samples = high < 0 || low < 0 ? -1 : (high << SAMPLES_LOW_BITS) + low;
    sums->num_ranks = get(bucket, reserved, behind + RESERVED_RANKS, scale);
    sums->num_active = get(bucket, reserved, behind + RESERVED_ACTIVE, scale);
}
