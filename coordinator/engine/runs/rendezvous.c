#include "coordinator/engine/runs/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/generations.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/old_copy.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/base/places.h"
#include "coordinator/engine/runs/plans.h"
#include "coordinator/engine/runs/replan.h"
#include "coordinator/engine/runs/run_life.h"
#include "core/clock.h"

// The first member whose list has come: what the others are compared with.
static gs_member *find_reference(gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].params) return &run->members[i];
    }
    return NULL;
}

static void refuse_world(gs_engine *engine, gs_run *run, gs_member *member, const char *reason,
                         const char *what, const char *hint) {
    gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = member, .reason = reason, .class = "user",
                      .hint = hint, .fault = GS_FAULT_MISMATCH};
    run->no_restart = true;
    gs_run_fail(engine, run, &blame, "worker %s slot %d: %s", member->worker, member->slot, what);
}

// What all must have alike but the model. False when the run has failed by it, or somebody is still awaited.
static bool all_are_here(gs_engine *engine, gs_run *run) {
    const gs_member *first = &run->members[0];
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        // Who leaves is not compared: it may not even have told what it has.
        if (!gs_member_is_here(member) || member->stage == GS_MEMBER_LEAVING) return false;
        if (run->job->spec.exact && member->arithmetic != first->arithmetic) {
            refuse_world(engine, run, member, "ArithmeticMismatch",
                         "its arithmetic differs from rank 0's, and exact is set",
                         "exact mode needs the same instruction set and BLAS kernel on every host");
            return false;
        }
        if (strcmp(member->data_digest, first->data_digest) != 0) {
            refuse_world(engine, run, member, "DataMismatch", "its data files differ from rank 0's",
                         "copy the same files to the data root of every worker");
            return false;
        }
    }
    return true;
}

// True when the world agrees; false when something is still awaited or the run has failed.
static bool compare_world(gs_engine *engine, gs_run *run) {
    if (!all_are_here(engine, run)) return false;
    const gs_member *reference = find_reference(run);
    if (!reference) return false;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!strcmp(member->params_digest, reference->params_digest)) continue;
        if (!member->params) {  // one list is enough to say what differs, and those of all would be gigabytes
            if (!member->list_asked) gs_tell_welcome(engine, member, true);
            return false;
        }
        gs_status difference = gs_param_specs_compare(reference->params, reference->num_params,
                                                      member->params, member->num_params);
        refuse_world(engine, run, member, "PlanMismatch",
                     difference.code ? difference.message : "its parameter list differs",
                     "every rank must build the same model");
        return false;
    }
    return true;
}

static void begin_generation(gs_engine *engine, gs_run *run, uint32_t generation) {
    gs_job *job = run->job;
    run->generation = job->generation = generation;
    if (job->world_size && job->world_size != run->num_members) {
        gs_mind_count(engine, job, GS_COUNT_RESCALE, run->num_members > job->world_size ? "up" : "down", NULL, 0);
    }
    job->world_size = run->num_members;
    gs_effect *begun = gs_mind_do(engine, GS_DO_BEGIN_GENERATION);
    begun->job = job;
    begun->run = run;
    for (int i = 0; i < run->num_members; i++) run->members[i].rank = i;
    gs_run_enter(engine, run, GS_RUN_PREPARING, engine->state.timing.prepare_ns);
    gs_note_add(engine, job, NULL, GS_SEVERITY_INFO, "GenerationFormed",
                "generation %u has %d ranks, plan revision %d (%s)", run->generation,
                run->num_members, job->plan.revision, run->plan_hash);
    for (int i = 0; i < run->num_members; i++) gs_tell_prepare(engine, &run->members[i]);
    gs_job_touch(engine, job);
}

void gs_rendezvous_try(gs_engine *engine, gs_run *run) {
    if (run->phase != GS_RUN_LAUNCHING || !compare_world(engine, run)) return;
    gs_job *job = run->job;
    uint32_t generation = gs_generations_take(engine);
    if (!generation) {
        gs_job_explain(engine, job, "StoreUnavailable",
                       "all %d ranks are in; no generation can be formed before the store can be written",
                       run->num_members);
        return;
    }
    gs_job_explain(engine, job, "BuildingPlan", "%d ranks are in", run->num_members);
    gs_member *reference = find_reference(run);
    gs_status status = gs_plan_make(engine, run, reference->params, reference->num_params);
    if (status.code) refuse_world(engine, run, reference, "PlanRefused", status.message, NULL);
    else begin_generation(engine, run, generation);
}

// The state that a member that came back is owed: prepare, start, go, abort, drain.
static void resend(gs_engine *engine, gs_member *member) {
    gs_run *run = member->job->run;
    switch (run->phase) {
    case GS_RUN_LAUNCHING: break;
    case GS_RUN_PREPARING: gs_tell_prepare(engine, member); break;
    case GS_RUN_CONNECTING:
        gs_tell_prepare(engine, member);
        gs_tell_start(engine, member);
        break;
    case GS_RUN_TRAINING:
    case GS_RUN_RELOADING:
        gs_tell_go(engine, member);
        gs_replan_resend(engine, member);
        break;
    default: gs_tell_abort(engine, member); break;
    }
    if (run->draining) gs_tell_drain(engine, member);
}

void gs_rendezvous_check_in(gs_engine *engine, gs_run *run) {
    if (run->phase != GS_RUN_RELOADING) return;
    int back = 0;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member->stage >= GS_MEMBER_LEAVING) continue;
        if (!member->stream.call) return;
        back++;
    }
    if (back == 0) return;
    gs_run_enter(engine, run, GS_RUN_TRAINING, 0);
    run->progress_ns = engine->state.now_ns;
    run->was_reloaded = true;
    gs_note_add(engine, run->job, NULL, GS_SEVERITY_INFO, "MembersCheckedIn",
                "all %d ranks of generation %u%s went on while the coordinator was away", back, run->generation,
                back < run->num_members ? " that have not left" : "");
    gs_status status = gs_replan_consider(engine, run);
    if (status.code) gs_mind_log(engine, GS_SEVERITY_WARNING, "no plan", "reason=\"%s\"", status.message);
}

void gs_member_stream_gone(gs_engine *engine, gs_member *member, bool was_closed) {
    member->stream_closed = was_closed;
    member->stream_lost_ns = engine->state.now_ns;
}

static bool is_gone(const gs_engine *engine, const gs_trainer_hello *hello) {
    uint64_t id = 0;
    bool names_cluster = hello->cluster && *hello->cluster;
    return hello->job && gs_job_id_parse(&id, hello->job) && gs_job_table_is_gone(&engine->state.jobs, id, names_cluster);
}

// For people: how far it is that nobody here knows.
static void note_step_of_unknown(gs_engine *engine, const gs_trainer_hello *hello) {
    const gs_agent_table *agents = &engine->state.agents;
    for (size_t i = 0; i < agents->count; i++) {
        for (int k = 0; k < agents->items[i]->num_slots; k++) {
            gs_agent_slot *slot = &agents->items[i]->slots[k];
            if (slot->is_unknown && slot->incarnation == hello->incarnation && hello->applied_step > slot->step)
                slot->step = hello->applied_step;
        }
    }
}

static gs_status find_caller(gs_engine *engine, gs_member **out, const gs_engine_event *event) {
    const gs_trainer_hello *hello = &event->hello;
    GS_TRY(hello->refusal);
    gs_job *job = gs_job_table_of_text(&engine->state.jobs, hello->job);
    if (job && gs_job_is_unrecorded(job)) job = NULL;
    if (gs_job_is_of_other(job, &engine->state.cluster, hello->cluster))
        return gs_error(GS_NOT_FOUND, "hello: job %s is of cluster %.23s, this is cluster %s", hello->job, hello->cluster,
                        engine->state.cluster.id);
    GS_TRY(gs_old_copy_ask_trainer(engine, &hello->seen));
    if (!job && is_gone(engine, hello))
        return gs_error(GS_ABORTED, "hello: job %s has ended here and was deleted", hello->job);
    // Unknown is not over (ABORTED): this may be the wrong coordinator for it.
    if (!job) return gs_error(GS_NOT_FOUND, "hello: job %s is not known here", hello->job);
    gs_identity who = event->from.who;  // its envelope names no job yet
    who.job = job->id;
    gs_member *member = NULL;
    if (gs_identity_find_member(&member, &engine->state, &who) != GS_IDENTITY_OWN || member->launch_token != hello->launch_token ||
        who.incarnation != hello->incarnation) {
        GS_TRY(gs_old_copy_ask_stranger(engine, hello));
        return gs_error(GS_ABORTED, "hello: this trainer belongs to no generation of job %s", job->id_text);
    }
    *out = member;
    return gs_ok();
}

static void note_hello(gs_engine *engine, gs_member *member, const gs_trainer_hello *hello) {
    member->heard_ns = engine->state.now_ns;
    member->idle_since_ns = 0;
    member->pid = hello->pid;
    snprintf(member->host, sizeof member->host, "%s", hello->host);
    snprintf(member->boot_id, sizeof member->boot_id, "%s", hello->boot_id);
    snprintf(member->params_digest, sizeof member->params_digest, "%s", hello->params_digest);
    snprintf(member->data_digest, sizeof member->data_digest, "%s", hello->data_digest);
    member->arithmetic = hello->arithmetic;
    if (hello->applied_step > member->applied_step) member->applied_step = hello->applied_step;
}

static void keep_backend(gs_run *run, const char *backend, const char *reason) {
    snprintf(run->backend, sizeof run->backend, "%s", backend);
    snprintf(run->backend_reason, sizeof run->backend_reason, "%s", reason ? reason : "");
}

// A life before this one was told.
static void note_backend(gs_engine *engine, gs_member *member, const gs_trainer_hello *hello) {
    gs_run *run = member->job->run;
    if (member->rank != 0 || run->backend[0] || !hello->backend || hello->backend_generation != run->generation) return;
    keep_backend(run, hello->backend, hello->backend_reason);
    gs_job_touch(engine, member->job);
}

void gs_on_hello(gs_engine *engine, gs_engine_event *event) {
    gs_member *member = NULL;
    gs_status status = find_caller(engine, &member, event);
    if (status.code) {
        note_step_of_unknown(engine, &event->hello);
        gs_end_stream(engine, event->from.call, status);
        return;
    }
    event->was_admitted = true;
    gs_run *run = member->job->run;
    gs_end_stream(engine, gs_kept_take(engine, &member->stream), gs_error(GS_ABORTED, "said hello again"));
    gs_kept_set(engine, &member->stream, event->from.call, GS_CALL_MEMBER_STREAM, member);
    member->stream_closed = false;
    member->takes_cadence = event->hello.takes_cadence;
    member->shows_token |= event->from.who.token != 0;  // to a life that did not ask its worker
    bool first = member->stage == GS_MEMBER_LAUNCHED;
    if (first) gs_member_enter(engine, member, GS_MEMBER_HERE);
    note_hello(engine, member, &event->hello);
    note_backend(engine, member, &event->hello);

    bool asked = false;
    for (int i = 0; i < run->num_members; i++) asked |= run->members[i].list_asked;
    bool send_params = first ? !asked : member->list_asked && !member->params;
    gs_tell_welcome(engine, member, send_params && run->phase == GS_RUN_LAUNCHING);
    if (!first) resend(engine, member);
    gs_rendezvous_check_in(engine, run);
    gs_rendezvous_try(engine, run);
}

void gs_on_params(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    if (member->job->run->phase != GS_RUN_LAUNCHING) {  // the ranks have agreed by now
        gs_reply_ok(engine, event->from.call);
        return;
    }
    gs_status status = event->params.refusal;
    if (!status.code) status = gs_param_list_append(&member->listed, &event->params.page);
    gs_reply_status(engine, event->from.call, status);
    if (status.code) {
        refuse_world(engine, member->job->run, member, "PlanRefused", status.message, NULL);
        return;
    }
    if (!member->listed.is_complete) return;
    // Effects of this step may point at the old list.
    gs_mind_bury(engine, member->params, free);
    member->params = member->listed.params;
    member->num_params = member->listed.num_params;
    member->listed = (gs_param_list){0};
    gs_rendezvous_try(engine, member->job->run);
}

// The survivors could not save where they stood: steps are taken again.
static void count_lost_steps(gs_engine *engine, gs_job *job, int64_t base_step) {
    int64_t lost = job->reached_step - base_step;
    job->reached_step = 0;
    if (lost <= 0) return;
    job->lost_steps += lost;
    gs_job_mend_progress(engine, job);
    gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "StepsLost",
                "the job stood at step %lld and goes on from step %lld: %lld steps are taken again",
                (long long)(base_step + lost), (long long)base_step, (long long)lost);
}

// Its worker has a checkpoint directory of its own, where there was nothing to start from: the others give it the state.
static bool is_given_state(const gs_engine *engine, const gs_member *member) {
    return member->applied_step == 0 && gs_place_is_apart(engine, member);
}

// Whom all are compared with: rank 0, unless it is given its state.
static const gs_member *find_source(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++)
        if (!is_given_state(engine, &run->members[i])) return &run->members[i];
    return &run->members[0];
}

// The member that is not where the source is; NULL: all are, or will be.
static gs_member *find_different(const gs_engine *engine, gs_run *run, const gs_member *first) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (first->applied_step > 0 && is_given_state(engine, member)) continue;
        bool both_known = member->state_digest[0] && first->state_digest[0];
        if (member->applied_step != first->applied_step ||
            (both_known && strcmp(member->state_digest, first->state_digest) != 0))
            return member;
    }
    return NULL;
}

// All ranks of a set are where the checkpoint that they should go on from is not. Who begins at 0 though it was told of one has
// not found it, whatever is known of its place here: its worker may not have said it.
static bool nobody_has_checkpoint(gs_engine *engine, gs_run *run, const gs_member *first) {
    int64_t step = first->resume_step;
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].applied_step > 0) return false;
    if (step <= 0) return false;
    gs_member *member = &run->members[gs_member_index(first)];
    gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = member, .reason = "CheckpointElsewhere", .class = "user",
                      .hint = "mount the coordinator's checkpoint directory on a worker, and say where with --checkpoints",
                      .fault = GS_FAULT_MISMATCH};
    run->no_restart = true;
    gs_run_fail(engine, run, &blame, "no worker of this set sees the checkpoint of step %lld: worker %s has begun without it",
                (long long)step, member->worker);
    return true;
}

static void start_world(gs_engine *engine, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage != GS_MEMBER_READY) return;
    }
    const gs_member *first = find_source(engine, run);
    if (nobody_has_checkpoint(engine, run, first)) return;
    gs_member *other = find_different(engine, run, first);
    if (other) {
        gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = other, .reason = "StateMismatch",
                          .class = "system", .fault = GS_FAULT_MISMATCH};
        gs_run_fail(engine, run, &blame, "rank %d starts from step %lld (%s), rank %d from step %lld (%s)",
                    gs_member_index(other), (long long)other->applied_step, other->state_digest, gs_member_index(first),
                    (long long)first->applied_step, first->state_digest);
        return;
    }
    run->base_step = run->step = first->applied_step;
    gs_checkpoints_begin(engine, run->job, run->base_step);  // what others have saved is of an earlier generation now
    count_lost_steps(engine, run->job, run->base_step);
    gs_run_enter(engine, run, GS_RUN_CONNECTING, engine->state.timing.connect_ns);
    gs_job_explain(engine, run->job, "CreatingCommunicator", "%d ranks agree on plan %s from step %lld",
                   run->num_members, run->plan_hash, (long long)run->base_step);
    for (int i = 0; i < run->num_members; i++) gs_tell_start(engine, &run->members[i]);
}

void gs_on_ready(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    const gs_ready_report *ready = &event->ready;
    gs_run *run = member->job->run;
    if (run->phase == GS_RUN_PREPARING && strcmp(ready->plan_hash, run->plan_hash) != 0) {
        char what[160];
        snprintf(what, sizeof what, "rank %d computed plan %s, the coordinator %s", member->rank,
                 ready->plan_hash, run->plan_hash);
        gs_reply_error(engine, event->from.call, gs_error(GS_FAILED_PRECONDITION, "%s", what));
        refuse_world(engine, run, member, "PlanMismatch", what, "run the same build of gradsync everywhere");
        return;
    }
    gs_reply_ok(engine, event->from.call);
    if (run->phase != GS_RUN_PREPARING || member->stage > GS_MEMBER_READY) return;
    if (member->stage == GS_MEMBER_HERE) gs_member_enter(engine, member, GS_MEMBER_READY);
    if (ready->applied_step >= 0) member->applied_step = ready->applied_step;
    snprintf(member->state_digest, sizeof member->state_digest, "%s", ready->state_digest);
    start_world(engine, run);
}

static void answer_round(gs_engine *engine, gs_run *run, gs_exchange_round *round) {
    gs_exchange_unlink(&run->exchanges, round);
    gs_mind_bury(engine, round, (void (*)(void *))gs_exchange_free);
    for (int i = 0; i < round->num_ranks; i++) {
        gs_call call = gs_kept_take(engine, &round->entries[i].held);
        if (call) gs_reply_with(engine, call, GS_REPLY_EXCHANGE, run->job)->reply.round = round;
    }
}

// Members disagree about who they are: everybody in it is told, now and later.
static void end_round(gs_engine *engine, gs_exchange_round *round) {
    for (int i = 0; i < round->num_ranks; i++)
        gs_reply_error(engine, gs_kept_take(engine, &round->entries[i].held), round->refusal);
}

void gs_on_exchange(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    gs_run *run = member->job->run;
    gs_exchange_round *round = NULL;
    gs_exchange_entry *entry = NULL;
    gs_status status = event->exchange.refusal;
    if (run->phase != GS_RUN_CONNECTING && run->phase != GS_RUN_TRAINING)
        status = gs_error(GS_ABORTED, "generation %u is %s", run->generation, gs_run_phase_name(run->phase));
    if (!status.code)
        status = gs_exchange_enter(&run->exchanges, &round, &entry, run->num_members, member->rank,
                                   &event->exchange.request);
    if (status.code) {
        gs_reply_error(engine, event->from.call, status);
        if (status.code == GS_RESOURCE_EXHAUSTED) gs_mind_count(engine, NULL, GS_COUNT_LIMIT, "exchanges", NULL, 1);
        if (round) end_round(engine, round);
        return;
    }
    gs_reply_error(engine, gs_kept_take(engine, &entry->held), gs_error(GS_ABORTED, "exchanged again"));
    gs_kept_set(engine, &entry->held, event->from.call, GS_CALL_EXCHANGE, entry);
    if (round->num_arrived == round->num_ranks) answer_round(engine, run, round);
}

void gs_on_comm_up(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    gs_reply_ok(engine, event->from.call);
    gs_run *run = member->job->run;
    // Of a set that was adopted while it formed: it was told to go before it could.
    if (run->phase == GS_RUN_TRAINING || run->phase == GS_RUN_RELOADING) gs_tell_go(engine, member);
    if (run->phase != GS_RUN_CONNECTING) return;
    if (member->stage == GS_MEMBER_READY) gs_member_enter(engine, member, GS_MEMBER_UP);
    if (member->rank == 0) keep_backend(run, event->comm_up.backend, event->comm_up.reason);
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage != GS_MEMBER_UP) return;
    }
    gs_run_enter(engine, run, GS_RUN_TRAINING, 0);
    run->progress_ns = engine->state.now_ns;
    gs_mind_count(engine, run->job, GS_COUNT_RENDEZVOUS, "complete", NULL,
                  (double)(run->progress_ns - run->begun_ns) / GS_NS_PER_SEC);
    gs_note_add(engine, run->job, NULL, GS_SEVERITY_INFO, "CommunicatorUp", "%d ranks reduce over %s%s%s",
                run->num_members, run->backend, run->backend_reason[0] ? ": " : "", run->backend_reason);
    gs_job_touch_now(engine, run->job);
    for (int i = 0; i < run->num_members; i++) gs_tell_go(engine, &run->members[i]);
}
