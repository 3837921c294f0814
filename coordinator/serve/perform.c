#include "coordinator/serve/perform.h"

#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/sights.h"
#include "coordinator/serve/agent_items.h"
#include "coordinator/serve/answers.h"
#include "coordinator/serve/member_items.h"
#include "coordinator/store/file_work.h"
#include "coordinator/store/row_work.h"
#include "core/failpoint.h"
#include "core/log.h"

// All ranks get the same plan, and it is long: encoded once for the orders of a batch.
typedef struct plan_text {
    const gs_bucket_plan *plan;
    const gs_plan_facts *facts;
    gs_json *message;  // owned
} plan_text;

static gs_json *encode_plan(plan_text *kept, const gs_member_message *message) {
    if (!message->plan) return NULL;
    bool same = kept->message && kept->plan->buckets == message->plan->buckets &&
                kept->facts->revision == message->facts->revision;
    if (!same) {
        gs_json_release(kept->message);
        *kept = (plan_text){message->plan, message->facts, gs_member_plan(message)};
    }
    return kept->message;
}

// NULL: this effect asks nothing of the disk.
static gs_work *make_work(const gs_performer *performer, const gs_effect *effect) {
    const gs_file_root at = {performer->state->checkpoints_dir, performer->trace};
    switch (effect->kind) {
    case GS_DO_WRITE_JOB:
        return gs_row_work_put_job(effect->job, &effect->job->sight->documents, effect->write.key,
                                   performer->state->now_ns);
    case GS_DO_DELETE_JOB: return gs_row_work_delete_job(&effect->tombstone);
    case GS_DO_RESERVE_GENERATIONS: return gs_row_work_reserve_generations(effect->generation_end);
    case GS_DO_WRITE_CHECKPOINT: return gs_row_work_put_checkpoint(effect->job_id, effect->checkpoint);
    case GS_DO_DELETE_CHECKPOINT: return gs_row_work_delete_checkpoint(effect->job_id, effect->text);
    case GS_DO_PRUNE_KEYS: return gs_row_work_prune_keys(performer->state->wall_ms);
    case GS_DO_VERIFY: return gs_file_work_verify(&at, effect->job, effect->text, effect->verify);
    case GS_DO_LOOK_AT_PARTS:
        return gs_file_work_look_at_parts(&at, effect->job, effect->text, effect->all_reported);
    case GS_DO_FIND_DIRECTORIES: return gs_file_work_find_directories(&at, effect->job);
    case GS_DO_CHECK_CHECKPOINTS: return gs_file_work_check(&at, effect->job);
    case GS_DO_REMOVE_CHECKPOINT: return gs_file_work_remove_checkpoint(&at, effect->job, effect->text);
    case GS_DO_REMOVE_PARTS: return gs_file_work_remove_parts(&at, effect->job, effect->text);
    case GS_DO_PURGE: return gs_file_work_purge(&at, effect->job);
    default: return NULL;
    }
}

static void submit(const gs_performer *performer, gs_work *work, uint64_t ticket) {
    work->ticket = ticket;
    work->owner = performer->owner;
    work->base.done = performer->work_done;
    gs_writer_submit(performer->writer, &work->base);
}

static void tell_agent(const gs_performer *performer, const gs_effect *effect) {
    const gs_json *spec = effect->job ? effect->job->sight->documents.spec : NULL;
    gs_status status = gs_calls_send(performer->calls, effect->call, gs_agent_item(performer->state, effect, spec));
    if (!status.code) return;
    gs_log_warn("worker not told", "worker=%s job=%s reason=\"%s\"", effect->agent->name,
                effect->job ? effect->job->id_text : "", status.message);
    if (status.code == GS_OUT_OF_RANGE && effect->member) performer->too_large(performer->owner, effect, status);
}

static void tell_member(const gs_performer *performer, const gs_effect *effect, plan_text *plan) {
    gs_json *text = encode_plan(plan, &effect->member_message);
    gs_status status = gs_calls_send(performer->calls, effect->call, gs_member_item(performer->state, effect, text));
    if (!status.code) return;
    gs_log_warn("rank not told", "job=%s rank=%d worker=%s reason=\"%s\"", effect->job->id_text,
                gs_member_index(effect->member), effect->member->worker, status.message);
    if (status.code == GS_OUT_OF_RANGE) performer->too_large(performer->owner, effect, status);
}

void gs_perform(gs_performer *performer, gs_effects effects) {
    plan_text plan = {0};
    for (size_t i = 0; i < effects.count; i++) {
        const gs_effect *effect = &effects.items[i];
        GS_FAILPOINT_VOID("coordinator.effect");
        switch (effect->kind) {
        case GS_DO_REPLY:
            gs_calls_reply(performer->calls, effect->call, effect->reply.status,
                           gs_answer_body(performer->state, effect));
            break;
        case GS_DO_END: gs_calls_end(performer->calls, effect->call, effect->ending); break;
        case GS_DO_TELL_MEMBER: tell_member(performer, effect, &plan); break;
        case GS_DO_TELL_AGENT: tell_agent(performer, effect); break;
        default:
            if (effect->kind >= GS_DO_NOTE) gs_observer_see(performer->observer, effect);
            else if (!performer->is_closing) submit(performer, make_work(performer, effect), effect->ticket);
        }
    }
    gs_json_release(plan.message);
}
