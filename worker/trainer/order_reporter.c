#include "worker/trainer/order_reporter.h"

#include <stdlib.h>
#include <string.h>

gs_status gs_order_reporter_init(gs_order_reporter *out, gs_control *control, uint32_t generation,
                                 const gs_bucket_plan *plan, bool plan_is_observed,
                                 int64_t rebuild_after_steps) {
    // An order that the plan follows already goes along with what is told of the link.
    *out = (gs_order_reporter){.control = control, .generation = generation, .has_told = plan_is_observed};
    return gs_order_watch_create(&out->watch, plan->params, plan->num_params, plan_is_observed,
                                 rebuild_after_steps);
}

void gs_order_reporter_release(gs_order_reporter *reporter) {
    gs_order_watch_destroy(reporter->watch);
    gs_link_report_release(&reporter->link);
    gs_plan_offers_release(&reporter->offers);
    *reporter = (gs_order_reporter){0};
}

bool gs_order_reporter_wants(gs_order_reporter *reporter, uint64_t passes) {
    if (!reporter->control || passes == reporter->watched_passes) return false;
    reporter->watched_passes = passes;
    return true;
}

static void tell(gs_order_reporter *reporter, int64_t step) {
    gs_control *control = reporter->control;
    gs_order_report report = {.generation = reporter->generation,
                              .step = step,
                              .settled = reporter->is_settled,
                              .order = gs_order_watch_order(reporter->watch),
                              .num_params = gs_order_watch_num_params(reporter->watch),
                              .link = reporter->link.model.num_samples ? &reporter->link : NULL,
                              .offers = reporter->has_offers ? &reporter->offers : NULL};
    reporter->has_offers = false;
    control->ops->ordered(control->ctx, &report);
}

void gs_order_reporter_add(gs_order_reporter *reporter, int64_t step, const size_t *order,
                           size_t num_ready) {
    gs_order_verdict verdict = gs_order_watch_add(reporter->watch, order, num_ready);
    if (verdict == GS_ORDER_SAME) return;
    reporter->has_told = true;
    reporter->is_settled = verdict == GS_ORDER_SETTLED;
    tell(reporter, step);
}

// A rank that has had no data yet has no order: the next time.
void gs_order_reporter_add_link(gs_order_reporter *reporter, int64_t step, gs_link_report *link) {
    gs_link_report_release(&reporter->link);
    reporter->link = *link;
    *link = (gs_link_report){0};
    if (reporter->has_told) tell(reporter, step);
}

// The step at which a bucket was looked at last says whether there is news of it.
static bool is_news(const gs_plan_offers *known, const gs_hook_offers *bucket, size_t index) {
    const gs_hook_offers *before = &known->buckets[index];
    return before->step != bucket->step || before->chosen != bucket->chosen;
}

// Room for a plan of which nothing is known. False: there is none.
static bool begin_plan(gs_plan_offers *offers, const gs_bucket_plan *plan) {
    char hash[GS_DIGEST_TEXT_LEN];
    size_t count = plan->num_buckets < GS_OFFERS_MAX_BUCKETS ? plan->num_buckets : GS_OFFERS_MAX_BUCKETS;
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    if (offers->buckets && strcmp(offers->plan_hash, hash) == 0) return true;
    gs_plan_offers_release(offers);
    offers->buckets = calloc(count + 1, sizeof *offers->buckets);
    if (!offers->buckets) return false;
    for (size_t b = 0; b < count; b++) offers->buckets[b].step = INT64_MIN;
    offers->num_buckets = count;
    memcpy(offers->plan_hash, hash, sizeof hash);
    return true;
}

void gs_order_reporter_add_offers(gs_order_reporter *reporter, int64_t step, gs_reducer *reducer) {
    gs_hook_offers bucket;
    gs_plan_offers *offers = &reporter->offers;
    if (!reporter->control || !gs_reducer_bucket_offers(&bucket, reducer, 0)) return;
    if (!begin_plan(offers, gs_reducer_plan(reducer))) return;
    for (size_t b = 0; b < offers->num_buckets && gs_reducer_bucket_offers(&bucket, reducer, b); b++) {
        reporter->has_offers |= is_news(offers, &bucket, b);
        offers->buckets[b] = bucket;
    }
    if (reporter->has_offers && reporter->has_told) tell(reporter, step);
}
