#include "coordinator/engine/base/late_answers.h"

#include <stdlib.h>

#include "coordinator/model/memory.h"

void gs_late_answer_wait_again(gs_engine *engine, gs_late_answer *answer) {
    answer->next = engine->late;
    engine->late = answer;
}

gs_late_answer *gs_late_answer_add(gs_engine *engine, gs_late_kind kind, gs_call call, const gs_job *job) {
    gs_late_answer *answer = gs_model_alloc(1, sizeof *answer);
    answer->ticket = ++engine->last_ticket;
    answer->kind = kind;
    answer->job = job->id;
    gs_late_answer_wait_again(engine, answer);
    gs_kept_set(engine, &answer->held, call, GS_CALL_ANSWER, answer);
    return answer;
}

gs_late_answer *gs_late_answer_take(gs_engine *engine, uint64_t ticket) {
    gs_late_answer **link = &engine->late;
    while (*link && (*link)->ticket != ticket) link = &(*link)->next;
    gs_late_answer *answer = *link;
    if (answer) *link = answer->next;
    return answer;
}

gs_late_answer *gs_late_answer_take_held(gs_engine *engine, uint64_t job) {
    for (const gs_late_answer *answer = engine->late; answer; answer = answer->next) {
        if (answer->kind != GS_LATE_GO_BACK) continue;
        if (job ? answer->job == job : answer->until_ns <= engine->state.now_ns)
            return gs_late_answer_take(engine, answer->ticket);
    }
    return NULL;
}

void gs_late_answers_purge(gs_engine *engine, const gs_job *job) {
    for (gs_late_answer *answer = engine->late; answer; answer = answer->next)
        answer->purges |= answer->kind == GS_LATE_DELETE && answer->job == job->id;
}

bool gs_late_answer_waits(const gs_engine *engine, const gs_job *job) {
    for (const gs_late_answer *answer = engine->late; answer; answer = answer->next)
        if (answer->job == job->id && answer->kind != GS_LATE_GO_BACK) return true;
    return false;
}

bool gs_late_answer_deletes(const gs_engine *engine, uint64_t job) {
    for (const gs_late_answer *answer = engine->late; answer; answer = answer->next)
        if (answer->job == job && answer->kind == GS_LATE_DELETE) return true;
    return false;
}

void gs_late_answer_bury(gs_engine *engine, gs_late_answer *answer) {
    gs_mind_bury(engine, answer->key, free);
    gs_mind_bury(engine, answer, free);
}

void gs_reply_not_stored(gs_engine *engine, gs_call call, gs_status status) {
    if (status.code == GS_RESOURCE_EXHAUSTED)
        gs_reply_refusal(engine, call, status, "storage_full",
                         "free space below the data directory; training goes on");
    else gs_reply_error(engine, call, status);
}
