#include "tests/simulation/sets.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/generations.h"
#include "rpc/schema/launch_token.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/fences.h"
#include "tests/simulation/group.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/promises.h"

#define MAX_JOBS 64
#define MAX_SETS 4096
#define MAX_SETTLEMENTS 8

typedef struct rank_set {
    uint32_t generation;
    uint64_t job;
    uint64_t incarnations[MAX_RANKS];
    int num_ranks;
    int64_t step;  // the furthest that one of it has applied; −1: none
    bool is_unrecorded;  // when the next one was formed: another life of the coordinator knows of it by its agents alone
    bool is_spoilt;
} rank_set;

// Of all its sets.
typedef struct job_sets {
    uint64_t id;
    uint32_t generation, committed;  // the newest, and the newest that has committed
    uint32_t released;  // up to which an operator has given its ranks up: they may train on, to no end
    int64_t step;
    bool is_given_up, has_liar;
    uint32_t least;       // adopted: its generations begin there
    uint32_t least_then;  // the same, once people are told that it is: those that train on may meet the next ones of who commanded them
    bool is_tried;        // adopted, and the disk has not said that this is written
} job_sets;

// What survivors of a generation are told.
typedef struct settlement {
    uint64_t job;
    uint32_t generation;
    int savers;
    int64_t least, reached, saver_step;
    bool is_again;  // in another life of the coordinator: who was told in the one before may be further, and have saved that
} settlement;

struct sim_sets {
    rank_set *items;
    int count;
    uint32_t newest;  // generation of all jobs
    bool numbers_are_lost;  // by a disk that lied: they may come again
    bool rows_are_others;   // of the next life
    job_sets jobs[MAX_JOBS];
    int num_jobs;
    bool is_stale;  // what the event that is being taken comes from
    settlement settled[MAX_SETTLEMENTS];  // by this step
    int num_settled;
};

void sets_create(sim_world *world) {
    world->sets = calloc(1, sizeof *world->sets);
    world->sets->items = calloc(MAX_SETS, sizeof *world->sets->items);
}

void sets_destroy(sim_world *world) {
    free(world->sets->items);
    free(world->sets);
}

static job_sets *find_job(sim_sets *sets, uint64_t id) {
    for (int i = 0; i < sets->num_jobs; i++) {
        if (sets->jobs[i].id == id) return &sets->jobs[i];
    }
    return NULL;
}

static job_sets *know(sim_world *world, uint64_t id) {
    sim_sets *sets = world->sets;
    job_sets *job = find_job(sets, id);
    if (job) return job;
    if (sets->num_jobs == MAX_JOBS) abort();
    job = &sets->jobs[sets->num_jobs++];
    job->id = id;
    return job;
}

static rank_set *find(sim_sets *sets, uint32_t generation) {
    for (int i = sets->count - 1; i >= 0; i--) {
        if (sets->items[i].generation == generation) return &sets->items[i];
    }
    return NULL;
}

void sets_prepared(sim_world *world, uint64_t job, uint32_t generation, int rank, uint64_t incarnation) {
    const rank_set *set = find(world->sets, generation);
    if (!set || set->job != job || rank < 0 || rank >= set->num_ranks || set->incarnations[rank] != incarnation)
        oracle_fail(world, "a rank is told to prepare as rank %d of generation %u, which it is not", rank, generation);
}

void sets_committed(sim_world *world, uint64_t id, uint32_t generation, int64_t step) {
    job_sets *job = know(world, id);
    if (step > job->step) job->step = step;
    if (generation <= job->released || world->sets->numbers_are_lost) return;
    rank_set *set = find(world->sets, generation);
    if (generation < job->committed && !(set && set->is_unrecorded))
        oracle_fail(world, "generation %u commits step %" PRId64 " behind generation %u: two sets of ranks train", generation,
                    step, job->committed);
    if (set && set->step >= 0 && step != set->step && step != set->step + 1)
        oracle_fail(world, "generation %u applies step %" PRId64 " behind step %" PRId64, generation, step, set->step);
    if (set && step > set->step) set->step = step;
    job->committed = generation;
}

void sets_settled(sim_world *world, uint64_t id, uint32_t generation, int64_t step) {
    job_sets *job = know(world, id);
    rank_set *set = find(world->sets, generation);
    if (set && step > set->step) set->step = step;
    if (generation >= job->generation && step > job->step) job->step = step;
}

void sets_spoilt(sim_world *world, uint32_t generation) {
    rank_set *set = find(world->sets, generation);
    if (set) set->is_spoilt = true;
}

void sets_forget_numbers(sim_world *world) {
    world->sets->numbers_are_lost = world->sets->rows_are_others = true;
    for (int i = 0; i < world->sets->num_jobs; i++) world->sets->jobs[i].least = world->sets->jobs[i].least_then = 0;
}

bool sets_have_lost_numbers(const sim_world *world) { return world->sets->numbers_are_lost; }

bool sets_are_given_up(const sim_world *world, uint64_t id) {
    const job_sets *job = find_job(world->sets, id);
    return job && job->is_given_up;
}

// An adoption that was not written is none where the job's row is one of before, which could not be read while people tried. One that the
// disk has refused may be there all the same, and binds then.
static void judge_try(sim_sets *sets, const gs_job *job) {
    job_sets *known = find_job(sets, job->id);
    if (!known || !known->is_tried) return;
    known->is_tried = false;
    if (strcmp(job->reason, "Adopted") != 0) known->least = known->least_then = 0;
}

// Where rows are others than a moment ago, the newest generation is the one that they name.
void sets_begin_life(sim_world *world, const gs_state *state) {
    for (size_t i = 0; i < state->jobs.count; i++) {
        const gs_job *job = state->jobs.items[i];
        judge_try(world->sets, job);
        // What its row does not know of has not trained, or the disk took no row of it: it waits for the end of the run that it knows.
        if (world->sets->rows_are_others || job->run) know(world, job->id)->generation = job->generation;
    }
    world->sets->rows_are_others = false;
}

void sets_adopted(sim_world *world, uint64_t id) {
    job_sets *known = know(world, id);
    if (known->least_then > known->least) known->least = known->least_then;
}

// Behind the numbers that its trainers know, whatever the engine has heard of them.
static void adopt(sim_world *world, const gs_job *job) {
    job_sets *known = know(world, job->id);
    known->generation = job->generation;
    known->least = known->least_then = 0;
    known->is_tried = true;
    for (const sim_trainer *trainer = world->trainers; trainer; trainer = trainer->next) {
        if (trainer->peer.job != job->id) continue;
        const gs_run *run = job->run;
        bool trains_on = false;
        for (int i = 0; run && i < run->num_members; i++) trains_on |= run->members[i].incarnation == trainer->peer.incarnation;
        uint32_t least_then = trainer->generation + GS_GENERATION_LEAP;
        if (trainer->generation >= known->least) known->least = trainer->generation + 1;
        if (trains_on && least_then > known->least_then) known->least_then = least_then;
    }
}

void sets_given_up(sim_world *world, uint64_t id) { know(world, id)->is_given_up = true; }

void sets_lied_to(sim_world *world, uint64_t id) { know(world, id)->has_liar = true; }

bool sets_have_liar(const sim_world *world, uint64_t id) {
    const job_sets *job = find_job(world->sets, id);
    return job && job->has_liar;
}

int64_t sets_reached(const sim_world *world, uint64_t id) {
    const job_sets *job = find_job(world->sets, id);
    return job ? job->step : 0;
}

static bool is_of_trainer(gs_engine_event_kind kind) { return kind >= GS_ON_PARAMS && kind <= GS_ON_READY_ORDER; }

static bool is_bound(gs_engine_event_kind kind) {
    return is_of_trainer(kind) && kind != GS_ON_PARAMS && kind != GS_ON_HEARTBEAT && kind != GS_ON_CHECKPOINTED && kind != GS_ON_BYE;
}

static void see_stored(sim_sets *sets, const gs_completion *done) {
    job_sets *job = done->stored == GS_STORED_JOB && !done->status.code ? find_job(sets, done->job) : NULL;
    if (job) job->is_tried = false;
}

// Of a trainer that is known to have ended, of none, or of another generation than its job's newest.
void sets_see_event(sim_world *world, const gs_engine_event *event) {
    sim_sets *sets = world->sets;
    const gs_state *state = coordinator_state(world);
    sets->is_stale = false;
    sets->num_settled = 0;
    if (event->kind == GS_ON_STORED) see_stored(sets, &event->done);
    bool is_hello = event->kind == GS_ON_HELLO;
    if (!is_of_trainer(event->kind) && !is_hello) return;
    const gs_member *member = gs_state_member(state, event->from.who.incarnation);
    if (is_hello) {
        sets->is_stale = !member || member->stage == GS_MEMBER_EXITED || member->launch_token != event->hello.launch_token;
        return;
    }
    sets->is_stale = !member || member->stage == GS_MEMBER_EXITED || member->job->id != event->from.who.job ||
                     (member->shows_token && event->from.who.token != gs_launch_token_show(member->launch_token));
    if (sets->is_stale || !is_bound(event->kind)) return;
    sets->is_stale = event->from.generation != (int64_t)know(world, event->from.who.job)->generation;
}

static void begin(sim_world *world, const gs_run *run) {
    sim_sets *sets = world->sets;
    job_sets *job = know(world, run->job->id);
    if (run->generation <= sets->newest && !sets->numbers_are_lost) oracle_fail(world, "generation %u is handed out twice", run->generation);
    if (run->generation < job->least)
        oracle_fail(world, "generation %u of an adopted job, where %u is the least that meets none of before", run->generation, job->least);
    if (run->generation >= coordinator_state(world)->generations.durable_end)
        oracle_fail(world, "generation %u is used before it is reserved", run->generation);
    if (sets->count == MAX_SETS || run->num_members > MAX_RANKS) abort();
    // Behind a full disk there may be several: the row names an older one, which a later life of the coordinator goes by.
    for (int i = 0; i < sets->count; i++) {
        rank_set *last = &sets->items[i];
        if (last->job == job->id && last->generation >= job->generation)
            last->is_unrecorded = !promises_stored_set(world, job->id, last->generation);
    }
    rank_set *set = &sets->items[sets->count++];
    *set = (rank_set){.generation = run->generation, .job = job->id, .num_ranks = run->num_members, .step = -1};
    for (int i = 0; i < run->num_members; i++) set->incarnations[i] = run->members[i].incarnation;
    if (run->generation > sets->newest) sets->newest = run->generation;
    job->generation = run->generation;
}

static bool all_agents_hear(const sim_world *world, const sim_group *group) {
    for (int i = 0; i < group->num_members; i++) {
        const sim_agent *agent = group->members[i]->agent;
        const gs_agent *known = gs_agent_table_find(&coordinator_state(world)->agents, agent->name);
        if (!known || known->incarnation != agent->peer.incarnation || !gs_agent_is_connected(known)) return false;
    }
    return true;
}

// Each of its ranks stands still, or knows that it is alone.
static bool finds_out_first(const sim_world *world, const sim_group *group) {
    for (int i = 0; i < group->num_members; i++) {
        const sim_trainer *member = group->members[i];
        bool knows = !member->peer.connection && world->now_ns - member->peer.lost_ns >= member->peer.orphan_ns;
        if (!knows && trainer_moves(world, member) && trainer_is_led(world, member)) return false;
    }
    return true;
}

// Nobody of an older set may be able to commit when a new one is on its way. Of a set whose record was not durable when the
// coordinator died, only its agents can tell.
static void check_alone(sim_world *world, const gs_effect *effect) {
    const job_sets *job = know(world, effect->job->id);
    const sim_group *group = group_that_trains(world, job->id);
    if (!group || group->generation <= job->released || world->sets->numbers_are_lost) return;
    bool trains_on = promises_stored_set(world, job->id, group->generation) && !finds_out_first(world, group);
    if (trains_on || all_agents_hear(world, group))
        oracle_fail(world, "ranks are started while generation %u of job %s trains: two sets", group->generation,
                    effect->job->id_text);
}

static settlement *find_settlement(sim_sets *sets, const sim_trainer *trainer) {
    for (int i = 0; i < sets->num_settled; i++) {
        if (sets->settled[i].generation == trainer->generation) return &sets->settled[i];
    }
    if (sets->num_settled == MAX_SETTLEMENTS) abort();
    settlement *settled = &sets->settled[sets->num_settled++];
    *settled = (settlement){.job = trainer->peer.job, .generation = trainer->generation, .least = INT64_MAX};
    return settled;
}

void sets_answer_settle(sim_world *world, const sim_trainer *trainer, const gs_effect *effect) {
    settlement *settled = find_settlement(world->sets, trainer);
    settled->is_again = effect->job->run && effect->job->run->was_settling;
    int64_t step = trainer->applied_step + (effect->reply.apply && trainer->is_complete);
    if (step > settled->reached) settled->reached = step;
    // Who is evicted is ended, and no survivor.
    const gs_member *member = gs_state_member(coordinator_state(world), trainer->peer.incarnation);
    bool is_evicted = member && member->kill_sent && !effect->reply.save;
    if (!is_evicted && step < settled->least) settled->least = step;
    if (!effect->reply.save) return;
    settled->savers++;
    settled->saver_step = step;
}

// What one of them has applied, those who live keep; and one of them saves it.
static void judge_settlement(sim_world *world, const settlement *settled) {
    const rank_set *set = find(world->sets, settled->generation);
    if (world->sets->numbers_are_lost || (set && set->is_spoilt)) return;
    if (set && settled->reached < set->step && !settled->is_again)
        oracle_fail(world, "survivors of generation %u settle at step %" PRId64 ", and step %" PRId64 " was applied",
                    set->generation, settled->reached, set->step);
    if (set && set->step >= 0 && settled->reached > set->step && settled->least < settled->reached)
        oracle_fail(world, "survivors of generation %u settle at step %" PRId64 ", which not all of them hold", set->generation,
                    settled->reached);
    if (settled->savers > 1)
        oracle_fail(world, "%d survivors of generation %u are to save", settled->savers, settled->generation);
    if (settled->savers == 1 && settled->saver_step < settled->reached)
        oracle_fail(world, "a survivor is to save step %" PRId64 ", and another has step %" PRId64, settled->saver_step,
                    settled->reached);
    // Who comes back too late finds its directory closed.
    bool is_closed = fences_are_above(world, settled->job, coordinator_state(world)->cluster.id, settled->generation);
    if (settled->savers == 0 && !is_closed && settled->reached > promises_newest_save(world, settled->job))
        oracle_fail(world, "survivors settle at step %" PRId64 ", which nobody has saved, and nobody is to", settled->reached);
}

void sets_judge_settlements(sim_world *world) {
    for (int i = 0; i < world->sets->num_settled; i++) judge_settlement(world, &world->sets->settled[i]);
    world->sets->num_settled = 0;
}

void sets_see_effect(sim_world *world, const gs_effect *effect) {
    if (effect->kind == GS_DO_BEGIN_GENERATION) begin(world, effect->run);
    else if (effect->kind == GS_DO_ADD_JOB && !strcmp(effect->job->reason, "Adopted"))
        adopt(world, effect->job);
    else if (effect->kind == GS_DO_TELL_AGENT && effect->agent_message.order == GS_TELL_START_RANK) check_alone(world, effect);
    else if (effect->kind == GS_DO_NOTE && effect->job && (effect->note.fault || effect->job->run) && !strcmp(effect->note.reason, "Released"))
        know(world, effect->job->id)->released = effect->job->generation;
}

static void check_refused(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    if (event->was_admitted)
        oracle_fail(world, "a %s of a trainer or generation that is over was listened to", gs_engine_event_name(event->kind));
    if (event->kind == GS_ON_HELLO) return;  // its stream ends
    if (effects->count > 1 || (effects->count == 1 && effects->items[0].kind != GS_DO_REPLY))
        oracle_fail(world, "a %s of a trainer or generation that is over has led to something", gs_engine_event_name(event->kind));
}

void sets_took(sim_world *world, const gs_engine_event *event, const gs_effects *effects) {
    if (world->sets->is_stale) check_refused(world, event, effects);
}
