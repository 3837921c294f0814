#include "coordinator/serve/perform.h"

#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/sights.h"
#include "coordinator/serve/agent_items.h"
#include "coordinator/serve/answers.h"
#include "coordinator/serve/member_items.h"
#include "coordinator/store/file_work.h"
#include "coordinator/store/row_work.h"
#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"

#define PURGE_AGAIN_NS (60 * GS_NS_PER_SEC)

// Long parts that all ranks get, encoded once for the messages of a batch.
typedef struct shared_parts {
    const gs_bucket_plan *plan;
    const gs_plan_facts *facts;
    const gs_json *spec;
    const gs_exchange_round *round;
    gs_json *plan_text, *spec_text, *round_text;  // owned
} shared_parts;

// In place of what was kept. Takes `tree`.
static void keep_text(gs_json **kept, gs_json *tree) {
    gs_json_release(*kept);
    *kept = gs_json_new_encoded(tree);
    gs_json_release(tree);
}

static gs_json *encode_plan(shared_parts *parts, const gs_member_message *message) {
    if (!message->plan) return NULL;
    bool same = parts->plan_text && parts->plan->buckets == message->plan->buckets &&
                parts->facts->revision == message->facts->revision;
    if (!same) keep_text(&parts->plan_text, gs_member_plan(message));
    parts->plan = message->plan;
    parts->facts = message->facts;
    return parts->plan_text;
}

static gs_json *encode_spec(shared_parts *parts, gs_json *spec) {
    if (!spec) return NULL;
    if (parts->spec != spec) keep_text(&parts->spec_text, gs_json_retain(spec));
    parts->spec = spec;
    return parts->spec_text;
}

static gs_json *encode_round(shared_parts *parts, const gs_exchange_round *round) {
    if (!round) return NULL;
    if (parts->round != round) keep_text(&parts->round_text, gs_answer_round(round));
    parts->round = round;
    return parts->round_text;
}

static void release_parts(shared_parts *parts) {
    gs_json_release(parts->plan_text);
    gs_json_release(parts->spec_text);
    gs_json_release(parts->round_text);
}

// A job that comes back has its checkpoints again, but for those of which the removal has begun.
static gs_work *make_job_row(const gs_performer *performer, const gs_effect *effect) {
    const gs_job *job = effect->job;
    gs_work *work = gs_row_work_put_job(job, &job->sight->documents, effect->write.key, performer->state->now_ns);
    job->sight->rows_on_their_way++;
    if (!gs_purges_hold(performer->purges, job->id))
        gs_row_work_refuse_job(work, gs_error(GS_FAILED_PRECONDITION,
                                              "the removal of the checkpoints of job %s is in flight; try again when it is done",
                                              job->id_text));
    return work;
}

// NULL: this effect asks nothing of the disk.
static gs_work *make_work(const gs_performer *performer, const gs_effect *effect) {
    const gs_file_root at = {performer->state->checkpoints_dir, performer->trace, performer->sweeper, performer->marked_root};
    switch (effect->kind) {
    case GS_DO_WRITE_JOB: return make_job_row(performer, effect);
    case GS_DO_DELETE_JOB: return gs_row_work_delete_job(&effect->tombstone);
    case GS_DO_RESERVE_GENERATIONS: return gs_row_work_reserve_generations(effect->generation_end);
    case GS_DO_WRITE_CHECKPOINT: return gs_row_work_put_checkpoint(effect->job_id, effect->checkpoint);
    case GS_DO_DELETE_CHECKPOINT: return gs_row_work_delete_checkpoint(effect->job_id, effect->text);
    case GS_DO_PRUNE_KEYS: return gs_row_work_prune_keys();
    case GS_DO_VERIFY: return gs_file_work_verify(&at, effect->job, effect->verify.item, effect->verify.report);
    case GS_DO_LOOK_AT_PARTS:
        return gs_file_work_look_at_parts(&at, effect->job, effect->text, effect->all_reported);
    case GS_DO_FIND_DIRECTORIES: return gs_file_work_find_directories(&at, effect->job, performer->state->cluster.id);
    case GS_DO_CHECK_CHECKPOINTS: return gs_file_work_check(&at, effect->job);
    case GS_DO_LOOK_FOR_LIFE:
        return gs_file_work_look_for_life(
            &at, effect->job, gs_job_cluster_of(effect->job, &performer->state->cluster, effect->life.generation), &effect->life);
    case GS_DO_REMOVE_CHECKPOINT: return gs_file_work_remove_checkpoint(&at, effect->job, effect->text);
    case GS_DO_REMOVE_PARTS: return gs_file_work_remove_parts(&at, effect->job, effect->text);
    case GS_DO_SWEEP: return gs_file_work_sweep(&at, effect->job);
    default: return NULL;
    }
}

static void submit(const gs_performer *performer, gs_work *work, uint64_t ticket) {
    work->ticket = ticket;
    work->owner = performer->owner;
    work->base.done = performer->work_done;
    gs_writer_submit(performer->writer, &work->base);
}

static void tell_agent(const gs_performer *performer, const gs_effect *effect, shared_parts *parts) {
    gs_json *spec = effect->job ? encode_spec(parts, effect->job->sight->documents.spec) : NULL;
    gs_json *item = gs_agent_item(performer->state, performer->observer->gate, effect, spec);
    // Its ranks may have keys of their own: there is somebody here who lets them in.
    if (effect->agent_message.order == GS_TELL_AGENT_WELCOME && performer->observer->gate) gs_json_set_bool(item, "rank_keys", true);
    gs_status status = gs_calls_send(performer->calls, effect->call, item);
    if (!status.code) return;
    gs_log_warn("worker not told", "worker=%s job=%s reason=\"%s\"", effect->agent->name,
                effect->job ? effect->job->id_text : "", status.message);
    if (status.code == GS_OUT_OF_RANGE && effect->member) performer->too_large(performer->owner, effect, status);
}

static void tell_member(const gs_performer *performer, const gs_effect *effect, shared_parts *parts) {
    gs_json *text = encode_plan(parts, &effect->member_message);
    gs_status status = gs_calls_send(performer->calls, effect->call, gs_member_item(performer->state, performer->observer->gate, effect, text));
    if (!status.code) return;
    gs_log_warn("rank not told", "job=%s rank=%d worker=%s reason=\"%s\"", effect->job->id_text,
                gs_member_index(effect->member), effect->member->worker, status.message);
    if (status.code == GS_OUT_OF_RANGE) performer->too_large(performer->owner, effect, status);
}

void gs_perform(gs_performer *performer, gs_effects effects) {
    shared_parts parts = {0};
    for (size_t i = 0; i < effects.count; i++) {
        const gs_effect *effect = &effects.items[i];
        GS_FAILPOINT_VOID("coordinator.effect");
        switch (effect->kind) {
        case GS_DO_REPLY:
            gs_calls_reply(performer->calls, effect->call, effect->reply.status,
                           gs_answer_body(performer->state, effect, encode_round(&parts, effect->reply.round)));
            break;
        case GS_DO_END: gs_calls_end(performer->calls, effect->call, effect->ending); break;
        case GS_DO_TELL_MEMBER: tell_member(performer, effect, &parts); break;
        case GS_DO_TELL_AGENT: tell_agent(performer, effect, &parts); break;
        case GS_DO_PURGE:
            gs_purges_owe(performer->purges, effect->job_id, 0);
            gs_perform_purges(performer);
            break;
        default:
            if (effect->kind >= GS_DO_NOTE) gs_observer_see(performer->observer, effect);
            else if (!performer->is_closing) submit(performer, make_work(performer, effect), effect->ticket);
        }
    }
    release_parts(&parts);
}

void gs_perform_purges(gs_performer *performer) {
    const gs_file_root at = {performer->state->checkpoints_dir, performer->trace, performer->sweeper, performer->marked_root};
    uint64_t job;
    while (!performer->is_closing && gs_purges_next(performer->purges, &job, performer->state->now_ns)) {
        // With its trainers it may have come back: then they are its own again, in the store too.
        if (gs_job_table_get(&performer->state->jobs, job)) gs_purges_forget(performer->purges, job);
        else submit(performer, gs_file_work_purge(&at, performer->purges, performer->state->cluster.id, job), 0);
    }
}

void gs_perform_take_purged(gs_performer *performer, const gs_work *work) {
    int64_t again_ns = performer->state->now_ns + PURGE_AGAIN_NS;
    gs_code code = work->base.status.code;
    if (work->kind == GS_WORK_PUT_JOB) {
        gs_purges_release(performer->purges, work->job, !code, again_ns);
    } else if (code == GS_CANCELLED) {
        return;  // whoever held it says what becomes of it; at the end, the next start
    } else if (code) {
        gs_purges_owe(performer->purges, work->job, again_ns);
    } else if (work->kind == GS_WORK_PURGE) {
        gs_purges_forget(performer->purges, work->job);
        if (!performer->is_closing) submit(performer, gs_row_work_forget_purge(work->job), 0);
    }
}
