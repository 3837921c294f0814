#include "tests/simulation/world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/agent.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/people.h"
#include "tests/simulation/trainer.h"

#define LIFE (70 * SECONDS)    // with faults
#define CALM (400 * SECONDS)  // at most, until all jobs have ended

const sim_world *world_of_clock;

uint64_t world_new_id(sim_world *world) { return ++world->last_id; }

static bool comes_before(const world_appointment *a, const world_appointment *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(world_appointment *a, world_appointment *b) {
    world_appointment kept = *a;
    *a = *b;
    *b = kept;
}

void world_after_owned(sim_world *world, int64_t delay_ns, world_deed deed, uint64_t whom, void *what,
                       void (*release)(void *what)) {
    if (world->num_appointments == world->max_appointments) {
        world->max_appointments = world->max_appointments ? world->max_appointments * 2 : 256;
        world->heap = realloc(world->heap, world->max_appointments * sizeof *world->heap);
        if (!world->heap) abort();
    }
    size_t at = world->num_appointments++;
    world->heap[at] = (world_appointment){.at_ns = world->now_ns + (delay_ns > 0 ? delay_ns : 0),
                                          .order = ++world->num_made,
                                          .deed = deed,
                                          .whom = whom,
                                          .what = what,
                                          .release = release};
    while (at > 0 && comes_before(&world->heap[at], &world->heap[(at - 1) / 2])) {
        swap(&world->heap[at], &world->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
}

void world_after(sim_world *world, int64_t delay_ns, world_deed deed, uint64_t whom, void *what) {
    world_after_owned(world, delay_ns, deed, whom, what, free);
}

static world_appointment take_next(sim_world *world) {
    world_appointment next = world->heap[0];
    world->heap[0] = world->heap[--world->num_appointments];
    for (size_t at = 0;;) {
        size_t least = at, left = 2 * at + 1, right = left + 1;
        if (left < world->num_appointments && comes_before(&world->heap[left], &world->heap[least])) least = left;
        if (right < world->num_appointments && comes_before(&world->heap[right], &world->heap[least])) least = right;
        if (least == at) return next;
        swap(&world->heap[at], &world->heap[least]);
        at = least;
    }
}

void world_tell(const sim_world *world, const char *format, ...) {
    if (!world->options.tells) return;
    va_list args;
    va_start(args, format);
    printf("%9.4f  ", (double)world->now_ns / 1e9);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

static void calm_down(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    world_tell(world, "-- no more faults");
    world->is_calm = true;
    faults_mend_all(world);
}

void world_create(sim_world *world, const world_options *options) {
    memset(world, 0, sizeof *world);
    world->options = *options;
    world_of_clock = world;
    world->dice = dice_of_seed(options->seed);
    world->is_of_before = options->seed % 8 == 6;
    world->now_ns = SECONDS;
    world->wall_ms = INT64_C(1790000000000);
    world->end_ns = LIFE + CALM;
    oracle_create(world);
    disk_create(world);
    coordinator_create(world);
    world->num_agents = (int)dice_between(&world->dice, 2, MAX_AGENTS);
    for (int i = 0; i < world->num_agents; i++) {
        bool is_late = i > 0 && dice_chance(&world->dice, 0.2);
        agent_create(world, i, is_late ? dice_between(&world->dice, 1, 40) * SECONDS : 0);
    }
    people_create(world);
    if (options->has_faults) faults_plan(world, LIFE);
    world_after(world, LIFE, calm_down, 0, NULL);
}

void world_destroy(sim_world *world) {
    while (world->num_appointments > 0) {
        world_appointment next = take_next(world);
        if (next.what) next.release(next.what);
    }
    coordinator_destroy(world);
    people_destroy(world);
    for (int i = 0; i < world->num_agents; i++) agent_destroy(world->agents[i]);
    trainers_destroy(world);
    disk_destroy(world);
    oracle_destroy(world);
    free(world->heap);
    world_of_clock = NULL;
}

void world_run(sim_world *world) {
    while (world->num_appointments > 0 && !oracle_is_done(world)) {
        world_appointment next = take_next(world);
        if (next.at_ns > world->end_ns) {
            if (next.what) next.release(next.what);
            break;
        }
        world->wall_ms += (next.at_ns - world->now_ns) / MILLISECONDS;
        world->now_ns = next.at_ns;
        next.deed(world, next.whom, next.what);
    }
    oracle_judge_end(world);
}
