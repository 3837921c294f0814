#include "worker/trainer/plan_switch.h"

#include "core/failpoint.h"
#include "worker/trainer/session_state.h"

uint64_t gs_session_waiting_plan(gs_session *session) {
    gs_control *control = session->options.control;
    gs_plan_offer offer;
    if (gs_control_take_plan(control, &offer, session->options.generation)) {
        gs_plan_offer_release(&session->next_plan);
        session->next_plan = offer;
        // An order to stay with the plan in use calls back the one that waited.
        if (offer.digest == session->plan_digest) gs_plan_offer_release(&session->next_plan);
        atomic_store(&control->next_plan_digest, session->next_plan.digest);
    }
    return session->next_plan.digest;
}

gs_status gs_session_switch_plan(gs_session *session, gs_step_facts *facts) {
    if (!session->switches_plan) return gs_ok();
    gs_control *control = session->options.control;
    gs_plan_offer *next = &session->next_plan;
    int64_t begin_ns = gs_now_ns();
    GS_FAILPOINT("plan.switch");
    session->switches_plan = false;
    GS_TRY(gs_pass_graphs_clear(session->gpu.graphs));
    GS_TRY(gs_status_prefix(
        gs_reducer_set_plan(session->reducer, &next->plan, gs_session_collective_deadline(session)),
        "plan revision %d", next->revision));
    gs_bucket_plan_release(&session->plan);
    session->plan = next->plan;
    next->plan = (gs_bucket_plan){0};
    session->plan_digest = next->digest;
    facts->plan_revision = next->revision;
    gs_session_prepare_timeline(session, next->revision);
    gs_timeline_begin(control->timeline, facts->step);
    gs_plan_offer_release(next);
    atomic_store(&control->plan_step, facts->step);
    atomic_store(&control->plan_digest, session->plan_digest);
    atomic_store(&control->next_plan_digest, 0);
    facts->switch_seconds = gs_seconds_since(begin_ns);
    GS_FAILPOINT("plan.switched");
    return gs_ok();
}

gs_status gs_session_watch_order(gs_session *session) {
    const gs_session_options *options = &session->options;
    if (options->rank != 0) return gs_ok();
    gs_order_watch_release(&session->watch);
    session->watched_passes = 0;
    return gs_order_watch_init(&session->watch, session->plan.params, session->plan.num_params,
                               options->plan_is_observed,
                               options->spec->reducer.rebuild_after_steps);
}

void gs_session_observe_order(gs_session *session) {
    uint64_t passes;
    size_t num_ready = gs_reducer_num_ready(session->reducer, &passes);
    if (session->options.rank != 0 || passes == session->watched_passes) return;
    session->watched_passes = passes;
    const size_t *order = session->replica_step
                              ? gs_replica_step_ready_order(session->replica_step, &num_ready)
                              : gs_reducer_ready_order(session->reducer);
    gs_order_verdict verdict = gs_order_watch_add(&session->watch, order, num_ready);
    if (verdict == GS_ORDER_SAME) return;
    gs_control *control = session->options.control;
    gs_order_report report = {.generation = session->options.generation,
                              .step = session->options.state->position.step,
                              .settled = verdict == GS_ORDER_SETTLED,
                              .order = gs_order_watch_order(&session->watch),
                              .num_params = session->watch.num_params};
    control->ops->ordered(control->ctx, &report);
}
