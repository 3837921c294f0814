#include "coordinator/engine/runs/plans.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "rpc/schema/job_plan.h"

uint64_t gs_plan_fold_hash(const char *hash) {
    gs_digest digest;
    return gs_digest_parse(&digest, hash) ? gs_digest_fold(digest) : 0;
}

static bool is_on_several_hosts(const gs_run *run) {
    for (int i = 1; i < run->num_members; i++) {
        if (strcmp(run->members[i].boot_id, run->members[0].boot_id) != 0) return true;
    }
    return false;
}

static bool is_on_gpus(const gs_run *run) {
    return run->num_members && run->members[0].is_on_gpu;
}

gs_plan_place gs_plan_place_of(const gs_run *run, const gs_link_report *link, size_t num_params) {
    const gs_job *job = run->job;
    // Ranks of one machine, too, may have found that they share no memory.
    bool has_link = is_on_several_hosts(run) || (run->generation && job->link_generation == run->generation);
    gs_plan_place place = {.apart = has_link || is_on_gpus(run)};
    if (!has_link || !link->ready_seconds || link->num_params != num_params) return place;
    place.link = &link->model;
    place.ready_seconds = link->ready_seconds;
    return place;
}

// What a plan that is made now is made from.
static const char *reason_of(const gs_job *job, const gs_plan_place *place) {
    if (job->ready_order.params && place->link && gs_job_plan_follows_link(&job->spec)) return "link";
    if (job->ready_order.params) return job->order_reason;
    static const char *const reasons[] = {
        [GS_PLAN_PARITY] = "size_based", [GS_PLAN_AUTO] = "one_host", [GS_PLAN_OWNER] = "owner_based"};
    bool is_for_many = place->apart && !gs_job_plan_is_fixed(&job->spec);
    return reasons[is_for_many && job->spec.reducer.plan == GS_PLAN_AUTO ? GS_PLAN_PARITY : job->spec.reducer.plan];
}

static void show(gs_engine *engine, gs_job *job, const gs_bucket_plan *plan, const gs_param_spec *params,
                 size_t num_params, bool is_new) {
    const gs_plan_facts *facts = gs_mind_copy(engine, &job->plan, sizeof job->plan);
    const gs_bucket_plan *shown = gs_mind_copy(engine, plan, sizeof *plan);
    gs_effect *effect = gs_mind_do(engine, GS_DO_SHOW_PLAN);
    effect->job = job;
    effect->run = job->run;
    effect->plan = (gs_plan_display){shown, params, num_params, facts, is_new};
    gs_job_touch(engine, job);
}

void gs_plan_adopt(gs_engine *engine, gs_job *job, const gs_plan_facts *facts, const gs_bucket_plan *plan,
                   const gs_param_spec *params, size_t num_params) {
    job->plan = *facts;
    show(engine, job, plan, params, num_params, true);
}

gs_status gs_plan_of_order(gs_bucket_plan *out, gs_plan_facts *facts, const gs_run *run,
                           const gs_param_spec *params, size_t num_params) {
    const gs_job *job = run->job;
    const gs_param_order *order = &job->ready_order;
    if (order->params && order->count != num_params)
        return gs_error(GS_INVALID_ARGUMENT, "order: names %zu parameters of %zu", order->count, num_params);
    gs_plan_place place = gs_plan_place_of(run, &job->link, num_params);
    GS_TRY(gs_job_plan_make_at(out, &job->spec, &place, run->num_members, params, num_params, order->params));
    *facts = (gs_plan_facts){.revision = job->plan.revision + 1, .num_buckets = out->num_buckets};
    gs_digest_format(facts->hash, gs_bucket_plan_digest(out));
    snprintf(facts->reason, sizeof facts->reason, "%s", reason_of(job, &place));
    return gs_ok();
}

gs_status gs_plan_make(gs_engine *engine, gs_run *run, const gs_param_spec *params, size_t num_params) {
    gs_job *job = run->job;
    // An order of other parameters means nothing for these.
    if (job->ready_order.params && job->ready_order.count != num_params) gs_param_order_release(&job->ready_order);
    gs_bucket_plan plan = {0};
    gs_plan_facts facts;
    GS_TRY(gs_plan_of_order(&plan, &facts, run, params, num_params));
    gs_bucket_plan_release(&run->plan);
    run->plan = plan;
    snprintf(run->plan_hash, sizeof run->plan_hash, "%s", facts.hash);
    // The same layout again keeps its number and its reason: revisions count changes. Who owns what, and what travels,
    // are another world's.
    if (!strcmp(facts.hash, job->plan.hash)) {
        show(engine, job, &run->plan, params, num_params, false);
        return gs_ok();
    }
    facts.since_step = job->step;
    gs_plan_adopt(engine, job, &facts, &run->plan, params, num_params);
    return gs_ok();
}
