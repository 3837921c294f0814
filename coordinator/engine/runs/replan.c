#include "coordinator/engine/runs/replan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/runs/plans.h"
#include "core/clock.h"
#include "rpc/schema/job_plan.h"
#include "rpc/schema/model_params.h"

// A rank that has not got its plan by then is told again.
#define RESEND_NS GS_NS_PER_SEC

// The list that the ranks agreed on. After a restart of the coordinator nobody here has it: then
// the specification's, when the ranks' digest says that it is the same.
static gs_status find_params(gs_run *run, const gs_param_spec **params, size_t *num_params) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->params) continue;
        *params = member->params;
        *num_params = member->num_params;
        return gs_ok();
    }
    gs_member *first = &run->members[0];
    gs_param_spec *made = NULL;
    size_t num_made = 0;
    GS_TRY(gs_model_params_of_spec(&made, &num_made, &run->job->spec));
    char digest[GS_DIGEST_TEXT_LEN];
    gs_digest_format(digest, gs_param_specs_digest(made, num_made));
    if (strcmp(digest, first->params_digest) != 0) {
        free(made);
        return gs_error(GS_FAILED_PRECONDITION, "the parameters of job %s are not known here",
                        run->job->id_text);
    }
    *params = first->params = made;
    *num_params = first->num_params = num_made;
    return gs_ok();
}

static void resend(gs_engine *engine, gs_member *member, const gs_bucket_plan *plan, const gs_plan_facts *facts) {
    member->replan_sent_ns = engine->state.now_ns;
    gs_tell_replan(engine, member, plan, facts);
}

void gs_replan_resend(gs_engine *engine, gs_member *member) {
    gs_run *run = member->job->run;
    if (run->next.digest) resend(engine, member, &run->next.plan, &run->next.facts);
}

static void free_plan(void *plan) {
    gs_bucket_plan_release(plan);
    free(plan);
}

// Lasts as long as effects point at it.
static const gs_bucket_plan *bury_plan(gs_engine *engine, gs_bucket_plan *plan) {
    gs_bucket_plan *kept = calloc(1, sizeof *kept);
    if (!kept) abort();
    *kept = *plan;
    *plan = (gs_bucket_plan){0};
    gs_mind_bury(engine, kept, free_plan);
    return kept;
}

static void drop_next(gs_engine *engine, gs_run *run) {
    if (run->next.plan.buckets) bury_plan(engine, &run->next.plan);
    run->next = (gs_next_plan){0};
}

void gs_replan_refuse(gs_engine *engine, gs_run *run, const char *why) {
    if (!run->next.digest) return;
    gs_note_add(engine, run->job, NULL, GS_SEVERITY_WARNING, "PlanRefused", "plan revision %d is not sent: %s",
                run->next.facts.revision, why);
    drop_next(engine, run);
}

static void send_all(gs_engine *engine, gs_run *run, const gs_bucket_plan *plan, const gs_plan_facts *facts) {
    for (int i = 0; i < run->num_members; i++) resend(engine, &run->members[i], plan, facts);
    gs_mind_log(engine, GS_SEVERITY_INFO, "plan sent", "job=%s revision=%d reason=%s", run->job->id_text,
                facts->revision, facts->reason);
    gs_job_touch(engine, run->job);
}

gs_status gs_replan_consider(gs_engine *engine, gs_run *run) {
    gs_job *job = run->job;
    const gs_param_spec *params = NULL;
    size_t num_params = 0;
    gs_bucket_plan plan = {0};
    gs_plan_facts facts;
    if (!job->ready_order.params || run->phase != GS_RUN_TRAINING) return gs_ok();
    GS_TRY(find_params(run, &params, &num_params));
    GS_TRY(gs_plan_of_order(&plan, &facts, run, params, num_params));
    if (!strcmp(facts.hash, job->plan.hash)) {
        // The ranks are asked to stay with what they have: an offer of it calls back the one that waits.
        facts.revision = job->plan.revision;
        if (run->next.digest) {
            drop_next(engine, run);
            send_all(engine, run, bury_plan(engine, &plan), &facts);
        }
    } else if (gs_plan_fold_hash(facts.hash) != run->next.digest) {
        drop_next(engine, run);
        run->next = (gs_next_plan){.digest = gs_plan_fold_hash(facts.hash), .plan = plan, .facts = facts};
        plan = (gs_bucket_plan){0};
        send_all(engine, run, &run->next.plan, &run->next.facts);
    }
    gs_bucket_plan_release(&plan);
    return gs_ok();
}

static void adopt_next(gs_engine *engine, gs_run *run, int64_t since_step) {
    gs_job *job = run->job;
    size_t old_buckets = job->plan.num_buckets, num_params = 0;
    const gs_param_spec *params = NULL;
    gs_plan_facts facts = run->next.facts;
    facts.since_step = since_step;
    run->plan_step = since_step;
    snprintf(run->plan_hash, sizeof run->plan_hash, "%s", facts.hash);
    if (run->plan.buckets) bury_plan(engine, &run->plan);
    run->plan = run->next.plan;
    run->next = (gs_next_plan){0};
    // They were found when the plan was made, and stay with the run.
    gs_status status = find_params(run, &params, &num_params);
    if (status.code) num_params = 0;
    gs_plan_adopt(engine, job, &facts, &run->plan, params, num_params);
    gs_note_add(engine, job, NULL, GS_SEVERITY_INFO, "PlanRebuilt",
                "plan revision %d (%s) from step %lld on: %zu buckets after %zu", facts.revision, facts.reason,
                (long long)since_step, facts.num_buckets, old_buckets);
    gs_job_touch_now(engine, job);
}

static void follow_order(gs_engine *engine, gs_job *job, const char *reason) {
    gs_param_order_copy(&job->ready_order, &job->observed_order);
    snprintf(job->order_reason, sizeof job->order_reason, "%s", reason);
    gs_job_touch_now(engine, job);
}

static void consider(gs_engine *engine, gs_run *run) {
    gs_status status = gs_replan_consider(engine, run);
    if (status.code) gs_mind_log(engine, GS_SEVERITY_WARNING, "no plan", "reason=\"%s\"", status.message);
}

// Ranks that changed to a plan which an earlier life of the coordinator sent and did not write
// down: it can only follow the order that rank 0 tells again.
static void catch_up(gs_engine *engine, gs_run *run, const gs_member *member) {
    gs_job *job = run->job;
    bool known = member->plan_digest == gs_plan_fold_hash(job->plan.hash);
    if (gs_job_plan_is_fixed(&job->spec)) return;
    if (!run->was_reloaded || known || !job->observed_order.params ||
        gs_param_order_equal(&job->observed_order, &job->ready_order))
        return;
    follow_order(engine, job, job->spec.reducer.rebuild_after_steps > 0 ? "ready_order" : "operator");
    consider(engine, run);
}

void gs_replan_note(gs_engine *engine, gs_member *member, int64_t generation, const gs_plan_report *report) {
    gs_run *run = member->job->run;
    if (generation != (int64_t)run->generation || run->phase != GS_RUN_TRAINING || !report->told) return;
    member->plan_digest = report->plan;
    member->next_plan_digest = report->next_plan;
    if (!run->next.digest) catch_up(engine, run, member);
    if (!run->next.digest) return;
    // Ranks change together: one speaks for all, but for who speaks of a time before the last change.
    if (member->plan_digest == run->next.digest && report->plan_step > run->plan_step) {
        adopt_next(engine, run, report->plan_step);
    } else if (member->next_plan_digest != run->next.digest &&
               engine->state.now_ns - member->replan_sent_ns >= RESEND_NS) {
        gs_replan_resend(engine, member);
    }
}

// Another plan than the one in use must save that much of a step, and be found better as often in a row.
#define WORTH_A_CHANGE 0.02
#define ENOUGH_DOUBTS 2

static void follow_link(gs_engine *engine, gs_job *job) {
    const gs_link_cost *cost = &job->observed_link.model.cost;
    gs_link_report_copy(&job->link, &job->observed_link);
    job->link_doubts = 0;
    gs_note_add(engine, job, NULL, GS_SEVERITY_INFO, "LinkMeasured",
                "between the hosts a collective takes %.0f µs and a second for %.1f MB: plans follow that",
                1e6 * cost->start_seconds, 1e-6 / cost->byte_seconds);
    gs_job_touch_now(engine, job);
}

// How much longer the plan in use takes than the best one, by what was told last; as a share of a step.
static gs_status compare_plans(double *loss, const gs_run *run, const gs_param_spec *params, size_t num_params) {
    const gs_job *job = run->job;
    const gs_link_report *link = &job->observed_link;
    gs_plan_place place = gs_plan_place_of(run, link, num_params);
    double now, best, bound;
    gs_bucket_plan plan;
    GS_TRY(gs_job_plan_make_at(&plan, &job->spec, &place, run->num_members, params, num_params, job->ready_order.params));
    gs_status status = gs_job_plan_forecast(&best, &bound, &place, &plan, params, num_params);
    gs_bucket_plan_release(&plan);
    GS_TRY(status);
    GS_TRY(gs_job_plan_forecast(&now, &bound, &place, &run->plan, params, num_params));
    double step = link->model.step_seconds > best ? link->model.step_seconds : best;
    *loss = step > 0 ? (now - best) / step : 0;
    return gs_ok();
}

// What was told of the link: plans follow it where none is followed yet, or where that has become worth it.
static gs_status consider_link(gs_engine *engine, gs_run *run, const gs_param_spec *params, size_t num_params) {
    gs_job *job = run->job;
    const gs_link_report *told = &job->observed_link;
    if (!gs_job_plan_follows_link(&job->spec) || !job->ready_order.params || !told->ready_seconds ||
        told->num_params != num_params || !gs_link_model_is_known(&told->model))
        return gs_ok();
    if (!gs_plan_place_of(run, &job->link, num_params).link) {
        follow_link(engine, job);
        return gs_ok();
    }
    if (!run->plan.buckets) return gs_ok();  // of an earlier life, which followed what is written down
    double loss = 0;
    GS_TRY(compare_plans(&loss, run, params, num_params));
    job->link_doubts = loss > WORTH_A_CHANGE ? job->link_doubts + 1 : 0;
    if (job->link_doubts >= ENOUGH_DOUBTS) follow_link(engine, job);
    return gs_ok();
}

static gs_status take_order(gs_engine *engine, gs_member *member, gs_order_report *report) {
    gs_job *job = member->job;
    const gs_param_spec *params = NULL;
    size_t num_params = 0;
    const gs_run *run = job->run;
    if (run->phase != GS_RUN_TRAINING && run->phase != GS_RUN_RELOADING)
        return gs_error(GS_ABORTED, "generation %u is %s", run->generation, gs_run_phase_name(run->phase));
    if (member->rank != 0)
        return gs_error(GS_INVALID_ARGUMENT, "order: rank %d tells it, rank 0 decides", member->rank);
    GS_TRY(report->refusal);
    GS_TRY(find_params(job->run, &params, &num_params));
    if (report->order.count != num_params)
        return gs_error(GS_INVALID_ARGUMENT, "order: names %zu parameters of %zu", report->order.count, num_params);
    gs_param_order_release(&job->observed_order);
    job->observed_order = report->order;
    report->order = (gs_param_order){0};
    bool has_link = report->link.model.num_samples, has_offers = report->offers.num_buckets;
    if (has_offers) {
        gs_plan_offers_release(&job->offers);
        job->offers = report->offers;
        report->offers = (gs_plan_offers){0};
        gs_job_touch(engine, job);
    }
    if (has_link) {
        gs_link_report_release(&job->observed_link);
        job->observed_link = report->link;
        report->link = (gs_link_report){0};
        job->link_generation = run->generation;
        gs_job_touch(engine, job);
    }
    if (job->spec.reducer.rebuild_after_steps <= 0 || (!report->settled && !has_link)) return gs_ok();
    // With news of the link or of hooks comes the order that was told before.
    if (report->settled && !((has_link || has_offers) && gs_param_order_equal(&job->observed_order, &job->ready_order)))
        follow_order(engine, job, "ready_order");
    if (has_link) GS_TRY(consider_link(engine, job->run, params, num_params));
    return gs_replan_consider(engine, job->run);
}

void gs_on_ready_order(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    gs_reply_status(engine, event->from.call, take_order(engine, member, &event->ready_order));
}

gs_status gs_replan_by_operator(gs_engine *engine, gs_job *job) {
    // Asked again, or for what is followed already: nothing changes hands.
    if (job->observed_order.params && !gs_param_order_equal(&job->observed_order, &job->ready_order))
        follow_order(engine, job, "operator");
    if (job->observed_link.ready_seconds && gs_job_plan_follows_link(&job->spec)) follow_link(engine, job);
    return gs_replan_consider(engine, job->run);
}
