#include "coordinator/observe/job_plans.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/recall.h"
#include "coordinator/observe/views/link_view.h"
#include "coordinator/observe/views/offers_view.h"
#include "coordinator/observe/views/plan_view.h"
#include "core/clock.h"
#include "core/log.h"
#include "rpc/schema/job_plan.h"

#define MAX_HISTORY 64

// Ranks of the host that has most of them.
static int count_neighbours(const gs_run *run) {
    int most = 0;
    for (int i = 0; i < run->num_members; i++) {
        int count = 0;
        for (int k = 0; k < run->num_members; k++)
            count += strcmp(run->members[i].boot_id, run->members[k].boot_id) == 0;
        if (count > most) most = count;
    }
    return most;
}

// How buckets travel among the members that there are.
static gs_hook_rule hook_rule_of(const gs_run *run) {
    gs_hook_rule rule = gs_job_spec_hook_rule(&run->job->spec);
    rule.world_size = run->num_members;
    if (!rule.local_ranks) rule.local_ranks = count_neighbours(run);
    return rule;
}

// The caller's. NULL: out of memory, or the parameters are not known any more.
static gs_json *plan_to_view(const gs_run *run, const gs_plan_display *shown) {
    const gs_job_spec *spec = &run->job->spec;
    int *owners = NULL, *tensor_owners = NULL;
    if (!shown->params) return NULL;
    gs_status status = gs_job_plan_owners(&owners, spec, run->num_members, shown->params, shown->num_params);
    if (!status.code)
        status = gs_job_plan_bucket_owners(&tensor_owners, spec, run->num_members, shown->plan, shown->params,
                                           shown->num_params);
    if (status.code) {
        gs_log_warn("plan not shown", "job=%s reason=\"%s\"", run->job->id_text, status.message);
        free(owners);
        return NULL;
    }
    gs_hook_rule hook = hook_rule_of(run);
    gs_plan_header header = {.revision = shown->facts->revision,
                             .reason = shown->facts->reason,
                             .hash = shown->facts->hash,
                             .world_size = run->num_members,
                             .since_step = shown->facts->since_step,
                             .hook = &hook,
                             .owners = owners,
                             .tensor_owners = tensor_owners,
                             .cut_among = gs_job_plan_is_cut(spec) ? run->num_members : 0,
                             .asked = &spec->reducer.hook};
    gs_json *view = gs_plan_to_view(shown->plan, &header, shown->params, &run->job->ready_order);
    gs_json *link = gs_link_to_view(run, &run->job->link, shown->plan, shown->params, shown->num_params);
    if (link) gs_json_set(view, "link", link);
    free(owners);
    free(tensor_owners);
    return view;
}

static gs_json *entry_of(const gs_plan_facts *facts) {
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "revision", facts->revision);
    gs_json_set_string(entry, "reason", facts->reason);
    gs_json_set_string(entry, "hash", facts->hash);
    gs_json_set_int(entry, "step", facts->since_step);
    gs_json_set_int(entry, "num_buckets", (int64_t)facts->num_buckets);
    gs_json_set_time(entry, "at", gs_wall_ms());
    return entry;
}

static void enter_history(gs_job_documents *documents, const gs_plan_facts *facts) {
    if (documents->plan) {
        int64_t rebuilds = gs_json_int_or(documents->plan_rebuilds, facts->reason, 0);
        gs_json_set_int(documents->plan_rebuilds, facts->reason, rebuilds + 1);
    }
    gs_json *history = gs_json_new_array();
    size_t known = gs_json_count(documents->plan_history);
    for (size_t i = known < MAX_HISTORY ? 0 : 1; i < known; i++)
        gs_json_push(history, gs_json_retain((gs_json *)(uintptr_t)gs_json_at(documents->plan_history, i)));
    gs_json_push(history, entry_of(facts));
    gs_json_release(documents->plan_history);
    documents->plan_history = history;
}

void gs_job_plans_see(const gs_effect *effect) {
    gs_job_documents *documents = &effect->job->sight->documents;
    gs_json *view = plan_to_view(effect->run, &effect->plan);
    if (!view) return;
    if (effect->plan.is_new) enter_history(documents, effect->plan.facts);
    gs_json_release(documents->plan);
    documents->plan = view;
}

// The ranks that do not hold the plan that waits.
static gs_json *pending_to_view(const gs_run *run) {
    gs_json *view = gs_json_new_object(), *missing = gs_json_new_array();
    const gs_next_plan *next = &run->next;
    gs_json_set_int(view, "revision", next->facts.revision);
    gs_json_set_string(view, "reason", next->facts.reason);
    gs_json_set_string(view, "hash", next->facts.hash);
    gs_json_set_int(view, "num_buckets", (int64_t)next->facts.num_buckets);
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].next_plan_digest != next->digest) gs_json_push(missing, gs_json_new_int(i));
    }
    gs_json_set(view, "ranks_missing", missing);
    return view;
}

// As it was told last, with what the plan in use comes to by that.
static gs_json *link_of_now(const gs_run *run) {
    const gs_member *knows = NULL;
    for (int i = 0; i < run->num_members && !knows; i++) {
        if (run->members[i].params) knows = &run->members[i];
    }
    return gs_link_to_view(run, &run->job->observed_link, run->plan.buckets ? &run->plan : NULL,
                           knows ? knows->params : NULL, knows ? knows->num_params : 0);
}

static bool set_member(void *reply, const char *key, const gs_json *value) {
    gs_json_set(reply, key, gs_json_retain((gs_json *)(uintptr_t)value));
    return true;
}

void gs_get_job_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_observer_find_job(ctx, &job, &details, request);
    if (!status.code && gs_recall_record(ctx, job, gs_get_job_plan, call, request)) return;
    if (!status.code && !job->sight->documents.plan && gs_job_state_terminal(job->state)) {
        status = gs_error(GS_NOT_FOUND, "job %s ended before it had a plan: %s", job->id_text, job->reason);
    } else if (!status.code && !job->sight->documents.plan) {
        details = gs_json_new_object();
        gs_json_set_string(details, "code", "not_ready");
        gs_json_set_string(details, "hint", "the plan is made when all ranks are in");
        status = gs_error(GS_FAILED_PRECONDITION, "job %s has no plan yet: %s", job->id_text, job->reason);
    }
    if (status.code) {
        gs_rpc_reply(call, status, details);
        return;
    }
    const gs_job_documents *documents = &job->sight->documents;
    gs_json *reply = gs_json_new_object();
    gs_json_each(documents->plan, set_member, reply);
    gs_offers_show(reply, &job->offers, job->spec.reducer.hook.error_budget);
    gs_json *link = job->run ? link_of_now(job->run) : NULL;
    if (link) gs_json_set(reply, "link", link);
    if (job->run && job->run->next.digest) gs_json_set(reply, "pending", pending_to_view(job->run));
    if (documents->plan_history) gs_json_set(reply, "history", gs_json_copy(documents->plan_history));
    gs_rpc_reply(call, gs_ok(), reply);
}
