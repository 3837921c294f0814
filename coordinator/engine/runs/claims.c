#include "coordinator/engine/runs/claims.h"

#include "coordinator/engine/base/moves.h"
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

// Of those who have told of a step in this life of the coordinator; NULL: nobody has.
static gs_member *find_furthest(gs_run *run) {
    gs_member *first = NULL;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->told_step_ns && (!first || member->applied_step > first->applied_step)) first = member;
    }
    return first;
}

static int64_t furthest_of_others(const gs_run *run, const gs_member *but) {
    int64_t step = 0;
    for (int i = 0; i < run->num_members; i++)
        if (&run->members[i] != but && run->members[i].applied_step > step) step = run->members[i].applied_step;
    return step;
}

// A step that somebody told, and how far those are who do not confirm it.
typedef struct told_step {
    gs_member *by;  // NULL: an earlier life of the coordinator heard it, from whom is not known any more
    int64_t step, others;
} told_step;

// Who trains alone is compared with what it says now. A step of an earlier life that is further than what all have told to this one is
// nobody's; else it is the one who tells of the furthest that may be alone there.
static told_step find_claim(gs_run *run, gs_member *first) {
    if (run->num_members == 1) return (told_step){.by = first, .step = run->step, .others = first->told_step};
    if (run->step > first->applied_step + 1) return (told_step){.step = run->step, .others = first->applied_step};
    return (told_step){.by = first, .step = first->applied_step, .others = furthest_of_others(run, first)};
}

static bool find_alone(gs_run *run, told_step *alone) {
    gs_member *first = find_furthest(run);
    if (!first) return false;
    *alone = find_claim(run, first);
    return alone->step > alone->others + 1;
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

static int teller(const told_step *alone) { return alone->by ? gs_member_index(alone->by) : -1; }

// Nobody is known to have lied, so that nobody is blamed: whoever tells of it again is.
static void forget(gs_engine *engine, gs_run *run, const told_step *alone) {
    gs_mind_log(engine, GS_SEVERITY_WARNING, "a step of before is forgotten", "job=%s generation=%u step=%lld reached=%lld",
                run->job->id_text, run->generation, (long long)alone->step, (long long)alone->others);
    run->progress_ns = engine->state.now_ns;  // the ranks could tell of no step below it
}

void gs_claims_check(gs_engine *engine, gs_run *run) {
    gs_claim *claim = &run->claim;
    int64_t now_ns = engine->state.now_ns;
    told_step alone = {0};
    bool found = find_alone(run, &alone);
    const gs_member *but = run->num_members > 1 ? alone.by : NULL;  // whose own word says nothing
    bool stands = found && claim->step && teller(&alone) == claim->member && alone.others + 1 < claim->step;
    if (!stands) {
        *claim = (gs_claim){0};
        if (found) *claim = (gs_claim){.member = teller(&alone), .step = alone.step, .since_ns = now_ns};
        return;
    }
    if (!are_here(engine, run, but)) claim->since_ns = now_ns;
    if (!have_told_since(run, but, claim->since_ns + engine->state.timing.dead_ns)) return;
    gs_job *job = run->job;
    run->step = alone.others;
    job->step = alone.others > run->step_before ? alone.others : run->step_before;
    gs_job_mend_progress(engine, job);
    if (!alone.by) {
        forget(engine, run, &alone);
        return;
    }
    alone.by->applied_step = alone.others;
    disbelieve(engine, alone.by, alone.step, alone.others);
}
