#include "worker/trainer/order_reporter.h"

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
                              .link = reporter->link.model.num_samples ? &reporter->link : NULL};
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
