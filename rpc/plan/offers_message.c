#include "rpc/plan/offers_message.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_SECONDS 1e6
#define MOST_STEP ((int64_t)1 << 53)

void gs_plan_offers_release(gs_plan_offers *offers) {
    free(offers->buckets);
    *offers = (gs_plan_offers){0};
}

static gs_json *encode_numbers(const double *numbers) {
    gs_json *list = gs_json_new_array();
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) gs_json_push(list, gs_json_new_double(numbers[kind]));
    return list;
}

static gs_json *encode_trial(const gs_hook_offers *bucket) {
    gs_json *list = gs_json_new_array();
    gs_json_push(list, gs_json_new_double(bucket->with_seconds));
    gs_json_push(list, gs_json_new_double(bucket->without_seconds));
    gs_json_push(list, gs_json_new_int(bucket->is_tried));
    return list;
}

gs_json *gs_offers_message_encode(const gs_plan_offers *offers) {
    gs_json *out = gs_json_new_object(), *buckets = gs_json_new_array();
    for (size_t b = 0; b < offers->num_buckets && b < GS_OFFERS_MAX_BUCKETS; b++) {
        const gs_hook_offers *bucket = &offers->buckets[b];
        gs_json *entry = gs_json_new_array();
        gs_json_push(entry, gs_json_new_int(bucket->chosen));
        gs_json_push(entry, gs_json_new_int(bucket->step));
        gs_json_push(entry, encode_numbers(bucket->seconds));
        gs_json_push(entry, encode_numbers(bucket->errors));
        gs_json_push(entry, encode_trial(bucket));
        gs_json_push(buckets, entry);
    }
    gs_json_set_string(out, "plan", offers->plan_hash);
    gs_json_set(out, "buckets", buckets);
    return out;
}

// A worker of a later version may know more kinds: those are left out.
static bool take_numbers(double *out, const gs_json *list, double least, double most) {
    if (!list || gs_json_count(list) < GS_NUM_OFFERS) return false;
    for (size_t kind = 0; kind < GS_NUM_OFFERS; kind++) {
        if (!gs_json_double(&out[kind], gs_json_at(list, kind)) || !(out[kind] >= least && out[kind] <= most)) return false;
    }
    return true;
}

// Earlier workers say nothing of it.
static bool take_trial(gs_hook_offers *out, const gs_json *list) {
    int64_t is_tried;
    if (!list) return true;
    if (!gs_json_double(&out->with_seconds, gs_json_at(list, 0)) || !gs_json_double(&out->without_seconds, gs_json_at(list, 1)) ||
        !gs_json_int(&is_tried, gs_json_at(list, 2)))
        return false;
    out->is_tried = is_tried != 0;
    return out->with_seconds >= 0 && out->with_seconds <= MOST_SECONDS && out->without_seconds >= 0 && out->without_seconds <= MOST_SECONDS;
}

static gs_status take_bucket(gs_hook_offers *out, const gs_json *entry, size_t index) {
    int64_t chosen, step;
    bool fits = gs_json_int(&chosen, gs_json_at(entry, 0)) && gs_json_int(&step, gs_json_at(entry, 1)) && chosen >= 0 && chosen < GS_NUM_OFFERS && step >= -1 && step <= MOST_STEP &&
                take_numbers(out->seconds, gs_json_at(entry, 2), 0, MOST_SECONDS) &&
                take_numbers(out->errors, gs_json_at(entry, 3), -1, 1) && take_trial(out, gs_json_at(entry, 4));
    if (!fits) return gs_error(GS_INVALID_ARGUMENT, "offers/buckets/%zu: is no bucket's offers", index);
    out->chosen = (int)chosen;
    out->step = step;
    return gs_ok();
}

gs_status gs_offers_message_decode(gs_plan_offers *out, const gs_json *message) {
    const gs_json *buckets = gs_json_get(message, "buckets");
    const char *plan = gs_json_string_or(message, "plan", "");
    size_t count = buckets ? gs_json_count(buckets) : 0;
    gs_digest digest;
    *out = (gs_plan_offers){0};
    if (!gs_digest_parse(&digest, plan)) return gs_error(GS_INVALID_ARGUMENT, "offers/plan: is no digest");
    if (!count || count > GS_OFFERS_MAX_BUCKETS)
        return gs_error(GS_INVALID_ARGUMENT, "offers/buckets: %zu of them, must be 1 to %d", count, GS_OFFERS_MAX_BUCKETS);
    out->buckets = calloc(count, sizeof *out->buckets);
    if (!out->buckets) return gs_error(GS_RESOURCE_EXHAUSTED, "offers: out of memory");
    out->num_buckets = count;
    snprintf(out->plan_hash, sizeof out->plan_hash, "%s", plan);
    for (size_t b = 0; b < count; b++) {
        gs_status status = take_bucket(&out->buckets[b], gs_json_at(buckets, b), b);
        if (!status.code) continue;
        gs_plan_offers_release(out);
        return status;
    }
    return gs_ok();
}
