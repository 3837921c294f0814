#include "coordinator/observe/views/offers_view.h"

#include <string.h>

static gs_json *offer_to_view(const gs_hook_offers *bucket, int kind) {
    gs_json *view = gs_json_new_object();
    gs_json_set_string(view, "hook", gs_offer_words[kind]);
    gs_json_set_double(view, "seconds", bucket->seconds[kind]);
    if (bucket->errors[kind] >= 0) gs_json_set_double(view, "error", bucket->errors[kind]);
    return view;
}

static gs_json *choice_to_view(const gs_hook_offers *bucket, double error_budget) {
    gs_json *view = gs_json_new_object(), *offers = gs_json_new_array();
    char why[256];
    gs_hook_offers_explain(why, sizeof why, bucket, error_budget);
    gs_json_set_string(view, "hook", gs_offer_words[bucket->chosen]);
    gs_json_set_string(view, "why", why);
    gs_json_set_double(view, "error_budget", error_budget);
    if (bucket->step >= 0) gs_json_set_int(view, "measured_step", bucket->step);
    if (bucket->with_seconds > 0) gs_json_set_double(view, "step_seconds_compressed", bucket->with_seconds);
    if (bucket->without_seconds > 0) gs_json_set_double(view, "step_seconds_plain", bucket->without_seconds);
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) {
        if (bucket->seconds[kind] > 0) gs_json_push(offers, offer_to_view(bucket, kind));
    }
    gs_json_set(view, "offers", offers);
    return view;
}

static bool set_member(void *object, const char *key, const gs_json *value) {
    gs_json_set(object, key, gs_json_retain((gs_json *)(uintptr_t)value));
    return true;
}

// Other readers share what is in it.
static gs_json *with_choice(const gs_json *bucket, gs_json *choice) {
    gs_json *out = gs_json_new_object();
    gs_json_each(bucket, set_member, out);
    gs_json_set(out, "choice", choice);
    return out;
}

void gs_offers_show(gs_json *view, const gs_plan_offers *offers, double error_budget) {
    const gs_json *buckets = gs_json_get(view, "buckets");
    if (!offers->num_buckets || strcmp(offers->plan_hash, gs_json_string_or(view, "hash", "")) != 0) return;
    gs_json *shown = gs_json_new_array();
    for (size_t b = 0; b < gs_json_count(buckets); b++) {
        gs_json *bucket = (gs_json *)(uintptr_t)gs_json_at(buckets, b);
        gs_json_push(shown, b < offers->num_buckets ? with_choice(bucket, choice_to_view(&offers->buckets[b], error_budget))
                                                    : gs_json_retain(bucket));
    }
    gs_json_set(view, "buckets", shown);
}
