#include "coordinator/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/adoption.h"
#include "coordinator/engine/base/cadence.h"
#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/generations.h"
#include "coordinator/engine/base/old_copy.h"
#include "coordinator/engine/base/part_saves.h"
#include "coordinator/engine/base/places.h"
#include "coordinator/engine/deadlines.h"
#include "coordinator/engine/requests.h"
#include "coordinator/engine/retention.h"
#include "coordinator/engine/runs/absence.h"
#include "coordinator/engine/runs/agents.h"
#include "coordinator/engine/runs/control_path.h"
#include "coordinator/engine/runs/farewells.h"
#include "coordinator/engine/runs/launch.h"
#include "coordinator/engine/runs/rendezvous.h"
#include "coordinator/engine/runs/replan.h"
#include "coordinator/engine/runs/reports.h"
#include "coordinator/engine/runs/run_end.h"
#include "coordinator/engine/start.h"
#include "core/clock.h"

#define SWEEP_NS (600 * GS_NS_PER_SEC)
// Behind the end of a job, or the beginning of the life that found it so: what its last save left is seen by then for longer
// than it is let be.
#define SWEPT_AFTER_NS (3600 * GS_NS_PER_SEC + SWEEP_NS)

gs_status gs_engine_create(gs_engine **out, const gs_engine_options *options) {
    GS_TRY(gs_timing_check(options->timing));
    gs_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return gs_error(GS_RESOURCE_EXHAUSTED, "engine: out of memory");
    engine->state.timing = *options->timing;
    engine->state.retention = options->retention;
    gs_cluster *cluster = &engine->state.cluster;
    snprintf(cluster->id, sizeof cluster->id, "%s", options->cluster ? options->cluster : "");
    cluster->epoch = options->epoch;
    cluster->life = options->life;
    engine->state.generations.next = options->first_generation;
    engine->state.generations.durable_end = engine->state.generations.asked_end =
        options->first_generation + GS_GENERATION_BLOCK;
    snprintf(engine->state.checkpoints_dir, sizeof engine->state.checkpoints_dir, "%s",
             options->checkpoints_dir);
    *out = engine;
    return gs_ok();
}

void gs_engine_destroy(gs_engine *engine) {
    if (!engine) return;
    gs_mind_forget_step(engine);
    while (engine->late) {
        gs_late_answer *answer = engine->late;
        engine->late = answer->next;
        free(answer->key);
        free(answer);
    }
    gs_adoptions_release(engine);
    gs_job_table_release(&engine->state.jobs);
    gs_agent_table_release(&engine->state.agents);
    gs_request_keys_release(&engine->state.keys);
    gs_cluster_release(&engine->state.cluster);
    gs_u64_map_release(&engine->state.members);
    gs_u64_map_release(&engine->kept);
    free(engine->texts);
    free(engine->effects);
    free(engine->graves);
    free(engine->drawn);
    free(engine);
}

void gs_engine_adopt_job(gs_engine *engine, gs_job *job) { gs_job_table_add(&engine->state.jobs, job); }

void gs_engine_adopt_key(gs_engine *engine, const char *key, const char *fingerprint, uint64_t job,
                         int64_t expires_ns) {
    gs_request_keys_add(&engine->state.keys, key, fingerprint, job, expires_ns);
}

void gs_engine_adopt_tombstone(gs_engine *engine, const gs_tombstone *tombstone) {
    gs_job_table_bury(&engine->state.jobs, tombstone);
}

void gs_engine_adopt_unreadable(gs_engine *engine, uint64_t job) { gs_job_table_add_unreadable(&engine->state.jobs, job); }

const uint64_t *gs_engine_drawn(const gs_engine *engine, size_t *count) {
    *count = engine->num_drawn;
    return engine->drawn;
}

void gs_engine_adopt_life(gs_engine *engine, uint64_t epoch, uint64_t life) {
    if (!gs_u64_map_set(&engine->state.cluster.lives, epoch, (void *)(uintptr_t)life)) abort();
}

const gs_state *gs_engine_state(const gs_engine *engine) { return &engine->state; }

uint64_t gs_engine_taken(const gs_engine *engine, int machine, int row) { return engine->taken[machine][row]; }

static void call_gone(gs_engine *engine, const gs_engine_event *event) {
    gs_kept_call *kept = gs_u64_map_get(&engine->kept, event->gone.call);
    if (!kept) return;
    gs_call_use use = kept->use;
    void *keeper = kept->keeper;
    gs_kept_take(engine, kept);
    if (use == GS_CALL_AGENT_STREAM) gs_agent_stream_gone(engine, keeper, event->gone.was_closed);
    else if (use == GS_CALL_MEMBER_STREAM) gs_member_stream_gone(engine, keeper, event->gone.was_closed);
}

// An ended one until the first sweep behind its time.
static bool is_swept(const gs_state *state, const gs_job *job, int64_t last_ns) {
    if (!job->started_ms || job->held_back) return false;
    if (!gs_job_state_terminal(job->state)) return true;
    bool ended_before = job->ended_ns < state->sweeps_begun_ns;
    if (ended_before && state->sweeps_begun_ns - job->ended_ns > SWEPT_AFTER_NS) return false;
    return last_ns - (ended_before ? state->sweeps_begun_ns : job->ended_ns) <= SWEPT_AFTER_NS;
}

static void sweep(gs_engine *engine) {
    gs_state *state = &engine->state;
    bool is_first = !state->swept_ns;
    if (!is_first && state->now_ns - state->swept_ns < SWEEP_NS) return;
    int64_t last_ns = state->swept_ns;
    state->swept_ns = state->now_ns;
    if (is_first) state->sweeps_begun_ns = state->now_ns;
    for (size_t i = 0; i < state->jobs.count && !is_first; i++) {
        gs_job *job = state->jobs.items[i];
        if (!is_swept(state, job, last_ns)) continue;
        gs_effect *effect = gs_mind_do(engine, GS_DO_SWEEP);
        effect->job = job;
        effect->job_id = job->id;
    }
    gs_request_keys_expire(&state->keys, state->now_ns);
    gs_mind_do(engine, GS_DO_PRUNE_KEYS);
}

static void turn(gs_engine *engine) {
    gs_runs_end_finished(engine);
    gs_launch_waiting(engine);
}

// Time in which this process stood still is nobody's. It is taken off before anything is heard that has come since: what that leads to
// has deadlines of its own, from now on. A moment's delay waits for the tick.
static void take_off_standstill(gs_engine *engine, bool is_tick) {
    gs_state *state = &engine->state;
    int64_t late_ns = state->ticked_ns ? state->now_ns - state->ticked_ns - state->timing.tick_ns : 0;
    if (late_ns <= (is_tick ? state->timing.tick_ns : state->timing.suspect_ns)) return;
    state->ticked_ns += late_ns;
    state->stood_ns += late_ns;
    gs_deadlines_skip(engine, late_ns);
}

static void tick(gs_engine *engine) {
    gs_state *state = &engine->state;
    if (state->stood_ns > state->timing.suspect_ns)
        gs_mind_log(engine, GS_SEVERITY_WARNING, "loop stood still", "milliseconds=%lld",
                    (long long)(state->stood_ns / GS_NS_PER_MS));
    state->ticked_ns = state->now_ns;
    state->num_ticks++;
    state->stood_ns = 0;
    gs_old_copy_tick(engine);
    if (!gs_old_copy_is_possible(engine)) {
        gs_agents_tick(engine);
        gs_absences_tick(engine);
        gs_adoptions_tick(engine);
        gs_deadlines_tick(engine);
        gs_control_paths_tick(engine);
    }
    gs_farewells_tick(engine);
    gs_generations_tick(engine);
    gs_checkpoints_tick(engine);
    gs_places_tick(engine);
    gs_releases_tick(engine);
    gs_cadence_tick(engine);
    turn(engine);
    gs_records_flush(engine, false);
    sweep(engine);
    gs_retention_tick(engine);
}

static void generations_stored(gs_engine *engine, const gs_completion *done) {
    gs_generations_stored(engine, done->generation_end, done->status);
    for (size_t i = 0; i < engine->state.jobs.count && !done->status.code; i++) {
        gs_run *run = engine->state.jobs.items[i]->run;
        if (run) gs_rendezvous_try(engine, run);
    }
}

static void stored(gs_engine *engine, const gs_completion *done) {
    switch (done->stored) {
    case GS_STORED_JOB: gs_on_job_stored(engine, done); break;
    case GS_STORED_JOB_DELETED: gs_on_job_deleted(engine, done); break;
    case GS_STORED_GENERATIONS: generations_stored(engine, done); break;
    case GS_STORED_CHECKPOINT: gs_on_checkpoint_stored(engine, done); break;
    case GS_STORED_CHECKPOINT_DELETED: gs_on_checkpoint_row_deleted(engine, done); break;
    }
}

static void drain(gs_engine *engine) {
    engine->state.draining = true;
    gs_records_flush(engine, true);
}

static void of_member(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    event->was_admitted = true;
    switch (event->kind) {
    case GS_ON_PARAMS: gs_on_params(engine, member, event); break;
    case GS_ON_READY: gs_on_ready(engine, member, event); break;
    case GS_ON_EXCHANGE: gs_on_exchange(engine, member, event); break;
    case GS_ON_COMM_UP: gs_on_comm_up(engine, member, event); break;
    case GS_ON_HEARTBEAT: gs_on_heartbeat(engine, member, event); break;
    case GS_ON_STEP: gs_on_step(engine, member, event); break;
    case GS_ON_FAULT: gs_on_fault(engine, member, event); break;
    case GS_ON_SETTLE: gs_on_settle(engine, member, event); break;
    case GS_ON_CHECKPOINTED: gs_on_checkpointed(engine, member, event); break;
    case GS_ON_BYE: gs_on_bye(engine, member, event); break;
    case GS_ON_READY_ORDER: gs_on_ready_order(engine, member, event); break;
    default: break;
    }
}

static void of_others(gs_engine *engine, gs_engine_event *event) {
    switch (event->kind) {
    case GS_ON_START: gs_on_start(engine); break;
    case GS_ON_TICK: tick(engine); break;
    case GS_ON_TURN: turn(engine); break;
    case GS_ON_DRAIN: drain(engine); break;
    case GS_ON_AGENT_HELLO: gs_on_agent_hello(engine, event); break;
    case GS_ON_AGENT_HEARTBEAT: gs_on_agent_heartbeat(engine, event); break;
    case GS_ON_EXITED: gs_on_exited(engine, event); break;
    case GS_ON_DESCRIBED: gs_on_described(engine, event); break;
    case GS_ON_HELLO: gs_on_hello(engine, event); break;
    case GS_ON_CREATE_JOB: gs_on_create_job(engine, event); break;
    case GS_ON_STOP_JOB: gs_on_stop_job(engine, event); break;
    case GS_ON_DELETE_JOB: gs_on_delete_job(engine, event); break;
    case GS_ON_REPLAN_JOB: gs_on_replan_job(engine, event); break;
    case GS_ON_RELEASE_JOB: gs_on_release_job(engine, event); break;
    case GS_ON_ADOPT_JOB: gs_on_adopt_job(engine, event); break;
    case GS_ON_CALL_GONE: call_gone(engine, event); break;
    case GS_ON_TOO_LARGE: gs_on_too_large(engine, event); break;
    case GS_ON_STORED: stored(engine, &event->done); break;
    case GS_ON_VERIFIED: gs_on_verified(engine, &event->done); break;
    case GS_ON_PARTS_LOOKED: gs_on_parts_looked(engine, &event->done); break;
    case GS_ON_DIRECTORIES_FOUND: gs_on_directories_found(engine, &event->done); break;
    case GS_ON_FILES_REMOVED: gs_on_files_removed(engine, &event->done); break;
    case GS_ON_CHECKPOINTS_CHECKED:
        gs_on_checkpoints_checked(engine, &event->done);
        gs_releases_checked(engine, &event->done);
        break;
    case GS_ON_LIFE_LOOKED: gs_on_life_looked(engine, &event->done); break;
    default: break;
    }
}

gs_effects gs_engine_step(gs_engine *engine, gs_engine_event *event) {
    gs_mind_forget_step(engine);
    gs_state *state = &engine->state;
    if (event->now_ns > state->now_ns) state->now_ns = event->now_ns;
    state->wall_ms = event->wall_ms;
    engine->random = event->random;
    engine->draws = event->draws;
    engine->num_draws = event->num_draws;
    engine->num_drawn = 0;
    event->was_admitted = false;
    take_off_standstill(engine, event->kind == GS_ON_TICK);
    bool admitted = false;
    gs_member *member = gs_admit(engine, event, &admitted);
    if (member) of_member(engine, member, event);
    else if (admitted) of_others(engine, event);
    return (gs_effects){engine->effects, engine->num_effects};
}
