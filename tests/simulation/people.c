#include "tests/simulation/people.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/agent.h"
#include "tests/simulation/model.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"

#define PATIENCE_NS (5 * SECONDS)
#define MEDDLES 0.004  // with an effect that tempts
#define REGRETS 0.1    // that something is deleted
#define GOES_BACK 0.3  // of releases
#define IMPATIENCE 0.05  // a second, with a job that does not train

static sim_people *of(sim_peer *peer) { return (sim_people *)(void *)peer; }

const sim_wish *people_wish_of(const sim_world *world, uint64_t job) {
    for (int i = 0; i < world->people->num_wishes; i++) {
        if (world->people->wishes[i].job == job) return &world->people->wishes[i];
    }
    return NULL;
}

static uint64_t ask(sim_world *world, sim_wish *wish, const char *fingerprint) {
    sim_people *people = world->people;
    gs_engine_event event = peer_event(&people->peer, GS_ON_CREATE_JOB, -1);
    gs_job_spec *spec = malloc(sizeof *spec);
    *spec = *wish->spec;
    event.create = (gs_create_request){.spec = spec, .key = wish->key, .fingerprint = fingerprint};
    if (!wish->first_asked_ns) wish->first_asked_ns = world->now_ns;
    return peer_call(world, &people->peer, &event);
}

static void create(sim_world *world, sim_wish *wish) {
    wish->create_request = ask(world, wish, wish->fingerprint);
    wish->asked_ns = world->now_ns;
}

// The same key once more, perhaps for something else.
static void ask_again(sim_world *world, sim_wish *wish) {
    bool other = wish->job && dice_chance(&world->dice, 0.3);
    uint64_t request = ask(world, wish, other ? "another" : wish->fingerprint);
    if (!other) wish->again_request = request;
}

static void stop(sim_world *world, sim_wish *wish) {
    bool now = dice_chance(&world->dice, 0.4);
    wish->wants_stop = true;
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_STOP_JOB, -1);
    event.stop = (gs_stop_request){.job = wish->job_text,
                                   .now = now,
                                   .outcome = dice_chance(&world->dice, 0.3) ? GS_JOB_SUCCEEDED : GS_JOB_CANCELLED,
                                   .grace_seconds = dice_chance(&world->dice, 0.2) ? 1 : -1};
    world_tell(world, "people stop %s%s", wish->name, now ? " now" : "");
    wish->stop_request = peer_call(world, &world->people->peer, &event);
}

// Whose id they have not been told yet; nobody waits for the answer.
static void stop_by_name(sim_world *world, sim_wish *wish) {
    wish->wants_stop = true;
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_STOP_JOB, -1);
    event.stop = (gs_stop_request){.job = wish->name, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    world_tell(world, "people stop %s by its name", wish->name);
    peer_call(world, &world->people->peer, &event);
}

static void replan(sim_world *world, sim_wish *wish) {
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_REPLAN_JOB, -1);
    event.replan.job = wish->job_text;
    world_tell(world, "people plan %s anew", wish->name);
    peer_call(world, &world->people->peer, &event);
}

// As the list of checkpoints shows it; 0: none.
static int64_t any_step(sim_world *world, const sim_wish *wish) {
    const gs_state *state = coordinator_state(world);
    const gs_job *job = state ? gs_job_table_get(&state->jobs, wish->job) : NULL;
    if (!job || !job->checkpoints.count) return 0;
    return job->checkpoints.items[dice_between(&world->dice, 0, (int64_t)job->checkpoints.count - 1)].step;
}

static void release(sim_world *world, sim_wish *wish, bool goes_back) {
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_RELEASE_JOB, -1);
    event.release.job = wish->job_text;
    if (goes_back) event.release.step = any_step(world, wish);
    world_tell(world, "people give up who is out of reach of %s, from step %lld on", wish->name, (long long)event.release.step);
    sets_given_up(world, wish->job);
    wish->release_request = peer_call(world, &world->people->peer, &event);
}

static void release_somehow(sim_world *world, sim_wish *wish) {
    release(world, wish, !world->is_calm && dice_chance(&world->dice, GOES_BACK));
}

static void adopt(sim_world *world, sim_wish *wish) {
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_ADOPT_JOB, -1);
    event.adopt.job = wish->job_text;
    world_tell(world, "people adopt the trainers of %s", wish->name);
    wish->adopt_request = peer_call(world, &world->people->peer, &event);
}

static void delete(sim_world *world, sim_wish *wish) {
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_DELETE_JOB, -1);
    event.remove = (gs_delete_request){.job = wish->job_text, .purge = dice_chance(&world->dice, 0.5)};
    world_tell(world, "people delete %s", wish->name);
    wish->delete_request = peer_call(world, &world->people->peer, &event);
    promises_delete_asked(world, wish->job);
}

static void meddle_with(sim_world *world, uint64_t index, void *what) {
    (void)what;
    sim_wish *wish = &world->people->wishes[index];
    if (world->is_calm || wish->is_deleted || !peer_hears(world, &world->people->peer)) return;
    int64_t which = dice_between(&world->dice, 0, 10);
    if (!wish->job && which >= 8) stop_by_name(world, wish);
    else if (!wish->job || which == 0) ask_again(world, wish);
    else if (which <= 4) stop(world, wish);
    else if (which <= 6) replan(world, wish);
    else if (which <= 8) release_somehow(world, wish);
    else if (which == 9) adopt(world, wish);
    else delete(world, wish);
}

void people_meddle(sim_world *world) {
    meddle_with(world, (uint64_t)dice_between(&world->dice, 0, world->people->num_wishes - 1), NULL);
}

static void delete_given_up(sim_world *world, uint64_t index, void *what) {
    (void)what;
    sim_wish *wish = &world->people->wishes[index];
    if (!world->is_calm && !wish->is_deleted && peer_hears(world, &world->people->peer)) delete(world, wish);
}

static void release_soon(sim_world *world, uint64_t index, void *what) {
    (void)what;
    sim_wish *wish = &world->people->wishes[index];
    if (!world->is_calm && wish->job && !wish->is_deleted && peer_hears(world, &world->people->peer)) release_somehow(world, wish);
}

void people_release_soon(sim_world *world) {
    uint64_t index = (uint64_t)dice_between(&world->dice, 0, world->people->num_wishes - 1);
    world_after(world, dice_delay_ns(&world->dice, 2 * SECONDS), release_soon, index, NULL);
}

void people_give_up(sim_world *world) {
    uint64_t index = (uint64_t)dice_between(&world->dice, 0, world->people->num_wishes - 1);
    sim_wish *wish = &world->people->wishes[index];
    if (!wish->job || wish->is_deleted || !peer_hears(world, &world->people->peer)) return;
    stop(world, wish);
    for (int i = 1; i <= 3; i++) world_after(world, i * 400 * MILLISECONDS, delete_given_up, index, NULL);
}

static double chance_of_meddling(const gs_effect *effect) {
    switch (effect->kind) {
    case GS_DO_WRITE_JOB:
    case GS_DO_ADD_JOB:
    case GS_DO_SHOW_JOB:
    case GS_DO_END_JOB:
    case GS_DO_BEGIN_GENERATION:
    case GS_DO_END_RUN:
    case GS_DO_TELL_MEMBER:
    case GS_DO_TELL_AGENT:
    case GS_DO_SHOW_PLAN: return MEDDLES;
    case GS_DO_DELETE_JOB: return REGRETS;
    default: return 0;
    }
}

void people_see_effect(sim_world *world, const gs_effect *effect) {
    double chance = chance_of_meddling(effect);
    if (world->is_calm || !effect->job || !chance || !dice_chance(&world->dice, chance)) return;
    const sim_people *people = world->people;
    for (int i = 0; i < people->num_wishes; i++) {
        if (people->wishes[i].job != effect->job->id) continue;
        int64_t typical_ns = dice_chance(&world->dice, 0.5) ? MILLISECONDS / 2 : 300 * MILLISECONDS;
        world_after(world, dice_delay_ns(&world->dice, typical_ns), meddle_with, (uint64_t)i, NULL);
    }
}

// As the list of workers shows it.
static bool runs_unknown(const gs_state *state, uint64_t job) {
    for (size_t i = 0; i < state->agents.count; i++) {
        const gs_agent *agent = state->agents.items[i];
        for (int slot = 0; slot < agent->num_slots; slot++) {
            if (agent->slots[slot].is_unknown && agent->slots[slot].job == job) return true;
        }
    }
    return false;
}

static void look_after(sim_world *world, sim_wish *wish) {
    bool waits = wish->create_request && world->now_ns - wish->asked_ns < PATIENCE_NS;
    if (!wish->job && !wish->is_forgotten && !waits && world->now_ns >= wish->asked_ns) create(world, wish);
    const gs_state *state = coordinator_state(world);
    const gs_job *job = wish->job && state ? gs_job_table_get(&state->jobs, wish->job) : NULL;
    // What is left of it keeps its slots until somebody adopts it, or lets it go.
    bool is_gone = !job && (wish->is_deleted || promises_is_excused(world, wish->job));
    bool is_unknown = wish->job && state && runs_unknown(state, wish->job);
    if (is_unknown && !job && !wish->adopt_request && dice_chance(&world->dice, 0.2)) adopt(world, wish);
    else if ((is_gone || is_unknown) && world->is_calm && dice_chance(&world->dice, 0.2)) release_somehow(world, wish);
    if (!job) return;
    bool ended = gs_job_state_terminal(job->state);
    // Somebody loses patience with ranks that are away, or wants to go back.
    bool may_go_back = !ended && !job->stop_asked && (!job->run || job->state == GS_JOB_RECOVERING || job->run->unheard);
    if (may_go_back && !world->is_calm && job->checkpoints.count > 1 && dice_chance(&world->dice, IMPATIENCE)) release(world, wish, true);
    bool waits_for_disk = !ended && !strcmp(job->reason, "CheckpointsUnavailable");
    if (waits_for_disk && !wish->release_request && dice_chance(&world->dice, 0.2)) release_somehow(world, wish);
    if (ended && wish->wants_delete && !wish->delete_request) delete(world, wish);
    if (!ended && wish->wants_stop && !job->stop_asked && !wish->stop_request) stop(world, wish);
}

static void look_around(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    sim_people *people = world->people;
    bool hears = peer_hears(world, &people->peer);
    for (int i = 0; i < people->num_wishes && hears; i++) look_after(world, &people->wishes[i]);
    world_after(world, SECONDS, look_around, 0, NULL);
}

// Whoever had no answer sends it once more, and some do whose answer is old.
static void connected(sim_world *world, sim_peer *peer) {
    for (int i = 0; i < of(peer)->num_wishes; i++) {
        if (of(peer)->wishes[i].job && !world->is_calm && dice_chance(&world->dice, 0.05)) ask_again(world, &of(peer)->wishes[i]);
    }
}

static void lost(sim_world *world, sim_peer *peer) {
    (void)world;
    for (int i = 0; i < of(peer)->num_wishes; i++) {
        sim_wish *wish = &of(peer)->wishes[i];
        wish->create_request = wish->again_request = wish->stop_request = wish->delete_request = wish->release_request = 0;
        wish->adopt_request = 0;
    }
}

static void take_item(sim_world *world, sim_peer *peer, const sim_item *item) {
    (void)world;
    (void)peer;
    (void)item;
}

static void take_created(sim_world *world, sim_wish *wish, const sim_answer *answer, bool is_first) {
    if (answer->status.code) {
        world_tell(world, "%s is refused: %s", wish->name, answer->status.message);
        wish->is_forgotten |= answer->is_forgotten;
        if (is_first) wish->asked_ns = world->now_ns + 2 * SECONDS;
        return;
    }
    if (!wish->job) {
        wish->job = answer->job;
        gs_job_id_format(wish->job_text, wish->job);
    }
    world_tell(world, "%s is accepted as %s", wish->name, wish->job_text);
    promises_accepted(world, wish->key, answer->job);
}

static void take_answer_for(sim_world *world, sim_wish *wish, const sim_answer *answer) {
    bool is_ok = !answer->status.code;
    if (answer->request == wish->create_request) {
        wish->create_request = 0;
        take_created(world, wish, answer, true);
    } else if (answer->request == wish->again_request) {
        wish->again_request = 0;
        if (!wish->is_deleted) take_created(world, wish, answer, false);
    } else if (answer->request == wish->stop_request) {
        wish->stop_request = 0;
        if (is_ok) promises_stopped(world, wish->job, answer->state);
    } else if (answer->request == wish->adopt_request) {
        wish->adopt_request = 0;
        world_tell(world, "%s %s", wish->name, is_ok ? "is adopted" : answer->status.message);
        if (is_ok) sets_adopted(world, wish->job);
    } else if (answer->request == wish->delete_request) {
        wish->delete_request = 0;
        wish->is_deleted = is_ok;
        if (is_ok) promises_deleted(world, wish->job);
        else if (answer->status.code == GS_FAILED_PRECONDITION) promises_delete_refused(world, wish->job);
    }
}

static void take_answer(sim_world *world, sim_peer *peer, const sim_answer *answer) {
    if (!answer->request) return;
    for (int i = 0; i < of(peer)->num_wishes; i++) take_answer_for(world, &of(peer)->wishes[i], answer);
}

static const sim_peer_ops ops = {connected, lost, take_item, take_answer};

// Small budgets, deadlines and patience, so that jobs also end by them.
static void draw_limits(sim_dice *dice, gs_job_spec *spec) {
    if (dice_chance(dice, 0.15)) spec->steps.deadline_seconds = (double)dice_between(dice, 5, 60);
    if (dice_chance(dice, 0.15)) spec->world.wait_seconds = (double)dice_between(dice, 2, 30);
    if (dice_chance(dice, 0.3)) spec->world.join_window_seconds = (double)dice_between(dice, 0, 6);
    if (dice_chance(dice, 0.3)) spec->restart.max_restarts = dice_between(dice, 0, 2);
    if (dice_chance(dice, 0.15)) spec->restart.on_worker_lost = GS_ON_FAIL;
    if (dice_chance(dice, 0.2)) spec->restart.on_worker_lost = GS_ON_RESTART;
    if (dice_chance(dice, 0.3)) spec->restart.on_worker_error = GS_ON_RESTART;
    if (dice_chance(dice, 0.3)) spec->reducer.rebuild_after_steps = dice_between(dice, 1, 5);
    if (dice_chance(dice, 0.2)) spec->checkpoint.on_stop = false;
    if (dice_chance(dice, 0.3)) spec->checkpoint.keep_last = dice_between(dice, 1, 2);
}

static void draw_wish(sim_world *world, sim_wish *wish, int number, int num_slots) {
    sim_dice *dice = &world->dice;
    snprintf(wish->key, sizeof wish->key, "key-%d", number);
    snprintf(wish->name, sizeof wish->name, "job-%d", number);
    snprintf(wish->fingerprint, sizeof wish->fingerprint, "print-%d", number);
    int most = num_slots < 5 ? num_slots : 5;
    gs_job_spec *spec = wish->spec = malloc(sizeof *spec);
    *spec = *model_spec();
    snprintf(spec->name, sizeof spec->name, "%s", wish->name);
    spec->world.max = dice_between(dice, most > 1 ? 2 : 1, most);
    spec->world.min = dice_between(dice, 1, spec->world.max);
    spec->steps.target = dice_between(dice, 10, 150);
    spec->checkpoint.every_steps = dice_chance(dice, 0.8) ? dice_between(dice, 3, 25) : 0;
    draw_limits(dice, spec);
    if (dice_chance(dice, 0.1)) wish->data_steps = dice_between(dice, 5, spec->steps.target);
    wish->asked_ns = world->now_ns + dice_between(dice, 0, 25) * SECONDS;
    wish->wants_delete = dice_chance(dice, 0.2);
}

void people_create(sim_world *world) {
    sim_people *people = world->people = calloc(1, sizeof *people);
    int num_slots = 0;
    for (int i = 0; i < world->num_agents; i++) num_slots += world->agents[i]->num_slots;
    people->num_wishes = (int)dice_between(&world->dice, 2, MAX_WISHES);
    for (int i = 0; i < people->num_wishes; i++) draw_wish(world, &people->wishes[i], i, num_slots);
    people->peer = (sim_peer){.kind = CALLER_PEOPLE, .ops = &ops, .line = &people->line, .incarnation = 1};
    peer_create(world, &people->peer);
    world_after(world, SECONDS, look_around, 0, NULL);
}

void people_destroy(sim_world *world) {
    for (int i = 0; i < world->people->num_wishes; i++) free(world->people->wishes[i].spec);
    free(world->people);
}
