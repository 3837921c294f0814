#include "coordinator/engine/retention.h"

#include "coordinator/engine/base/late_answers.h"
#include "coordinator/engine/base/moves.h"
#include "core/clock.h"

#define LOOK_NS GS_NS_PER_SEC
#define MOST_AT_ONCE 50  // a second: they share the disk with jobs that train

gs_tombstone gs_job_tombstone(const gs_engine *engine, const gs_job *job) {
    return (gs_tombstone){job->id, job->generation, job->state, engine->state.wall_ms};
}

bool gs_job_delete(gs_engine *engine, gs_job *job, gs_call call, bool purges) {
    gs_late_answer *answer = gs_late_answer_add(engine, GS_LATE_DELETE, call, job);
    if (!answer) return false;
    answer->purges = purges;
    job->held_back = true;
    gs_effect *effect = gs_mind_do(engine, GS_DO_DELETE_JOB);
    effect->job = job;
    effect->job_id = job->id;
    effect->ticket = answer->ticket;
    effect->tombstone = gs_job_tombstone(engine, job);
    return true;
}

static bool may_be_forgotten(const gs_job *job) { return !job->run && !job->dirty; }

static bool is_old(const gs_state *state, const gs_job *job) {
    return state->retention.ended_ns > 0 && state->now_ns - job->ended_ns > state->retention.ended_ns;
}

static size_t count_ended(const gs_job_table *jobs) {
    size_t count = 0;
    for (size_t i = 0; i < jobs->count; i++)
        count += gs_job_state_terminal(jobs->items[i]->state) && !jobs->items[i]->held_back;
    return count;
}

void gs_retention_tick(gs_engine *engine) {
    gs_state *state = &engine->state;
    const gs_retention *retention = &state->retention;
    if ((!retention->ended_jobs && !retention->ended_ns) || state->now_ns - state->retained_ns < LOOK_NS) return;
    state->retained_ns = state->now_ns;
    size_t ended = count_ended(&state->jobs), too_many = 0, too_old = 0;
    size_t most = retention->ended_jobs ? retention->ended_jobs : SIZE_MAX;
    for (size_t i = 0; i < state->jobs.count && too_many + too_old < MOST_AT_ONCE; i++) {
        gs_job *job = state->jobs.items[i];
        if (!gs_job_state_terminal(job->state) || job->held_back) continue;
        bool old = is_old(state, job), many = ended > most;
        if (!old && !many) continue;
        ended--;  // one that is not written yet is forgotten later; a younger one does not go in its place
        if (!may_be_forgotten(job)) continue;
        if (!gs_job_delete(engine, job, 0, false)) break;
        if (old) too_old++;
        else too_many++;
    }
    if (too_old) gs_mind_count(engine, NULL, GS_COUNT_FORGOTTEN, "age", NULL, (double)too_old);
    if (too_many) gs_mind_count(engine, NULL, GS_COUNT_FORGOTTEN, "number", NULL, (double)too_many);
    if (too_old + too_many == 0) return;
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_INFO, "JobsForgotten",
                "%zu ended jobs are forgotten: %zu are too old, %zu too many; their checkpoints stay", too_old + too_many,
                too_old, too_many);
}

static gs_status refuse(gs_engine *engine, const char *limit, gs_status status) {
    gs_mind_count(engine, NULL, GS_COUNT_LIMIT, limit, NULL, 1);
    return status;
}

gs_status gs_retention_check(gs_engine *engine, bool has_key) {
    const gs_state *state = &engine->state;
    const gs_retention *retention = &state->retention;
    if (has_key && retention->keys && state->keys.count >= retention->keys)
        return refuse(engine, "idempotency_keys",
                      gs_error(GS_RESOURCE_EXHAUSTED, "%zu idempotency keys are remembered already", state->keys.count));
    if (!retention->live_jobs || state->jobs.count < retention->live_jobs) return gs_ok();
    size_t live = 0;
    for (size_t i = 0; i < state->jobs.count; i++) live += !gs_job_state_terminal(state->jobs.items[i]->state);
    if (live < retention->live_jobs) return gs_ok();
    return refuse(engine, "jobs", gs_error(GS_RESOURCE_EXHAUSTED, "%zu jobs wait and train already", live));
}
