#include "coordinator/replan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/job_record.h"
#include "coordinator/membership.h"
#include "coordinator/plan_view.h"
#include "coordinator/planner.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/log.h"
#include "rpc/schema/job_plan.h"
#include "rpc/schema/model_params.h"
#include "rpc/schema/plan_message.h"

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

void gs_replan_resend(gs_member *member) {
    gs_run *run = member->job->run;
    if (!run->next.message) return;
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "replan");
    gs_json_set_int(item, "generation", run->generation);
    gs_json_set(item, "plan", gs_json_retain(run->next.message));
    member->replan_sent_ns = gs_now_ns();
    gs_member_send(member, item);
}

static void drop_next(gs_run *run) {
    gs_json_release(run->next.message);
    gs_json_release(run->next.view);
    run->next = (gs_next_plan){0};
}

static uint64_t fold_hash(const char *hash) {
    gs_digest digest;
    return gs_digest_parse(&digest, hash) ? gs_digest_fold(digest) : 0;
}

static void send_next(gs_coordinator *coordinator, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) gs_replan_resend(&run->members[i]);
    gs_log_info("plan sent", "job=%s revision=%lld reason=%s", run->job->id_text,
                (long long)gs_json_int_or(run->next.view, "revision", 0),
                gs_json_string_or(run->next.view, "reason", ""));
    gs_coordinator_touch(coordinator, run->job);
}

static gs_json *encode_plan(const gs_bucket_plan *plan, const gs_plan_header *header) {
    return gs_plan_message_encode(plan, &(gs_plan_label){header->revision, header->reason, true});
}

// The ranks are asked to stay with what they have: an offer of it calls back the one that waits.
static void call_back(gs_coordinator *coordinator, gs_run *run, const gs_bucket_plan *plan,
                      const gs_plan_header *header) {
    gs_json_release(run->next.message);
    run->next.message = encode_plan(plan, header);
    send_next(coordinator, run);
    drop_next(run);
}

gs_status gs_replan_consider(gs_coordinator *coordinator, gs_run *run) {
    gs_job *job = run->job;
    const gs_param_spec *params = NULL;
    size_t num_params = 0;
    gs_bucket_plan plan = {0};
    if (!job->ready_order || run->phase != GS_RUN_TRAINING) return gs_ok();
    GS_TRY(find_params(run, &params, &num_params));
    GS_TRY(gs_planner_assign(&plan, &job->spec, run->num_members, params, num_params,
                             job->ready_order));
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(&plan));
    gs_hook_rule hook = gs_planner_hook_rule(run);
    gs_plan_header header = {.revision = job->plan_revision + 1,
                             .reason = gs_planner_reason(job),
                             .hash = hash,
                             .world_size = run->num_members,
                             .hook = &hook,
                             .asked = &job->spec.reducer.hook};
    if (!strcmp(hash, gs_json_string_or(job->plan, "hash", ""))) {
        header.revision = job->plan_revision;
        if (run->next.digest) call_back(coordinator, run, &plan, &header);
    } else if (fold_hash(hash) != run->next.digest) {
        drop_next(run);
        run->next =
            (gs_next_plan){.digest = fold_hash(hash),
                           .message = encode_plan(&plan, &header),
                           .view = gs_plan_to_view(&plan, &header, params, job->ready_order)};
        send_next(coordinator, run);
    }
    gs_bucket_plan_release(&plan);
    return gs_ok();
}

static void adopt_next(gs_coordinator *coordinator, gs_run *run, int64_t since_step) {
    gs_job *job = run->job;
    gs_json *view = run->next.view;
    size_t old_buckets = gs_json_count(gs_json_get(job->plan, "buckets"));
    run->next.view = NULL;
    run->plan_step = since_step;
    gs_json_set_int(view, "since_step", since_step);
    snprintf(run->plan_hash, sizeof run->plan_hash, "%s", gs_json_string_or(view, "hash", ""));
    drop_next(run);
    gs_planner_adopt(coordinator, job, view);
    gs_event_add(coordinator, job, NULL, GS_SEVERITY_INFO, "PlanRebuilt",
                 "plan revision %d (%s) from step %lld on: %zu buckets after %zu",
                 job->plan_revision, gs_json_string_or(view, "reason", ""), (long long)since_step,
                 gs_json_count(gs_json_get(view, "buckets")), old_buckets);
    gs_coordinator_touch_now(coordinator, job);
}

static bool is_followed(const gs_job *job) {
    size_t count = gs_json_count(job->observed_order);
    if (!job->ready_order || gs_json_count(job->ready_order) != count) return false;
    for (size_t i = 0; i < count; i++) {
        int64_t seen = -1, followed = -2;
        if (!gs_json_int(&seen, gs_json_at(job->observed_order, i)) ||
            !gs_json_int(&followed, gs_json_at(job->ready_order, i)) || seen != followed)
            return false;
    }
    return true;
}

static void follow_order(gs_coordinator *coordinator, gs_job *job, const char *reason) {
    gs_json_release(job->ready_order);
    job->ready_order = gs_json_retain(job->observed_order);
    snprintf(job->order_reason, sizeof job->order_reason, "%s", reason);
    gs_coordinator_touch_now(coordinator, job);
}

// Ranks that changed to a plan which an earlier life of the coordinator sent and did not write
// down: it can only follow the order that rank 0 tells again.
static void catch_up(gs_coordinator *coordinator, gs_run *run, const gs_member *member) {
    gs_job *job = run->job;
    bool known = member->plan_digest == fold_hash(gs_json_string_or(job->plan, "hash", ""));
    if (gs_job_plan_is_fixed(&job->spec)) return;
    if (!run->was_reloaded || known || !job->observed_order || is_followed(job)) return;
    follow_order(coordinator, job,
                 job->spec.reducer.rebuild_after_steps > 0 ? "ready_order" : "operator");
    gs_status status = gs_replan_consider(coordinator, run);
    if (status.code) gs_log_warn("no plan", "reason=\"%s\"", status.message);
}

void gs_replan_note(gs_coordinator *coordinator, gs_member *member, const gs_json *heartbeat) {
    gs_run *run = member->job->run;
    bool bound = gs_json_int_or(heartbeat, "generation", 0) == (int64_t)run->generation;
    if (!bound || run->phase != GS_RUN_TRAINING || !gs_json_get(heartbeat, "plan")) return;
    gs_status plan = gs_json_read_u64(&member->plan_digest, heartbeat, "plan");
    gs_status next = gs_json_read_u64(&member->next_plan_digest, heartbeat, "next_plan");
    if (plan.code || next.code) return;
    if (!run->next.digest) catch_up(coordinator, run, member);
    if (!run->next.digest) return;
    // Ranks change together: one speaks for all, but for who speaks of a time before the last change.
    int64_t plan_step = gs_member_step_of(heartbeat, "plan_step", 0);
    if (member->plan_digest == run->next.digest && plan_step > run->plan_step) {
        adopt_next(coordinator, run, plan_step);
    } else if (member->next_plan_digest != run->next.digest &&
               gs_now_ns() - member->replan_sent_ns >= RESEND_NS) {
        gs_replan_resend(member);
    }
}

static gs_status find_teller(gs_coordinator *coordinator, gs_member **out, const gs_rpc_peer *peer,
                             const gs_json *request) {
    gs_member *member = gs_u64_map_get(&coordinator->members, peer->incarnation);
    int64_t generation = gs_json_int_or(request, "generation", -1);
    if (!member || member->exited || member->job->id != peer->job ||
        generation != (int64_t)member->job->run->generation) {
        return gs_error(GS_ABORTED, "generation %lld is over", (long long)generation);
    }
    if (member->rank != 0) {
        return gs_error(GS_INVALID_ARGUMENT, "order: rank %d tells it, rank 0 decides",
                        member->rank);
    }
    *out = member;
    return gs_ok();
}

static gs_status check_order(gs_run *run, const gs_json *order) {
    const gs_param_spec *params = NULL;
    size_t num_params = 0, *list = NULL;
    GS_TRY(find_params(run, &params, &num_params));
    GS_TRY(gs_planner_read_order(&list, order, num_params));
    free(list);
    return gs_ok();
}

void gs_ready_order(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = NULL;
    const gs_json *order = gs_json_get(request, "order");
    gs_status status = find_teller(coordinator, &member, peer, request);
    if (!status.code) status = check_order(member->job->run, order);
    if (!status.code) {
        gs_job *job = member->job;
        gs_json_release(job->observed_order);
        job->observed_order = gs_json_copy(order);
        bool automatic = job->spec.reducer.rebuild_after_steps > 0;
        if (automatic && gs_json_bool_or(request, "settled", false)) {
            follow_order(coordinator, job, "ready_order");
            status = gs_replan_consider(coordinator, job->run);
        }
    }
    gs_rpc_reply(call, status, status.code ? NULL : gs_json_new_object());
}

static gs_status refuse(gs_json **details, const char *code, const char *hint, gs_status status) {
    *details = gs_json_new_object();
    gs_json_set_string(*details, "code", code);
    gs_json_set_string(*details, "hint", hint);
    return status;
}

static gs_json *describe_replan(const gs_job *job) {
    const gs_next_plan *next = &job->run->next;
    const gs_json *view = next->digest ? next->view : job->plan;
    gs_json *reply = gs_json_new_object();
    gs_json_set_string(reply, "job", job->id_text);
    gs_json_set_bool(reply, "pending", next->digest != 0);
    gs_json_set_int(reply, "revision", gs_json_int_or(view, "revision", 0));
    gs_json_set_string(reply, "reason", gs_json_string_or(view, "reason", ""));
    gs_json_set_string(reply, "hash", gs_json_string_or(view, "hash", ""));
    gs_json_set_int(reply, "num_buckets", (int64_t)gs_json_count(gs_json_get(view, "buckets")));
    return reply;
}

// An answer that waits until the order that plans follow is durable.
typedef struct replan_write {
    gs_write base;
    gs_coordinator *coordinator;
    gs_rpc_call_handle *call;  // NULL when its caller went away
    gs_held held;
    uint64_t job;
    char *body;      // owned
    gs_json *reply;  // owned
} replan_write;

static void forget_call(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    ((replan_write *)owner)->call = NULL;
}

static gs_status write_job(gs_write *base, gs_job_store *store) {
    const replan_write *write = (const replan_write *)base;
    return gs_job_store_put_job(store, write->job, write->body);
}

static void answer_replan(gs_write *base, gs_status status) {
    replan_write *write = (replan_write *)base;
    gs_coordinator_note_store(write->coordinator, status);
    if (!write->call || status.code) gs_json_release(write->reply);
    if (write->call) gs_rpc_reply(write->call, status, status.code ? NULL : write->reply);
    free(write->body);
    free(write);
}

static gs_status store_replan(gs_coordinator *coordinator, gs_job *job, gs_rpc_call_handle *call) {
    replan_write *write = calloc(1, sizeof *write);
    if (!write) return gs_error(GS_RESOURCE_EXHAUSTED, "replan: out of memory");
    *write =
        (replan_write){.base = {.run = write_job, .done = answer_replan, .touches_store = true},
                       .coordinator = coordinator,
                       .call = call,
                       .job = job->id,
                       .reply = describe_replan(job)};
    gs_status status = gs_job_to_record(&write->body, job);
    if (status.code) {
        gs_json_release(write->reply);
        free(write);
        return status;
    }
    gs_held_keep(&write->held, call, forget_call, write);
    gs_writer_submit(coordinator->writer, &write->base);
    return gs_ok();
}

void gs_replan_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request) {
    (void)peer;
    gs_coordinator *coordinator = ctx;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_jobs_find(coordinator, &job, &details, request);
    if (!status.code && gs_job_plan_is_fixed(&job->spec)) {
        status = refuse(&details, "wrong_state", "it keeps the plan that it began with",
                        gs_error(GS_FAILED_PRECONDITION,
                                 "job %s is sharded: who owns what follows from its plan, which stays while it trains",
                                 job->id_text));
    }
    if (!status.code && (!job->run || job->run->phase != GS_RUN_TRAINING)) {
        status = refuse(&details, "wrong_state", "a plan changes while ranks train",
                        gs_error(GS_FAILED_PRECONDITION, "job %s is %s: %s", job->id_text,
                                 gs_job_state_name(job->state), job->reason));
    }
    if (!status.code && !job->observed_order && !job->ready_order) {
        status =
            refuse(&details, "wrong_state", "the order is known after the first step",
                   gs_error(GS_FAILED_PRECONDITION,
                            "job %s: no order of gradients has been observed yet", job->id_text));
    }
    if (!status.code) {
        // Asked again, or for what is followed already: nothing changes hands.
        if (job->observed_order && !is_followed(job)) follow_order(coordinator, job, "operator");
        status = gs_replan_consider(coordinator, job->run);
    }
    if (!status.code) status = store_replan(coordinator, job, call);
    if (status.code) gs_rpc_reply(call, status, details);
}
