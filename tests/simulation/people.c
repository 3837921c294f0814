#include "tests/simulation/people.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/simulation/agent.h"
#include "tests/simulation/model.h"
#include "tests/simulation/promises.h"

#define PATIENCE_NS (5 * SECONDS)

static sim_people *of(sim_peer *peer) { return (sim_people *)(void *)peer; }

const sim_wish *people_wish_of(const sim_world *world, uint64_t job) {
    for (int i = 0; i < world->people->num_wishes; i++) {
        if (world->people->wishes[i].job == job) return &world->people->wishes[i];
    }
    return NULL;
}

static void create(sim_world *world, sim_wish *wish) {
    sim_people *people = world->people;
    gs_engine_event event = peer_event(&people->peer, GS_ON_CREATE_JOB, -1);
    gs_job_spec *spec = malloc(sizeof *spec);
    *spec = *model_spec();
    snprintf(spec->name, sizeof spec->name, "%s", wish->name);
    spec->steps.target = wish->target;
    spec->checkpoint.every_steps = wish->save_every;
    spec->world.min = wish->min;
    spec->world.max = wish->max;
    event.create = (gs_create_request){.spec = spec, .key = wish->key, .fingerprint = wish->fingerprint};
    wish->create_request = peer_call(world, &people->peer, &event);
    wish->asked_ns = world->now_ns;
}

void people_stop(sim_world *world, int index, bool now) {
    sim_people *people = world->people;
    sim_wish *wish = &people->wishes[index];
    if (!wish->job || wish->is_deleted) return;
    wish->wants_stop = true;
    gs_engine_event event = peer_event(&people->peer, GS_ON_STOP_JOB, -1);
    event.stop = (gs_stop_request){.job = wish->job_text, .now = now, .outcome = GS_JOB_CANCELLED, .grace_seconds = -1};
    world_tell(world, "people stop %s%s", wish->name, now ? " now" : "");
    wish->other_request = peer_call(world, &people->peer, &event);
}

void people_replan(sim_world *world, int index) {
    sim_people *people = world->people;
    sim_wish *wish = &people->wishes[index];
    if (!wish->job || wish->is_deleted) return;
    gs_engine_event event = peer_event(&people->peer, GS_ON_REPLAN_JOB, -1);
    event.replan.job = wish->job_text;
    peer_call(world, &people->peer, &event);
}

static void delete(sim_world *world, sim_wish *wish) {
    gs_engine_event event = peer_event(&world->people->peer, GS_ON_DELETE_JOB, -1);
    event.remove = (gs_delete_request){.job = wish->job_text, .purge = dice_chance(&world->dice, 0.5)};
    wish->other_request = peer_call(world, &world->people->peer, &event);
    promises_delete_asked(world, wish->job);
}

static void look_around(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    sim_people *people = world->people;
    const gs_state *state = coordinator_state(world);
    bool hears = peer_hears(world, &people->peer);
    for (int i = 0; i < people->num_wishes && hears; i++) {
        sim_wish *wish = &people->wishes[i];
        bool waits = wish->create_request && world->now_ns - wish->asked_ns < PATIENCE_NS;
        if (!wish->job && !waits && world->now_ns >= wish->asked_ns) create(world, wish);
        const gs_job *job = wish->job && state ? gs_job_table_get(&state->jobs, wish->job) : NULL;
        if (job && wish->wants_delete && gs_job_state_terminal(job->state) && !wish->other_request) delete(world, wish);
        if (job && wish->wants_stop && !gs_job_state_terminal(job->state) && !job->stop_asked && !wish->other_request)
            people_stop(world, i, false);
    }
    world_after(world, SECONDS, look_around, 0, NULL);
}

static void connected(sim_world *world, sim_peer *peer) {
    (void)world;
    (void)peer;
}

static void lost(sim_world *world, sim_peer *peer) {
    (void)world;
    for (int i = 0; i < of(peer)->num_wishes; i++) of(peer)->wishes[i].create_request = of(peer)->wishes[i].other_request = 0;
}

static void take_item(sim_world *world, sim_peer *peer, const sim_item *item) {
    (void)world;
    (void)peer;
    (void)item;
}

static void take_answer(sim_world *world, sim_peer *peer, const sim_answer *answer) {
    for (int i = 0; i < of(peer)->num_wishes; i++) {
        sim_wish *wish = &of(peer)->wishes[i];
        if (answer->request == wish->create_request) {
            wish->create_request = 0;
            if (answer->status.code) {
                world_tell(world, "%s is refused: %s", wish->name, answer->status.message);
                wish->asked_ns = world->now_ns + 2 * SECONDS;
                continue;
            }
            wish->job = answer->job;
            gs_job_id_format(wish->job_text, wish->job);
            world_tell(world, "%s is accepted as %s", wish->name, wish->job_text);
            promises_accepted(world, wish->key, wish->job);
        } else if (answer->request == wish->other_request) {
            wish->other_request = 0;
        }
    }
}

static const sim_peer_ops ops = {connected, lost, take_item, take_answer};

void people_create(sim_world *world) {
    sim_people *people = world->people = calloc(1, sizeof *people);
    sim_dice *dice = &world->dice;
    int num_slots = 0;
    for (int i = 0; i < world->num_agents; i++) num_slots += world->agents[i]->num_slots;
    people->num_wishes = (int)dice_between(dice, 1, MAX_WISHES);
    for (int i = 0; i < people->num_wishes; i++) {
        sim_wish *wish = &people->wishes[i];
        snprintf(wish->key, sizeof wish->key, "key-%d", i);
        snprintf(wish->name, sizeof wish->name, "job-%d", i);
        snprintf(wish->fingerprint, sizeof wish->fingerprint, "print-%d", i);
        int most = num_slots < 5 ? num_slots : 5;
        wish->max = dice_between(dice, 1, most);
        wish->min = dice_between(dice, 1, wish->max);
        wish->target = dice_between(dice, 10, 150);
        wish->save_every = dice_chance(dice, 0.8) ? dice_between(dice, 3, 25) : 0;
        wish->asked_ns = world->now_ns + dice_between(dice, 0, 25) * SECONDS;
        wish->wants_delete = dice_chance(dice, 0.2);
    }
    people->peer = (sim_peer){.kind = CALLER_PEOPLE, .ops = &ops, .line = &people->line, .incarnation = 1};
    peer_create(world, &people->peer);
    world_after(world, SECONDS, look_around, 0, NULL);
}

void people_destroy(sim_world *world) { free(world->people); }
