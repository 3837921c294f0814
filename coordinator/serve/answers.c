#include "coordinator/serve/answers.h"

#include <string.h>

#include "coordinator/observe/job_view.h"
#include "coordinator/serve/dry_run.h"

static gs_json *refusal(const gs_state *state, const gs_reply *reply) {
    if (!reply->code) return NULL;
    gs_json *details = gs_json_new_object();
    gs_json_set_string(details, "code", reply->code);
    gs_json_set_string(details, "hint", reply->hint);
    if (reply->job_text) gs_json_set(details, "candidates", gs_job_candidates_to_view(&state->jobs, reply->job_text));
    return details;
}

static gs_json *job_answer(const gs_effect *effect) {
    if (!effect->job) return NULL;
    gs_json *view = gs_job_to_view(effect->job, true);
    if (effect->reply.replayed) gs_json_set_bool(view, "idempotency_replayed", true);
    return view;
}

static gs_json *replan(const gs_job *job) {
    const gs_next_plan *next = job->run && job->run->next.digest ? &job->run->next : NULL;
    const gs_plan_facts *facts = next ? &next->facts : &job->plan;
    gs_json *reply = gs_json_new_object();
    gs_json_set_string(reply, "job", job->id_text);
    gs_json_set_bool(reply, "pending", next != NULL);
    gs_json_set_int(reply, "revision", facts->revision);
    gs_json_set_string(reply, "reason", facts->reason);
    gs_json_set_string(reply, "hash", facts->hash);
    gs_json_set_int(reply, "num_buckets", (int64_t)facts->num_buckets);
    return reply;
}

static gs_json *settle(const gs_reply *reply) {
    gs_json *body = gs_json_new_object();
    gs_json_set_bool(body, "apply", reply->apply);
    gs_json_set_bool(body, "save", reply->save);
    return body;
}

gs_json *gs_answer_round(const gs_exchange_round *round) {
    gs_json *all = gs_json_new_array();
    for (int i = 0; i < round->num_ranks; i++) gs_json_push(all, gs_json_new_string(round->entries[i].bytes));
    return all;
}

static gs_json *exchange(gs_json *round) {
    gs_json *body = gs_json_new_object();
    gs_json_set(body, "all", gs_json_retain(round));
    return body;
}

gs_json *gs_answer_body(const gs_state *state, const gs_effect *effect, gs_json *round) {
    const gs_reply *reply = &effect->reply;
    switch (reply->kind) {
    case GS_REPLY_EMPTY: return gs_json_new_object();
    case GS_REPLY_NOTHING: return NULL;
    case GS_REPLY_REFUSAL: return refusal(state, reply);
    case GS_REPLY_JOB: return job_answer(effect);
    case GS_REPLY_DRY_RUN: return gs_dry_run(reply->spec);
    case GS_REPLY_REPLAN: return effect->job ? replan(effect->job) : NULL;
    case GS_REPLY_SETTLE: return settle(reply);
    case GS_REPLY_EXCHANGE: return exchange(round);
    }
    return NULL;
}
