#include "worker/trainer/order_reporter.h"

gs_status gs_order_reporter_init(gs_order_reporter *out, gs_control *control, uint32_t generation,
                                 const gs_bucket_plan *plan, bool plan_is_observed,
                                 int64_t rebuild_after_steps) {
    *out = (gs_order_reporter){.control = control, .generation = generation};
    return gs_order_watch_create(&out->watch, plan->params, plan->num_params, plan_is_observed,
                                 rebuild_after_steps);
}

void gs_order_reporter_release(gs_order_reporter *reporter) {
    gs_order_watch_destroy(reporter->watch);
    *reporter = (gs_order_reporter){0};
}

bool gs_order_reporter_wants(gs_order_reporter *reporter, uint64_t passes) {
    if (!reporter->control || passes == reporter->watched_passes) return false;
    reporter->watched_passes = passes;
    return true;
}

void gs_order_reporter_add(gs_order_reporter *reporter, int64_t step, const size_t *order,
                           size_t num_ready) {
    gs_control *control = reporter->control;
    gs_order_verdict verdict = gs_order_watch_add(reporter->watch, order, num_ready);
    if (verdict == GS_ORDER_SAME) return;
    gs_order_report report = {.generation = reporter->generation,
                              .step = step,
                              .settled = verdict == GS_ORDER_SETTLED,
                              .order = gs_order_watch_order(reporter->watch),
                              .num_params = gs_order_watch_num_params(reporter->watch)};
    control->ops->ordered(control->ctx, &report);
}
