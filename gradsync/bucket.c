#include "gradsync/bucket.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"

#define MEMBER_BYTES ((size_t)64)   // no two members share a cache line
#define BUCKET_BYTES ((size_t)256)  // no two slices do

// The low bits of 4096 ranks sum below 2^22, as what is read back exactly must.
#define SAMPLES_LOW_BITS 10

enum { RESERVED_SAMPLES_LOW, RESERVED_SAMPLES_HIGH, RESERVED_RANKS, NUM_RESERVED };

static size_t padded_bytes(const gs_param_spec *param) {
    return gs_round_up(gs_param_spec_count(param) * sizeof(float), MEMBER_BYTES);
}

static size_t reserved_bytes(size_t num_members) {
    return gs_round_up((num_members + NUM_RESERVED) * sizeof(float), MEMBER_BYTES);
}

static float *reserved_of(const gs_bucket *bucket, void *slot) {
    return (float *)((char *)slot + bucket->offset_bytes) + bucket->grad_count;
}

void gs_bucket_layout(gs_bucket *buckets, size_t *param_offset_bytes, const gs_bucket_plan *plan,
                      const gs_param_spec *params) {
    size_t offset = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *planned = &plan->buckets[b];
        gs_bucket *bucket = &buckets[b];
        *bucket = (gs_bucket){.params = plan->params + planned->first,
                              .num_params = planned->num_params,
                              .offset_bytes = offset};
        for (size_t i = 0; i < bucket->num_params; i++) {
            param_offset_bytes[bucket->params[i]] = offset;
            offset += padded_bytes(&params[bucket->params[i]]);
        }
        bucket->grad_count = (offset - bucket->offset_bytes) / sizeof(float);
        bucket->reserved_count = reserved_bytes(bucket->num_params) / sizeof(float);
        offset = gs_round_up(offset + reserved_bytes(bucket->num_params), BUCKET_BYTES);
    }
}

// A bucket of each parameter alone is the worst: rounding up a sum never passes the sum of the
// parts rounded up.
gs_status gs_bucket_max_layout_bytes(size_t *bytes, const gs_param_spec *params,
                                     size_t num_params) {
    *bytes = 0;
    for (size_t i = 0; i < num_params; i++) {
        size_t alone = gs_param_spec_bytes(&params[i]);
        if (alone > SIZE_MAX / 4 ||
            __builtin_add_overflow(
                *bytes, gs_round_up(padded_bytes(&params[i]) + reserved_bytes(1), BUCKET_BYTES),
                bytes))
            return gs_error(GS_RESOURCE_EXHAUSTED,
                            "parameter %zu \"%s\": gradients do not fit into memory", i,
                            params[i].name);
    }
    return gs_ok();
}

void gs_bucket_clear_padding(const gs_bucket *bucket, void *slot, const gs_param_spec *params) {
    char *at = (char *)slot + bucket->offset_bytes;
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_param_spec *param = &params[bucket->params[i]];
        size_t bytes = gs_param_spec_count(param) * sizeof(float), padded = padded_bytes(param);
        memset(at + bytes, 0, padded - bytes);
        at += padded;
    }
    memset(at, 0, bucket->reserved_count * sizeof(float));
}

void gs_bucket_reset(gs_bucket *bucket) {
    bucket->state = GS_BUCKET_FILLING;
    bucket->num_pending = bucket->num_params;
    bucket->work = (gs_work){0};
    bucket->times = (gs_bucket_times){.bytes = bucket->grad_count * sizeof(float)};
}

void gs_bucket_write_reserved(const gs_bucket *bucket, void *slot, const uint8_t *used,
                              int64_t samples) {
    float *reserved = reserved_of(bucket, slot);
    for (size_t i = 0; i < bucket->num_params; i++)
        reserved[i] = used[bucket->params[i]] ? 1.0f : 0.0f;
    reserved += bucket->num_params;
    reserved[RESERVED_SAMPLES_LOW] = (float)(samples & ((1 << SAMPLES_LOW_BITS) - 1));
    reserved[RESERVED_SAMPLES_HIGH] = (float)(samples >> SAMPLES_LOW_BITS);
    reserved[RESERVED_RANKS] = 1.0f;
}

// A count that was summed and scaled; -1 when it can be none.
static int64_t unscale(float value, double scale) {
    double sum = (double)value / scale;
    return sum > -0.5 && sum < 0x1p40 ? llrint(sum) : -1;
}

void gs_bucket_read_reserved(gs_bucket_reserved *sums, uint8_t *used, const gs_bucket *bucket,
                             const void *slot, double scale) {
    const float *reserved =
        (const float *)((const char *)slot + bucket->offset_bytes) + bucket->grad_count;
    for (size_t i = 0; i < bucket->num_params; i++)
        used[bucket->params[i]] = unscale(reserved[i], scale) > 0;
    reserved += bucket->num_params;
    int64_t high = unscale(reserved[RESERVED_SAMPLES_HIGH], scale);
    int64_t low = unscale(reserved[RESERVED_SAMPLES_LOW], scale);
    sums->samples = high < 0 || low < 0 ? -1 : (high << SAMPLES_LOW_BITS) + low;
    sums->num_ranks = unscale(reserved[RESERVED_RANKS], scale);
}
