#include "worker/trainer/plan_switch.h"

#include "core/digest.h"
#include "core/log.h"

gs_status gs_plan_switch_init(gs_plan_switch *out, gs_control *control, uint32_t generation,
                              const gs_bucket_plan *plan, int64_t step) {
    *out = (gs_plan_switch){.control = control, .generation = generation};
    GS_TRY(gs_bucket_plan_copy(&out->plan, plan));
    out->digest = gs_digest_fold(gs_bucket_plan_digest(&out->plan));
    gs_progress *progress = &control->progress;
    atomic_store(&progress->plan_digest, out->digest);
    atomic_store(&progress->plan_step, step);
    atomic_store(&progress->next_plan_digest, 0);
    return gs_ok();
}

void gs_plan_switch_release(gs_plan_switch *plans) {
    gs_bucket_plan_release(&plans->plan);
    gs_plan_offer_release(&plans->next);
}

// Without memory it shows fewer buckets.
void gs_plan_switch_show(const gs_plan_switch *plans) {
    gs_status status =
        gs_timeline_prepare(plans->control->progress.timeline,
                            &(gs_timeline_plan){.generation = plans->generation,
                                                .revision = plans->revision,
                                                .digest = plans->digest,
                                                .num_buckets = plans->plan.num_buckets,
                                                .num_phases = plans->num_phases});
    if (status.code) gs_log_warn("timeline is cut", "reason=\"%s\"", status.message);
}

uint64_t gs_plan_switch_waiting(gs_plan_switch *plans) {
    gs_plan_offer offer;
    if (gs_mailbox_take_plan(&plans->control->mailbox, &offer, plans->generation)) {
        gs_plan_offer_release(&plans->next);
        plans->next = offer;
        // An order to stay with the plan in use calls back the one that waited.
        if (offer.digest == plans->digest) gs_plan_offer_release(&plans->next);
        atomic_store(&plans->control->progress.next_plan_digest, plans->next.digest);
    }
    return plans->next.digest;
}

gs_status gs_plan_switch_run(gs_plan_switch *plans, gs_reducer *reducer, int64_t step,
                             gs_deadline deadline) {
    gs_progress *progress = &plans->control->progress;
    gs_plan_offer *next = &plans->next;
    plans->is_due = false;
    GS_TRY(gs_status_prefix(gs_reducer_set_plan(reducer, &next->plan, deadline), "plan revision %d",
                            next->revision));
    gs_bucket_plan_release(&plans->plan);
    plans->plan = next->plan;
    next->plan = (gs_bucket_plan){0};
    plans->digest = next->digest;
    plans->revision = next->revision;
    gs_plan_offer_release(next);
    gs_plan_switch_show(plans);
    gs_timeline_begin(progress->timeline, step);
    atomic_store(&progress->plan_step, step);
    atomic_store(&progress->plan_digest, plans->digest);
    atomic_store(&progress->next_plan_digest, 0);
    return gs_ok();
}
