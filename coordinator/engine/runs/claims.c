#include "coordinator/engine/runs/claims.h"

#include "coordinator/engine/runs/run_life.h"
#include "core/clock.h"

static void disbelieve(gs_engine *engine, gs_member *liar, int64_t told, int64_t reached) {
    gs_run *run = liar->job->run;
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = liar, .reason = "StateMismatch", .class = "system",
                      .evict = true, .fault = GS_FAULT_MISMATCH};
    gs_run_fail(engine, run, &blame, "rank %d on %s tells of step %lld, the others stand at step %lld",
                gs_member_index(liar), liar->host, (long long)told, (long long)reached);
}

// Whose state differs before the first step says so, and has claimed nothing.
static bool is_disbelieved(const gs_member *member) {
    const gs_run_cause *cause = &member->job->run->cause;
    bool is_of_claim = cause->set && cause->kind == GS_FAILURE_LOST && cause->fault.kind == GS_FAULT_MISMATCH;
    return is_of_claim && cause->member == gs_member_index(member);
}

bool gs_claim_is_possible(gs_engine *engine, gs_member *member, int64_t applied_step) {
    const gs_run *run = member->job->run;
    if (is_disbelieved(member)) return false;
    if (applied_step <= member->job->spec.steps.target) return true;
    if (run->phase < GS_RUN_SETTLING) disbelieve(engine, member, applied_step, run->step);
    return false;
}

// The one who tells of the furthest step, and how far the others are; NULL: nobody is alone there. Who trains alone is compared with
// what it says now.
static gs_member *find_first(gs_run *run, int64_t *others) {
    gs_member *first = &run->members[0];
    if (run->num_members == 1) {
        *others = first->told_step;
        return first->told_step_ns && first->applied_step > *others + 1 ? first : NULL;
    }
    for (int i = 1; i < run->num_members; i++)
        if (run->members[i].applied_step > first->applied_step) first = &run->members[i];
    *others = 0;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member != first && member->applied_step > *others) *others = member->applied_step;
    }
    return first->applied_step > *others + 1 ? first : NULL;
}

// Whether nobody is away but him: who is, may have come further than it could tell.
static bool are_here(const gs_engine *engine, const gs_run *run, const gs_member *but) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        int64_t beats_ns = 4 * member->heartbeat_ns, suspect_ns = engine->state.timing.suspect_ns;
        if (member == but) continue;
        if (!gs_member_is_here(member) || !member->stream.call) return false;
        if (engine->state.now_ns - member->heard_ns > (beats_ns > suspect_ns ? beats_ns : suspect_ns)) return false;
    }
    return true;
}

// Among many ranks each tells its step every two seconds: what one told before says nothing of now.
static bool have_told_since(const gs_run *run, const gs_member *but, int64_t since_ns) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member != but && member->told_step_ns < since_ns) return false;
    }
    return true;
}

void gs_claims_check(gs_engine *engine, gs_run *run) {
    gs_claim *claim = &run->claim;
    int64_t others, now_ns = engine->state.now_ns;
    gs_member *first = find_first(run, &others);
    const gs_member *but = run->num_members > 1 ? first : NULL;  // whose own word says nothing
    bool stands = first && claim->step && gs_member_index(first) == claim->member && others + 1 < claim->step;
    if (!stands) {
        *claim = (gs_claim){0};
        if (first) *claim = (gs_claim){.member = gs_member_index(first), .step = first->applied_step, .since_ns = now_ns};
        return;
    }
    if (!are_here(engine, run, but)) claim->since_ns = now_ns;
    if (!have_told_since(run, but, claim->since_ns + engine->state.timing.dead_ns)) return;
    gs_job *job = run->job;
    int64_t told = first->applied_step;
    first->applied_step = run->step = others;
    job->step = others > run->step_before ? others : run->step_before;
    job->dirty = true;
    disbelieve(engine, first, told, others);
}
