#include "coordinator/engine/retention.h"

#include <stdlib.h>

#include "coordinator/engine/base/late_answers.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/model/memory.h"
#include "core/clock.h"

#define LOOK_NS GS_NS_PER_SEC
// At a time: for what each of them costs the loop, and a look later where there are more of them.
#define MOST_AT_ONCE 50
#define LOOK_AGAIN_NS (100 * GS_NS_PER_MS)
#define MOST_ON_THEIR_WAY 100  // to the disk, which they share with jobs that train

gs_tombstone gs_job_tombstone(const gs_engine *engine, const gs_job *job) {
    return (gs_tombstone){
        .job = job->id, .generation = job->generation, .outcome = job->state, .deleted_ms = engine->state.wall_ms};
}

void gs_job_delete(gs_engine *engine, gs_job *job, gs_call call, bool purges, gs_forget_reason why) {
    gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_DELETE, call, job);
    // Of deletions on their way the first that succeeds does what any of them is to do.
    if (purges) gs_late_answers_purge(engine, job);
    answer->purges = purges;
    answer->why = why;
    job->held_back = true;
    gs_effect *effect = gs_mind_do(engine, GS_DO_DELETE_JOB);
    effect->job = job;
    effect->job_id = job->id;
    effect->ticket = answer->ticket;
    effect->tombstone = gs_job_tombstone(engine, job);
    effect->tombstone.frees_keys = why == GS_FORGET_ASKED;
    effect->tombstone.purges = purges;
}

// What is seen of it after its end has been read, and nobody waits to be told of it.
static bool may_be_forgotten(const gs_engine *engine, const gs_job *job) {
    bool is_young = engine->state.now_ns - job->ended_ns < engine->state.timing.series_keep_ns;
    return !is_young && !job->run && !job->dirty && !gs_late_answer_waits(engine, job);
}

static bool is_old(const gs_state *state, const gs_job *job) {
    return state->retention.ended_ns > 0 && state->now_ns - job->ended_ns > state->retention.ended_ns;
}

static bool is_kept(const gs_job *job) { return gs_job_state_terminal(job->state) && !job->held_back; }

static bool is_any_due(const gs_state *state) {
    if (!state->retention.ended_jobs && !state->retention.ended_ns) return false;
    size_t count = 0;
    bool is_one_old = false;
    for (size_t i = 0; i < state->jobs.count; i++) {
        count += is_kept(state->jobs.items[i]);
        is_one_old |= is_kept(state->jobs.items[i]) && is_old(state, state->jobs.items[i]);
    }
    return is_one_old || (state->retention.ended_jobs && count > state->retention.ended_jobs);
}

static int by_end(const void *a, const void *b) {
    const gs_job *x = *(gs_job *const *)a, *y = *(gs_job *const *)b;
    if (x->ended_ns != y->ended_ns) return x->ended_ns < y->ended_ns ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool is_going(const gs_job *job) { return gs_job_state_terminal(job->state) && job->held_back; }

static size_t count_going(const gs_state *state) {
    size_t count = 0;
    for (size_t i = 0; i < state->jobs.count; i++) count += is_going(state->jobs.items[i]);
    return count;
}

// Whoever ended first is first; the table has who was created first.
static gs_job **take_ended(const gs_state *state, size_t *count) {
    gs_job **jobs = gs_model_alloc(state->jobs.count, sizeof *jobs);
    *count = 0;
    for (size_t i = 0; i < state->jobs.count; i++)
        if (is_kept(state->jobs.items[i])) jobs[(*count)++] = state->jobs.items[i];
    qsort(jobs, *count, sizeof *jobs, by_end);
    return jobs;
}

void gs_retention_forgot(gs_engine *engine, gs_forget_reason why) {
    gs_mind_count(engine, NULL, GS_COUNT_FORGOTTEN, why == GS_FORGET_OLD ? "age" : "number", NULL, 1);
    if (why == GS_FORGET_OLD) engine->state.forgotten_old++;
    else engine->state.forgotten_many++;
}

// Once for all that the disk has forgotten since the last look.
static void tell_forgotten(gs_engine *engine) {
    gs_state *state = &engine->state;
    size_t old = state->forgotten_old, many = state->forgotten_many;
    state->forgotten_old = state->forgotten_many = 0;
    if (old + many == 0) return;
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_INFO, "JobsForgotten",
                "%zu ended jobs are forgotten: %zu are too old, %zu too many; their checkpoints stay", old + many, old, many);
}

// True when as many were asked for as may be at a time: there may be more.
static bool forget_due(gs_engine *engine) {
    const gs_state *state = &engine->state;
    size_t ended, asked = 0, going = count_going(state);
    gs_job **jobs = take_ended(state, &ended);
    size_t most = state->retention.ended_jobs ? state->retention.ended_jobs : SIZE_MAX;
    size_t too_many = ended > most ? ended - most : 0;
    for (size_t i = 0; i < ended && asked < MOST_AT_ONCE && going + asked < MOST_ON_THEIR_WAY; i++) {
        bool old = is_old(state, jobs[i]);
        if (!old && i >= too_many) break;
        // One that cannot go yet goes later; a younger one does not go in its place.
        if (!may_be_forgotten(engine, jobs[i])) continue;
        gs_job_delete(engine, jobs[i], 0, false, old ? GS_FORGET_OLD : GS_FORGET_MANY);
        asked++;
    }
    free(jobs);
    return asked == MOST_AT_ONCE || going + asked >= MOST_ON_THEIR_WAY;
}

void gs_retention_tick(gs_engine *engine) {
    gs_state *state = &engine->state;
    if (state->now_ns - state->retained_ns < LOOK_NS) return;
    state->retained_ns = state->now_ns;
    tell_forgotten(engine);
    if (is_any_due(state) && forget_due(engine)) state->retained_ns -= LOOK_NS - LOOK_AGAIN_NS;
}

static gs_status refuse(gs_engine *engine, const char *limit, gs_status status) {
    gs_mind_count(engine, NULL, GS_COUNT_LIMIT, limit, NULL, 1);
    return status;
}

// Those that are not forgotten fast enough, because what is seen of them is read yet, or because of the disk.
static gs_status check_ended(gs_engine *engine) {
    const gs_state *state = &engine->state;
    const gs_retention *retention = &state->retention;
    size_t most = retention->ended_jobs + retention->ended_above, ended = 0;
    if (!retention->ended_jobs || !retention->ended_above || state->jobs.count < most) return gs_ok();
    for (size_t i = 0; i < state->jobs.count; i++) ended += gs_job_state_terminal(state->jobs.items[i]->state);
    if (ended < most) return gs_ok();
    return refuse(engine, "ended_jobs",
                  gs_error(GS_RESOURCE_EXHAUSTED, "%zu ended jobs are here already, and %zu are kept: others are forgotten %g s behind their end",
                           ended, retention->ended_jobs, gs_seconds_of(state->timing.series_keep_ns)));
}

gs_status gs_retention_check(gs_engine *engine, bool has_key) {
    gs_state *state = &engine->state;
    const gs_retention *retention = &state->retention;
    bool is_full = has_key && retention->keys && state->keys.count >= retention->keys;
    if (is_full) gs_request_keys_expire(&state->keys, state->now_ns);  // else that is done now and then
    if (is_full && state->keys.count >= retention->keys)
        return refuse(engine, "idempotency_keys",
                      gs_error(GS_RESOURCE_EXHAUSTED, "%zu idempotency keys are remembered already", state->keys.count));
    GS_TRY(check_ended(engine));
    if (!retention->live_jobs || state->jobs.count < retention->live_jobs) return gs_ok();
    size_t live = 0;
    for (size_t i = 0; i < state->jobs.count; i++) live += !gs_job_state_terminal(state->jobs.items[i]->state);
    if (live < retention->live_jobs) return gs_ok();
    return refuse(engine, "jobs", gs_error(GS_RESOURCE_EXHAUSTED, "%zu jobs wait and train already", live));
}
