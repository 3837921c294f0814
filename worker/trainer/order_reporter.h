// Rank 0 tells the coordinator in which order gradients become ready, so that a plan can follow it.
// Compute thread.
#ifndef WORKER_TRAINER_ORDER_REPORTER_H
#define WORKER_TRAINER_ORDER_REPORTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/status.h"
#include "gradsync/reducer/order_watch.h"
#include "gradsync/reducer/reducer.h"
#include "worker/control/control.h"

typedef struct gs_order_reporter {
    gs_control *control;  // borrowed; NULL: nothing is watched here
    uint32_t generation;
    gs_order_watch *watch;
    uint64_t watched_passes;  // of the reducer
    bool has_told, is_settled;  // what was told last
    gs_link_report link;        // likewise; empty: nothing
    gs_plan_offers offers;      // of the plan that was looked at last
    bool has_offers;            // that are not told yet
} gs_order_reporter;          // {0} watches nothing

//   plan_is_observed     `plan` was made from an order that was observed
//   rebuild_after_steps  as in gs_order_watch_create
GS_NODISCARD gs_status gs_order_reporter_init(gs_order_reporter *out, gs_control *control,
                                              uint32_t generation, const gs_bucket_plan *plan,
                                              bool plan_is_observed, int64_t rebuild_after_steps);
void gs_order_reporter_release(gs_order_reporter *reporter);

// The reducer has watched this many passes: is there a new one?
bool gs_order_reporter_wants(gs_order_reporter *reporter, uint64_t passes);
// Its order, of step `step`. Tells what is new about it.
void gs_order_reporter_add(gs_order_reporter *reporter, int64_t step, const size_t *order,
                           size_t num_ready);

// What is known of the link between hosts; goes along with the order that was told last, at once and from now on.
// Takes `link`.
void gs_order_reporter_add_link(gs_order_reporter *reporter, int64_t step, gs_link_report *link);

// Behind each commit: how hook "auto" sends buckets, where that is news. With another hook nothing.
void gs_order_reporter_add_offers(gs_order_reporter *reporter, int64_t step, gs_reducer *reducer);

#endif
