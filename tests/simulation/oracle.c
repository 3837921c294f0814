#include "tests/simulation/oracle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/coordinator.h"
#include "tests/simulation/people.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"
#include "tests/simulation/standing.h"
#include "tests/simulation/trainer.h"
#include "tests/simulation/verdicts.h"

#define OLD_COPY_STAYS (2 * SECONDS)

struct sim_oracle {
    char finding[400];
    int64_t old_copy_ns;  // since when the coordinator knows that its database is one; 0: it is none
};

void oracle_create(sim_world *world) {
    world->oracle = calloc(1, sizeof *world->oracle);
    promises_create(world);
    sets_create(world);
    standing_create(world);
}

void oracle_destroy(sim_world *world) {
    standing_destroy(world);
    sets_destroy(world);
    promises_destroy(world);
    free(world->oracle);
}

void oracle_fail(sim_world *world, const char *format, ...) {
    if (world->oracle->finding[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(world->oracle->finding, sizeof world->oracle->finding, format, args);
    va_end(args);
    world_tell(world, "WRONG: %s", world->oracle->finding);
}

const char *oracle_finding(const sim_world *world) {
    return world->oracle->finding[0] ? world->oracle->finding : NULL;
}

// A trainer is in one slot.
static void check_slots(sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        for (int a = 0; a < agent->num_slots; a++) {
            for (int b = a + 1; b < agent->num_slots; b++) {
                uint64_t incarnation = agent->slots[a].incarnation;
                if (incarnation && incarnation == agent->slots[b].incarnation)
                    oracle_fail(world, "one trainer is in two slots of %s", agent->name);
            }
        }
    }
}

static void check_member(sim_world *world, const gs_state *state, const gs_member *member) {
    if (gs_state_member(state, member->incarnation) != member)
        oracle_fail(world, "rank %d of job %s is not found by its incarnation", member->rank, member->job->id_text);
}

// Who is started there is alone in its slot. The ranks of an adopted job that is not durable yet are not this coordinator's.
static void check_start(sim_world *world, const gs_member *member) {
    const gs_state *state = coordinator_state(world);
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        const gs_run *run = gs_job_is_unrecorded(job) ? NULL : job->run;
        for (int m = 0; run && m < run->num_members; m++) {
            const gs_member *other = &run->members[m];
            bool lives = other != member && other->stage != GS_MEMBER_EXITED;
            if (lives && other->slot == member->slot && !strcmp(other->worker, member->worker))
                oracle_fail(world, "slot %d of %s is given to two", member->slot, member->worker);
        }
    }
}

// Nobody connects before all have agreed.
static void check_ready(sim_world *world, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage < GS_MEMBER_READY) oracle_fail(world, "start, and rank %d of generation %u is not ready", i, run->generation);
    }
}

static void check_jobs(sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        if (job->step > sets_reached(world, job->id) && !sets_have_liar(world, job->id))
            oracle_fail(world, "job %s is at step %" PRId64 ", and no rank came further than step %" PRId64, job->id_text, job->step,
                        sets_reached(world, job->id));
        // The run of an adopted job begins when that is durable.
        const gs_run *run = gs_job_is_unrecorded(job) ? NULL : job->run;
        for (int m = 0; run && m < run->num_members; m++) check_member(world, state, &run->members[m]);
    }
}

// A disk that lied has lost a life, and workers have heard of it: that process ends, and people adopt what runs from an empty directory.
// Here it stays a moment, so that it shows whether it touches anything, and the history ends.
static bool is_old_copy(const sim_world *world) {
    const gs_state *state = coordinator_state(world);
    return state && state->cluster.is_old_copy;
}

static void check_old_copy(sim_world *world, const gs_effect *effect) {
    bool touches = effect->kind == GS_DO_TELL_AGENT &&
                   (effect->agent_message.order == GS_TELL_START_RANK || effect->agent_message.order == GS_TELL_STOP_RANK);
    if (touches && is_old_copy(world))
        oracle_fail(world, "a database that is an old copy has %s start or end a trainer", effect->agent->name);
}

void oracle_see_event(sim_world *world, const gs_engine_event *event) {
    promises_see_event(world, event);
    sets_see_event(world, event);
    standing_see_event(world, event);
}

void oracle_took(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    sets_took(world, event, effects);
    standing_took(world, event, effects);
}

void oracle_see_effect(sim_world *world, const gs_effect *effect) {
    promises_see_effect(world, effect);
    sets_see_effect(world, effect);
    verdicts_see_effect(world, effect);
    standing_see_effect(world, effect);
    check_old_copy(world, effect);
    if (effect->kind == GS_DO_TELL_AGENT && effect->agent_message.order == GS_TELL_START_RANK) check_start(world, effect->member);
    if (effect->kind == GS_DO_TELL_MEMBER && effect->member_message.order == GS_TELL_START) check_ready(world, effect->run);
    if (effect->kind == GS_DO_TELL_MEMBER && effect->member_message.order == GS_TELL_GO && effect->run->phase != GS_RUN_TRAINING &&
        effect->run->phase != GS_RUN_RELOADING)
        oracle_fail(world, "go to a generation that is %s", gs_run_phase_name(effect->run->phase));
}

void oracle_check_state(sim_world *world) {
    const gs_state *state = coordinator_state(world);
    if (!state) return;
    if (is_old_copy(world) && !sets_have_lost_numbers(world)) oracle_fail(world, "a database that has lost nothing is called an old copy");
    if (!is_old_copy(world)) world->oracle->old_copy_ns = 0;
    else if (!world->oracle->old_copy_ns) world->oracle->old_copy_ns = world->now_ns;
    sets_judge_settlements(world);
    check_slots(world, state);
    check_jobs(world, state);
    promises_check(world, state);
    standing_check(world, state);
}

void oracle_begin_life(sim_world *world) {
    promises_check(world, coordinator_state(world));
    promises_begin_life(world, coordinator_state(world));
    sets_begin_life(world, coordinator_state(world));
}

void oracle_end_life(sim_world *world) {
    promises_end_life(world);
    standing_end_life(world);
}

static const sim_wish *find_unanswered(const sim_world *world, const gs_state *state) {
    bool has_room = !state->retention.keys || state->keys.count < state->retention.keys;
    for (int i = 0; i < world->people->num_wishes && has_room; i++) {
        const sim_wish *wish = &world->people->wishes[i];
        if (!wish->job && !wish->is_forgotten) return wish;
    }
    return NULL;
}

static const gs_job *find_unended(const gs_state *state) {
    for (size_t i = 0; i < state->jobs.count; i++) {
        if (!gs_job_state_terminal(state->jobs.items[i]->state)) return state->jobs.items[i];
    }
    return NULL;
}

// Of a job that nobody knows any more an operator lets its trainers go.
static const sim_trainer *find_living(const sim_world *world) {
    for (const sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (trainer_lives(trainer) && !promises_is_excused(world, trainer->peer.job)) return trainer;
    }
    return NULL;
}

static const gs_agent *find_taken(const sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        for (int slot = 0; slot < agent->num_slots; slot++) {
            if (agent->slots[slot].incarnation && !promises_is_excused(world, agent->slots[slot].job)) return agent;
        }
    }
    return NULL;
}

static bool all_ended(const sim_world *world) {
    const gs_state *state = coordinator_state(world);
    return state && !find_unanswered(world, state) && !find_unended(state) && !find_living(world) && !find_taken(world, state) &&
           !promises_find_unwritten(world, state);
}

bool oracle_is_done(const sim_world *world) {
    int64_t since_ns = world->oracle->old_copy_ns;
    return world->oracle->finding[0] || (world->is_calm && all_ended(world)) || (since_ns && world->now_ns - since_ns > OLD_COPY_STAYS);
}

static void tell_unended(sim_world *world, const gs_job *job) {
    oracle_fail(world, "job %s never ends: it is %s (%s: %s)%s%s", job->id_text, gs_job_state_name(job->state), job->reason,
                job->message, job->run ? ", its run is " : "", job->run ? gs_run_phase_name(job->run->phase) : "");
}

static void tell_living(sim_world *world, const gs_state *state, const sim_trainer *trainer) {
    const gs_job *job = gs_job_table_get(&state->jobs, trainer->peer.job);
    oracle_fail(world, "trainer %d (state %d, rank %d of generation %u) still runs for a job that is %s", trainer->number,
                (int)trainer->state, trainer->rank, trainer->generation, job ? gs_job_state_name(job->state) : "gone");
}

void oracle_judge_end(sim_world *world) {
    if (oracle_is_done(world)) return;
    const gs_state *state = coordinator_state(world);
    if (!state) {
        oracle_fail(world, "the coordinator does not come back");
        return;
    }
    if (find_unended(state)) tell_unended(world, find_unended(state));
    else if (find_living(world)) tell_living(world, state, find_living(world));
    else if (find_unanswered(world, state)) oracle_fail(world, "%s is never answered", find_unanswered(world, state)->name);
    else if (promises_find_unwritten(world, state))
        oracle_fail(world, "what has become of job %s is never written", promises_find_unwritten(world, state)->id_text);
    else if (find_taken(world, state)) oracle_fail(world, "a slot of %s stays taken", find_taken(world, state)->name);
}
