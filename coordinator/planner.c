#include "coordinator/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/job_control.h"
#include "coordinator/plan_view.h"
#include "core/clock.h"
#include "core/digest.h"
#include "rpc/schema/job_memory.h"
#include "rpc/schema/job_plan.h"
#include "rpc/schema/model_params.h"
#include "rpc/schema/plan_message.h"

#define MAX_HISTORY 64

gs_status gs_planner_read_order(size_t **out, const gs_json *order, size_t num_params) {
    if (gs_json_count(order) != num_params) {
        return gs_error(GS_INVALID_ARGUMENT, "order: names %zu parameters of %zu",
                        gs_json_count(order), num_params);
    }
    size_t *list = calloc(num_params ? num_params : 1, sizeof *list);
    uint8_t *seen = calloc(num_params ? num_params : 1, 1);
    gs_status status = list && seen ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "order: out of memory");
    for (size_t i = 0; i < num_params && !status.code; i++) {
        int64_t param = -1;
        bool known = gs_json_int(&param, gs_json_at(order, i)) && param >= 0 &&
                     param < (int64_t)num_params && !seen[param];
        if (!known) {
            status = gs_error(GS_INVALID_ARGUMENT, "order[%zu]: no parameter, or named twice", i);
            break;
        }
        seen[param] = 1;
        list[i] = (size_t)param;
    }
    free(seen);
    if (status.code) free(list);
    else *out = list;
    return status;
}

gs_status gs_planner_assign(gs_bucket_plan *out, const gs_job_spec *spec, int world_size,
                            const gs_param_spec *params, size_t num_params, const gs_json *order) {
    size_t *ready_order = NULL;
    if (order) GS_TRY(gs_planner_read_order(&ready_order, order, num_params));
    gs_status status =
        gs_job_plan_make(out, spec, world_size, params, num_params, ready_order);
    free(ready_order);
    return status;
}

gs_status gs_planner_foresee(gs_json **summary, gs_json **memory, const gs_job_spec *spec) {
    gs_param_spec *params = NULL;
    size_t num_params = 0;
    GS_TRY(gs_model_params_of_spec(&params, &num_params, spec));
    gs_bucket_plan plan = {0};
    gs_hook_rule hook = gs_job_spec_hook_rule(spec);
    gs_status status = gs_planner_assign(&plan, spec, (int)spec->world.max, params, num_params, NULL);
    int64_t wire_bytes = status.code ? 0 : gs_plan_total_wire_bytes(&plan, params, &hook);
    if (!status.code)
        status = gs_job_memory_to_json(
            memory, &(gs_job_memory_request){.spec = spec,
                                             .plan = &plan,
                                             .params = params,
                                             .num_params = num_params,
                                             .world_size = (int)spec->world.max,
                                             .on_gpu = gs_job_spec_needs_gpu(spec)});
    free(params);
    if (status.code) {
        gs_bucket_plan_release(&plan);
        return status;
    }
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(&plan));
    *summary = gs_json_new_object();
    gs_json_set_int(*summary, "num_buckets", (int64_t)plan.num_buckets);
    gs_json_set_int(*summary, "total_bytes", gs_plan_total_bytes(&plan));
    gs_json_set_int(*summary, "total_wire_bytes", wire_bytes);
    gs_json_set_string(*summary, "hash", hash);
    gs_bucket_plan_release(&plan);
    return gs_ok();
}

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

gs_hook_rule gs_planner_hook_rule(const gs_run *run) {
    gs_hook_rule rule = gs_job_spec_hook_rule(&run->job->spec);
    rule.world_size = run->num_members;
    if (!rule.local_ranks) rule.local_ranks = count_neighbours(run);
    return rule;
}

const char *gs_planner_reason(const gs_job *job) {
    if (job->ready_order) return job->order_reason;
    static const char *const reasons[] = {
        [GS_PLAN_PARITY] = "size_based", [GS_PLAN_AUTO] = "one_host", [GS_PLAN_OWNER] = "owner_based"};
    return reasons[job->spec.reducer.plan];
}

void gs_planner_adopt(gs_coordinator *coordinator, gs_job *job, gs_json *view) {
    if (job->plan) {
        const char *reason = gs_json_string_or(view, "reason", "");
        int64_t rebuilds = gs_json_int_or(job->plan_rebuilds, reason, 0);
        gs_json_set_int(job->plan_rebuilds, reason, rebuilds + 1);
    }
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "revision", gs_json_int_or(view, "revision", 0));
    gs_json_set_string(entry, "reason", gs_json_string_or(view, "reason", ""));
    gs_json_set_string(entry, "hash", gs_json_string_or(view, "hash", ""));
    gs_json_set_int(entry, "step", gs_json_int_or(view, "since_step", 0));
    gs_json_set_int(entry, "num_buckets", (int64_t)gs_json_count(gs_json_get(view, "buckets")));
    gs_json_set_time(entry, "at", gs_wall_ms());
    gs_json *history = gs_json_new_array();
    size_t known = gs_json_count(job->plan_history);
    for (size_t i = known < MAX_HISTORY ? 0 : 1; i < known; i++)
        gs_json_push(history, gs_json_retain(
                                  (gs_json *)(uintptr_t)gs_json_at(job->plan_history, i)));
    gs_json_push(history, entry);
    gs_json_release(job->plan_history);
    job->plan_history = history;
    job->plan_revision = (int)gs_json_int_or(view, "revision", 0);
    gs_json_release(job->plan);
    job->plan = view;
    gs_coordinator_touch(coordinator, job);
}

// Takes the view.
static void show_again(gs_coordinator *coordinator, gs_job *job, gs_json *view) {
    gs_json_release(job->plan);
    job->plan = view;
    gs_coordinator_touch(coordinator, job);
}

gs_status gs_planner_make(gs_coordinator *coordinator, gs_run *run, const gs_param_spec *params,
                          size_t num_params) {
    gs_job *job = run->job;
    gs_bucket_plan plan = {0};
    int *owners, *tensor_owners = NULL;
    // An order of other parameters means nothing for these.
    if (job->ready_order && gs_json_count(job->ready_order) != num_params) {
        gs_json_release(job->ready_order);
        job->ready_order = NULL;
    }
    GS_TRY(gs_job_plan_owners(&owners, &job->spec, run->num_members, params, num_params));
    gs_status status = gs_planner_assign(&plan, &job->spec, run->num_members, params, num_params,
                                         job->ready_order);
    if (!status.code)
        status = gs_job_plan_bucket_owners(&tensor_owners, &job->spec, run->num_members, &plan, params,
                                           num_params);
    if (status.code) {
        gs_bucket_plan_release(&plan);
        free(owners);
        return status;
    }
    gs_bucket_plan_release(&run->plan);
    run->plan = plan;
    gs_digest_format(run->plan_hash, gs_bucket_plan_digest(&plan));
    gs_hook_rule hook = gs_planner_hook_rule(run);
    bool same = strcmp(gs_json_string_or(job->plan, "hash", ""), run->plan_hash) == 0;
    gs_plan_header header = {.revision = job->plan_revision + 1,
                             .reason = gs_planner_reason(job),
                             .hash = run->plan_hash,
                             .world_size = run->num_members,
                             .since_step = job->step,
                             .hook = &hook,
                             .owners = owners,
                             .tensor_owners = tensor_owners,
                             .cut_among = gs_job_plan_is_cut(&job->spec) ? run->num_members : 0,
                             .asked = &job->spec.reducer.hook};
    // The same layout again keeps its number and its reason: revisions count changes. Who owns what, and what travels,
    // are another world's.
    if (same) {
        header.revision = job->plan_revision;
        header.reason = gs_json_string_or(job->plan, "reason", header.reason);
        header.since_step = gs_json_int_or(job->plan, "since_step", header.since_step);
    }
    gs_json *view = gs_plan_to_view(&plan, &header, params, job->ready_order);
    header.reason = gs_json_string_or(view, "reason", "");
    if (same) show_again(coordinator, job, view);
    else gs_planner_adopt(coordinator, job, view);
    free(owners);
    free(tensor_owners);
    gs_json_release(run->plan_message);
    run->plan_message = gs_plan_message_encode(
        &plan, &(gs_plan_label){header.revision, header.reason, job->ready_order != NULL});
    return gs_ok();
}

// The ranks that do not hold the plan that waits.
static gs_json *pending_to_view(const gs_run *run) {
    gs_json *view = gs_json_new_object(), *missing = gs_json_new_array();
    const gs_next_plan *next = &run->next;
    gs_json_set_int(view, "revision", gs_json_int_or(next->view, "revision", 0));
    gs_json_set_string(view, "reason", gs_json_string_or(next->view, "reason", ""));
    gs_json_set_string(view, "hash", gs_json_string_or(next->view, "hash", ""));
    gs_json_set_int(view, "num_buckets",
                    (int64_t)gs_json_count(gs_json_get(next->view, "buckets")));
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].next_plan_digest != next->digest)
            gs_json_push(missing, gs_json_new_int(i));
    }
    gs_json_set(view, "ranks_missing", missing);
    return view;
}

void gs_get_job_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_jobs_find(ctx, &job, &details, request);
    if (!status.code && !job->plan) {
        details = gs_json_new_object();
        gs_json_set_string(details, "code", "not_ready");
        gs_json_set_string(details, "hint", "the plan is made when all ranks are in");
        status = gs_error(GS_FAILED_PRECONDITION, "job %s has no plan yet: %s", job->id_text,
                          job->reason);
    }
    if (status.code) {
        gs_rpc_reply(call, status, details);
        return;
    }
    gs_json *reply = gs_json_copy(job->plan);
    if (job->run && job->run->next.digest) {
        gs_json_set(reply, "pending", pending_to_view(job->run));
    }
    if (job->plan_history) gs_json_set(reply, "history", gs_json_copy(job->plan_history));
    gs_rpc_reply(call, gs_ok(), reply);
}
