#include "coordinator/engine/runs/farewells.h"

#include "coordinator/engine/base/moves.h"
#include "core/clock.h"

// Less than a rank waits for an answer.
#define RECORDED_WITHIN_NS (3 * GS_NS_PER_SEC)
#define RECORD_AGAIN_NS (GS_NS_PER_SEC / 2)

static bool waits(const gs_member *member) { return member->goodbye.call != 0; }

static gs_call let_go(gs_engine *engine, gs_member *member) {
    member->bye.at_ns = engine->state.now_ns;
    return gs_kept_take(engine, &member->goodbye);
}

// In a later life. Of a run that this one did not bring to train nothing is known there; of one that has failed only who has done
// all steps, and a restart of the others waits for no disk.
static bool must_last(const gs_run *run, gs_bye_reason said) {
    if (!gs_run_is_kept(run)) return false;
    return run->phase < GS_RUN_SETTLING || said == GS_BYE_TARGET_REACHED || said == GS_BYE_DATA_ENDED;
}

// One write at a time; who comes meanwhile is in the next.
static void record(gs_engine *engine, gs_run *run) {
    if (run->bye_ticket) return;
    uint64_t ticket = 0;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!waits(member)) continue;
        if (!ticket) ticket = ++engine->last_ticket;
        member->bye.ticket = ticket;
    }
    if (!ticket) return;
    run->bye_ticket = ticket;
    gs_job_write(engine, run->job)->ticket = ticket;
}

void gs_farewell_take(gs_engine *engine, gs_member *member, gs_call call) {
    gs_run *run = member->job->run;
    gs_reply_error(engine, gs_kept_take(engine, &member->goodbye), gs_error(GS_ABORTED, "said bye again"));
    if (!must_last(run, member->bye.reason)) {
        gs_reply_ok(engine, call);
        return;
    }
    gs_kept_set(engine, &member->goodbye, call, GS_CALL_BYE, member);
    record(engine, run);
}

void gs_farewells_stored(gs_engine *engine, gs_job *job, const gs_completion *done) {
    gs_run *run = job->run;
    if (!run || !run->bye_ticket || run->bye_ticket != done->ticket) return;
    run->bye_ticket = 0;
    run->bye_again_ns = done->status.code ? engine->state.now_ns + RECORD_AGAIN_NS : 0;
    if (done->status.code) return;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (waits(member) && member->bye.ticket == done->ticket) gs_reply_ok(engine, let_go(engine, member));
    }
    record(engine, run);
}

static void give_up(gs_engine *engine, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!waits(member) || engine->state.now_ns - member->bye.at_ns < RECORDED_WITHIN_NS) continue;
        gs_reply_error(engine, let_go(engine, member),
                       gs_error(GS_UNAVAILABLE, "it is heard, and could not be recorded within %lld s",
                                (long long)(RECORDED_WITHIN_NS / GS_NS_PER_SEC)));
    }
}

void gs_farewells_tick(gs_engine *engine) {
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_run *run = engine->state.jobs.items[i]->run;
        if (!run || !gs_state_has_turn(&engine->state, run->job)) continue;
        give_up(engine, run);
        if (engine->state.now_ns >= run->bye_again_ns) record(engine, run);
    }
}
