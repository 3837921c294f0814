#include "tests/simulation/fences.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static job_fence *find(const sim_world *world, uint64_t job) {
    for (job_fence *fence = world->fences; fence; fence = fence->next) {
        if (fence->job == job) return fence;
    }
    return NULL;
}

void fences_destroy(sim_world *world) {
    for (job_fence *fence = world->fences, *next; fence; fence = next) {
        next = fence->next;
        free(fence);
    }
    world->fences = NULL;
}

void fences_raise(sim_world *world, uint64_t job, const char *cluster, uint32_t generation) {
    job_fence *fence = find(world, job);
    if (!fence) {
        fence = calloc(1, sizeof *fence);
        fence->job = job;
        fence->next = world->fences;
        world->fences = fence;
    }
    if (!strcmp(fence->cluster, cluster) && fence->generation > generation) return;
    bool is_new = fence->generation != generation || strcmp(fence->cluster, cluster) != 0;
    if (is_new) fence->raised_ns = world->now_ns;
    snprintf(fence->cluster, sizeof fence->cluster, "%s", cluster);
    fence->generation = generation;
    fence->is_closed = false;
}

static void close_to(sim_world *world, uint64_t job, const char *cluster, uint32_t generation) {
    fences_raise(world, job, cluster, generation + 1);
    find(world, job)->is_closed = true;
}

bool fences_are_above(const sim_world *world, uint64_t job, const char *cluster, uint32_t generation) {
    const job_fence *fence = find(world, job);
    return fence && generation && (strcmp(fence->cluster, cluster) || fence->generation > generation);
}

uint32_t fences_left_by(const sim_world *world, uint64_t job, const char *cluster) {
    const job_fence *fence = find(world, job);
    return fence && !strcmp(fence->cluster, cluster) ? fence->generation - fence->is_closed : 0;
}

int64_t fences_raised_ns(const sim_world *world, uint64_t job) {
    const job_fence *fence = find(world, job);
    return fence ? fence->raised_ns : 0;
}

void fences_sign(sim_world *world, uint64_t job, uint32_t generation) {
    job_fence *fence = find(world, job);
    if (!fence || fence->generation != generation) return;
    fence->signed_by = generation;
    fence->number++;
}

void fences_look(sim_world *world, uint64_t job, const char *cluster, gs_life_look *life) {
    const job_fence *fence = find(world, job);
    bool is_theirs = fence && !strcmp(fence->cluster, cluster);
    int64_t number = is_theirs && fence->signed_by == life->generation ? fence->number : 0;
    bool is_same = number == life->number;
    life->number = number;
    life->stands = is_theirs && fence->generation == life->generation;
    if (life->raises && life->stands && is_same) close_to(world, job, cluster, life->generation);
    life->is_raised = is_theirs && fence->generation > life->generation;
    if (life->is_raised) world_tell(world, "disk: the directory is closed to generation %u", life->generation);
}
